"""Smallest eigenpairs of L y = lambda D y in one process, by scipy's ARPACK."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigfs.core.errors import ConvergenceError, InputError
from bigfs.core.seeds import rng
from bigfs.spectral.components import NullSpace, canonical_basis, fix_signs, null_space

logger = logging.getLogger("bigfs")

# Below this many rows a dense solver is faster and exact.
_DENSE_ROWS = 600
# Vectors computed beyond those asked for, to see whether the cut falls inside a group.
_GUARDS = 2
# Eigenvalues this close, times the tolerance, are one group.
_GROUP = 10.0


@dataclass(frozen=True)
class Eigenpairs:
    """Solution of the generalized problem without its trivial pair.

    Attributes
    ----------
    eigenvalues : ndarray of shape (n_components,), float64
        Ascending.
    vectors : ndarray of shape (n_samples, n_components), float64
        With unit D-norm, ``y'Dy = 1``; the entry of largest magnitude is positive.
    residuals : ndarray of shape (n_components,), float64
        ``|S u - (1 - lambda) u|`` with ``u = D^1/2 y``.
    n_connected_components : int
    n_products : int
        Products with W.
    """

    eigenvalues: np.ndarray
    vectors: np.ndarray
    residuals: np.ndarray
    n_connected_components: int
    n_products: int


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

    Notes
    -----
    Works on ``S = D^-1/2 W D^-1/2``, whose largest eigenvalues are ``1 - lambda``. The null
    space of L is known from the connected components: a canonical basis of it comes first,
    without the trivial vector, and the rest is solved with it projected out, so that the solver
    never meets the multiple eigenvalue. Groups of equal eigenvalues elsewhere get a canonical
    basis too.
    """
    n_samples = W.shape[0]
    if not 1 <= n_components < n_samples:
        raise InputError(
            f"n_components must be an int in [1, {n_samples - 1}], since the graph has "
            f"{n_samples} rows. Got {n_components}."
        )
    degrees = np.asarray(W.sum(axis=1), dtype=np.float64).ravel()
    if not (degrees > 0).all():
        row = int((degrees <= 0).argmax())
        raise InputError(
            f"row {row} of the graph has degree {degrees[row]:g}; degrees must be positive. Use "
            "binary weights or a wider heat kernel."
        )
    root = np.sqrt(degrees)
    null = null_space(W, degrees)
    operator = _Operator(W, root, null)
    if null.n_components - 1 > n_components:
        logger.warning(
            "The graph has %d connected components, more than the %d eigenvectors asked for: "
            "they tell its largest components apart. Ask for %d, or use more neighbors.",
            null.n_components, n_components, null.n_components - 1,
        )  # fmt: skip
    basis = null.contrasts(n_components)
    missing = n_components - basis.shape[1]
    values, vectors = np.zeros(basis.shape[1]), basis
    if missing:
        mu, rest = operator.largest(missing, tol, random_state)
        values, vectors = np.concatenate([values, 1.0 - mu]), np.hstack([basis, rest])
    residuals = np.linalg.norm(operator.scaled @ vectors - vectors * (1.0 - values), axis=0)
    _check_converged(residuals, tol)
    return Eigenpairs(
        eigenvalues=np.maximum(values, 0.0),
        vectors=fix_signs(vectors / root[:, None]),
        residuals=residuals,
        n_connected_components=null.n_components,
        n_products=operator.n_products,
    )


class _Operator:
    """``S`` with the null space of L projected out."""

    def __init__(self, W: Any, root: np.ndarray, null: NullSpace) -> None:
        from scipy.sparse import csr_matrix

        scaled = csr_matrix(W, dtype=np.float64, copy=True)
        scaled.data /= np.repeat(root, np.diff(scaled.indptr))
        scaled.data /= root[scaled.indices]
        self.scaled = scaled
        self.null = null
        self.n_products = 0

    def _apply(self, x: np.ndarray) -> np.ndarray:
        self.n_products += 1
        x = x.ravel()
        # As in the dense solver, the null space ends up below all other eigenvalues.
        return self.scaled @ x - 3.0 * self.null.project(x)

    def largest(self, k: int, tol: float, random_state: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the k largest eigenpairs, descending, in canonical bases."""
        n = self.scaled.shape[0]
        room = n - self.null.n_components
        wanted = min(k + _GUARDS, room)
        dense = n <= _DENSE_ROWS or wanted >= n - 2
        values, vectors = self._dense(wanted) if dense else self._arpack(wanted, tol, random_state)
        order = np.argsort(-values, kind="stable")
        values, vectors = values[order], vectors[:, order]
        return values[:k], canonical_basis(values, vectors, _GROUP * tol)[:, :k]

    def _dense(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        from scipy.linalg import eigh

        n = self.scaled.shape[0]
        # Eigenvalues of S are at least -1: shifted by 3, the null space's 1 comes last.
        matrix = self.scaled.toarray() - 3.0 * self.null.projector()
        self.n_products += n
        values, vectors = eigh(matrix, subset_by_index=[n - k, n - 1])
        return values, vectors

    def _arpack(self, k: int, tol: float, random_state: int) -> tuple[np.ndarray, np.ndarray]:
        from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

        n = self.scaled.shape[0]
        operator = LinearOperator((n, n), matvec=self._apply, dtype=np.float64)
        start = rng(random_state, "spectral").standard_normal(n)
        start -= self.null.project(start)
        try:
            values, vectors = eigsh(operator, k=k, which="LA", v0=start, tol=tol * 1e-2)
        except ArpackNoConvergence as error:
            raise ConvergenceError(
                f"spectral: {len(error.eigenvalues)} of {k} eigenvectors converged to "
                f"{tol * 1e-2:g}. Raise spectral.tol, or ask for fewer eigenvectors."
            ) from None
        return values, vectors


def _check_converged(residuals: np.ndarray, tol: float) -> None:
    if residuals.max() > tol:
        shown = ", ".join(f"{value:.1e}" for value in residuals)
        raise ConvergenceError(
            f"spectral: residuals must be at most {tol:g}. Got {shown}. Raise spectral.tol, or "
            "ask for fewer eigenvectors."
        )
