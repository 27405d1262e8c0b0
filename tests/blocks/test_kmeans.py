"""K-means by passes: against scikit-learn from the same start, whatever the blocks and workers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits

from bigfs.blocks import RowBlocks
from bigfs.blocks import kmeans as kmeans_module
from bigfs.blocks.kmeans import cluster_rows, kmeans, nearest_centers, plus_plus
from bigfs.core.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def _blobs(n: int, k: int, d: int, seed: int, offset: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centers = rng.normal(scale=8, size=(k, d))
    return offset + centers[np.arange(n) % k] + rng.normal(size=(n, d))


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_the_same_as_scikit_learn_from_the_same_start(offset: float, monkeypatch) -> None:
    monkeypatch.setattr(kmeans_module, "_TOLERANCE", 0)
    X = _blobs(900, 6, 5, 0, offset)
    init = X[:6] + 0.3
    blocks = RowBlocks.from_any(X, rows=101)
    clustering = kmeans(blocks, 6, init=init)
    true = KMeans(6, init=init, n_init=1, tol=0, max_iter=100).fit(X)
    np.testing.assert_allclose(clustering.centers, true.cluster_centers_, rtol=1e-10)
    np.testing.assert_array_equal(clustering.labels_ref.load(), true.labels_)
    assert clustering.inertia == pytest.approx(true.inertia_, rel=1e-6)
    assert clustering.n_iter < kmeans_module.MAX_ITER and clustering.counts.sum() == 900


def test_as_good_as_scikit_learn_on_digits() -> None:
    X = load_digits().data
    clustering = kmeans(RowBlocks.from_any(X), 10, random_state=0)
    true = KMeans(10, n_init=5, random_state=0).fit(X)
    assert clustering.inertia <= 1.05 * true.inertia_, (
        f"{clustering.inertia} against {true.inertia_}"
    )


def test_the_same_bits_under_every_scheduler(scheduler: str) -> None:
    X = _blobs(1000, 7, 6, 1).astype(np.float32)
    clustering = kmeans(RowBlocks.from_any(X, rows=64), 5, random_state=3)
    assert clustering.centers.sum() == pytest.approx(_reference_sum(X), rel=0, abs=0)


_sums: list[float] = []


def _reference_sum(X: np.ndarray) -> float:
    """Return the first scheduler's result, which all others must give exactly."""
    if not _sums:
        import dask

        with dask.config.set(scheduler="synchronous"):
            clustering = kmeans(RowBlocks.from_any(X, rows=64), 5, random_state=3)
        _sums.append(float(clustering.centers.sum()))
    return _sums[0]


def test_one_pass_per_iteration() -> None:
    X = _blobs(500, 3, 4, 2)
    blocks = RowBlocks.from_any(X, rows=100)
    before = blocks.passes
    clustering = kmeans(blocks, 3)
    assert blocks.passes - before == 1 + clustering.n_iter + 1


@pytest.mark.full
@given(st.integers(0, 300), st.integers(5, 60), st.integers(1, 5))
@settings(max_examples=30)
def test_inertia_never_rises(seed: int, rows: int, k: int) -> None:
    X = np.random.default_rng(seed).normal(size=(80, 3))
    blocks = RowBlocks.from_any(X, rows=rows)
    inertias = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kmeans_module, "_TOLERANCE", 0)
        for steps in range(4):
            patched.setattr(kmeans_module, "MAX_ITER", steps)
            inertias.append(kmeans(blocks, k, init=X[:k]).inertia)
    assert all(b <= a * (1 + 1e-12) for a, b in zip(inertias, inertias[1:], strict=False))


def test_an_empty_cluster_takes_the_farthest_row() -> None:
    X = _blobs(300, 2, 3, 5)
    X[77] = 500.0
    init = np.stack([X[0], X[1], np.full(3, -900.0)])
    clustering = kmeans(RowBlocks.from_any(X, rows=50), 3, init=init)
    assert (clustering.counts > 0).all() and clustering.counts.min() == 1
    np.testing.assert_allclose(clustering.centers[clustering.counts.argmin()], X[77])


def test_fewer_distinct_rows_than_clusters() -> None:
    X = np.repeat(np.arange(3.0), 20)[:, None] @ np.ones((1, 4))
    assert kmeans(RowBlocks.from_any(X), 3).inertia == 0
    with pytest.raises(InputError, match="only 3 distinct values"):
        kmeans(RowBlocks.from_any(X), 4)


@pytest.mark.parametrize("n_clusters", [0, 41, 2.0, True])
def test_clusters_out_of_range(n_clusters: object) -> None:
    with pytest.raises(InputError, match=r"n_clusters must be an int in \[1, 40\]"):
        kmeans(RowBlocks.from_any(np.eye(40)), n_clusters)


def test_rows_in_memory() -> None:
    X = _blobs(400, 5, 3, 8).astype(np.float32)
    centers = cluster_rows(X, 5, np.random.default_rng(0))
    labels, squared = nearest_centers(X, centers)
    gaps = np.linalg.norm(X[:, None].astype(np.float64) - centers, axis=2)
    np.testing.assert_array_equal(labels, gaps.argmin(axis=1))
    np.testing.assert_allclose(squared, gaps.min(axis=1) ** 2, rtol=1e-3, atol=1e-3)
    assert len(set(plus_plus(X, 5, np.random.default_rng(1)).tolist())) == 5
    assert len(cluster_rows(np.ones((30, 2)), 5, np.random.default_rng(0))) == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rounding_does_not_choose_among_centers_as_near(dtype: type) -> None:
    # Rows of zeros and ones, and centers that are rows: many distances are equal.
    X = (np.random.default_rng(0).random((300, 40)) < 0.3).astype(dtype)
    expected = nearest_centers(X, X[:5])[0]
    exact = ((X[:, None] - X[:5]) ** 2).sum(axis=2)
    np.testing.assert_array_equal(expected, exact.argmin(axis=1))
    for factor, shift in ((255, 0), (1e-6, 0), (1e6, 0), (0.1, 0.3)):
        moved = X * dtype(factor) + dtype(shift)
        np.testing.assert_array_equal(nearest_centers(moved, moved[:5])[0], expected)
