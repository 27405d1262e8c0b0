"""LFS and GFS-k-means as runs: equal to the estimators, stored as promised, refused in time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_iris

from bigfs import LFS, GFSKMeans, run
from bigfs.core.errors import InputError, MemoryLimitError
from bigfs.results.result import open_result
from bigfs.selectors import sampled
from bigfs.selectors.lfs.strategies import LocalClusters
from bigfs.store.scratch import ArrayRef
from tests.bench._lfs_data import four_clusters


def _config(folder: Path, method: str, **changes: Any) -> dict[str, Any]:
    return {
        "run": str(folder / "run"),
        "input": {"uri": "sklearn:iris"},
        "method": method,
        "n_features_to_select": 1,
        method: {"n_clusters": 3, "init": "sklearn:iris"},
        **changes,
    }


def test_a_run_of_lfs_equals_the_estimator(tmp_path: Path) -> None:
    result = run(_config(tmp_path, "lfs"))
    X, y = load_iris(return_X_y=True)
    fitted = LFS(1, n_clusters=3, init=y).fit(X)
    np.testing.assert_array_equal(result.scores, fitted.scores_)
    np.testing.assert_array_equal(result.ranking, fitted.ranking_)
    assert [s.tolist() for s in result.feature_subsets] == [
        s.tolist() for s in fitted.feature_subsets_
    ]
    assert result.trace == fitted.trace_
    stored = tmp_path / "run" / "result.zarr"
    for name in ("labels", "membership", "cluster_centers"):
        expected = getattr(fitted, f"{name}_")
        np.testing.assert_array_equal(ArrayRef.at(stored / name).load(), expected)
    assert "cluster 0 keeps" in open_result(tmp_path / "run").summary()


def test_a_run_of_gfs_kmeans_equals_the_estimator(tmp_path: Path) -> None:
    result = run(_config(tmp_path, "gfs_kmeans"))
    X, y = load_iris(return_X_y=True)
    fitted = GFSKMeans(1, n_clusters=3, init=y).fit(X)
    np.testing.assert_array_equal(result.scores, fitted.scores_)
    assert result.feature_subsets is None


def test_an_interrupted_run_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = four_clusters(3)
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    config = _config(
        tmp_path,
        "lfs",
        input={"uri": str(tmp_path / "X.npy")},
        lfs={"n_clusters": 4, "init": str(tmp_path / "y.npy")},
    )
    undisturbed = run({**config, "run": str(tmp_path / "whole")})
    monkeypatch.setattr(sampled, "CHECKPOINT_SECONDS", 0.0)
    steps: list[int] = []
    step = LocalClusters.step

    def counted(*args: Any) -> None:
        steps.append(1)
        if len(steps) == 4:
            raise KeyboardInterrupt
        step(*args)

    monkeypatch.setattr(LocalClusters, "step", counted)
    with pytest.raises(KeyboardInterrupt):
        run(config)
    result = run(config)
    assert result.trace == undisturbed.trace
    np.testing.assert_array_equal(result.scores, undisturbed.scores)


def test_what_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", np.random.default_rng(0).normal(size=(1_000, 20_000)))
    np.save(tmp_path / "y.npy", np.arange(1_000) % 2)
    uri = {"uri": str(tmp_path / "X.npy")}
    start = {"n_clusters": 2, "init": str(tmp_path / "y.npy")}
    config = _config(tmp_path, "lfs", input=uri, lfs=start, memory_limit="1 GiB")
    with pytest.raises(MemoryLimitError, match="2 clusters on 1,000 rows in 20,000 features"):
        run(config)
    assert not (tmp_path / "run").exists()


def test_labels_with_another_number_of_classes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="each of 0 to 3 occurs"):
        run(_config(tmp_path, "lfs", lfs={"n_clusters": 4, "init": "sklearn:iris"}))
