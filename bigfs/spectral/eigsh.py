"""Smallest eigenpairs of L y = lambda D y in one process, by scipy's ARPACK."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigfs.core.errors import ConvergenceError
from bigfs.core.seeds import rng
from bigfs.runtime.progress import say_where
from bigfs.spectral.problem import (
    GROUP,
    ROUNDING,
    Eigenpairs,
    Problem,
    warn_of_cut_group,
)
from bigfs.spectral.thin import pseudo_inverse, sparse_order

# With at most this many rows a dense solver is faster and exact.
DENSE_ROWS = 600
# Restarts after which ARPACK is given up; if it converges, it needs some dozens.
_MOST_RESTARTS = 1000
# The smallest tolerance that is passed to ARPACK.
_LEAST_TOL = 1e-15
# A group of equal eigenvalues may add this many vectors before it is cut, or as many as are
# requested if these are more.
_MOST_EXTRA = 16


class Stalled(ConvergenceError):
    """ARPACK did not converge; another solver may."""

    instead = "chebyshev", "eigsh did not converge"  # the solver to use, and the reason


def solve_eigsh(W: Any, n_components: int, *, tol: float, random_state: int) -> Eigenpairs:
    """Return the smallest eigenpairs of ``L y = lambda D y`` beyond the trivial one.

    Parameters
    ----------
    W : scipy sparse matrix of shape (n_samples, n_samples)
        Symmetric affinity with zero diagonal and positive degrees.
    n_components : int
        Number of pairs, at most n_samples - 1.
    tol : float
        Determines the accepted residuals, see `bigfs.spectral.problem.Goal.accepted`.
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
        If the residual of a pair outside the bulk exceeds the accepted one, or ARPACK does not
        converge (`Stalled`).

    Notes
    -----
    ARPACK multiplies by S, or, if the graph has a sparse factor, by the pseudo-inverse of I - S
    (`bigfs.spectral.thin`).
    """
    problem = Problem.of(W, n_components, tol)
    if not problem.n_missing:
        return problem.finish(np.zeros(0), np.zeros((problem.n_samples, 0)))
    # For few rows, or for most of the pairs, the dense solver is better or the only option.
    if problem.n_samples <= DENSE_ROWS or problem.n_wanted >= problem.n_samples - 2:
        return solve_dense(problem)
    if (order := sparse_order(problem.W)) is not None:
        _, ground = np.unique(problem.null.labels, return_index=True)
        solve = pseudo_inverse(problem.W, problem.root, ground, order)
        operator = _Operator(problem, problem.scaled(), 0.0, solve)
        return problem.finish(*_arpack(operator, random_state))
    return problem.finish(*_converged(problem, random_state))


def solve_dense(problem: Problem) -> Eigenpairs:
    """Solve a small problem by LAPACK."""
    from scipy.linalg import LinAlgError, eigh

    n, k, null = problem.n_samples, problem.n_wanted, problem.null
    same = null.labels[:, None] == null.labels
    # Eigenvalues of S are at least -1: shifted by -3, those of the null space become the smallest.
    matrix = problem.scaled().toarray() - 3.0 * same * np.multiply.outer(null.unit, null.unit)
    problem.n_products += n
    try:
        values, vectors = eigh(matrix, subset_by_index=[n - k, n - 1])
    except LinAlgError:  # the default driver may fail if eigenvalues agree up to rounding
        values, vectors = (part[..., n - k :] for part in eigh(matrix, driver="evd"))
    return problem.finish(1.0 - values[::-1], np.ascontiguousarray(vectors[:, ::-1]))


@dataclass
class _Operator:
    """S, whose largest eigenvalues are 1 - lambda, or the given solve in place of it."""

    problem: Problem
    scaled: Any  # S as scipy CSR
    tol: float  # tolerance of ARPACK
    # Product with the pseudo-inverse of I - S: its largest eigenvalues are 1 / lambda.
    solve: Callable[[np.ndarray], np.ndarray] | None = None


def _converged(problem: Problem, random_state: int) -> tuple[np.ndarray, np.ndarray]:
    """Return eigenpairs by products with S, repeated with a smaller tolerance if needed.

    ARPACK's tolerance is absolute, while the accepted residuals depend on the eigenvalues.
    """
    operator = _Operator(problem, problem.scaled(), 1e-2 * problem.tol)
    while True:
        eigenvalues, vectors = _arpack(operator, random_state)
        problem.edge = float(eigenvalues.max())
        wanted = problem.n_missing
        residuals = problem.residuals(eigenvalues, vectors / problem.root[:, None])[:wanted]
        accepted = problem.accepted(eigenvalues)[:wanted]
        unconverged = (residuals > accepted) & ~problem.in_bulk(eigenvalues[:wanted], residuals)
        if not unconverged.any() or operator.tol <= _LEAST_TOL:
            return eigenvalues, vectors
        operator.tol = max(min(1e-2 * operator.tol, 0.1 * accepted[unconverged].min()), _LEAST_TOL)


def _arpack(operator: _Operator, random_state: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest eigenvalues of I - S beyond the null space, and their vectors.

    The Krylov space of one start vector contains only one vector of a multiple eigenvalue, so a run
    can miss copies without any indication. The vectors found are projected out and the smallest of
    the remaining eigenvalues is computed, until it is above the last requested pair and its group.
    """
    problem = operator.problem
    missing = problem.n_missing
    eigenvalues, vectors = _smallest(operator, problem.n_wanted, None, random_state)
    more, block = 1, 0
    while vectors.shape[1] < problem.n_samples - 2:
        block += 1
        count = min(more, problem.n_samples - 2 - vectors.shape[1])
        fresh, new = _smallest(operator, count, vectors, random_state, block)
        cut = eigenvalues[missing - 1]
        width = GROUP * problem.tol * cut + ROUNDING
        missed = fresh < cut + width
        if not missed.any():
            break
        if fresh[0] >= cut - width and len(eigenvalues) > missing + max(missing, _MOST_EXTRA):
            warn_of_cut_group(cut, len(eigenvalues) - missing)
            break
        eigenvalues, vectors = _rayleigh_ritz(operator.scaled, np.hstack([vectors, new[:, missed]]))
        kept = int((eigenvalues < eigenvalues[missing - 1] + width).sum())
        eigenvalues, vectors = eigenvalues[:kept], vectors[:, :kept]
        more = min(2 * more, problem.n_wanted)
    # scipy reports no iterations, only products can be counted.
    problem.n_iterations = problem.n_products
    return eigenvalues, vectors


