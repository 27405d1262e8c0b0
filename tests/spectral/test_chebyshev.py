"""The Chebyshev iteration gives the eigenpairs of eigsh, in less memory, whatever the threads."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from scipy.sparse import block_diag, csr_array, csr_matrix, diags_array
from scipy.sparse.linalg import eigsh
from scipy.spatial import cKDTree

from bigfs.core.errors import ConvergenceError, InputError
from bigfs.spectral.chebyshev import PanelBlock, near_order, solve_chebyshev
from bigfs.spectral.eigsh import solve_eigsh
from bigfs.spectral.iteration import BOUND_STEPS, _bounds
from bigfs.spectral.kernels import RowKernel, aligned
from bigfs.spectral.problem import Problem
from bigfs.spectral.rowloop import CACHE_LINE


def neighbor_graph(n: int, n_dims: int = 4, k: int = 8, seed: int = 0) -> csr_array:
    """Return the 0/1 union graph of Gaussian points."""
    Z = np.random.default_rng(seed).normal(size=(n, n_dims))
    _, indices = cKDTree(Z).query(Z, k + 1)
    heads = np.repeat(np.arange(n), k)
    W = csr_array((np.ones(n * k), (heads, indices[:, 1:].ravel())), shape=(n, n))
    return csr_array(W.maximum(W.T))


@pytest.mark.parametrize("tol, atol", [(1e-4, 1e-5), (1e-6, 1e-9), (1e-9, 1e-13)])
def test_equals_eigsh(tol: float, atol: float) -> None:
    W = neighbor_graph(5000)
    solution = solve_chebyshev(W, 12, tol=tol, random_state=0)
    expected = solve_eigsh(W, 12, tol=1e-10, random_state=0)
    np.testing.assert_allclose(solution.eigenvalues, expected.eigenvalues, atol=atol)
    assert solution.residuals.max() <= tol
    assert solution.n_iterations > 0
    d = W.sum(axis=1)
    Y = solution.vectors
    np.testing.assert_allclose(Y.T @ (d[:, None] * Y), np.eye(12), atol=1e-9)
    np.testing.assert_allclose(d @ Y, 0, atol=1e-9)
    if tol == 1e-9:
        np.testing.assert_allclose(Y, expected.vectors, atol=1e-7)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_weights_of_any_size_and_type(dtype: type) -> None:
    W = neighbor_graph(3000).astype(dtype)
    weights = np.random.default_rng(0).uniform(0.5, 2.0, W.shape[0])
    W.data *= 100 * (weights[W.indices] * np.repeat(weights, np.diff(W.indptr)))
    solution = solve_chebyshev(W, 6, tol=1e-9, random_state=0)
    expected = solve_eigsh(W, 6, tol=1e-9, random_state=0)
    np.testing.assert_allclose(solution.eigenvalues, expected.eigenvalues, atol=1e-12)


@pytest.mark.parametrize("n_components", [1, 3, 4, 9])
def test_disconnected_graphs(n_components: int) -> None:
    W = csr_matrix(block_diag([neighbor_graph(900 + 50 * i, seed=i) for i in range(5)]))
    solution = solve_chebyshev(W, n_components, tol=1e-6, random_state=0)
    expected = solve_eigsh(W, n_components, tol=1e-9, random_state=0)
    assert solution.n_connected_components == 5
    np.testing.assert_allclose(solution.eigenvalues, expected.eigenvalues, atol=1e-9)
    known = min(4, n_components)
    np.testing.assert_array_equal(solution.vectors[:, :known], expected.vectors[:, :known])


def test_a_group_at_the_cut_has_one_basis() -> None:
    """Three equal parts make every eigenvalue triple; two of a triple are asked for."""
    part = neighbor_graph(1200)
    W = csr_matrix(block_diag([part, part, part]))
    a = solve_chebyshev(W, 4, tol=1e-8, random_state=0)
    b = solve_chebyshev(W, 4, tol=1e-8, random_state=5)
    np.testing.assert_allclose(a.eigenvalues[2], a.eigenvalues[3], atol=1e-10)
    np.testing.assert_allclose(a.vectors, b.vectors, atol=1e-5)


def test_a_group_wider_than_the_block_is_said(caplog: pytest.LogCaptureFixture) -> None:
    W = csr_matrix(block_diag([neighbor_graph(120)] * 12))
    with caplog.at_level(logging.WARNING):
        solution = solve_chebyshev(W, 13, tol=1e-6, random_state=0)
    assert "has more than" in caplog.text
    expected = np.linalg.eigvalsh(_normalized(neighbor_graph(120)))[1]
    np.testing.assert_allclose(solution.eigenvalues[11:], expected, atol=1e-9)


@pytest.mark.parametrize("n_components, warned", [(12, True), (39, False)])
def test_many_parts_with_weak_links(
    n_components: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The eigenvalues of 40 parts differ by less than the tolerance: one group, cut or not."""
    parts = block_diag([neighbor_graph(120, seed=i) for i in range(40)])
    ends = np.arange(39) * 120
    links = csr_array((np.full(39, 1e-4), (ends, ends + 120)), shape=parts.shape)
    with caplog.at_level(logging.WARNING):
        solution = solve_chebyshev(csr_array(parts + links + links.T), n_components, tol=1e-4,
                                random_state=0)  # fmt: skip
    assert solution.n_connected_components == 1
    assert solution.eigenvalues.max() < 1e-5
    assert solution.residuals.max() < 1e-4
    assert ("has more than 4 vectors" in caplog.text) == warned


