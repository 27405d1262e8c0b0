"""Smallest eigenpairs of L y = lambda D y by scipy's LOBPCG with an algebraic multigrid."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from bigfs.core.seeds import derive_seed, rng
from bigfs.runtime.progress import say_where
from bigfs.spectral.eigsh import is_small, solve_dense
from bigfs.spectral.problem import Eigenpairs, Problem

_MAX_ITERATIONS = 200
# Weight added to the diagonal for the preconditioner only: the Laplacian itself is singular.
_SHIFT = 1e-5
# The share of the tolerance asked for: scipy's criterion and our residual are nearly the same.
_SOLVED = 0.5


def solve_lobpcg(W: Any, n_components: int, *, tol: float, random_state: int) -> Eigenpairs:
    """Return the smallest eigenpairs of ``L y = lambda D y`` beyond the trivial one.

    Parameters, result and errors are those of `bigfs.spectral.eigsh.solve_eigsh`.

    Notes
    -----
    Knyazev 2001 on ``I - S``, preconditioned by one V-cycle of smoothed aggregation (pyamg),
    with the null space as constraints. The iteration stops at the first of its tolerance and
    200 steps; whatever it stops at, the residuals are computed anew and checked.
    """
    problem = Problem.of(W, n_components, tol)
    if not problem.n_missing:
        return problem.finish(np.zeros(0), np.zeros((problem.n_samples, 0)))
    # scipy's lobpcg needs room for three blocks.
    if is_small(problem) or 5 * problem.n_wanted > problem.n_samples - problem.null.n_components:
        return solve_dense(problem)
    return problem.finish(*_iterate(problem, random_state))


def _iterate(problem: Problem, random_state: int) -> tuple[np.ndarray, np.ndarray]:
    from scipy.sparse.linalg import LinearOperator, lobpcg

    n, null = problem.n_samples, problem.null
    scaled = problem.scaled()

    def project(X: np.ndarray) -> np.ndarray:
        return X - np.column_stack([null.project(x) for x in X.T])

    def laplacian(X: np.ndarray) -> np.ndarray:
        problem.n_products += 1 if X.ndim == 1 else X.shape[1]
        say_where(f"{problem.n_products} products")
        return X - scaled @ X

    cycle = _multigrid(problem, scaled, derive_seed(random_state, "multigrid"))

    def precondition(X: np.ndarray) -> np.ndarray:
        return project(np.column_stack([cycle(x) for x in X.T]))

    start = project(rng(random_state, "spectral").standard_normal((n, problem.n_wanted)))
    # What scipy warns about is that a residual is above its tolerance: `finish` computes them.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Exited", UserWarning)
        values, vectors, history = lobpcg(
            LinearOperator((n, n), laplacian, matmat=laplacian, dtype=np.float64),
            start,
            M=LinearOperator((n, n), precondition, matmat=precondition, dtype=np.float64),
            tol=_SOLVED * problem.tol,
            maxiter=_MAX_ITERATIONS,
            largest=False,
            retResidualNormsHistory=True,
        )
    problem.n_iterations = len(history)
    order = np.argsort(values, kind="stable")
    return 1.0 - values[order], vectors[:, order]


def _multigrid(problem: Problem, scaled: Any, seed: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return one V-cycle for ``I - S``, whose null space is ``D^1/2`` on each component."""
    import pyamg
    from scipy.sparse import csr_matrix, eye_array

    shifted = csr_matrix((1.0 + _SHIFT) * eye_array(problem.n_samples) - scaled)
    # pyamg starts its estimates of spectral radii from numpy's global generator.
    state = np.random.get_state()
    try:
        np.random.seed(seed)
        hierarchy = pyamg.smoothed_aggregation_solver(shifted, B=problem.root[:, None])
    finally:
        np.random.set_state(state)
    return hierarchy.aspreconditioner(cycle="V").matvec
