"""Checks before any long work, against real processes with faults."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bigfs
from bigfs.core.errors import ClusterError, InputError, MemoryLimitError
from bigfs.core.memory import peak_bytes
from bigfs.core.threads import blas_kernels
from bigfs.pipeline.run import run
from bigfs.runtime import workers as talking
from bigfs.runtime.workers import check_workers, on_every_process, preflight, worker_limits
from tests.cluster._processes import pretend, scheduler, worker

_DASK = ("-m", "dask", "worker")
pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def hub() -> Iterator[Any]:
    """A scheduler in this process; each test brings its own workers."""
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=0,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        scheduler_kwargs={"dashboard": False},
    ) as running:
        yield running


@pytest.fixture
def client(hub: Any) -> Iterator[Any]:
    from distributed import Client

    with Client(hub.scheduler_address) as connected, talking.patience(30):
        yield connected


def _wait_for(client: Any, n_workers: int) -> dict[str, str]:
    """Return the workers' addresses by name, once there are so many."""
    deadline = time.monotonic() + 60
    while len(workers := talking.workers_of(client)) != n_workers:
        assert time.monotonic() < deadline, workers
        time.sleep(0.1)
    return {info["name"]: address for address, info in workers.items()}


def test_without_a_cluster_there_is_nothing_to_check(tmp_path: Path) -> None:
    preflight(tmp_path / "not there")
    assert on_every_process(os.getpid) == {"this process": os.getpid()}
    ((process, limit),) = worker_limits().items()
    assert process == "this process"
    assert limit > peak_bytes()


def test_workers_that_are_not_right_are_named_whenever_they_join(
    client: Any, tmp_path: Path
) -> None:
    address = client.scheduler.address
    with worker(address, tmp_path, name="good"):
        preflight(tmp_path)
        assert [*worker_limits().values()] == [4 * 2**30]
        other = pretend(tmp_path, "numpy", "1.26.0")
        with worker(address, tmp_path, name="late", env=other, memory="0"):
            late = _wait_for(client, 2)["late"]
            message = f"{late} has numpy 1.26.0 \\(here {np.__version__}\\).*Install the same"
            with pytest.raises(ClusterError, match=message):
                check_workers(tmp_path)
            # Without a limit of its own it has what the machine has.
            assert worker_limits()[late] > 2**30
        _wait_for(client, 1)
        code = tmp_path / "other" / "bigfs"
        shutil.copytree(Path(bigfs.__file__).parent, code)
        (code / "metrics.py").write_text(f"{(code / 'metrics.py').read_text()}# changed\n")
        edited = {"PYTHONPATH": str(code.parent)}
        with worker(address, tmp_path, name="edited", python=("-P", *_DASK), env=edited):
            _wait_for(client, 2)
            with pytest.raises(ClusterError, match=r"has the code of bigfs \w{12} \(here \w{12}\)"):
                check_workers(tmp_path)
        _wait_for(client, 1)
        blind = "import sys; sys.modules['bigfs'] = None; from dask.__main__ import main; main()"
        with worker(address, tmp_path, name="blind", python=("-c", blind, "worker")):
            _wait_for(client, 2)
            with pytest.raises(ClusterError, match="cannot import this bigfs"):
                check_workers(tmp_path)
        _wait_for(client, 1)
        with worker(address, tmp_path, name="small", memory="512MiB"):
            _wait_for(client, 2)
            with pytest.raises(MemoryLimitError, match="limit of 512 MiB.*--memory-limit 4GiB"):
                check_workers(tmp_path)
        _wait_for(client, 1)
        check_workers(tmp_path)
    assert not [*tmp_path.glob("token-*")]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the kernels named are those of x86-64")
