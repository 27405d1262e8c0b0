"""M3FS as a run: equal to the estimator, stored as promised, refused before work, sampled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from bigfs import M3FS, MaximumMarginClustering, ingest, run
from bigfs.blocks import RowBlocks
from bigfs.core.errors import InputError
from bigfs.metrics import clustering_accuracy
from bigfs.selectors.registry import METHODS
from bigfs.stages.stage import Inputs
from bigfs.store.scratch import ArrayRef, read_attributes


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    return load_digits(n_class=2, return_X_y=True)


def _config(folder: Path, X: np.ndarray, **changes: Any) -> dict[str, Any]:
    if not (folder / "X.zarr").exists():
        ingest(X, folder / "X.zarr", rows=90)
    return {
        "run": str(folder / "run"),
        "input": {"uri": str(folder / "X.zarr")},
        "preprocess": "rescale",
        "method": "m3fs",
        "n_features_to_select": 10,
        **changes,
    }


def test_the_run_equals_the_estimator_and_stores_what_it_found(
    tmp_path: Path, digits: tuple[np.ndarray, np.ndarray]
) -> None:
    config = _config(tmp_path, digits[0], m3fs={"n_init": 1, "C": 1.0}, blocks={"rows": 90})
    result = run(config)
    fitted = M3FS(10, n_init=1, C=1.0).fit(digits[0])
    np.testing.assert_allclose(result.scores, fitted.scores_, atol=1e-6)
    stored = tmp_path / "run" / "result.zarr"
    labels = ArrayRef.at(stored / "labels").load()
    np.testing.assert_array_equal(labels, fitted.labels_)
    assert ArrayRef.at(stored / "coef").shape == (64, 1)
    about = read_attributes(stored)["details"]
    assert about["violation"] <= 0.01
    assert about["converged"] and about["chosen_start"] == fitted.chosen_start_
    assert [start["start"] for start in about["starts"]] == [s["start"] for s in fitted.starts_]
    assert len(ArrayRef.at(stored / "objective_history").load()) == about["n_iter"]
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_sample_needs_no_graph_of_all_rows(
    tmp_path: Path, digits: tuple[np.ndarray, np.ndarray]
) -> None:
    X, y = digits
    result = run(_config(tmp_path, X, m3fs={"sample_size": 150, "init": "kmeans", "n_init": 1}))
    assert "graph" not in result.stages
    labels = ArrayRef.at(tmp_path / "run" / "result.zarr" / "labels").load()
    assert len(labels) == len(X)
    assert clustering_accuracy(y, labels) > 0.98


def test_labels_of_a_file_are_a_start(
    tmp_path: Path, digits: tuple[np.ndarray, np.ndarray]
) -> None:
    np.save(tmp_path / "y.npy", digits[1])
    result = run(_config(tmp_path, digits[0], m3fs={"init": str(tmp_path / "y.npy")}))
    assert "spectral" not in result.stages
    expected = M3FS(10, init=digits[1]).fit(digits[0])
    np.testing.assert_allclose(result.scores, expected.scores_, atol=1e-6)


def test_too_many_clusters_are_refused_before_anything_is_written(
    tmp_path: Path, digits: tuple[np.ndarray, np.ndarray]
) -> None:
    X = digits[0][:50]
    with pytest.raises(InputError, match="n_clusters must be at most 49, since X has 50 rows"):
        run(_config(tmp_path, X, m3fs={"n_clusters": 60}))
    assert not (tmp_path / "run").exists()


def test_clustering_without_selection_is_a_method_of_its_own(
    tmp_path: Path, digits: tuple[np.ndarray, np.ndarray]
) -> None:
    own = {"maximum_margin_clustering": {"n_init": 1, "sample_size": 200}}
    config = _config(tmp_path, digits[0], method="maximum_margin_clustering", **own)
    fitted = MaximumMarginClustering(10, n_init=1, sample_size=200).fit(tmp_path / "X.zarr")
    result = run(config)
    np.testing.assert_array_equal(result.scores, fitted.scores_)
    labels = ArrayRef.at(tmp_path / "run" / "result.zarr" / "labels").load()
    np.testing.assert_array_equal(labels, fitted.labels_[:])
    with pytest.raises(InputError, match="does not use 'graph'"):
        run({**config, "graph": {"n_neighbors": 7}})


@pytest.mark.full
def test_a_sample_reads_the_section_of_the_graph(
    tmp_path: Path, digits: tuple[np.ndarray, np.ndarray]
) -> None:
    own = {"m3fs": {"sample_size": 120, "init": "kmeans", "n_init": 1}}
    for k in (3, 20):
        result = run(
            _config(
                tmp_path, digits[0], graph={"n_neighbors": k}, run=str(tmp_path / f"{k}"), **own
            )
        )
        fitted = M3FS(10, n_neighbors=k, **own["m3fs"]).fit(tmp_path / "X.zarr")
        np.testing.assert_array_equal(result.scores, fitted.scores_)


@pytest.mark.full
@pytest.mark.cluster
def test_one_two_and_four_workers_give_the_same_bits(
    tmp_path: Path, digits: tuple[np.ndarray, np.ndarray]
) -> None:
    from distributed import Client

    from bigfs.runtime.connection import local_cluster

    ingest(digits[0], tmp_path / "X.zarr", rows=90)
    estimator = M3FS(10, smoothness=0.0, criterion="objective", init="kmeans", n_init=2)
    selection = estimator._selection().model_copy(update={"n_features_to_select": 10})
    results = []
    for n_workers in (1, 2, 4):
        with (
            local_cluster(n_workers, 1, 3 * 2**29) as running,
            Client(running.scheduler_address),
        ):
            blocks = RowBlocks.from_any(tmp_path / "X.zarr", transform="rescale", rows=90)
            strategy = METHODS["m3fs"].choose(blocks.layout, selection)
            result = strategy.run(Inputs(blocks), blocks.scratch.child("result"))
            results.append((result.scores.tobytes(), result.details["labels"].load().tobytes()))
    assert results[0] == results[1] == results[2]
