"""Eigenvectors that begin near those of a coarse graph are those of the graph, found sooner."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import block_diag, csr_array, random_array
from scipy.sparse.csgraph import connected_components

from bigfs import spectral_embedding
from bigfs.spectral import choice, coarse, rowcoarse, storedblock
from bigfs.spectral.chebyshev import rough_vectors, solve_chebyshev
from bigfs.spectral.coarse import coarse_rows, group_parts, group_rows, n_near, strong_edges
from bigfs.spectral.eigsh import solve_eigsh
from bigfs.spectral.embedding import SpectralEmbedding
from tests.spectral.test_chebyshev import neighbor_graph

N = 6000
SPREAD = {"one task": False, "row blocks": True, "strips": None}


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
    n_rows = int(generator.integers(1, n + 1))
    rows = csr_array(W[:n_rows])
    groups, count = group_rows(rows.indptr, rows.indices, n_rows)
    assert groups.shape == (n_rows,) and sorted(set(groups.tolist())) == list(range(count))
    inside = rows[:, :n_rows]
    for group in range(count):
        members = np.flatnonzero(groups == group)
        # Connected, by a path of at most two edges from its center.
        part = inside[members][:, members]
        assert connected_components(part, directed=False)[0] == 1
        degrees = part.astype(bool).sum(axis=1)
        assert len(members) == 1 or degrees.max() >= 1
    # A row whose neighbors are all in no group would have made one: groups are not all single.
    alone = np.bincount(groups, minlength=count)[groups] == 1
    assert not (alone & (inside.astype(bool).sum(axis=1) > 0)).any()


@pytest.mark.parametrize("size", [1, 7, 40])
def test_groups_are_the_same_of_rows_that_come_part_by_part(size: int) -> None:
    W = _with_diagonal(random_array((40, 40), density=0.1, rng=np.random.default_rng(0)))
    bounds = [(first, min(first + size, 40)) for first in range(0, 40, size)]
    parts = [(a, csr_array(W[a:b])) for a, b in bounds]
    actual, count = group_parts(lambda: [(a, W.indptr, W.indices) for a, W in parts], 40)
    expected = group_rows(W.indptr, W.indices, 40)
    np.testing.assert_array_equal(actual, expected[0])
    assert count == expected[1]


def test_strong_edges_have_the_mean_weight_of_their_row_at_least() -> None:
    W = csr_array(random_array((12, 30), density=0.4, rng=np.random.default_rng(0)))
    indptr, indices = strong_edges(W, 5)
    dense = W.toarray()
    dense[np.arange(12), 5 + np.arange(12)] = 0.0
    for row, weights in enumerate(dense):
        expected = np.flatnonzero(weights >= weights[weights > 0].mean())
        assert sorted(indices[indptr[row] : indptr[row + 1]]) == expected.tolist()


def test_a_coarse_graph_has_the_sums_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coarse, "_ROWS", 7)
    generator = np.random.default_rng(0)
    W = csr_array(random_array((40, 55), density=0.3, rng=generator))
    of_rows, of_columns = generator.integers(5, size=40), generator.integers(8, size=55)
    members, others = np.eye(5)[of_rows], np.eye(8)[of_columns]
    of_rows, of_columns = of_rows.astype(np.int32), of_columns.astype(np.int32)
    actual = coarse_rows((W.indptr, W.indices, W.data), of_rows, of_columns, (5, 8), 10**6)
    np.testing.assert_allclose(actual.toarray(), members.T @ W.toarray() @ others)
    assert coarse_rows((W.indptr, W.indices, W.data), of_rows, of_columns, (5, 8), 20) is None


def test_rough_vectors_are_near_those_of_the_graph() -> None:
    W = neighbor_graph(3000).astype(np.float64)
    rough = rough_vectors(W, 1, 6, np.random.default_rng(0))
    assert rough is not None
    exact, root = solve_eigsh(W, 6, tol=1e-8, random_state=0), np.sqrt(W.sum(axis=1))[:, None]
    cosines = np.linalg.svd(np.linalg.qr(rough * root)[0].T @ (exact.vectors * root))[1]
    assert cosines.min() > 0.99
    assert rough_vectors(W[:5][:, :5], 1, 6, np.random.default_rng(0)) is None


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


def _solved(where: str, kind: str, **options: Any) -> SpectralEmbedding:
    options = {"distributed": SPREAD[where], "chunk_rows": 700, "tol": 1e-4, **options}
    return spectral_embedding(_graph(kind), 8, solver="chebyshev", **options)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small graphs have coarse ones, but not these again, and go to strips."""
    monkeypatch.setattr(coarse, "LEAST_ROWS", 5000)
    monkeypatch.setattr(choice, "_MANY_ROWS", 1000)
    monkeypatch.setattr("bigfs.spectral.strips._MULTIPLICATIONS", 0)


