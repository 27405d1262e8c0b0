"""GFS-k-means equals its dense definition, and keeps what tells the clusters apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_iris, load_wine

from bigfs import GFSKMeans, ingest
from bigfs.core.errors import InputError, MemoryLimitError
from tests.bench._lfs_data import planted
from tests.reference.lfs import lloyd


def _criterion(X: np.ndarray, labels: np.ndarray) -> float:
    """Return tr(S_w^-1 S_b) of all clusters, eq. (4)."""
    total = np.cov(X.T, bias=True).reshape(X.shape[1], -1)
    within = np.zeros_like(total)
    for j in np.unique(labels):
        rows = X[labels == j]
        within += len(rows) / len(X) * np.cov(rows.T, bias=True).reshape(X.shape[1], -1)
    return float(np.trace(np.linalg.solve(within, total - within)))


def _reference(X: np.ndarray, centers: np.ndarray) -> tuple[list[int], np.ndarray]:
    kept = list(range(X.shape[1]))
    labels = lloyd(X, centers)
    while len(kept) > 1:
        means = np.stack([X[labels == j].mean(axis=0) for j in range(len(centers))])
        tried = []
        for feature in kept:
            rest = [f for f in kept if f != feature]
            new = lloyd(X[:, rest], means[:, rest])
            values = [
                _criterion(X[:, s], clusters) for clusters in (new, labels) for s in (kept, rest)
            ]
            tried.append((values[0] * values[1] / (values[2] * values[3]), rest, new))
        share = np.bincount(labels) / len(X)
        between = (share[:, None] * (means - share @ means) ** 2).sum(axis=0)
        alone = (between / (X.var(axis=0) - between))[kept]
        # Where the clusters stay the same: the feature that tells them apart least.
        place = max(range(len(kept)), key=lambda i: (round(np.log(tried[i][0]), 8), -alone[i]))
        ratio, rest, new = tried[place]
        if ratio < 1 - 1e-12:
            break
        kept, labels = rest, new
    return kept, labels


@pytest.mark.parametrize("load", [load_iris, load_wine])
def test_equals_the_dense_reference(load) -> None:
    X, y = load(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    centers = np.stack([X[y == j].mean(axis=0) for j in range(3)])
    fitted = GFSKMeans(n_clusters=3, init=centers, tol=0).fit(X)
    kept, labels = _reference(X, centers)
    assert fitted.get_support(indices=True).tolist() == kept
    np.testing.assert_array_equal(fitted.labels_, labels)


def test_a_petal_is_all_that_is_kept_of_iris() -> None:
    X, y = load_iris(return_X_y=True)
    fitted = GFSKMeans(n_clusters=3, init=y).fit(X)
    assert fitted.get_support(indices=True).tolist() == [3]
    assert fitted.ranking_[0] == 3
    assert fitted.dropped_.tolist() == fitted.ranking_[:0:-1].tolist()


def test_row_blocks_give_the_same_subset(tmp_path: Path) -> None:
    X, y, _ = planted(3_000, 10, 4, seed=0)
    ingest(X, tmp_path / "X.zarr", rows=500)
    full_fit = GFSKMeans(n_clusters=4, init=y).fit(X)
    parts = GFSKMeans(n_clusters=4, init=y).fit(tmp_path / "X.zarr")
    np.testing.assert_array_equal(parts.ranking_, full_fit.ranking_)
    np.testing.assert_array_equal(parts.labels_[:], full_fit.labels_)
    again = GFSKMeans(n_clusters=4, n_init=3).fit(tmp_path / "X.zarr")
    assert 1 <= again.get_support().sum() <= 10


def test_what_cannot_be_used_is_refused() -> None:
    X = load_iris().data
    with pytest.raises(InputError, match="n_clusters must be"):
        GFSKMeans(n_clusters=0).fit(X)
    with pytest.raises(InputError, match="every feature is constant"):
        GFSKMeans(n_clusters=2).fit(np.ones((9, 2)))
    with pytest.raises(MemoryLimitError, match="covariances of 3,000 features"):
        GFSKMeans(n_clusters=9, memory_limit="1 GiB").fit(np.random.rand(30, 3_000))
