"""The transformer against scikit-learn's of the same name, and under its own checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.cluster import SpectralClustering
from sklearn.neighbors import KNeighborsTransformer as Reference
from sklearn.utils.estimator_checks import parametrize_with_checks

from bigfs import KNeighborsTransformer
from bigfs.core.errors import InputError
from tests.graph._brute import manifold


@parametrize_with_checks([KNeighborsTransformer(n_neighbors=2)])
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("mode", ["distance", "connectivity"])
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_the_same_as_scikit_learn(mode: str, metric: str) -> None:
    X = manifold(300, 7).astype(np.float64)
    ours = KNeighborsTransformer(n_neighbors=4, mode=mode, metric=metric)
    theirs = Reference(n_neighbors=4, mode=mode, metric=metric)
    actual, true = ours.fit_transform(X), theirs.fit_transform(X)
    np.testing.assert_allclose(actual.toarray(), true.toarray(), atol=2e-4)
    assert actual.nnz == true.nnz and actual.shape == true.shape
    query = manifold(20, 7, seed=5).astype(np.float64)
    of_query = ours.transform(query)
    np.testing.assert_allclose(of_query.toarray(), theirs.transform(query).toarray(), atol=2e-4)
    for graph in (actual, of_query):  # what all of scikit-learn takes
        assert graph.indices.dtype == graph.indptr.dtype == np.int32


def test_stored_data(tmp_path: Path) -> None:
    X = manifold(400, 5)
    np.save(tmp_path / "x.npy", X)
    stored = KNeighborsTransformer(3).fit_transform(str(tmp_path / "x.npy"))
    assert abs(stored - KNeighborsTransformer(3).fit_transform(X)).max() == 0


STORED = ("npy", "anndata", "dask", "zarr", "xarray", "polars", "arrow", "csv")


@pytest.mark.parametrize("kind", STORED)
def test_stored_rows_are_fitted_and_compared(kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X, queries = rng.normal(size=(60, 4)), rng.normal(size=(7, 4))
    fitted = KNeighborsTransformer(3).fit(X)
    expected = fitted.transform(queries)
    other = KNeighborsTransformer(3).fit(_stored(kind, X, tmp_path / "fit"))
    assert (
        abs(other.fit_transform(_stored(kind, X, tmp_path / "X")) - fitted.fit_transform(X)).max()
        == 0
    )
    for estimator in (fitted, other):
        found = estimator.transform(_stored(kind, queries, tmp_path / "queries"))
        assert abs(found - expected).max() == 0
    queries[4, 1] = np.nan
    with pytest.raises(InputError, match="row 4, column 1.* is NaN"):
        fitted.transform(_stored(kind, queries, tmp_path / "nan"))
    with pytest.raises(InputError, match="X has 3 features.*expecting 4 features"):
        fitted.transform(_stored(kind, X[:, :3], tmp_path / "few"))


def _stored(kind: str, X: np.ndarray, path: Path) -> Any:
    """Return a matrix as something that is opened."""
    if kind == "npy":
        np.save(path, X)
        return path.with_suffix(".npy")
    frame = pd.DataFrame(X, columns=list("abcd")[: X.shape[1]])
    if kind == "csv":
        frame.to_csv(path.with_suffix(".csv"), index=False)
        return str(path.with_suffix(".csv"))
    if kind == "anndata":
        return pytest.importorskip("anndata").AnnData(X)
    if kind == "dask":
        return pytest.importorskip("dask.array").from_array(X, chunks=(20, 4))
    if kind == "zarr":
        return pytest.importorskip("zarr").array(X)
    if kind == "xarray":
        return pytest.importorskip("xarray").DataArray(X)
    if kind == "polars":
        return pytest.importorskip("polars").DataFrame(frame)
    return pytest.importorskip("pyarrow").Table.from_pandas(frame)


def test_neighbors_for_umap() -> None:
    X = manifold(200, 5)
    fitted = KNeighborsTransformer(4).fit(X)
    indices, distances = fitted.precomputed_knn()
    assert indices.shape == distances.shape == (200, 5)
    np.testing.assert_array_equal(indices[:, 0], np.arange(200))
    assert not distances[:, 0].any() and (np.diff(distances) >= 0).all()


def test_in_front_of_spectral_clustering() -> None:
    X = np.concatenate([manifold(80, 4), manifold(80, 4) + 200])
    graph = KNeighborsTransformer(6, mode="connectivity").fit_transform(X)
    model = SpectralClustering(2, affinity="precomputed", assign_labels="cluster_qr")
    with pytest.warns(UserWarning, match="not fully connected"):
        labels = model.fit(graph.maximum(graph.T)).labels_
    assert len(set(labels[:80])) == 1 and labels[0] != labels[-1]


def test_unknown_mode() -> None:
    with pytest.raises(InputError, match="'distance' or 'connectivity'"):
        KNeighborsTransformer(mode="both").fit(manifold(30, 2))


def test_fitted_on_sparse_rows_it_takes_sparse_rows() -> None:
    X = sp.random_array((60, 5), density=0.5, rng=np.random.default_rng(0), format="csr")
    fitted = KNeighborsTransformer(3).fit(X)
    expected = fitted.transform(X.toarray()[:9])
    for form in ("csr", "csc", "coo"):
        actual = fitted.transform(X[:9].asformat(form))
        np.testing.assert_array_equal(actual.toarray(), expected.toarray())
