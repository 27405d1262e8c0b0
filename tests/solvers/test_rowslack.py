"""The program with a slack for every row: against Clarabel, and as planes have it."""

from __future__ import annotations

import numpy as np
import pytest

from bigfs.core.errors import ConvergenceError
from bigfs.solvers.cone import ConeProgram, solve_cone
from bigfs.solvers.rowslack import solve_with_row_slacks
from tests.reference.m3fs import solve_given_clusters


def _rows(n: int = 80, d: int = 12, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows whose clusters overlap in three features and are noise in the others."""
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(n, d))
    z = (X[:, :3].sum(axis=1) + 0.7 * generator.normal(size=n) > 0).astype(np.uint8)
    return X, z


def _form(X: np.ndarray, seed: int = 1) -> np.ndarray:
    """A Laplacian of a random graph: none of it is the identity."""
    W = np.triu(np.random.default_rng(seed).random((len(X), len(X))) < 0.1, 1).astype(float)
    W += W.T
    return np.diag(W.sum(axis=1)) - W


@pytest.mark.parametrize("C", [0.1, 10.0, 1e4])
@pytest.mark.parametrize("smoothness", [0.0, 0.3])
@pytest.mark.parametrize("m", [1, 4])
def test_the_dense_reference_agrees(C: float, smoothness: float, m: int) -> None:
    X, z = _rows()
    L, Z = _form(X), np.column_stack([X, np.ones(len(X))])
    smooth = smoothness * Z.T @ L @ Z / len(X) if smoothness else None
    dense = solve_given_clusters(
        X, z, L, m=m, C=C, smoothness=smoothness, balance=0.2, n_clusters=2
    )
    ours = solve_with_row_slacks(X, z, Z.mean(axis=0), 0.2, smooth, C, m)
    assert ours.objective == pytest.approx(dense.objective, rel=1e-4)
    assert ours.objective >= dense.objective * (1 - 1e-7)
    assert ours.gap <= 1e-5
    margins = np.where(z == 1, 1, -1) * (Z @ ours.V[:, 0])
    assert ours.loss == pytest.approx(np.maximum(0, 1 - margins).mean(), abs=1e-12)
    assert abs((Z @ ours.V).mean()) <= 0.2 + 1e-4


def _by_planes(
    X: np.ndarray, z: np.ndarray, mean: np.ndarray, balance: float, C: float, m: int
) -> float:
    """Return the least objective of the program with planes, drawn until none is violated."""
    Z = np.column_stack([X, np.ones(len(X))])[:, : len(mean)] * np.where(z == 1, 1, -1)[:, None]
    planes, bounds = Z.mean(axis=0)[None, :, None], np.ones(1)
    while True:
        program = ConeProgram(planes, bounds, mean, balance, None, C, m, X.shape[1])
        solution = solve_cone(program, solver="clarabel", tol=1e-9)
        short = 1 - Z @ solution.V[:, 0]
        if np.maximum(0, short).mean() - solution.slack < 1e-6:
            return solution.objective
        plane = (short > 0) @ Z / len(Z)
        planes = np.concatenate([planes, plane[None, :, None]])
        bounds = np.append(bounds, (short > 0).mean())


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("balance", [0.05, np.inf])
def test_planes_until_none_is_violated_agree(fit_intercept: bool, balance: float) -> None:
    X, z = _rows()
    mean = X.mean(axis=0)
    mean = np.append(mean, 1.0) if fit_intercept else mean
    ours = solve_with_row_slacks(X, z, mean, balance, None, 5.0, 3)
    assert ours.V.shape == (len(mean), 1)
    assert ours.objective == pytest.approx(_by_planes(X, z, mean, balance, 5.0, 3), rel=1e-4)


@pytest.mark.parametrize(
    "case", ["constant features", "duplicate rows", "duplicate features", "one cluster", "wide"]
)
def test_degenerate_rows(case: str) -> None:
    X, z = _rows(12, 30) if case == "wide" else _rows()
    if case == "constant features":
        X[:, 4:8] = 0
    elif case == "duplicate rows":
        X[40:], z[40:] = X[:40], z[:40]
    elif case == "duplicate features":
        X[:, 6:] = X[:, :6]
    elif case == "one cluster":
        z[:] = 1
    balance = 2.0
    dense = solve_given_clusters(
        X, z, np.zeros((len(X), len(X))), m=3, C=10.0, smoothness=0.0, balance=balance, n_clusters=2
    )
    mean = np.append(X.mean(axis=0), 1.0)
    ours = solve_with_row_slacks(X, z, mean, balance, None, 10.0, 3)
    assert ours.objective == pytest.approx(dense.objective, rel=1e-4, abs=1e-5)


def test_rows_that_are_no_numbers_are_not_solved() -> None:
    X, z = _rows()
    X[3, 2] = np.nan
    with pytest.raises(ConvergenceError, match="on 80 rows"):
        solve_with_row_slacks(X, z, np.zeros(13), 0.1, None, 1.0, 3)


def test_rows_of_zeros() -> None:
    z = np.array([0, 1, 0, 1])
    ours = solve_with_row_slacks(np.zeros((4, 3)), z, np.zeros(3), np.inf, None, 1.0, 1)
    assert ours.objective == pytest.approx(1.0, rel=1e-4)


def test_a_solution_is_one_by_its_own_bound() -> None:
    """Columns of scales so far apart that residuals, relative to the largest, say nothing."""
    n_solved, n_refused = 0, 0
    for seed in range(12):
        X, z = _rows(50, 8, seed)
        X *= 10.0 ** np.random.default_rng(seed).uniform(-12, 12, size=8)
        try:
            ours = solve_with_row_slacks(X, z, np.append(X.mean(axis=0), 1), 0.01, None, 3e3, 2)
        except ConvergenceError:
            n_refused += 1
            continue
        n_solved += 1
        assert ours.gap <= 1e-4
    assert n_solved + n_refused == 12 and n_refused > 0
