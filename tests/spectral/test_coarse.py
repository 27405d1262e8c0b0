"""Eigenvectors that begin near those of a coarse graph are those of the graph, found sooner."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import block_diag, csr_array, random_array
from scipy.sparse.csgraph import connected_components

from bigfs import spectral_embedding
from bigfs.core.units import GIB
from bigfs.spectral import choice, coarse
from bigfs.spectral.coarse import _sum_of, coarse_rows, group_rows, n_near
from bigfs.spectral.embedding import SpectralEmbedding
from bigfs.spectral.operator import Storage
from tests.spectral.test_chebyshev import neighbor_graph

N = 6000


def _with_diagonal(W: Any) -> csr_array:
    W = csr_array(W + W.T)
    W.setdiag(0)
    W.eliminate_zeros()
    return W


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.floats(0, 0.2), st.integers(0, 1000))
def test_groups_are_rows_and_their_neighbors(n: int, density: float, seed: int) -> None:
    generator = np.random.default_rng(seed)
    W = _with_diagonal(random_array((n, n), density=density, rng=generator))
    groups, count = group_rows(lambda: [(0, W.indptr, W.indices)], n)
    assert groups.shape == (n,) and sorted(set(groups.tolist())) == list(range(count))
    for group in range(count):
        members = np.flatnonzero(groups == group)
        # Connected, by a path of at most two edges from its center.
        part = W[members][:, members]
        assert connected_components(part, directed=False)[0] == 1
        degrees = part.astype(bool).sum(axis=1)
        assert len(members) == 1 or degrees.max() >= 1
    # A row whose neighbors are all in no group would have made one: groups are not all single.
    alone = np.bincount(groups, minlength=count)[groups] == 1
    assert not (alone & (W.astype(bool).sum(axis=1) > 0)).any()


@pytest.mark.parametrize("size", [1, 7, 40])
def test_groups_are_the_same_of_rows_that_come_part_by_part(size: int) -> None:
    W = _with_diagonal(random_array((40, 40), density=0.1, rng=np.random.default_rng(0)))
    bounds = [(first, min(first + size, 40)) for first in range(0, 40, size)]
    parts = [(a, csr_array(W[a:b])) for a, b in bounds]
    actual, count = group_rows(lambda: [(a, W.indptr, W.indices) for a, W in parts], 40)
    expected = group_rows(lambda: [(0, W.indptr, W.indices)], 40)
    np.testing.assert_array_equal(actual, expected[0])
    assert count == expected[1]


def test_a_coarse_graph_has_the_sums_of_groups() -> None:
    generator = np.random.default_rng(0)
    W = csr_array(random_array((40, 55), density=0.3, rng=generator))
    of_rows, of_columns = generator.integers(8, size=40), generator.integers(8, size=55)
    members, others = np.eye(8)[of_rows], np.eye(8)[of_columns]
    of_rows, of_columns = of_rows.astype(np.int32), of_columns.astype(np.int32)
    actual = coarse_rows((W.indptr, W.indices, W.data), of_rows, of_columns, 8)
    np.testing.assert_allclose(actual.toarray(), members.T @ W.toarray() @ others, rtol=1e-5)
    parts = [actual, 2 * actual, actual]
    np.testing.assert_allclose(_sum_of(parts, 10**6).toarray(), 4 * actual.toarray())
    assert _sum_of(parts, actual.nnz - 1) is None


@pytest.mark.parametrize("n_missing", [1, 2, 5, 8, 12, 20, 24, 30])
def test_some_columns_stay_random(n_missing: int) -> None:
    width = coarse.block_width(n_missing)
    assert n_missing < n_near(n_missing) < width


@lru_cache
def _graph(kind: str) -> csr_array:
    if kind.startswith("connected "):
        return neighbor_graph(N, seed=int(kind.split()[1]))
    W = neighbor_graph(N)
    if kind == "connected":
        return W
    if kind == "three components":
        return csr_array(block_diag([neighbor_graph(n) for n in (3000, 2000, 900)]))
    # Ten groups of forty rows, which hang by an edge each and are what the eigenvectors show.
    small = [csr_array(np.ones((40, 40)) - np.eye(40)) for _ in range(10)]
    joined = block_diag([W, *small]).tolil()
    for group in range(10):
        joined[N + 40 * group, 100 * group] = joined[100 * group, N + 40 * group] = 1.0
    return csr_array(joined)


def _solved(kind: str, **options: Any) -> SpectralEmbedding:
    options = {"chunk_rows": 700, "tol": 1e-3, **options}
    return spectral_embedding(_graph(kind), 8, solver="chebyshev", **options)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small graphs have coarse ones, of which those of many rows have coarser ones."""
    monkeypatch.setattr(coarse, "LEAST_ROWS", 700)


@pytest.mark.parametrize(
    ("in_memory", "order"),
    [(True, "levels"), (False, "levels"), (False, "partitions"), (False, "none")],
)
@pytest.mark.parametrize("kind", ["connected", "three components", "small groups"])
def test_the_same_eigenvalues_for_fewer_products(
    kind: str, in_memory: bool, order: Any, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bigfs.spectral.operator.PIECE_ROWS", 2000)
    monkeypatch.setattr(choice, "_storage", lambda *size: Storage(in_memory, order, 32, GIB))
    started = _solved(kind, tol=1e-2)
    monkeypatch.setattr(coarse, "LEAST_ROWS", 10**9)
    plain = _solved(kind, tol=1e-2)
    np.testing.assert_allclose(started.eigenvalues, plain.eigenvalues, rtol=1e-3, atol=1e-12)
    assert started.n_connected_components == plain.n_connected_components
    assert (started.residuals <= 1e-2 * started.eigenvalues + 1e-13).all()
    if kind != "connected":
        assert started.n_products <= 0.9 * plain.n_products


def test_what_the_coarse_graph_lacks_is_found(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors of which the start knows nothing come from the columns that stay random."""
    expected = _solved("small groups")
    run_tasks = coarse.run_tasks

    def without_some(fn: Any, *arguments: Any, **options: Any) -> Any:
        results = run_tasks(fn, *arguments, **options)
        if fn in (coarse.copy_columns, coarse._dense_task):
            vectors = arguments[-1].load()
            vectors[:, 2:4] = np.random.default_rng(1).normal(size=(len(vectors), 2))
            arguments[-1].write(0, vectors)
        return results

    monkeypatch.setattr(coarse, "run_tasks", without_some)
    actual = _solved("small groups")
    np.testing.assert_allclose(actual.eigenvalues, expected.eigenvalues, rtol=1e-4)


def test_the_same_bits_under_every_scheduler(scheduler: str, small: None) -> None:
    import dask

    actual = _solved("connected")
    with dask.config.set(scheduler="synchronous"):
        expected = _solved("connected")
    np.testing.assert_array_equal(actual.embedding[:], expected.embedding[:])


def test_without_room_the_block_begins_anywhere(
    small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coarse, "_ENTRY_BYTES", 2**60)
    unstarted = _solved("connected")
    monkeypatch.setattr(coarse, "LEAST_ROWS", 10**9)
    plain = _solved("connected")
    np.testing.assert_array_equal(unstarted.embedding[:], plain.embedding[:])
