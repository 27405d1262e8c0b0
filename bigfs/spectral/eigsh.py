"""Smallest eigenpairs of L y = lambda D y in one process, by scipy's ARPACK."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from bigfs.core.errors import ConvergenceError
from bigfs.core.seeds import rng
from bigfs.runtime.progress import say_where
from bigfs.spectral.problem import GROUP, Eigenpairs, Problem

logger = logging.getLogger("bigfs")

# Below this many rows a dense solver is faster and exact.
DENSE_ROWS = 600
# Restarts after which ARPACK is given up; what it can do takes it some dozens.
_MOST_RESTARTS = 1000
# Vectors beyond those wanted that a group of equal eigenvalues may take, if these are fewer.
_MOST_EXTRA = 16


class Stalled(ConvergenceError):
    """ARPACK did not converge, which another solver may."""


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
        If the residual of a pair that is not of the bulk stays above ``tol``, or ARPACK does
        not converge (`Stalled`).
    """
    problem = Problem.of(W, n_components, tol)
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
    """Return the largest eigenpairs of S without the null space, descending.

    Krylov spaces of one start vector hold one vector of a multiple eigenvalue, so a run can miss
    copies without a sign of it. What was found is projected out and the largest of the rest is
    looked at, until it falls below the last pair asked for and its group.
    """
    scaled, missing, width = problem.scaled(), problem.n_missing, GROUP * problem.tol
    values, vectors = _largest(problem, scaled, problem.n_wanted, None, random_state)
    more, block = 1, 0
    while vectors.shape[1] < problem.n_samples - 2:
        block += 1
        count = min(more, problem.n_samples - 2 - vectors.shape[1])
        fresh, new = _largest(problem, scaled, count, vectors, random_state, block)
        cut = values[missing - 1]
        overlooked = fresh > cut - width
        if not overlooked.any():
            break
        if fresh[0] <= cut + width and len(values) > missing + max(missing, _MOST_EXTRA):
            logger.warning(
                "Eigenvalue %.6g of the graph has more than %d vectors: those returned depend on "
                "the solver's start. Ask for fewer eigenvectors, or look for copies in the data.",
                1.0 - cut, len(values) - missing,
            )  # fmt: skip
            break
        values, vectors = _rayleigh_ritz(scaled, np.hstack([vectors, new[:, overlooked]]))
        kept = int((values > values[missing - 1] - width).sum())
        values, vectors = values[:kept], vectors[:, :kept]
        more = min(2 * more, problem.n_wanted)
    # scipy tells products only.
    problem.n_iterations = problem.n_products
    return values, vectors


def _largest(
    problem: Problem,
    scaled: Any,
    k: int,
    known: np.ndarray | None,
    random_state: int,
    block: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the k largest eigenpairs of S beyond the null space and what is known."""
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    n, null = problem.n_samples, problem.null

    def project(x: np.ndarray) -> np.ndarray:
        part = null.project(x)
        return part if known is None else part + known @ (known.T @ x)

    def apply(x: np.ndarray) -> np.ndarray:
        problem.n_products += 1
        if problem.n_products % 10 == 0:
            say_where(f"{problem.n_products} products")  # ARPACK tells no residuals
        x = x.ravel()
        # As in the dense solver, what is known ends up below all other eigenvalues.
        return scaled @ x - 3.0 * project(x)

    start = rng(random_state, "spectral", block).standard_normal(n)
    start -= project(start)
    operator = LinearOperator((n, n), matvec=apply, dtype=np.float64)
    # ARPACK's criterion is a bound of its own; residuals are checked afterwards.
    inner = problem.tol * 1e-2
    try:
        values, vectors = eigsh(
            operator, k=k, which="LA", v0=start, tol=inner, maxiter=_MOST_RESTARTS
        )
    except ArpackNoConvergence as error:
        raise Stalled(
            f"spectral: {len(error.eigenvalues)} of {k} eigenvectors converged to {inner:g} by "
            "ARPACK. Set spectral.solver to chebyshev, raise spectral.tol, or ask for fewer "
            "eigenvectors."
        ) from None
    order = np.argsort(-values, kind="stable")
    return values[order], vectors[:, order]


def _rayleigh_ritz(scaled: Any, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the eigenpairs of S in the span of the vectors, descending."""
    from scipy.linalg import eigh, qr

    basis, _ = qr(vectors, mode="economic")
    product = basis.T @ (scaled @ basis)
    values, turn = eigh((product + product.T) / 2)
    return values[::-1], np.ascontiguousarray(basis @ turn[:, ::-1])