def test_workers_that_compute_with_other_kernels_are_warned_of(
    client: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with worker(client.scheduler.address, tmp_path, name="same"):
        preflight(tmp_path)
        assert "kernels" not in caplog.text
        other = "Nehalem" if blas_kernels() == "Haswell" else "Haswell"
        with worker(
            client.scheduler.address, tmp_path, name="other", env={"OPENBLAS_CORETYPE": other}
        ):
            address = _wait_for(client, 2)["other"]
            check_workers(tmp_path)
            message = f"its {blas_kernels()} kernels here, but others on 1 of 1 workers"
            assert f"{message} ({address}: {other})" in caplog.text
            caplog.clear()
            check_workers(tmp_path)
            assert "kernels" not in caplog.text


def _can_mount() -> bool:
    command = ("unshare", "--mount", "sh", "-c", "mount -t tmpfs none /mnt")
    try:
        return subprocess.run(command, capture_output=True, timeout=200).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.skipif(
    not _can_mount(),
    reason="a worker with another disk needs a mount namespace (root, util-linux)",
)
def test_a_worker_that_does_not_share_the_run_directory_is_named(
    client: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    hidden = f"mount -t tmpfs none '{folder}' && exec \"$@\""
    elsewhere = ("unshare", "--mount", "sh", "-c", hidden, "sh")
    with worker(client.scheduler.address, tmp_path, name="alone", before=elsewhere):
        address = _wait_for(client, 1)["alone"]
        with pytest.raises(InputError, match=f"{address}.*do not share.*FileNotFoundError"):
            preflight(folder)
    assert not [*folder.iterdir()]


def test_a_frozen_worker_is_not_waited_for_without_an_end(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with worker(client.scheduler.address, tmp_path) as started:
        _wait_for(client, 1)
        preflight(tmp_path)
        os.kill(started.pid, signal.SIGSTOP)
        monkeypatch.setattr(talking, "ANSWER_SECONDS", 2.0)
        try:
            with pytest.raises(ClusterError, match="within 2 s. Restart processes that hang"):
                on_every_process(os.getpid)
        finally:
            os.kill(started.pid, signal.SIGCONT)
    _wait_for(client, 0)
    with talking.patience(0.5), pytest.raises(ClusterError, match="no worker for 0 s"):
        check_workers(tmp_path)


def test_a_scheduler_of_another_version_or_without_workers(tmp_path: Path, bare: None) -> None:
    other = pretend(tmp_path, "dask", "2025.1.0")
    config: dict[str, Any] = {
        "run": str(tmp_path / "run"),
        "input": {"uri": "sklearn:iris"},
        "method": "max_variance",
        "n_features_to_select": 2,
    }
    with scheduler(tmp_path, env=other) as file:
        remote = {"kind": "remote", "address": str(file), "wait_seconds": 1}
        began = time.monotonic()
        with pytest.raises(ClusterError, match="has had no worker for 1 s") as caught:
            run({**config, "cluster": remote})
        assert time.monotonic() - began < 20
        assert caught.value.exit_code == 4
        with worker(file, tmp_path):
            with pytest.raises(ClusterError, match=r"the scheduler has dask 2025.1.0 \(here"):
                run(config, scheduler=str(file))
    assert not (tmp_path / "run").exists()


def _answer_with(name: str) -> None:
    """Let this process answer the client's token with a name."""
    import sys

    sys.modules["bigfs.runtime.workers"]._answer_token = lambda *_: name  # type: ignore[attr-defined]


def test_a_worker_that_names_another_file_removes_nothing(client: Any, tmp_path: Path) -> None:
    """The file that is removed comes from a worker's answer: it must be that of its token."""
    years = tmp_path / "years"
    years.write_text("of work")
    with worker(client.scheduler.address, tmp_path, name="liar"):
        address = _wait_for(client, 1)["liar"]
        for i, name in enumerate(("../years", str(years), "notes.txt")):
            folder = tmp_path / f"run-{i}"
            folder.mkdir()
            (folder / "notes.txt").write_text("mine")
            client.run(_answer_with, name)
            with pytest.raises(InputError, match=f"{address} and this client do not share"):
                preflight(folder)
            assert years.exists() and [path.name for path in folder.iterdir()] == ["notes.txt"]
