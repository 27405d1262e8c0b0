"""NDFS as a run: equal to the estimator, stored as promised, continued after a kill."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from sklearn.datasets import load_digits

from bigfs import NDFS, ingest, run
from bigfs.core.errors import InputError
from bigfs.results.result import open_result
from bigfs.selectors.kept import load_state
from bigfs.store.scratch import ArrayRef, read_attributes


def _config(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "run": str(folder / "run"),
        "input": {"uri": "sklearn:digits"},
        "method": "ndfs",
        "n_features_to_select": 20,
        "ndfs": {"n_clusters": 10},
        **changes,
    }


@pytest.fixture(scope="module")
def fitted() -> NDFS:
    return NDFS(20, n_clusters=10).fit(load_digits().data)


def test_the_run_equals_the_estimator_and_stores_what_it_found(
    tmp_path: Path, fitted: NDFS
) -> None:
    result = run(_config(tmp_path))
    np.testing.assert_array_equal(result.scores, fitted.scores_)
    stored = tmp_path / "run" / "result.zarr"
    for name, expected in (
        ("labels", fitted.labels_),
        ("coef", fitted.coef_),
        ("objective", fitted.objective_),
        ("objective_parts", fitted.objective_parts_),
        ("orthogonality", fitted.orthogonality_),
        ("movement", fitted.movement_),
    ):
        np.testing.assert_array_equal(ArrayRef.at(stored / name).load(), expected)
    about = read_attributes(stored)["details"]
    assert about["n_iter"] == fitted.n_iter_ == len(fitted.objective_)
    assert about["n_labels_changed"] == fitted.n_labels_changed_
    assert about["distance_from_start"] == fitted.distance_from_start_
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_labels_of_a_file_are_a_start(tmp_path: Path) -> None:
    result = run(_config(tmp_path, ndfs={"n_clusters": 10, "init": "sklearn:digits"}))
    assert "spectral" not in result.stages
    X, y = load_digits(return_X_y=True)
    expected = NDFS(20, n_clusters=10, init=y).fit(X)
    np.testing.assert_array_equal(result.scores, expected.scores_)
    with pytest.raises(InputError, match=r"in \[0, 7\]"):
        run(_config(tmp_path, ndfs={"n_clusters": 8, "init": "sklearn:digits"}))


def test_too_many_clusters_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="NDFS: n_clusters must be at most 1796, since X has"):
        run(_config(tmp_path, ndfs={"n_clusters": 1797}))
    assert not any(tmp_path.iterdir())


@pytest.mark.full
@pytest.mark.cluster
@pytest.mark.parametrize("rows", [1797, 900])
def test_a_killed_run_continues_with_the_same_result(tmp_path: Path, rows: int) -> None:
    settings = {"n_clusters": 10, "max_iter": 4000, "tol": 0.0}
    ingest(load_digits().data, tmp_path / "X.zarr", rows=rows)
    uri = {"uri": str(tmp_path / "X.zarr")}
    config = _config(tmp_path, input=uri, ndfs=settings, blocks={"rows": rows})
    path = tmp_path / "long.yaml"
    path.write_text(yaml.safe_dump(config))
    process = subprocess.Popen(
        [sys.executable, "-m", "bigfs.cli", "run", str(path)], stderr=subprocess.DEVNULL
    )
    folder = tmp_path / "run" / "checkpoints"
    deadline = time.monotonic() + 100
    while not list(folder.glob("result-*/state.npz")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=60)
    [state] = folder.glob("result-*/state.npz")
    # As if it had been killed while it made the next array, which it sometimes is.
    (state.parent / "F-unfinished").mkdir()
    assert len(list(state.parent.glob("F-*"))) <= 8
    done = load_state(state)["iteration"]["done"]
    # The rest is one iteration: with the same key it would take the other 4,000.
    short = {**config, "ndfs": {**settings, "max_iter": done + 1}}
    other = state.parent
    undisturbed = run({**short, "run": str(tmp_path / "whole")})
    manifest = json.loads((tmp_path / "whole" / "manifest.json").read_text())
    key = manifest["stages"]["result"]["key"]
    other.rename(other.with_name(f"result-{key}"))
    path = tmp_path / "run" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["checkpoints"]["result"] = {"key": key, "folder": f"result-{key}"}
    path.write_text(json.dumps(manifest))
    resumed = run(short)
    assert resumed.scores.tobytes() == undisturbed.scores.tobytes()
    made, all_of_them = (r.stages["result"]["passes"] for r in (resumed, undisturbed))
    assert (all_of_them, made) == (done + 2, 2), "the first iterations are not made again"
    assert not folder.exists()
    assert open_result(tmp_path / "run").scores.tobytes() == undisturbed.scores.tobytes()


def test_the_number_of_clusters_from_the_eigengap_in_a_pipeline(tmp_path: Path) -> None:
    from sklearn.datasets import make_blobs

    X, groups = make_blobs(600, 6, centers=5, cluster_std=0.8, random_state=3)
    np.save(tmp_path / "X.npy", X)
    config = {
        "run": str(tmp_path / "run"),
        "method": "ndfs",
        "input": {"uri": str(tmp_path / "X.npy")},
        "n_features_to_select": 3,
        "ndfs": {"n_clusters": "auto"},
    }
    result = run(config)
    stored = read_attributes(tmp_path / "run" / "result.zarr")["details"]
    assert stored["n_clusters"] == 5
    np.testing.assert_allclose(result.scores, NDFS(3, n_clusters="auto").fit(X).scores_, rtol=1e-9)
    with pytest.raises(InputError, match="n_clusters 'auto' needs init 'spectral'"):
        run({**config, "ndfs": {"n_clusters": "auto", "init": str(tmp_path / "y.npy")}})
