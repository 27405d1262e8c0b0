"""Smallest eigenpairs of L y = lambda D y in one process, by scipy's ARPACK."""

from __future__ import annotations

from typing import Any

import numpy as np

from bigfs.core.errors import ConvergenceError
from bigfs.core.seeds import rng
from bigfs.spectral.problem import Eigenpairs, Problem

# Below this many rows a dense solver is faster and exact.
DENSE_ROWS = 600


def solve_eigsh(W: Any, n_components: int, *, tol: float, random_state: int) -> Eigenpairs:
    """Return the smallest eigenpairs of ``L y = lambda D y`` beyond the trivial one.

    Parameters
    ----------
    W : scipy sparse matrix of shape (n_samples, n_samples)
        Symmetric affinity with zero diagonal and positive degrees.
    n_components : int
        Number of pairs, at most n_samples - 1.
    tol : float
        Largest residual accepted.
    random_state : int
        Seed of the start vector.

    Returns
    -------
    pairs : Eigenpairs

    Raises
    ------
    InputError
        If a degree is not positive or ``n_components`` is too large.
    ConvergenceError
        If a residual stays above ``tol``.
    """
    problem = Problem.check(W, n_components, tol)
    if not problem.n_missing:
        return problem.finish(np.zeros(0), np.zeros((problem.n_samples, 0)))
    if is_small(problem):
        return solve_dense(problem)
    return problem.finish(*_arpack(problem, random_state))


def is_small(problem: Problem) -> bool:
    """Say whether the dense solver is the better one, or the only one."""
    return problem.n_samples <= DENSE_ROWS or problem.n_wanted >= problem.n_samples - 2


def solve_dense(problem: Problem) -> Eigenpairs:
    """Solve a small problem by LAPACK."""
    from scipy.linalg import eigh

    n, k = problem.n_samples, problem.n_wanted
    # Eigenvalues of S are at least -1: shifted by 3, the null space's 1 comes last.
    matrix = problem.scaled().toarray() - 3.0 * problem.null.projector()
    problem.n_products += n
    values, vectors = eigh(matrix, subset_by_index=[n - k, n - 1])
    return problem.finish(values[::-1], np.ascontiguousarray(vectors[:, ::-1]))


def _arpack(problem: Problem, random_state: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest eigenpairs of S without the null space, descending."""
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    n, k, null = problem.n_samples, problem.n_wanted, problem.null
    scaled = problem.scaled()

    def apply(x: np.ndarray) -> np.ndarray:
        problem.n_products += 1
        x = x.ravel()
        # As in the dense solver, the null space ends up below all other eigenvalues.
        return scaled @ x - 3.0 * null.project(x)

    start = rng(random_state, "spectral").standard_normal(n)
    start -= null.project(start)
    operator = LinearOperator((n, n), matvec=apply, dtype=np.float64)
    # One Krylov space meets the copies of a multiple eigenvalue late, and stops before them at a
    # loose criterion.
    inner = problem.tol * 1e-2
    try:
        values, vectors = eigsh(operator, k=k, which="LA", v0=start, tol=inner)
    except ArpackNoConvergence as error:
        raise ConvergenceError(
            f"spectral: {len(error.eigenvalues)} of {k} eigenvectors converged to {inner:g}. "
            "Raise spectral.tol, or ask for fewer eigenvectors."
        ) from None
    # scipy tells products only.
    problem.n_iterations = problem.n_products
    order = np.argsort(-values, kind="stable")
    return values[order], vectors[:, order]
