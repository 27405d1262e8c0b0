"""Neighbor search in memory, against all n x n distances."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bigfs.core.errors import InputError
from tests.graph._brute import brute_neighbors, check_graph, manifold
from tests.graph._local import knn_exact, knn_local


@st.composite
def _problems(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    n = draw(st.integers(2, 60))
    d = draw(st.integers(1, 8))
    k = draw(st.integers(1, n - 1))
    seed = draw(st.integers(0, 1000))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    rng = np.random.default_rng(seed)
    if draw(st.booleans()):  # few values: many ties and duplicates
        X = rng.integers(0, 3, size=(n, d)).astype(dtype)
    else:
        X = (draw(st.sampled_from([0.0, 1e4])) + rng.normal(size=(n, d))).astype(dtype)
    return X, k


@given(_problems())
@settings(max_examples=80)
def test_exact_search_equals_all_distances(problem: tuple[np.ndarray, int]) -> None:
    X, k = problem
    indices, distances = knn_exact(X, k)
    expected, true = brute_neighbors(X, k)
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_array_equal(distances, true)
    check_graph(indices, distances, X)


@pytest.mark.parametrize("metric", ["cosine", "correlation"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_directions(metric: str, dtype: type) -> None:
    X = np.random.default_rng(3).normal(size=(300, 7)).astype(dtype)
    X[10:20] = X[:10] * 4  # the same directions
    indices, distances = knn_exact(X, 6, metric)
    _, true = brute_neighbors(X, 6, metric)
    np.testing.assert_allclose(distances, true, rtol=2e-6, atol=1e-9)
    assert (indices[:10, 0] == np.arange(10, 20)).all()


def test_queries_that_are_not_rows() -> None:
    X = manifold(500, 12)
    query = manifold(20, 12, seed=1)
    indices, distances = knn_exact(X, 4, query=query)
    gaps = np.linalg.norm(query[:, None].astype(np.float64) - X, axis=2)
    np.testing.assert_array_equal(indices, np.argsort(gaps, axis=1)[:, :4])
    np.testing.assert_allclose(distances, np.sort(gaps, axis=1)[:, :4], rtol=1e-6)


def test_tiny_distances_far_from_the_origin() -> None:
    X = 1e8 + 1e-4 * np.random.default_rng(0).normal(size=(400, 5))
    indices, _ = knn_exact(X, 5)
    np.testing.assert_array_equal(indices, brute_neighbors(X, 5)[0])


def test_constant_data_takes_the_lowest_indices() -> None:
    indices, distances = knn_exact(np.full((50, 3), 7.0), 4)
    assert indices[0].tolist() == [1, 2, 3, 4] and indices[-1].tolist() == [0, 1, 2, 3]
    assert not distances.any()


@pytest.mark.parametrize(
    ("n", "k", "words"),
    [
        (1, 1, "at least 2"),
        (5, 5, r"\[1, 4\], since X has 5 rows. Got 5"),
        (5, 0, "Got 0"),
        (5, True, "Got True"),
    ],
)
def test_neighbors_out_of_range(n: int, k: int, words: str) -> None:
    with pytest.raises(InputError, match=words):
        knn_exact(np.ones((n, 2)), k)


def test_metric_that_partitions_do_not_serve() -> None:
    with pytest.raises(InputError, match="euclidean, cosine, correlation. Got 'manhattan'"):
        knn_local(np.ones((5, 2)), 2, metric="manhattan")


@pytest.mark.parametrize(
    ("metric", "value", "kind"), [("cosine", 0.0, "zero"), ("correlation", 0.1, "constant")]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_row_without_direction(metric: str, value: float, kind: str, dtype: type) -> None:
    X = np.random.default_rng(0).normal(size=(20, 7)).astype(dtype)
    X[13] = value
    with pytest.raises(InputError, match=f"Row 13 is {kind}"):
        knn_exact(X, 3, metric)


def test_distances_above_float32() -> None:
    with pytest.raises(InputError, match="range of float32"):
        knn_exact(np.array([[0.0], [1e39], [2e39]]), 1)


@pytest.mark.full
def test_pynndescent_finds_almost_all() -> None:
    X = manifold(3000, 20)
    indices, distances = knn_local(X, 10, algorithm="pynndescent", seed=1)
    check_graph(indices, distances, X)
    _, true = brute_neighbors(X, 10)
    recall = float((distances <= true[:, -1:] * (1 + 1e-6)).mean())
    assert recall >= 0.98, f"recall {recall:.4f}, required 0.98"
    again = knn_local(X, 10, algorithm="pynndescent", seed=1)
    np.testing.assert_array_equal(indices, again[0])
    np.testing.assert_array_equal(distances, again[1])


@pytest.mark.full
def test_pynndescent_with_more_duplicates_than_neighbors() -> None:
    X = np.repeat(manifold(40, 6), 50, axis=0)
    X[:200] = 1.0
    indices, distances = knn_local(X, 8, algorithm="pynndescent")
    check_graph(indices, distances, X)
    assert (distances == 0).all()


@pytest.mark.full
def test_pynndescent_in_float64_far_from_the_origin() -> None:
    X = 1e7 + manifold(2000, 8).astype(np.float64)
    _, distances = knn_local(X, 5, algorithm="pynndescent")
    _, true = brute_neighbors(X, 5)
    assert (distances <= true[:, -1:] * (1 + 1e-6)).mean() >= 0.98


@pytest.mark.full
def test_two_threads_under_workqueue_survive() -> None:
    """Numba's workqueue layer aborts the process when two threads run parallel kernels."""
    code = """
import threading
import numpy as np
from tests.graph._local import knn_local
X = np.random.default_rng(0).normal(size=(3000, 6)).astype(np.float32)
found = [None] * 4
def search(i):
    found[i] = knn_local(X, 5, algorithm="pynndescent")[0]
threads = [threading.Thread(target=search, args=(i,)) for i in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
assert all((f == found[0]).all() for f in found)
import numba
assert numba.threading_layer() == "workqueue"
"""
    env = {**os.environ, "NUMBA_THREADING_LAYER": "workqueue", "NUMBA_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_distances_of_wide_rows_far_from_zero_are_those_of_all_features() -> None:
    X = manifold(6500, 220).astype(np.float64) + 1e4
    indices, distances = knn_local(X, 10, algorithm="pynndescent")
    rows = np.arange(0, 6500, 13)
    gaps = np.linalg.norm(X[rows, None] - X[indices[rows]], axis=2)
    np.testing.assert_allclose(distances[rows], gaps, rtol=3e-7)
    _, true = knn_exact(X, 11, query=X[rows])
    recall = float((distances[rows] <= true[:, -1:] * (1 + 1e-6)).mean())
    assert recall >= 0.985, f"recall {recall:.4f}, required 0.985"
