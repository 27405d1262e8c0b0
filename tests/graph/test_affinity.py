"""W against its dense definition, and the data it cannot be built from."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import dask
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from bigfs.blocks import RowBlocks
from bigfs.config.sections import GraphConfig
from bigfs.core.errors import InputError, MemoryLimitError
from bigfs.graph import AffinityMatrix, affinity, affinity_from_csr, cost, knn_graph, symmetrize
from bigfs.graph.affinity import LEAST_HEAT
from bigfs.graph.edges import edge_products
from bigfs.graph.symmetrize import union_rows
from bigfs.spectral.embedding import spectral_embedding
from bigfs.store.scratch import Scratch
from tests.graph._brute import manifold
from tests.selectors._local import inputs_of, strategy_of


def _dense(X: np.ndarray, indices: np.ndarray, weight: str, sigma: float | None) -> np.ndarray:
    rows = X.astype(np.float64)
    linked = np.zeros((len(X), len(X)), dtype=bool)
    linked[np.arange(len(X))[:, None], indices] = True
    linked |= linked.T
    if weight == "binary":
        W = np.ones(linked.shape)
    elif weight == "heat":
        squared = ((rows[:, None] - rows) ** 2).sum(axis=2)
        last = squared[np.arange(len(X)), indices[:, -1]]
        W = np.exp(-squared / (np.maximum.outer(last, last) if sigma is None else sigma))
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


def test_only_a_width_that_was_given_is_recorded(positive: np.ndarray) -> None:
    graph = knn_graph(positive, 5)
    assert affinity(graph, "heat").sigma_ is None
    assert affinity(graph, "heat", sigma=2.5).sigma_ == 2.5


def test_heat_weights_do_not_vanish_whatever_the_distances() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_t(1, size=(200, 5)) * 10.0 ** rng.integers(-8, 9, size=(200, 1))
    X[50:54] = X[50]
    M = affinity(knn_graph(X, 4), "heat").load()
    assert M.data.min() >= np.exp(-1) * (1 - 1e-9)
    assert M.data.max() <= 1
    assert abs(M - M.T).max() == 0
    assert M[50, 51] == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("weight", ["dot", "cosine"])
def test_products_are_those_of_the_rows(
    weight: str, metric: str, dtype: type, positive: np.ndarray
) -> None:
    X = np.asfortranarray(positive.astype(dtype))
    blocks = RowBlocks.from_any(X, rows=90)
    graph = knn_graph(blocks, 6, metric=metric)
    M = affinity(graph, weight, blocks=blocks).load()
    expected = _dense(X, graph.indices[...], weight, None)
    np.testing.assert_allclose(M.toarray(), expected, rtol=1e-14)
    assert abs(M - M.T).max() == 0


def _documents(seed: int, n_rows: int = 300, n_terms: int = 200) -> np.ndarray:
    """Return term weights of short texts, as tf-idf gives them: few terms each, no row empty."""
    rng = np.random.default_rng(seed)
    counts = rng.poisson(0.04, size=(n_rows, n_terms))
    counts[np.arange(n_rows), rng.integers(n_terms, size=n_rows)] += 1
    X = counts * np.log(1 + n_rows / (1 + (counts > 0).sum(axis=0)))
    return np.asarray(X)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("weight", ["dot", "cosine"])
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_products_of_data_without_negative_values_are_not_negative(
    weight: str, metric: str, seed: int
) -> None:
    X = _documents(seed)
    blocks = RowBlocks.from_any(X)
    graph = knn_graph(blocks, 5, metric=metric)
    W = affinity(graph, weight, blocks=blocks)
    M = W.load()
    assert M.data.min() > 0
    assert W.degrees.load().min() > 0
    expected = _dense(X, graph.indices[...], weight, None)
    np.testing.assert_allclose(M.toarray(), expected, rtol=1e-12, atol=expected[expected > 0].min())
    embedding = spectral_embedding(W, 4)
    assert np.isfinite(embedding.eigenvalues).all()


@pytest.mark.full
@pytest.mark.parametrize("weight", ["dot", "cosine"])
def test_a_row_of_zeros_keeps_its_nearest_neighbor(
    weight: str, caplog: pytest.LogCaptureFixture
) -> None:
    for seed in range(40):
        X = np.abs(np.random.default_rng(seed).normal(size=(80, 6)))
        X[[11, 70]] = 0
        X[70, 0] = 1e-3 * (seed % 2)  # the second row of zeros, or a short one
        blocks = RowBlocks.from_any(X, rows=30)
        graph = knn_graph(blocks, 5)
        caplog.clear()
        W = affinity(graph, weight, blocks=blocks)
        [record] = caplog.records
        n_zero = 2 - seed % 2
        assert f"{n_zero} of 80 rows have weight 0 to all their neighbors" in record.getMessage()
        M, nearest = W.load(), int(graph.indices[11, 0])
        rest = np.delete(np.arange(80), [11, 70] if n_zero == 2 else [11])
        least = M[rest][:, rest].data.min()
        assert M[11, nearest] == M[nearest, 11] == least
        assert M[11].nnz == 1
        assert W.degrees.load()[11] == least
        assert M.data.max() <= (1 if weight == "cosine" else (X**2).sum(axis=1).max())
        assert abs(M - M.T).max() == 0
        strategy, inputs = strategy_of("spec", blocks.layout), inputs_of(blocks, affinity=W)
        assert np.isfinite(strategy.run(inputs, blocks.scratch).scores).all()
        assert np.isfinite(spectral_embedding(W, 3).eigenvalues).all()


@pytest.mark.parametrize("weight", ["dot", "cosine"])
def test_products_are_the_same_bits_by_blocks_of_any_size(weight: str, scheduler: str) -> None:
    X = _documents(0, n_terms=37)
    X[5] = 0
    graph = knn_graph(X, 7)
    with dask.config.set(scheduler="synchronous"):
        expected = affinity(graph, weight, blocks=RowBlocks.from_any(X)).load()
    for rows in (1, 17, 128):
        actual = affinity(graph, weight, blocks=RowBlocks.from_any(X, rows=rows)).load()
        np.testing.assert_array_equal(actual.indices, expected.indices)
        np.testing.assert_array_equal(actual.data, expected.data)


def test_products_take_the_memory_that_is_planned() -> None:
    n, k = 60_000, 20
    X = np.random.default_rng(0).random((n, 8))
    blocks = RowBlocks.from_any(X, rows=n)
    scratch = Scratch()
    indices = scratch.create("indices", (n, k), np.int32, n)
    indices.write(0, np.random.default_rng(1).integers(n, size=(n, k)).astype(np.int32))
    settings = GraphConfig(n_neighbors=k, weight="cosine")
    planned = next(
        step.task_bytes
        for step in cost.graph_cost(blocks.layout, settings, 2**32).steps
        if step.what == "a block and a block of its neighbors"
    )
    tracemalloc.start()
    try:
        edge_products(blocks, indices, "cosine", scratch)
        measured = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert planned / 3 < measured <= planned


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
    found_columns, actual, counts = union_rows(rows, columns, weights, n, n)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    M = sparse.csr_array((actual, found_columns, indptr), shape=(n, n))
    np.testing.assert_array_equal(M.toarray(), expected)
    assert M.nnz == np.count_nonzero(expected)


def test_a_given_width_keeps_far_rows_and_counts_them(caplog: pytest.LogCaptureFixture) -> None:
    X = np.concatenate([np.random.default_rng(0).normal(size=(30, 3)), [[1e4, 0, 0]]])
    graph = knn_graph(X, 3)
    M = affinity(graph, "heat", sigma=1.0).load()
    assert M[30].data.tolist() == [LEAST_HEAT] * 3
    n_far = (graph.distances[...][:, -1] > np.sqrt(np.log(1e6))).sum()
    assert f"{n_far} of 31 rows have neighbors at which" in caplog.text


def test_negative_degrees() -> None:
    X = np.array([[1.0, 0.1], [-0.5, 0.0]])
    with pytest.raises(InputError, match="zero or negative. Use weight"):
        affinity(knn_graph(X, 1), "dot", blocks=RowBlocks.from_any(X))


def test_copies_have_weight_one() -> None:
    W = affinity(knn_graph(np.ones((10, 2)), 3), "heat").load()
    assert set(W.data) == {1.0}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"weight": "gauss"}, "binary, heat, dot, cosine. Got 'gauss'"),
        ({"weight": "heat", "sigma": 0}, "positive number"),
        ({"weight": "binary", "sigma": 1.0}, "applies to weight 'heat' only"),
        ({"weight": "dot"}, "pass blocks"),
        ({"weight": "cosine"}, "pass blocks"),
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
