"""The Chebyshev iteration gives the eigenpairs of eigsh, however W is held."""

from __future__ import annotations

import logging
import subprocess
import sys

import numpy as np
import pytest
from scipy.sparse import block_diag, csr_array, csr_matrix, diags_array
from scipy.sparse.linalg import eigsh
from scipy.spatial import cKDTree
from sklearn.datasets import make_blobs

from bigfs.core.errors import ConvergenceError, InputError
from bigfs.core.units import GIB
from bigfs.graph import affinity_from_csr, knn_graph
from bigfs.spectral import iteration
from bigfs.spectral.block import Record, StoredBlock
from bigfs.spectral.eigsh import solve_eigsh
from bigfs.spectral.embedding import SpectralEmbedding, spectral_embedding
from bigfs.spectral.iteration import BOUND_STEPS, _bounds
from bigfs.spectral.kernels import CACHE_LINE, aligned, compiled_products
from bigfs.spectral.operator import Storage, Transition, store_graph
from bigfs.spectral.tasks import Begin
from bigfs.store.scratch import Scratch

_WHILE_NUMBA_IS_IMPORTED = """
import importlib, sys, threading
from bigfs.spectral.kernels import _prefetch_instruction
other = threading.Thread(target=importlib.import_module, args=["numba"])
other.start()
while "numba.core.types" not in sys.modules:
    pass
_prefetch_instruction()
other.join()
"""


def test_kernels_are_compiled_while_another_thread_imports_numba() -> None:
    subprocess.run([sys.executable, "-c", _WHILE_NUMBA_IS_IMPORTED], check=True)


def neighbor_graph(n: int, n_dims: int = 4, k: int = 8, seed: int = 0) -> csr_array:
    """Return the 0/1 union graph of Gaussian points."""
    Z = np.random.default_rng(seed).normal(size=(n, n_dims))
    _, indices = cKDTree(Z).query(Z, k + 1)
    heads = np.repeat(np.arange(n), k)
    W = csr_array((np.ones(n * k), (heads, indices[:, 1:].ravel())), shape=(n, n))
    return csr_array(W.maximum(W.T))


def solve_chebyshev(
    W: csr_array, n_components: int, tol: float, random_state: int = 0
) -> SpectralEmbedding:
    return spectral_embedding(
        W, n_components, solver="chebyshev", tol=tol, random_state=random_state, chunk_rows=700
    )


@pytest.mark.parametrize("tol, atol", [(1e-2, 1e-4), (1e-4, 1e-8), (1e-8, 1e-13)])
def test_equals_eigsh(tol: float, atol: float) -> None:
    W = neighbor_graph(5000)
    solution = solve_chebyshev(W, 12, tol=tol)
    expected = solve_eigsh(W, 12, tol=1e-10, random_state=0)
    np.testing.assert_allclose(solution.eigenvalues, expected.eigenvalues, atol=atol)
    assert (solution.residuals / solution.eigenvalues).max() <= tol
    assert solution.n_iterations > 0
    d = W.sum(axis=1)
    Y = solution.embedding[:]
    np.testing.assert_allclose(Y.T @ (d[:, None] * Y), np.eye(12), atol=1e-9)
    np.testing.assert_allclose(d @ Y, 0, atol=1e-9)
    np.testing.assert_allclose(solution.norms, np.linalg.norm(Y, axis=0), rtol=1e-12)
    if tol == 1e-8:
        np.testing.assert_allclose(Y, expected.vectors, atol=1e-7)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_weights_of_any_size_and_type(dtype: type) -> None:
    W = neighbor_graph(3000).astype(dtype)
    weights = np.random.default_rng(0).uniform(0.5, 2.0, W.shape[0])
    W.data *= 100 * (weights[W.indices] * np.repeat(weights, np.diff(W.indptr)))
    solution = solve_chebyshev(W, 6, tol=1e-9)
    expected = solve_eigsh(W, 6, tol=1e-9, random_state=0)
    np.testing.assert_allclose(solution.eigenvalues, expected.eigenvalues, atol=1e-12)


