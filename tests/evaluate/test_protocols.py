"""dask-ml's k-means is right on the installed versions."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
from sklearn.cluster import KMeans, kmeans_plusplus
from sklearn.datasets import load_digits

from bigfs.evaluate.protocols import dask_kmeans
from bigfs.metrics import clustering_accuracy


def _chunked(X: np.ndarray, rows: int = 900) -> da.Array:
    return da.from_array(X, chunks=(rows, X.shape[1]))


def test_from_the_same_centers_it_ends_where_scikit_learn_does(scheduler: str) -> None:
    X = load_digits().data
    first = X[np.random.default_rng(0).choice(len(X), 10, replace=False)]
    expected = KMeans(10, init=first, n_init=1, tol=1e-9).fit(X)
    labels, inertia = dask_kmeans(_chunked(X), 10, init=first)
    # It stops earlier: its tolerance is not that of scikit-learn.
    assert inertia == pytest.approx(expected.inertia_, rel=0.005)
    assert clustering_accuracy(expected.labels_, labels) > 0.97


@pytest.mark.parametrize("init", ["k-means++", "random"])
def test_labels_are_the_nearest_of_their_own_means(init: str) -> None:
    X = load_digits().data
    labels, inertia = dask_kmeans(_chunked(X), 10, init=init, n_init=3, random_state=1)
    assert labels.shape == (1797,)
    means = np.stack([X[labels == c].mean(axis=0) for c in range(10)])
    squared = ((X[:, None] - means) ** 2).sum(axis=2)
    assert (squared.argmin(axis=1) == labels).mean() > 0.98
    best = KMeans(10, n_init=10, random_state=0).fit(X).inertia_
    assert inertia < 1.1 * best


def test_separate_groups_are_found_and_seeds_repeat() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 1000)
    X = rng.normal(size=(1000, 3)) + 40 * np.eye(4, 3)[y] * (1 + y[:, None])
    labels, _ = dask_kmeans(_chunked(X, 250), 4, n_init=3)
    assert clustering_accuracy(y, labels) == 1
    again, _ = dask_kmeans(_chunked(X, 250), 4, n_init=3)
    np.testing.assert_array_equal(labels, again)


def test_first_centers_are_those_of_scikit_learn_among_as_many_rows() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 20)) + 4 * rng.normal(size=(20, 20))[rng.integers(0, 20, 3000)]
    for seed in range(4):
        own = int(np.random.SeedSequence([seed, 0]).generate_state(1)[0])
        first = kmeans_plusplus(X, 20, random_state=own)[0]
        expected = KMeans(20, init=first, n_init=1).fit(X).inertia_
        _, inertia = dask_kmeans(_chunked(X, 500), 20, random_state=seed)
        assert inertia == pytest.approx(expected, rel=0.005)
