"""Rows that are mostly zeros: their products are those of centered dense rows."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from bigfs.blocks.csr_kernels import mostly_zeros
from bigfs.solvers.l21 import KernelSolver
from bigfs.solvers.sparserows import SparseRows


def _thin(n: int, d: int, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return generator.poisson(3, (n, d)) * (generator.random((n, d)) < 0.03).astype(np.float64)


@pytest.mark.parametrize("n_groups", [0, 1, 3, 20])
def test_products_are_those_of_rows_less_the_mean_of_their_group(n_groups: int) -> None:
    X, generator = _thin(60, 150), np.random.default_rng(1)
    groups = np.arange(60) % max(1, n_groups)
    centered = X.copy()
    for group in range(n_groups):
        centered[groups == group] -= centered[groups == group].mean(axis=0)
    rows = SparseRows(csr_array(X), groups if n_groups else None)
    weights, B, F = (
        generator.random(150),
        generator.normal(size=(150, 4)),
        generator.normal(size=60),
    )
    close = {"rtol": 1e-12, "atol": 1e-12}
    np.testing.assert_allclose(rows.products(weights), centered * weights @ centered.T, **close)
    np.testing.assert_allclose(rows.times(B), centered @ B, **close)
    kept = F.copy()
    np.testing.assert_allclose(rows.transposed_times(F), centered.T @ F, **close)
    np.testing.assert_array_equal(F, kept)


def test_columns_that_are_filled_keep_their_digits() -> None:
    X = _thin(60, 600)
    X[:, 7] = 1e6 + np.random.default_rng(0).normal(size=60)
    X[:, 9] = 5.0
    found = mostly_zeros(X, centered=True)
    assert found is not None
    entries, mean = found
    assert mean[7] == mean[9] == 0 and entries[:, [9]].nnz == 0
    centered = X - X.mean(axis=0)
    np.testing.assert_allclose(entries.toarray() - mean, centered, atol=1e-9)
    rows = SparseRows(entries, np.zeros(60, dtype=int))
    np.testing.assert_allclose(
        rows.products(np.ones(600)), centered @ centered.T, rtol=1e-12, atol=1e-7
    )


def test_without_an_intercept_values_stay_as_they_are() -> None:
    X = _thin(60, 600)
    X[:, 7] += 2
    found = mostly_zeros(X, centered=False)
    assert found is not None
    np.testing.assert_array_equal(found[0].toarray(), X)
    assert not found[1].any()


def test_rows_with_many_entries_stay_dense() -> None:
    generator = np.random.default_rng(0)
    assert mostly_zeros(generator.normal(size=(60, 150)), centered=True) is None
    assert mostly_zeros(generator.random((60, 150)) < 0.2, centered=True) is None


@pytest.mark.parametrize(("beta", "is_factored"), [(500.0, False), (1e-3, True)])
def test_a_solve_is_that_of_dense_rows(
    beta: float, is_factored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Conjugate gradients where they converge in a few products, else Cholesky."""
    X, generator = _thin(200, 350), np.random.default_rng(1)
    delta, F = generator.random(350) + 0.1, generator.normal(size=(200, 3))
    rows = SparseRows(csr_array(X), np.zeros(200, dtype=int))
    expected = KernelSolver(X, beta, X.mean(axis=0)).solve(delta, F)
    kernel, kernels = KernelSolver._kernel, []

    def counted(self: KernelSolver, delta: np.ndarray) -> np.ndarray:
        kernels.append(delta)
        return kernel(self, delta)

    monkeypatch.setattr(KernelSolver, "_kernel", counted)
    solution = KernelSolver(rows, beta).solve(delta, F)
    atol = 1e-10 * np.abs(expected).max()
    np.testing.assert_allclose(solution, expected, rtol=1e-8, atol=atol)
    assert bool(kernels) == is_factored


@pytest.mark.parametrize("shape", [(40, 300), (300, 310)])  # by products of rows, of columns
def test_squares_of_products_are_those_of_centered_columns(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(4)
    X = np.where(rng.random(shape) < 0.2, rng.normal(size=shape), 0.0)
    rows, centered = SparseRows(csr_array(X), np.zeros(len(X), dtype=int)), X - X.mean(axis=0)
    expected = np.einsum("ij,ij->j", centered, centered @ centered.T @ centered)
    np.testing.assert_allclose(rows.product_squares(), expected, rtol=1e-12)
