"""Whole runs on clusters, beside others, and interrupted."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.datasets import load_digits

from bigfs import ingest
from bigfs.core.errors import RunLockedError
from bigfs.pipeline.run import run
from bigfs.results.result import open_result


def _config(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "run": str(folder / "run"),
        "input": {"uri": "sklearn:digits"},
        "n_features_to_select": 20,
        "mcfs": {"n_clusters": 10},
        **changes,
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    run(_config(folder))
    return folder / "run"


@pytest.mark.cluster
def test_a_local_cluster_gives_the_same_ranking(finished: Path, tmp_path: Path) -> None:
    result = run(_config(tmp_path, cluster={"kind": "local", "n_workers": 2}))
    _assert_same(result, finished)


def _assert_same(result: Any, finished: Path) -> None:
    expected = open_result(finished)
    np.testing.assert_array_equal(result.ranking, expected.ranking)
    assert result.scores.tobytes() == expected.scores.tobytes()


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[str]:
    """A scheduler and two workers, each started by its own command."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    dask = [sys.executable, "-m", "dask"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    port = address.rsplit(":", 1)[1]
    commands = [
        [*dask, "scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard"],
        *2
        * [
            [
                *dask,
                "worker",
                address,
                "--nthreads",
                "1",
                "--no-dashboard",
                "--memory-limit",
                "4GiB",
                "--local-directory",
                str(tmp_path / "w"),
            ]
        ],
    ]
    processes = [subprocess.Popen(command, **quiet) for command in commands]
    try:
        yield address
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(30)


@pytest.mark.cluster
def test_a_remote_scheduler_gives_the_same_ranking(
    finished: Path, tmp_path: Path, remote: str
) -> None:
    _assert_same(run(_config(tmp_path), scheduler=remote), finished)


def _command(config: Path) -> list[str]:
    return [sys.executable, "-m", "bigfs.cli", "run", str(config)]


def _on_counts(folder: Path) -> dict[str, Any]:
    """Settings for the digits as counts, in a sparse store."""
    store = folder / "counts.zarr"
    ingest(csr_array(load_digits().data), store, rows=300)
    return {
        "input": {"uri": str(store)},
        "preprocess": "normalize_log1p",
        "graph": {"representation": "pca:10"},
    }


def _write_slow_config(folder: Path, **changes: Any) -> Path:
    """A run whose evaluation takes long enough to be interrupted."""
    import yaml

    evaluate = {"labels": "sklearn:digits", "n_repetitions": 2000, "n_init": 10}
    path = folder / "slow.yaml"
    path.write_text(yaml.safe_dump(_config(folder, evaluate=evaluate, **changes)))
    return path


def _wait_for_stage(folder: Path, name: str, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    manifest = folder / "run" / "manifest.json"
    while not (manifest.exists() and name in json.loads(manifest.read_text())["stages"]):
        assert process.poll() is None, process.communicate(timeout=60)
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.cluster
@pytest.mark.parametrize(
    "sent, code, sparse",
    [
        (signal.SIGINT, 130, False),
        (signal.SIGTERM, 130, False),
        (signal.SIGKILL, -9, False),
        (signal.SIGINT, 130, True),
    ],
    ids=["SIGINT", "SIGTERM", "SIGKILL", "SIGINT on counts"],
)
def test_an_interrupted_run_keeps_what_is_finished(
    tmp_path: Path, finished: Path, sent: signal.Signals, code: int, sparse: bool, bare: None
) -> None:
    changes = {}
    if sparse:
        changes, finished = _on_counts(tmp_path), tmp_path / "whole" / "run"
        run(_config(finished.parent, **changes))
    config = _write_slow_config(tmp_path, **changes)
    pipe = subprocess.PIPE
    process = subprocess.Popen(_command(config), stdout=pipe, stderr=pipe, text=True)
    _wait_for_stage(tmp_path, "result", process)
    process.send_signal(sent)
    _, output = process.communicate(timeout=30)
    assert process.returncode == code, output
    if sent != signal.SIGKILL:
        assert "run the same command to continue" in output
        assert not (tmp_path / "run" / "lease.json").exists()
        assert not (tmp_path / "run" / "attempts").exists()
    before = json.loads((tmp_path / "run" / "manifest.json").read_text())["stages"]
    result = run(_config(tmp_path, **changes))
    _assert_same(result, finished)
    assert ("components" in result.stages) == sparse
    attempts = {stage: result.stages[stage]["attempt"] for stage in before}
    assert attempts == {stage: record["attempt"] for stage, record in before.items()}
    assert not (tmp_path / "run" / "attempts").exists()


@pytest.mark.cluster
def test_a_second_run_beside_the_first_is_refused(tmp_path: Path) -> None:
    config = _write_slow_config(tmp_path)
    pipe = subprocess.PIPE
    first = subprocess.Popen(_command(config), stdout=pipe, stderr=pipe, text=True)
    try:
        _wait_for_stage(tmp_path, "result", first)
        second = subprocess.run(_command(config), capture_output=True, text=True, timeout=60)
        assert second.returncode == 75
        assert f"process {first.pid}" in second.stderr
        with pytest.raises(RunLockedError):
            run(_config(tmp_path))
    finally:
        first.kill()
        first.communicate(timeout=60)


@pytest.mark.cluster
def test_clusters_of_ours_listen_on_loopback_only() -> None:
    import psutil

    from bigfs.runtime.connection import local_cluster

    with local_cluster(1, 1, 2**30):
        me = psutil.Process()
        family = [me, *me.children(recursive=True)]
        heard = [c.laddr for p in family for c in p.net_connections("inet") if c.status == "LISTEN"]
    assert len(heard) >= 3
    assert {address.ip for address in heard} == {"127.0.0.1"}
    assert 8787 not in {address.port for address in heard}