@pytest.mark.parametrize("n_components", [1, 3, 4, 9])
def test_disconnected_graphs(n_components: int) -> None:
    W = csr_matrix(block_diag([neighbor_graph(900 + 50 * i, seed=i) for i in range(5)]))
    solution = solve_chebyshev(W, n_components, tol=1e-6)
    expected = solve_eigsh(W, n_components, tol=1e-9, random_state=0)
    assert solution.n_connected_components == 5
    np.testing.assert_allclose(solution.eigenvalues, expected.eigenvalues, atol=1e-9)
    known = min(4, n_components)
    np.testing.assert_allclose(
        solution.embedding[:, :known], expected.vectors[:, :known], atol=1e-15
    )


def test_guards_that_a_filter_damps_to_rounding_are_found_again() -> None:
    X, _ = make_blobs(6000, 12, centers=5, random_state=1)
    graph = knn_graph(X.astype(np.float32), 8)
    ours, exact = (
        spectral_embedding(graph, 6, solver=solver, tol=1e-8) for solver in ("chebyshev", "eigsh")
    )
    np.testing.assert_allclose(ours.eigenvalues, exact.eigenvalues, rtol=0, atol=1e-12)
    assert ours.residuals.max() < 1e-8


def test_a_group_at_the_cut_has_one_basis() -> None:
    """Three equal parts make every eigenvalue triple; two of a triple are asked for."""
    part = neighbor_graph(1200)
    W = csr_matrix(block_diag([part, part, part]))
    a = solve_chebyshev(W, 4, tol=1e-8)
    b = solve_chebyshev(W, 4, tol=1e-8, random_state=5)
    np.testing.assert_allclose(a.eigenvalues[2], a.eigenvalues[3], atol=1e-10)
    np.testing.assert_allclose(a.embedding[:], b.embedding[:], atol=1e-5)


def test_a_group_wider_than_the_block_is_said(caplog: pytest.LogCaptureFixture) -> None:
    W = csr_matrix(block_diag([neighbor_graph(120)] * 12))
    with caplog.at_level(logging.WARNING):
        solution = solve_chebyshev(W, 13, tol=1e-6)
    assert "has more than" in caplog.text
    expected = np.linalg.eigvalsh(_normalized(neighbor_graph(120)))[1]
    np.testing.assert_allclose(solution.eigenvalues[11:], expected, atol=1e-9)


def _normalized(W: csr_array) -> np.ndarray:
    root = np.sqrt(W.sum(axis=1))
    return np.eye(len(root)) - W.toarray() / root / root[:, None]


@pytest.mark.parametrize("tol", [1e-2, 1e-4])
def test_a_path_whose_eigenvalues_are_tiny(tol: float) -> None:
    """Gaps of 1e-6 take filters of a high degree."""
    n = 3000
    W = csr_array(diags_array([np.ones(n - 1)] * 2, offsets=[-1, 1]))
    solution = solve_chebyshev(W, 8, tol=tol)
    expected = 1 - np.cos(np.pi * np.arange(1, 9) / (n - 1))
    np.testing.assert_allclose(solution.eigenvalues, expected, rtol=tol)
    root = np.sqrt(W.sum(axis=1))
    # The cosines of a path are its eigenvectors.
    true = np.cos(np.pi * np.arange(1, 9) * np.arange(n)[:, None] / (n - 1)) * root[:, None]
    correlation = abs(np.sum(true / np.linalg.norm(true, axis=0)
                             * solution.embedding[:] * root[:, None], axis=0))  # fmt: skip
    assert correlation.min() >= 0.999


def test_not_converging_is_an_error_with_the_residuals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iteration, "_MAX_ROUNDS", 1)
    with pytest.raises(ConvergenceError, match=r"must be at most .*Got \d"):
        solve_chebyshev(neighbor_graph(1500), 5, tol=1e-9)
    with pytest.raises(InputError, match=r"int in \[1, 1499\]"):
        solve_chebyshev(neighbor_graph(1500), 1500, tol=1e-6)


@pytest.mark.parametrize("n_columns", [5, 33])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_kernel_is_the_recurrence(dtype: type, n_columns: int) -> None:
    W = neighbor_graph(10_000)
    rng = np.random.default_rng(0)
    X, Y = (rng.normal(size=(10_000, n_columns)).astype(dtype) for _ in range(2))
    degrees = W.sum(axis=1)
    expected = 2.0 * (W @ X.astype(np.float64)) / degrees[:, None] - 0.5 * X + 0.25 * Y
    step, gather = compiled_products()
    csr = (W.indptr, W.indices, W.data, degrees)
    step(*csr, X, Y, 0, *(dtype(value) for value in (2.0, -0.5, 0.25)))
    np.testing.assert_allclose(Y, expected, atol=20 * np.finfo(dtype).eps)
    product, out = (
        (W[70:900] @ X.astype(np.float64)) / degrees[70:900, None],
        np.empty((830, n_columns)),
    )
    gather(*csr, X, np.arange(70, 900), out)
    np.testing.assert_allclose(out, product, atol=1e-14)