@pytest.mark.full
@pytest.mark.parametrize("where", SPREAD)
@pytest.mark.parametrize("kind", ["connected", "three components", "small groups"])
def test_the_same_eigenvalues_for_fewer_products(
    where: str, kind: str, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = _solved(where, kind)
    monkeypatch.setattr(coarse, "LEAST_ROWS", 10**9)
    plain = _solved(where, kind)
    np.testing.assert_allclose(started.eigenvalues, plain.eigenvalues, atol=1e-6)
    assert started.n_connected_components == plain.n_connected_components
    assert (started.residuals <= 1e-4).all()
    if kind != "connected":
        assert started.n_products <= 0.75 * plain.n_products


@pytest.mark.full
def test_no_more_products_in_graphs_without_groups(
    small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of the bulk takes most of the work; a random start's changes with rounding."""
    totals = []
    for least_rows in (5000, 10**9):
        monkeypatch.setattr(coarse, "LEAST_ROWS", least_rows)
        totals.append(
            sum(
                _solved(where, f"connected {seed}", random_state=random_state).n_products
                for where, seed, random_state in product(SPREAD, range(5), range(2))
            )
        )
    assert totals[0] <= totals[1]


@pytest.mark.parametrize("where", ["row blocks", "strips"])
def test_a_coarse_graph_without_room_is_grouped_once_more(
    where: str, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, needed = [], rowcoarse.coarse_bytes

    def too_much_at_first(n_coarse: int, *given: int) -> int:
        sizes.append(n_coarse)
        return needed(n_coarse, *given) if n_coarse < sizes[0] else 2**60

    monkeypatch.setattr(rowcoarse, "coarse_bytes", too_much_at_first)
    monkeypatch.setattr("bigfs.spectral.chebyshev.coarse_bytes", lambda *given: 2**60)
    started = _solved(where, "small groups")
    assert sizes[-1] < sizes[0] / 2
    monkeypatch.setattr(coarse, "LEAST_ROWS", 10**9)
    plain = _solved(where, "small groups")
    np.testing.assert_allclose(started.eigenvalues, plain.eigenvalues, atol=1e-6)
    assert (started.residuals <= 1e-4).all()
    assert started.n_products < plain.n_products


def test_what_the_coarse_graph_lacks_is_found(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors of which the start knows nothing come from the columns that stay random."""
    expected = _solved("one task", "small groups")
    rough = rough_vectors

    def without_some(W: Any, *given: Any) -> np.ndarray:
        vectors = rough(W, *given)
        assert vectors is not None
        vectors[:, 2:4] = np.random.default_rng(1).normal(size=(len(vectors), 2))
        return vectors

    monkeypatch.setattr("bigfs.spectral.chebyshev.rough_vectors", without_some)
    actual = _solved("one task", "small groups")
    np.testing.assert_allclose(actual.eigenvalues, expected.eigenvalues, atol=1e-6)


@pytest.mark.full
def test_the_same_bits_under_every_scheduler(scheduler: str, small: None) -> None:
    import dask

    for where in ("row blocks", "strips"):
        actual = _solved(where, "connected")
        with dask.config.set(scheduler="synchronous"):
            expected = _solved(where, "connected")
        np.testing.assert_array_equal(actual.embedding[:], expected.embedding[:])


@pytest.mark.full
def test_an_interrupted_run_goes_on_with_the_same_bits(
    tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _solved("row blocks", "connected")
    product, left = storedblock.StoredBlock._product, [20]

    def interrupted(*arguments: Any) -> Any:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return product(*arguments)

    monkeypatch.setattr(storedblock.StoredBlock, "_product", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _solved("row blocks", "connected", checkpoint=tmp_path / "checkpoint")
    left[0] = 10**6
    actual = _solved("row blocks", "connected", checkpoint=tmp_path / "checkpoint")
    assert actual.n_products == expected.n_products
    np.testing.assert_array_equal(actual.embedding[:], expected.embedding[:])


@pytest.mark.full
@pytest.mark.parametrize("where", SPREAD)
def test_without_room_the_block_begins_anywhere(
    where: str, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rowcoarse, "coarse_bytes", lambda *sizes: 2**60)
    monkeypatch.setattr("bigfs.spectral.chebyshev.coarse_bytes", lambda *sizes: 2**60)
    unstarted = _solved(where, "connected")
    monkeypatch.setattr(coarse, "LEAST_ROWS", 10**9)
    plain = _solved(where, "connected")
    np.testing.assert_array_equal(unstarted.embedding[:], plain.embedding[:])


def test_solutions_of_few_rows_do_not_change() -> None:
    W = neighbor_graph(coarse.LEAST_ROWS // 16)
    assert solve_chebyshev(W, 3, tol=1e-4, random_state=0).n_products > 0
