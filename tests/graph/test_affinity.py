"""W against its dense definition, and the data it cannot be built from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from bigfs.blocks import RowBlocks
from bigfs.core.errors import InputError, MemoryLimitError
from bigfs.graph import AffinityMatrix, affinity, affinity_from_csr, cost, knn_graph, symmetrize
from bigfs.graph.symmetrize import union_rows
from bigfs.store.scratch import Scratch
from tests.graph._brute import manifold


def _dense(X: np.ndarray, indices: np.ndarray, weight: str, sigma: float | None) -> np.ndarray:
    rows = X.astype(np.float64)
    linked = np.zeros((len(X), len(X)), dtype=bool)
    linked[np.arange(len(X))[:, None], indices] = True
    linked |= linked.T
    if weight == "binary":
        W = np.ones(linked.shape)
    elif weight == "heat":
        W = np.exp(-((rows[:, None] - rows) ** 2).sum(axis=2) / sigma)
    else:
        W = rows @ rows.T
        if weight == "cosine":
            norms = np.linalg.norm(rows, axis=1)
            W /= np.outer(norms, norms)
    return np.where(linked, W, 0)


@pytest.fixture(scope="module")
def positive() -> np.ndarray:
    return np.abs(manifold(400, 9)) + 0.1


@pytest.mark.parametrize("weight", ["binary", "heat", "dot", "cosine"])
def test_every_weight_by_blocks(
    weight: str, positive: np.ndarray, monkeypatch: pytest.MonkeyPatch, scheduler: str
) -> None:
    monkeypatch.setattr(cost, "GRAPH_BLOCK_BYTES", 8 * 6 * 64)
    monkeypatch.setattr(symmetrize, "ENTRY_CHUNK", 500)
    blocks = RowBlocks.from_any(positive, rows=90)
    graph = knn_graph(blocks, 6)
    assert len(graph.row_bounds) == 7
    W = affinity(graph, weight, blocks=blocks)
    M = W.load()
    expected = _dense(positive, graph.indices[...], weight, W.sigma_)
    np.testing.assert_allclose(M.toarray(), expected, rtol=1e-5, atol=1e-7)
    assert abs(M - M.T).max() == 0
    assert not M.diagonal().any()
    np.testing.assert_allclose(W.degrees.load(), expected.sum(axis=1), rtol=1e-5)
    assert M.has_sorted_indices
    assert sorted(path.name for path in W.scratch.path.iterdir()) == [
        "data",
        "degrees",
        "indices",
        "indptr",
    ]


def test_default_width_is_recorded(positive: np.ndarray) -> None:
    graph = knn_graph(positive, 5)
    W = affinity(graph, "heat")
    assert W.sigma_ == pytest.approx(float(np.median(graph.distances[...])) ** 2)
    assert affinity(graph, "heat", sigma=2.5).sigma_ == 2.5


def test_cosine_of_a_cosine_graph_needs_no_data(positive: np.ndarray) -> None:
    graph = knn_graph(positive, 5, metric="cosine")
    M = affinity(graph, "cosine").load()
    expected = _dense(positive, graph.indices[...], "cosine", None)
    np.testing.assert_allclose(M.toarray(), expected, rtol=1e-6)


def test_dot_products_of_either_sign_are_kept_as_they_are() -> None:
    X = np.array([[3.0, 1], [3, 1.1], [-0.2, 1], [-0.1, 3]])
    graph = knn_graph(X, 2)
    blocks = RowBlocks.from_any(X)
    M = affinity(graph, "dot", blocks=blocks).load().toarray()
    np.testing.assert_allclose(M, _dense(X, graph.indices[...], "dot", None), atol=1e-6)
    assert M.min() < 0.5


@given(st.integers(1, 12), st.integers(0, 40), st.integers(0, 500))
@settings(max_examples=50)
def test_union_of_entries(n: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, columns = rng.integers(n, size=(2, count))
    weights = rng.integers(0, 3, size=count).astype(np.float64)
    expected = np.zeros((n, n))
    np.maximum.at(expected, (rows, columns), weights)
    found_columns, found, counts = union_rows(rows, columns, weights, n, n)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    M = sparse.csr_array((found, found_columns, indptr), shape=(n, n))
    np.testing.assert_array_equal(M.toarray(), expected)
    assert M.nnz == np.count_nonzero(expected)


def test_heat_that_vanishes_names_the_row_and_the_cure() -> None:
    X = np.concatenate([np.random.default_rng(0).normal(size=(30, 3)), [[1e4, 0, 0]]])
    with pytest.raises(InputError, match="Row 30 of the graph has degree 0: all its weights"):
        affinity(knn_graph(X, 3), "heat", sigma=1.0)


def test_negative_degrees() -> None:
    X = np.array([[1.0, 0.1], [-0.5, 0.0]])
    with pytest.raises(InputError, match="zero or negative. Use weight"):
        affinity(knn_graph(X, 1), "dot", blocks=RowBlocks.from_any(X))


def test_width_of_duplicates_only() -> None:
    graph = knn_graph(np.ones((10, 2)), 3)
    with pytest.raises(InputError, match="all neighbors are at distance zero"):
        affinity(graph, "heat")
    assert affinity(graph).load().sum() > 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"weight": "gauss"}, "binary, heat, dot, cosine. Got 'gauss'"),
        ({"weight": "heat", "sigma": 0}, "positive number"),
        ({"weight": "binary", "sigma": 1.0}, "belongs to weight 'heat'"),
        ({"weight": "dot"}, "pass blocks"),
    ],
)
def test_refusals(options: dict, words: str, positive: np.ndarray) -> None:
    with pytest.raises(InputError, match=words):
        affinity(knn_graph(positive, 3), **options)


def test_correlations_give_no_dot_products(positive: np.ndarray) -> None:
    with pytest.raises(InputError, match="metric 'euclidean' or 'cosine'"):
        affinity(knn_graph(positive, 3, metric="correlation"), "dot")


def test_stored_and_opened_again(tmp_path: Path, positive: np.ndarray) -> None:
    graph = knn_graph(positive, 4, scratch=Scratch(tmp_path))
    W = affinity(graph, "heat", scratch=Scratch(tmp_path / "W"))
    again = AffinityMatrix.open(tmp_path / "W", W.describe())
    assert abs(again.load() - W.load()).max() == 0
    assert again.describe() == W.describe()


def test_too_large_to_load(positive: np.ndarray) -> None:
    W = affinity(knn_graph(positive, 4))
    assert W.load("1 GiB").nnz == W.nnz
    larger = replace(W, data=replace(W.data, shape=(30_000_000,)))
    with pytest.raises(MemoryLimitError, match="W in memory"):
        larger.load("768 MiB")


def test_matrix_in_memory(tmp_path: Path) -> None:
    good = sparse.csr_array(np.array([[0, 2.0, 0], [2, 0, 1], [0, 1, 0]]))
    stored = affinity_from_csr(good)
    assert abs(stored.load() - good).max() == 0
    for bad, words in [
        (good.toarray(), "square scipy sparse"),
        (sparse.csr_array(np.array([[0, 1.0], [2, 0]])), "not symmetric"),
        (sparse.csr_array(np.array([[1.0, 1], [1, 0]])), "diagonal"),
        (sparse.csr_array(np.array([[0, 1.0, 0], [1, 0, 0], [0, 0, 0]])), "row 2 has degree 0"),
        (sparse.csr_array(np.array([[0, np.nan], [np.nan, 0]])), "NaN"),
    ]:
        with pytest.raises(InputError, match=words):
            affinity_from_csr(bad)