@pytest.mark.parametrize("seed", [0, 1])
def test_no_eigenvalue_is_below_the_bound(seed: int) -> None:
    W = neighbor_graph(20_000, k=3, seed=seed)
    root = diags_array(W.sum(axis=1) ** -0.5)
    smallest = eigsh(root @ W @ root, 1, which="SA", tol=1e-4, return_eigenvectors=False)[0]
    scratch = Scratch()
    graph = store_graph(affinity_from_csr(W), scratch, Storage(True, "levels", 64, GIB))
    block = StoredBlock(graph, scratch, 8, Begin(0), Record(None, 64))
    low, _ = _bounds(*block.lanczos(BOUND_STEPS))
    assert -1 <= low <= smallest <= low + 0.2


def test_a_row_of_an_aligned_block_is_a_cache_line() -> None:
    for dtype in (np.float32, np.float64):
        block = aligned((7, CACHE_LINE // np.dtype(dtype).itemsize), dtype)
        assert block.flags.c_contiguous and block.flags.writeable
        assert [row.ctypes.data % CACHE_LINE for row in block] == [0] * 7
        assert (block.dtype, block.strides[0]) == (dtype, CACHE_LINE)


@pytest.mark.parametrize("in_memory", [True, False])
def test_products_of_a_graph_in_a_bucket(
    in_memory: bool, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bigfs.spectral.operator.PIECE_ROWS", 300)
    W, X = neighbor_graph(2000), np.random.default_rng(0).normal(size=(2000, 3))
    scratch, storage = Scratch(f"{bucket}/graph"), Storage(in_memory, "levels", 64, GIB)
    products = Transition(store_graph(affinity_from_csr(W, scratch=scratch), scratch, storage))
    placed, out = np.empty_like(X), np.empty_like(X)
    placed[products.where(0, 2000)] = X
    with monkeypatch.context() as patched:  # W was read at the beginning
        patched.setattr("bigfs.store.pages._Reader.__init__", None)
        patched.setattr("bigfs.store.scratch.read_pages", None)
        products.step(placed, out, 1.0, 0.0, 0.0)
    expected = (W @ X) / W.sum(axis=1)[:, None]
    np.testing.assert_allclose(out[products.where(0, 2000)], expected, atol=1e-14)


def test_products_are_the_same_in_memory_and_piece_by_piece(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bigfs.spectral.operator.PIECE_ROWS", 300)
    monkeypatch.setattr("bigfs.spectral.operator.SLICE_ENTRIES", 2500)
    W = neighbor_graph(2000)
    X = np.random.default_rng(0).normal(size=(2000, 3))
    expected = (W @ X) / W.sum(axis=1)[:, None]
    for in_memory, order in (
        (True, "levels"),
        (False, "levels"),
        (False, "partitions"),
        (False, "none"),
    ):
        scratch = Scratch()
        graph = store_graph(affinity_from_csr(W), scratch, Storage(in_memory, order, 64, GIB))
        products = Transition(graph)
        placed, out = np.empty_like(X), np.empty_like(X)
        placed[products.where(0, 2000)] = X
        products.step(placed, out, 1.0, 0.0, 0.0)
        np.testing.assert_allclose(out[products.where(0, 2000)], expected, atol=1e-14)
        np.testing.assert_allclose(products.product(placed, 90, 900), expected[90:900], atol=1e-14)
        is_new = np.zeros(2000, bool)
        is_new[products.where(0, 2000)] = np.arange(2000) >= 1950
        products.smooth(placed, is_new, 1)
        joined = (W[:, 1950:].sum(axis=1) > 0) | (np.arange(2000) >= 1950)
        smooth = np.where(joined[:, None], expected, X)
        np.testing.assert_allclose(placed[products.where(0, 2000)], smooth, atol=1e-14)
