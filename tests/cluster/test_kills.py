"""Workers that are killed or frozen while they work: the run completes with the same bits."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.datasets import load_digits

from bigfs import ingest, run
from bigfs.runtime.connection import local_cluster
from tests.cluster import _processes
from tests.cluster._jobs import finish, in_stage, manifest_of, start, wait_until, write_config

pytestmark = pytest.mark.cluster

GIB = 2**30


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "X.zarr"
    ingest(load_digits().data, path, rows=300)
    return path


def _config(folder: Path, store: Path, method: str, **changes: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {"n_clusters": 8}
    if method == "ndfs":
        settings |= {"max_iter": 30, "tol": 0.0}
    return {
        "run": str(folder / "run"),
        "input": {"uri": str(store)},
        "method": method,
        "n_features_to_select": 10,
        method: settings,
        "blocks": {"rows": 300},
        "evaluate": {"labels": "sklearn:digits", "n_repetitions": 4},
        **changes,
    }


@contextmanager
def _killing(cluster: Any, folder: Path, stages: list[str], after: float) -> Iterator[list[str]]:
    """Kill a worker in each of the stages as it comes, some seconds after it began."""
    killed: list[str] = []
    over = threading.Event()

    def body() -> None:
        for stage in stages:
            begun = in_stage(folder / "run", stage)
            while not begun():
                if over.wait(0.005):
                    return
            time.sleep(after)
            while not over.is_set():
                pids = [nanny.pid for nanny in list(cluster.workers.values()) if nanny.pid]
                if pids:
                    with suppress(ProcessLookupError):
                        os.kill(pids[len(killed) % len(pids)], signal.SIGKILL)
                        killed.append(stage)
                        break
                time.sleep(0.01)

    killer = threading.Thread(target=body)
    killer.start()
    try:
        yield killed
    finally:
        over.set()
        killer.join(timeout=60)


def _assert_equal(actual: Any, expected: Any) -> None:
    assert actual.scores.tobytes() == expected.scores.tobytes()
    np.testing.assert_array_equal(actual.ranking, expected.ranking)
    assert actual.evaluation == expected.evaluation


def _files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


@pytest.mark.parametrize("method", ["mcfs", "ndfs", "mcfs on counts"])
def test_a_worker_killed_in_every_stage(
    method: str, tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distributed import Client

    (tmp_path / "whole").mkdir()
    stages, changes = ["graph", "spectral", "result", "evaluation"], {}
    if method == "mcfs on counts":
        method, stages = "mcfs", ["components", *stages]
        changes = {"preprocess": "normalize_log1p", "graph": {"representation": "pca:10"}}
        store = tmp_path / "counts.zarr"
        ingest(csr_array(load_digits().data), store, rows=300)
        # As if they were too large to be dense.
        monkeypatch.setattr("bigfs.stages.stage.is_large", lambda shape: True)
    undisturbed = run(_config(tmp_path / "whole", store, method, **changes))
    with (
        local_cluster(2, 1, GIB) as cluster,
        Client(cluster),
        _killing(cluster, tmp_path, stages, after=0.05) as killed,
    ):
        _assert_equal(run(_config(tmp_path, store, method, **changes)), undisturbed)
    assert killed == stages, "a stage was over before a worker was killed in it"
    assert _files(tmp_path / "run") == _files(tmp_path / "whole" / "run"), "files are left"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["mcfs", "ndfs"])
def test_a_worker_killed_in_pynndescent(
    method: str, tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distributed import Client

    graph = {"algorithm": "pynndescent", "n_neighbors": 5}
    (tmp_path / "whole").mkdir()
    with local_cluster(1, 1, GIB) as cluster, Client(cluster):
        undisturbed = run(_config(tmp_path / "whole", store, method, graph=graph))
    # Without kept code a new process compiles the search for about 25 s, and is killed within.
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    with (
        local_cluster(1, 1, GIB) as cluster,
        Client(cluster),
        _killing(cluster, tmp_path, ["graph"], after=10.0) as killed,
    ):
        _assert_equal(run(_config(tmp_path, store, method, graph=graph)), undisturbed)
    assert killed == ["graph"]


def test_a_frozen_worker_that_wakes_up_changes_nothing(tmp_path: Path, store: Path) -> None:
    """Its task is done again, the job is killed and resumed, and then it goes on."""
    settings = {"n_clusters": 8, "max_iter": 120, "tol": 0.0}
    config = _config(tmp_path, store, "ndfs", ndfs=settings, evaluate=None)
    undisturbed = run({**config, "run": str(tmp_path / "whole")})
    path = write_config(tmp_path, config)
    patience = {"DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "5s"}
    states = (tmp_path / "run" / "checkpoints").glob

    def saved() -> int:
        """Return the time of the last checkpoint."""
        with suppress(FileNotFoundError):
            return max((state.stat().st_mtime_ns for state in states("*/state.npz")), default=0)
        return 0

    with (
        _processes.scheduler(tmp_path, env=patience) as file,
        _processes.worker(file, tmp_path, name="one") as single,
        _processes.worker(file, tmp_path, name="two"),
    ):
        job = start(path, "--scheduler", str(file))
        wait_until(saved, job)
        single.send_signal(signal.SIGSTOP)
        try:
            time.sleep(1)  # what was under way without it is done
            before = saved()
            wait_until(lambda: saved() > before, job)
            job.kill()
            finish(job)
            finished = {n: r["attempt"] for n, r in manifest_of(tmp_path / "run")["stages"].items()}
            assert set(finished) == {"graph", "spectral"}
            again = start(path, "--scheduler", str(file))
            before = saved()
            wait_until(lambda: saved() > before, again)
        finally:
            single.send_signal(signal.SIGCONT)
        output = finish(again)
    assert again.returncode == 0, output
    result = run(config)
    assert result.scores.tobytes() == undisturbed.scores.tobytes()
    stages = result.stages
    assert {name: stages[name]["attempt"] for name in finished} == finished
    assert _files(tmp_path / "run") == _files(tmp_path / "whole")