def _smallest(
    operator: _Operator, k: int, known: np.ndarray | None, random_state: int, block: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return the k smallest eigenpairs of I - S beyond the null space and the known vectors."""
    from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

    problem = operator.problem
    n, null = problem.n_samples, problem.null

    def project(x: np.ndarray) -> np.ndarray:
        part = null.project(x)
        return part if known is None else part + known @ (known.T @ x)

    def apply(x: np.ndarray) -> Any:
        problem.n_products += 1
        if problem.n_products % 10 == 0:
            say_where(f"{problem.n_products} products")  # ARPACK reports no residuals
        x = x.ravel()
        part = project(x)
        # Projected-out directions get an eigenvalue below all others.
        if operator.solve is None:
            return operator.scaled @ x - 3.0 * part
        y = operator.solve(x - part)
        return y - project(y) - 3.0 * part

    generator = rng(random_state, "spectral", block)
    start = generator.standard_normal(n)
    start -= project(start)
    linear = LinearOperator((n, n), matvec=apply, dtype=np.float64)
    try:
        # If the Krylov space is exhausted, ARPACK restarts from a random vector: use our seed.
        theta, vectors = eigsh(
            linear, k, which="LA", v0=start, tol=operator.tol, maxiter=_MOST_RESTARTS, rng=generator
        )
    except ArpackError as error:  # also if there are few distinct eigenvalues: no shifts are left
        raise Stalled(
            f"spectral: ARPACK converged for {len(getattr(error, 'eigenvalues', ()))} of {k} "
            f"eigenvectors (tol {operator.tol:g}). Set spectral.solver to chebyshev, raise "
            "spectral.tol, or request fewer eigenvectors."
        ) from None
    order = np.argsort(-theta, kind="stable")
    values = 1.0 - theta if operator.solve is None else 1.0 / theta
    return values[order], vectors[:, order]


def _rayleigh_ritz(scaled: Any, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the Ritz values of I - S in the span of the vectors, ascending, and Ritz vectors."""
    from scipy.linalg import eigh, qr

    basis, _ = qr(vectors, mode="economic")
    product = basis.T @ (basis - scaled @ basis)
    values, turn = eigh((product + product.T) / 2)
    return values, np.ascontiguousarray(basis @ turn)
