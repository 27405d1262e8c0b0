"""Stability on workers: a killed job goes on with the fits that are there, a killed worker is lost.

The bits are those of threads of one process.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from sklearn.datasets import load_digits

from bigfs import ingest, run
from bigfs.runtime.connection import local_cluster
from tests.cluster._jobs import finish, start, wait_until, workers_of, write_config

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("store")
    ingest(load_digits().data, folder / "X.zarr", rows=300)
    return {
        "run": str(folder / "undisturbed"),
        "input": {"uri": str(folder / "X.zarr")},
        "method": "ndfs",
        "n_features_to_select": 10,
        "ndfs": {"n_clusters": 4, "max_iter": 20, "tol": 0.0},
        "stability": {"n_pairs": 6, "sample_size": 300},
        "quick": True,
        "random_state": 3,
    }


@pytest.fixture(scope="module")
def undisturbed(config: dict[str, Any]) -> str:
    return run(config).features_csv()


def test_the_bits_do_not_depend_on_the_workers(
    config: dict[str, Any], undisturbed: str, tmp_path: Path
) -> None:
    from distributed import Client

    with local_cluster(4, 1, 2**30) as cluster, Client(cluster):
        assert run({**config, "run": str(tmp_path / "run")}).features_csv() == undisturbed


def test_a_killed_job_goes_on_with_the_fits_that_are_there(
    config: dict[str, Any], undisturbed: str, tmp_path: Path
) -> None:
    place = tmp_path / "run"
    cluster = {"kind": "local", "n_workers": 2}
    path = write_config(tmp_path, {**config, "run": str(place), "cluster": cluster})

    def fits() -> dict[Path, int]:
        files = (place / "checkpoints").glob("result-*/fit-*.npz")
        return {file: file.stat().st_mtime_ns for file in files}

    job = start(path)
    wait_until(lambda: len(fits()) >= 3, job)
    job.kill()
    finish(job)
    kept = fits()
    assert 3 <= len(kept) < 12
    again = start(path)

    def killed_a_worker() -> bool:
        """Kill a worker once there are more fits than before."""
        workers = workers_of(again)
        if len(fits()) <= len(kept) or not workers:
            return False
        assert {file: fits().get(file) for file in kept} == kept, "a fit was done again"
        os.kill(workers[0].pid, signal.SIGKILL)
        return True

    wait_until(killed_a_worker, again)
    output = finish(again)
    assert again.returncode == 0, output
    assert f"{len(kept)} of 12 fits were finished by an earlier run" in output
    assert (place / "features.csv").read_text() == undisturbed
    assert not (place / "checkpoints").exists() or not fits()