def _normalized(W: csr_array) -> np.ndarray:
    root = np.sqrt(W.sum(axis=1))
    return np.eye(len(root)) - W.toarray() / root / root[:, None]


@pytest.mark.parametrize("tol", [1e-4, 1e-7])
def test_threads_change_no_bit(tol: float) -> None:
    W = neighbor_graph(20_000)
    single = solve_chebyshev(W, 8, tol=tol, random_state=0)
    three = solve_chebyshev(W, 8, tol=tol, random_state=0, n_threads=3)
    np.testing.assert_array_equal(single.eigenvalues, three.eigenvalues)
    np.testing.assert_array_equal(single.vectors, three.vectors)


@pytest.mark.parametrize("tol", [1e-4, 1e-5, 1e-8])
def test_a_path_whose_eigenvalues_are_tiny(tol: float) -> None:
    """Gaps of 1e-6 take filters of a high degree."""
    n = 3000
    W = csr_array(diags_array([np.ones(n - 1)] * 2, offsets=[-1, 1]))
    solution = solve_chebyshev(W, 8, tol=tol, random_state=0)
    expected = 1 - np.cos(np.pi * np.arange(1, 9) / (n - 1))
    np.testing.assert_allclose(solution.eigenvalues, expected, atol=tol)
    assert solution.residuals.max() <= tol


def test_small_graphs_are_solved_densely() -> None:
    W = neighbor_graph(300)
    solution = solve_chebyshev(W, 200, tol=1e-8, random_state=0)
    assert solution.n_iterations == 0
    expected = solve_eigsh(W, 200, tol=1e-8, random_state=0)
    np.testing.assert_array_equal(solution.vectors, expected.vectors)


def test_not_converging_is_an_error_with_the_residuals() -> None:
    with pytest.raises(ConvergenceError, match=r"at most 1e-17. Got \d"):
        solve_chebyshev(neighbor_graph(1500), 5, tol=1e-17, random_state=0)
    with pytest.raises(InputError, match=r"int in \[1, 1499\]"):
        solve_chebyshev(neighbor_graph(1500), 1500, tol=1e-6, random_state=0)


@pytest.mark.parametrize("n_columns", [5, 33])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_kernel_is_the_recurrence(dtype: type, n_columns: int) -> None:
    W = neighbor_graph(10_000)
    rng = np.random.default_rng(0)
    X, Y = (rng.normal(size=(10_000, n_columns)).astype(dtype) for _ in range(2))
    degrees = W.sum(axis=1)
    expected = 2.0 * (W @ X.astype(np.float64)) / degrees[:, None] - 0.5 * X + 0.25 * Y
    kernel = RowKernel((W.indptr, W.indices, W.data), degrees, 2)
    kernel.step(X, Y, 2.0, -0.5, 0.25)
    kernel.close()
    np.testing.assert_allclose(Y, expected, atol=20 * np.finfo(dtype).eps)
    product = (W[70:900] @ X.astype(np.float64)) / degrees[70:900, None]
    np.testing.assert_allclose(kernel.product(X, 70, 900), product, atol=20 * np.finfo(dtype).eps)


@pytest.mark.parametrize("seed", [0, 1])
def test_no_eigenvalue_is_below_the_bound(seed: int) -> None:
    W = neighbor_graph(20_000, k=3, seed=seed)
    root = diags_array(W.sum(axis=1) ** -0.5)
    smallest = eigsh(root @ W @ root, 1, which="SA", tol=1e-4, return_eigenvectors=False)[0]
    with PanelBlock(Problem.of(W, 4, 1e-4), 0, 1) as block:
        low, _ = _bounds(*block.lanczos(BOUND_STEPS))
    assert -1 <= low <= smallest <= low + 0.2


def test_a_row_of_an_aligned_block_is_a_cache_line() -> None:
    for dtype in (np.float32, np.float64):
        block = aligned((7, CACHE_LINE // np.dtype(dtype).itemsize), dtype)
        assert block.flags.c_contiguous and block.flags.writeable
        assert [row.ctypes.data % CACHE_LINE for row in block] == [0] * 7
        assert (block.dtype, block.strides[0]) == (dtype, CACHE_LINE)


def test_rows_are_in_order_within_partitions() -> None:
    W = neighbor_graph(2000)
    plain, groups = near_order(W, None), np.arange(2000) % 3
    order = near_order(W, groups)
    np.testing.assert_array_equal(groups[order], np.sort(groups))
    for group in range(3):
        inside = groups[order] == group
        np.testing.assert_array_equal(order[inside], plain[groups[plain] == group])
    options = {"tol": 1e-8, "random_state": 0}
    single = solve_chebyshev(W, 4, **options)
    grouped = solve_chebyshev(W, 4, partitions=groups, **options)
    np.testing.assert_allclose(grouped.vectors, single.vectors, atol=1e-6)
