"""Eigenpairs equal a dense solver's, whatever the number of components of the graph."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from scipy.linalg import eigh
from scipy.sparse import block_diag, csr_matrix, diags_array
from sklearn.datasets import load_digits
from sklearn.neighbors import kneighbors_graph

from bigfs import spectral_embedding
from bigfs.core.errors import ConvergenceError, InputError
from bigfs.spectral.eigsh import solve_eigsh
from bigfs.spectral.problem import canonical_basis, fix_signs


def _graph(X: np.ndarray, k: int = 5) -> csr_matrix:
    W = kneighbors_graph(X, k)
    return csr_matrix(W.maximum(W.T))


def _assert_solved(W: csr_matrix, actual: object, n_components: int) -> None:
    dense = W.toarray()
    d = dense.sum(axis=1)
    expected = eigh(np.diag(d) - dense, np.diag(d), eigvals_only=True)[1 : n_components + 1]
    np.testing.assert_allclose(actual.eigenvalues, expected, atol=1e-10)
    Y = actual.vectors
    np.testing.assert_allclose(Y.T @ (d[:, None] * Y), np.eye(n_components), atol=1e-9)
    np.testing.assert_allclose(d @ Y, 0, atol=1e-8)
    residual = (np.diag(d) - dense) @ Y - d[:, None] * Y * actual.eigenvalues
    assert np.abs(residual).max() < 1e-6
    assert actual.residuals.max() < 1e-8


@pytest.mark.parametrize("n", [60, 600, 601, 1797])
@pytest.mark.parametrize("k", [3, 8])
def test_equals_a_dense_solver(n: int, k: int) -> None:
    W = _graph(load_digits().data[:n], k)
    _assert_solved(W, solve_eigsh(W, 10, tol=1e-8, random_state=0), 10)


@pytest.mark.parametrize("size", [30, 300])
@pytest.mark.parametrize("n_components", [1, 3, 4, 9])
def test_disconnected_graphs(size: int, n_components: int) -> None:
    rng = np.random.default_rng(0)
    parts = [_graph(rng.normal(size=(size + 7 * i, 3))) for i in range(5)]
    W = csr_matrix(block_diag(parts))
    solution = solve_eigsh(W, n_components, tol=1e-8, random_state=0)
    assert solution.n_connected_components == 5
    np.testing.assert_allclose(solution.eigenvalues[:4], 0, atol=1e-12)
    _assert_solved(W, solution, n_components)


def test_the_null_space_has_a_basis_that_no_seed_changes() -> None:
    rng = np.random.default_rng(0)
    W = csr_matrix(block_diag([_graph(rng.normal(size=(250 + i, 3))) for i in range(4)]))
    a = solve_eigsh(W, 5, tol=1e-10, random_state=0).vectors
    b = solve_eigsh(W, 5, tol=1e-10, random_state=7).vectors
    np.testing.assert_array_equal(a[:, :3], b[:, :3])
    np.testing.assert_allclose(a, b, atol=1e-8)
    # The first vector sets the component of largest volume against all others.
    edges = np.cumsum([0, 250, 251, 252, 253])
    degrees = np.asarray(W.sum(axis=1)).ravel()
    volumes = [degrees[i:j].sum() for i, j in zip(edges[:-1], edges[1:], strict=True)]
    largest = np.repeat(np.arange(4) == np.argmax(volumes), np.diff(edges))
    assert np.ptp(a[largest, 0]) < 1e-15
    assert np.ptp(a[~largest, 0]) < 1e-15


def test_equal_parts_give_equal_eigenvalues_and_still_one_basis() -> None:
    part = _graph(np.random.default_rng(0).normal(size=(400, 3)))
    W = csr_matrix(block_diag([part, part]))
    a = solve_eigsh(W, 5, tol=1e-10, random_state=0)
    b = solve_eigsh(W, 5, tol=1e-10, random_state=3)
    np.testing.assert_allclose(a.eigenvalues[1], a.eigenvalues[2], atol=1e-9)
    np.testing.assert_allclose(a.vectors, b.vectors, atol=1e-6)


def test_more_components_than_vectors_is_said(caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(0)
    W = csr_matrix(block_diag([_graph(rng.normal(size=(20, 3))) for _ in range(6)]))
    with caplog.at_level(logging.WARNING):
        solve_eigsh(W, 2, tol=1e-8, random_state=0)
    assert "6 connected components, more than the 2 requested eigenvectors" in caplog.text


def test_bad_graphs_and_numbers_are_refused() -> None:
    W = _graph(np.random.default_rng(0).normal(size=(20, 3)))
    for n_components in (0, 20):
        with pytest.raises(InputError, match=r"int in \[1, 19\]"):
            solve_eigsh(W, n_components, tol=1e-8, random_state=0)
    W = W.tolil()
    W[4], W[:, 4] = 0, 0
    with pytest.raises(InputError, match="row 4 of the graph has degree 0"):
        solve_eigsh(csr_matrix(W), 2, tol=1e-8, random_state=0)
    W = _graph(np.random.default_rng(0).normal(size=(20, 3)))
    other = int(W[7].indices.max())
    first = min(7, other)
    for value, message in [(np.nan, "degree nan"), (-0.1, "a negative weight, -0.1")]:
        bad = W.tolil()
        bad[7, other] = bad[other, 7] = value
        with pytest.raises(InputError, match=f"row {first} of the graph has {message}"):
            solve_eigsh(csr_matrix(bad), 2, tol=1e-8, random_state=0)


def test_all_vectors_of_a_small_graph() -> None:
    W = _graph(np.random.default_rng(0).normal(size=(12, 3)), 3)
    _assert_solved(W, solve_eigsh(W, 11, tol=1e-8, random_state=0), 11)


def test_close_eigenvalues_stay_apart_at_a_loose_tolerance() -> None:
    """Values far apart against the error but within a few tolerances keep their vectors."""
    n = 800
    path = diags_array([np.ones(n - 1), np.ones(n - 1)], offsets=[-1, 1]).tocsr()
    solution = solve_eigsh(path, 8, tol=1e-3, random_state=0)
    expected = 1 - np.cos(np.pi * np.arange(1, 9) / (n - 1))
    np.testing.assert_allclose(solution.eigenvalues, expected, atol=1e-8)
    assert solution.residuals.max() <= 1e-3


def test_not_converging_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bigfs.spectral.problem.ROUNDING", 0.0)
    W = _graph(load_digits().data)
    with pytest.raises(ConvergenceError, match=r"must be at most .* \(1e-17 of the eigen"):
        solve_eigsh(W, 5, tol=1e-17, random_state=0)


def test_a_canonical_basis_depends_on_the_span_only() -> None:
    rng = np.random.default_rng(0)
    V = np.linalg.qr(rng.normal(size=(50, 4)))[0]
    rotated = V.copy()
    rotated[:, 1:3] = V[:, 1:3] @ np.linalg.qr(rng.normal(size=(2, 2)))[0]
    values, widths = np.array([0.1, 0.5, 0.5, 1.0]), np.full(4, 1e-6)
    for basis in (V, rotated):
        canonical_basis(values, basis, widths)
        fix_signs(basis)
    np.testing.assert_allclose(V, rotated, atol=1e-12)
    np.testing.assert_allclose(V.T @ V, np.eye(4), atol=1e-12)


def _ring(n: int) -> csr_matrix:
    here, there = np.arange(n), (np.arange(n) + 1) % n
    return csr_matrix((np.ones(2 * n), (np.r_[here, there], np.r_[there, here])), shape=(n, n))


_PART = _graph(np.random.default_rng(0).normal(size=(100, 3)))


@pytest.mark.full
@pytest.mark.parametrize(
    "W, n_components",
    [
        pytest.param(csr_matrix(block_diag([_PART] * 8)), 20, id="eight copies"),
        pytest.param(csr_matrix(block_diag([_PART] * 8)), 10, id="cut inside a group of eight"),
        pytest.param(csr_matrix(block_diag([_PART[:30, :30] + _ring(30)] * 40)), 60, id="forty"),
        pytest.param(_ring(700), 5, id="ring"),
        pytest.param(_ring(700), 4, id="ring, whole pairs"),
    ],
)
def test_no_copy_of_a_multiple_eigenvalue_is_missed(W: csr_matrix, n_components: int) -> None:
    """One Krylov space holds one vector of each eigenvalue; residuals do not show the others."""
    first = solve_eigsh(W, n_components, tol=1e-6, random_state=0)
    _assert_solved(W, first, n_components)
    for seed in range(1, 4):
        again = solve_eigsh(W, n_components, tol=1e-6, random_state=seed)
        scale = np.abs(first.vectors).max()
        np.testing.assert_allclose(again.vectors, first.vectors, atol=1e-4 * scale)


def test_a_group_too_large_to_complete_is_said(caplog: pytest.LogCaptureFixture) -> None:
    W = csr_matrix(block_diag([csr_matrix(np.ones((6, 6)) - np.eye(6))] * 120))
    with caplog.at_level(logging.WARNING):
        solution = solve_eigsh(W, 122, tol=1e-6, random_state=0)
    _assert_solved(W, solution, 122)
    assert "those returned depend on the solver's start" in caplog.text


def test_the_seed_decides_where_a_krylov_space_ends() -> None:
    W = csr_matrix(block_diag([np.ones((6, 6)) - np.eye(6)] * 120))
    first, second = (solve_eigsh(W, 122, tol=1e-6, random_state=0) for _ in range(2))
    np.testing.assert_array_equal(first.vectors, second.vectors)
    assert first.n_products == second.n_products


@pytest.mark.parametrize(("n", "k"), [(19, 8), (30, 5), (30, 29), (111, 110)])
def test_complete_graphs_have_one_eigenvalue_many_times(n: int, k: int) -> None:
    embedding = spectral_embedding(csr_matrix(np.ones((n, n)) - np.eye(n)), k)
    np.testing.assert_allclose(embedding.eigenvalues, n / (n - 1), rtol=1e-12)
    assert np.max(embedding.residuals) < 1e-12
