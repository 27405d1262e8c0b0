"""What comes after a fit: other data, other parameters, another fit; and what Dask masks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import zarr
from sklearn.datasets import load_wine

import bigfs
from bigfs import metrics
from bigfs.core.errors import InputError, NumericalError
from bigfs.solvers import udfs

X, _ = load_wine(return_X_y=True, as_frame=True)
B = np.random.default_rng(1).normal(size=(120, 10))


@pytest.mark.parametrize("kind", ["csv", "arrow", "frame"])
def test_rows_to_predict_have_the_features_of_fit_in_their_order(kind: str, tmp_path: Path) -> None:
    def given(frame: pd.DataFrame) -> Any:
        if kind == "frame":
            return frame
        if kind == "arrow":
            return pa.Table.from_pandas(frame)
        frame.to_csv(tmp_path / "Z.csv", index=False)
        return tmp_path / "Z.csv"

    fitted = bigfs.LFS(4, n_init=1, verbose=0).fit(X)
    neighbors = bigfs.KNeighborsTransformer(3, verbose=0).fit(given(X))
    expected = np.asarray(fitted.predict(X))
    np.testing.assert_array_equal(np.asarray(fitted.predict(given(X))), expected)
    assert neighbors.transform(given(X)).shape == (178, 178)
    turned, renamed = X[X.columns[::-1]], X.rename(columns={"alcohol": "spirit"})
    for other in (turned, renamed):
        for call in (fitted.predict, neighbors.transform):
            with pytest.raises(ValueError, match="feature"):
                call(given(other))
    if kind == "frame":
        return  # scikit-learn refuses the order there too
    # `transform` takes them by name.
    np.testing.assert_array_equal(
        np.asarray(fitted.transform(given(turned))), np.asarray(fitted.transform(X))
    )


def _of_kind(kind: str, frame: pd.DataFrame, folder: Path) -> Any:
    """Return the data of a frame, with its names, as another kind of data."""
    if kind == "AnnData":
        anndata = pytest.importorskip("anndata")
        return anndata.AnnData(frame.set_axis([str(i) for i in range(len(frame))]))
    if kind == "DataArray":
        xarray = pytest.importorskip("xarray")
        return xarray.DataArray(frame.to_numpy(), dims=("row", "band"), coords={"band": [*frame]})
    if kind == "opened":
        return bigfs.open_matrix(frame)
    frame.to_parquet(folder / "Z.parquet")
    bigfs.ingest(folder / "Z.parquet", folder / "Z.zarr", overwrite=True)
    return folder / "Z.zarr"


@pytest.mark.parametrize("kind", ["AnnData", "DataArray", "opened", "ingested"])
def test_a_selected_feature_that_is_missing_is_never_another_one(kind: str, tmp_path: Path) -> None:
    frame = pd.DataFrame(B[:, :6] * [1, 5, 4, 1, 1, 1], columns=[*"abcdef"])
    fitted = bigfs.MaxVariance(2, preprocess="none", verbose=0).fit(frame)
    reversed_frame = frame.iloc[:, ::-1]
    actual = fitted.transform(_of_kind(kind, reversed_frame, tmp_path))
    np.testing.assert_allclose(np.asarray(getattr(actual, "X", actual)), frame[["b", "c"]])
    for other in ("B", "b2"):
        renamed = reversed_frame.rename(columns={"b": other})
        with pytest.raises(InputError, match="X has no column 'b', which was selected"):
            fitted.transform(_of_kind(kind, renamed, tmp_path))


def test_names_that_only_count_are_those_of_data_without_names() -> None:
    anndata = pytest.importorskip("anndata")
    frame = pd.DataFrame(B[:, :6] * [1, 5, 4, 1, 1, 1], columns=[*"abcdef"])
    counted = anndata.AnnData(frame.to_numpy())
    named = anndata.AnnData(frame.set_axis(counted.obs_names))
    for first, second in ((named, counted), (counted, named)):
        fitted = bigfs.MaxVariance(2, preprocess="none", verbose=0).fit(first)
        np.testing.assert_allclose(fitted.transform(second).X, frame[["b", "c"]])
    fitted = bigfs.MaxVariance(2, preprocess="none", verbose=0).fit(named)
    double = named.copy()
    double.var_names = ["x", "b", "c", "x", "e", "f"]
    np.testing.assert_allclose(fitted.transform(double[:, ::-1]).X, frame[["b", "c"]])
    double.var_names = ["b", "b", "c", "d", "e", "f"]
    with pytest.raises(InputError, match="X has several columns 'b'"):
        fitted.transform(double)


def test_numbers_of_dimensions_are_no_names() -> None:
    xarray = pytest.importorskip("xarray")
    values = B[:, :6] * [1, 5, 4, 1, 1, 1]

    def cube(bands: Any) -> Any:
        return xarray.DataArray(values, dims=("row", "band"), coords={"band": bands})

    for first, second in ((range(1, 7), range(6)), (list("abcdef"), range(1, 7))):
        for bands, others in ((first, second), (second, first)):
            fitted = bigfs.MaxVariance(2, preprocess="none", verbose=0).fit(cube(list(bands)))
            np.testing.assert_array_equal(fitted.transform(cube(list(others))), values[:, 1:3])


def test_numbers_as_names_are_compared_as_text() -> None:
    frame = pd.DataFrame(B[:, :4] * [1, 5, 4, 1], columns=[400.0, 410.0, 420.0, 430.0])
    fitted = bigfs.MaxVariance(2, preprocess="none", verbose=0).fit(bigfs.open_matrix(frame))
    np.testing.assert_array_equal(fitted.transform(frame), frame[[410.0, 420.0]])
    with pytest.raises(ValueError, match="same order"):
        fitted.transform(frame.iloc[:, ::-1])


def test_a_zarr_array_that_is_replaced_or_removed_has_no_neighbors(tmp_path: Path) -> None:
    def write(values: np.ndarray) -> Any:
        place = str(tmp_path / "X.zarr")
        array = zarr.open_array(place, mode="w", shape=B.shape, chunks=(7, 5), dtype="f8")
        array[:] = values
        return array

    fitted = bigfs.KNeighborsTransformer(4, verbose=0).fit(write(B))
    assert fitted.transform(B).shape == (120, 120)
    write(B[::-1])
    with pytest.raises(InputError, match="changed"):
        fitted.transform(B)
    shutil.rmtree(tmp_path / "X.zarr")
    with pytest.raises(InputError):
        fitted.transform(B)


def test_parameters_that_are_set_after_a_fit_are_checked() -> None:
    fitted = bigfs.KNeighborsTransformer(4, verbose=0).fit(B)
    with pytest.raises(InputError, match=r"n_neighbors must be an int in \[1, 119\]"):
        fitted.set_params(n_neighbors=300).transform(B[:1])
    with pytest.raises(InputError, match="mode must be"):
        fitted.set_params(n_neighbors=4, mode="nonsense").transform(B[:1])


def test_nothing_of_an_earlier_fit_is_left() -> None:
    twice = B[:, :6] * [1, 2, 3, 4, 5, 6]
    twice[:, 4] = twice[:, 5]
    fitted = bigfs.MaxVariance(2, redundancy=0.9, preprocess="none", verbose=0).fit(twice)
    assert "redundant_with" in fitted.to_frame()
    fitted.set_params(redundancy=None).fit(twice[:, ::-1].copy())
    assert "redundant_with" not in fitted.to_frame() and not hasattr(fitted, "redundant_with_")


@pytest.mark.parametrize("dtype", [float, object])
def test_values_under_a_mask_are_missing_in_every_type(dtype: Any) -> None:
    values = B.copy()
    values[:, 0] *= 3
    values[5, 9] = 1e6
    masked = np.ma.array(values.astype(dtype), mask=values > 1e5)
    with pytest.raises(InputError, match="row 5, column 9 is NaN"):
        bigfs.MaxVariance(3, verbose=0).fit(masked)
    filled = bigfs.MaxVariance(3, missing="mean", verbose=0).fit(masked)
    assert filled.ranking_[0] == 0
    with pytest.raises(InputError, match="finite real numbers"):
        metrics.redundancy(masked)


def test_what_dask_masks_is_missing() -> None:
    labels = np.ma.array([0, 1, 2, 0, 1, 2], mask=[0, 1, 0, 0, 0, 0])
    rows = np.ma.array(B[:6, :3], mask=False)
    rows[2, 1] = np.ma.masked
    lazy = da.from_array(labels)
    with pytest.raises(InputError, match="label of row 1 is missing"):
        metrics.clustering_accuracy(lazy, [0, 1, 2] * 2)
    with pytest.raises(InputError, match="finite real numbers"):
        metrics.redundancy(da.from_array(rows))
    with pytest.raises(InputError, match="finite real numbers"):
        metrics.nearest_neighbor_error(da.from_array(rows), [0, 1, 2] * 2)
    with pytest.raises(InputError, match="label of row 1 is missing"):
        bigfs.LFS(1, n_clusters=3, init=lazy, verbose=0).fit(B[:6, :3])


def test_metrics_refuse_values_that_they_would_round_or_overflow() -> None:
    y = np.random.default_rng(0).integers(0, 3, 120)
    exact = metrics.nearest_neighbor_error(B, y)
    assert metrics.nearest_neighbor_error(np.ldexp(B, -900), y) == exact
    far = B.copy()
    far[5, 0] = 1e170
    with pytest.raises(
        InputError, match="in row 5, relative to which the distances of other rows vanish"
    ):
        metrics.nearest_neighbor_error(far, y)
    for call in (lambda Z: metrics.nearest_neighbor_error(Z, y), metrics.redundancy):
        with pytest.raises(InputError, match=r"beyond 2\^53"):
            call((B * 1000).astype(np.int64) + 2**60)
        with pytest.raises(InputError, match="too large for float64"):
            call(B.astype("g") * np.longdouble("1e400"))


def test_an_eigenproblem_that_fails_is_a_numerical_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import scipy.linalg

    def fails(*_: Any, **__: Any) -> Any:
        raise scipy.linalg.LinAlgError("1 eigenvectors failed to converge.")

    monkeypatch.setattr(scipy.linalg, "eigh", fails)
    with pytest.raises(NumericalError, match="UDFS: the eigenvector computation failed"):
        udfs._smallest(np.eye(4), np.zeros(4), 2)


@pytest.mark.parametrize("labels", [None, [b"\xff", b"a"], [[1], [1, 2]], 3])
def test_what_is_no_list_of_labels_is_refused(labels: Any) -> None:
    with pytest.raises(InputError, match="y_true"):
        metrics.clustering_accuracy(labels, [0, 1])
