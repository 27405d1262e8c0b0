"""Bounded search finds what exact search finds within the bounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bigfs.blocks import RowBlocks
from bigfs.graph.local import as_distances, as_squares, prepare_rows, search_exact
from bigfs.graph.recall import true_neighbors
from bigfs.graph.search import gather_rows
from bigfs.store.scratch import Scratch
from tests.graph._brute import manifold


@pytest.mark.parametrize("metric", ["euclidean", "cosine", "correlation"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equals_exact_search(metric: str, dtype: type) -> None:
    X = manifold(3000, 20).astype(dtype) + dtype(50)
    X[40:60] = X[3]  # ties
    rows, queries = prepare_rows(X, metric), prepare_rows(X[:200], metric)
    own = np.arange(200)
    indices, squared = search_exact(rows, 7, queries, own)
    bounds = as_distances(squared, metric)[:, -1]
    actual = search_exact(rows, 7, queries, own, as_squares(bounds, metric))
    np.testing.assert_array_equal(actual[0], indices)
    np.testing.assert_array_equal(actual[1], squared)


def test_fewer_within_the_bound() -> None:
    rows = np.arange(10, dtype=np.float32)[:, None]
    bounds = np.array([1.5, 0.5, 100], np.float32)
    reach = as_squares(bounds, "euclidean")
    indices, squared = search_exact(rows, 3, rows[:3], np.array([0, 1, -1]), reach)
    np.testing.assert_array_equal(indices, [[1, -1, -1], [-1, -1, -1], [2, 1, 3]])
    np.testing.assert_array_equal(squared, [[1, np.inf, np.inf], [np.inf] * 3, [0, 1, 1]])


@pytest.mark.parametrize("scale", [1e-30, 1e17, 1e25])
def test_any_scale(scale: float) -> None:
    X = (manifold(500, 6) * scale).astype(np.float32)
    indices, squared = search_exact(X, 4, X[:50], np.arange(50))
    bounds = as_distances(squared, "euclidean")[:, -1]
    actual = search_exact(X, 4, X[:50], np.arange(50), as_squares(bounds, "euclidean"))
    np.testing.assert_array_equal(actual[0], indices)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("missing", [False, True])
def test_true_neighbors_within_what_a_graph_lists(
    tmp_path: Path, metric: str, missing: bool
) -> None:
    X, scratch = manifold(3000, 20).astype(np.float32), Scratch(tmp_path)
    X[40:60] = X[3]  # ties
    blocks = RowBlocks.from_any(X, scratch=scratch.child("shared"), rows=700)
    ids = np.arange(0, 3000, 29)
    samples = gather_rows(blocks, [ids], metric, scratch.child("working"))
    indices, distances = true_neighbors(blocks, samples, 5, metric)
    prepared = prepare_rows(X, metric)
    expected = search_exact(prepared, 5, prepared[ids], ids)
    np.testing.assert_array_equal(indices, expected[0])
    # A graph that misses some neighbors lists farther ones; one may have too few.
    worse = np.sort(distances * np.linspace(1, 1.5, 5, dtype=np.float32), axis=1)
    worse[7, 4] = np.inf if missing else worse[7, 4]
    bounded = true_neighbors(blocks, samples, 5, metric, scratch.put("listed", worse))
    np.testing.assert_array_equal(bounded[0], indices)
    np.testing.assert_array_equal(bounded[1], distances)
    tight = true_neighbors(blocks, samples, 5, metric, scratch.put("tight", distances))
    np.testing.assert_array_equal(tight[0], indices)
