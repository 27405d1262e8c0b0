"""Solvers of UDFS: discriminative matrix of a neighborhood, and l2,1-penalized eigenproblem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from bigfs.core.errors import NumericalError
from bigfs.solvers.l21 import row_weights, smoothed_l21
from bigfs.solvers.sparserows import SparseRows

# Added to the squared norms of the rows of B, to keep the weights finite; rows with a norm below
# its square root are practically zero.
_EPSILON = 1e-16
# Matrices of n_features^2 in memory at once: M, its reweighted copy, the eigensolver's workspace.
N_MATRICES = 4
# Matrices of n_samples x n_features in memory at once if M is kept in product form.
N_ROW_MATRICES = 6
# An eigenvalue of M below this share of the largest is zero.
_NULL = 1e-10
# Changes of an inverse by less than this share are neglected.
_NEGLIGIBLE = 1e-7
# Tolerance of the first eigenproblem in product form, whose solution is only a start.
_START_TOL = 1e-3
# Share of a random vector in the start of a Lanczos iteration, relative to the last solution.
_OTHER = 0.01


def local_factors(Z: np.ndarray, ridge: float) -> np.ndarray:
    """Return R with ``R'R = Z'(Z Z' + ridge I)^-1 Z``, for each of several neighborhoods.

    R is computed from the eigenvectors of ``Z Z'``, which is singular for centered rows: only its
    eigenvalues plus the ridge are inverted.

    Parameters
    ----------
    Z : ndarray of shape (n_neighborhoods, n_rows, n_features), float64
        Centered rows.
    ridge : float
        Positive.

    Returns
    -------
    R : ndarray of shape (n_neighborhoods, n_rows, n_features), float64
    """
    values, vectors = np.linalg.eigh(Z @ Z.transpose(0, 2, 1))
    scale = 1 / np.sqrt(np.maximum(values, 0) + ridge)
    return np.asarray((vectors * scale[:, None, :]).transpose(0, 2, 1) @ Z)


@dataclass(frozen=True)
class SparseBasis:
    """The result of `sparse_basis`."""

    B: np.ndarray  # of shape (n_features, n_columns), float64: orthonormal columns
    # Of shape (n_iter,), float64: value after each iteration; apart from rounding it never rises.
    objective: np.ndarray
    converged: bool


@dataclass(frozen=True)
class DenseForm:
    """M as a dense matrix."""

    M: np.ndarray  # of shape (n_features, n_features), float64

    def first_weights(self, n_columns: int) -> np.ndarray:
        """Return the initial diagonal: ones, as in the paper.

        If the null space of M has more than ``n_columns`` dimensions, the diagonal is that of
        `ProductForm`.
        """
        values = np.linalg.eigvalsh(self.M)
        n_null = int((values < _NULL * values[-1]).sum())
        if n_null <= n_columns:
            return np.ones(len(self.M))
        null = _smallest(self.M, np.zeros(len(self.M)), n_null)
        return _null_weights(np.einsum("ij,ij->i", null, null), n_columns)

    def smallest(self, added: np.ndarray, n_columns: int, before: np.ndarray | None) -> np.ndarray:
        """Return the eigenvectors of the smallest eigenvalues of ``M + diag(added)``."""
        return _smallest(self.M, added, n_columns)

    def quadratic(self, B: np.ndarray) -> float:
        """Return ``tr(B'MB)``."""
        return float(np.einsum("ij,ij->", B, self.M @ B))

    def trace(self) -> float:
        """Return the trace of M."""
        return float(np.trace(self.M))


@dataclass(frozen=True)
class ProductForm:
    """M of few rows as ``F F'``, whose null space has more dimensions than the basis has columns.

    Then every basis in that null space solves the paper's first problem, with the identity added,
    and rounding errors would choose among them. The initial weights are those of the mean over all
    these bases: the squared norm of a row is proportional to the feature's share of the null space.
    """

    F: np.ndarray  # of shape (n_features, rank), float64: orthogonal columns
    # Of shape (n_features,), float64: squared norm of each feature's axis, projected onto the null
    # space.
    outside: np.ndarray

    def first_weights(self, n_columns: int) -> np.ndarray:
        """Return the weights of the mean over all bases in the null space."""
        return _null_weights(self.outside, n_columns)

    def smallest(self, added: np.ndarray, n_columns: int, before: np.ndarray | None) -> np.ndarray:
        """Return the same eigenvectors as `DenseForm`, by Lanczos iterations with the inverse.

        The inverse follows from Woodbury's formula.
        """
        from scipy.linalg import cho_factor, cho_solve

        F, share = self.F, 1 / added
        squares = np.einsum("ij,ij->j", F, F)
        # The features of zero rows of B all have the smallest share. Its contribution is a multiple
        # of F'F, which is diagonal, so products are needed only for the features with more.
        least = float(share.min())
        more = share - least
        used = np.flatnonzero(more * squares.max(initial=0.0) > _NEGLIGIBLE)
        G = F[used]
        G *= np.sqrt(more[used])[:, None]
        K = G.T @ G
        del G
        K.flat[:: len(K) + 1] += 1.0 + least * squares
        factor = cho_factor(K, overwrite_a=True, check_finite=False)

        def product(v: np.ndarray) -> np.ndarray:
            v = v.ravel() * share
            return np.asarray(v - share * (F @ cho_solve(factor, F.T @ v, check_finite=False)))

        return _largest(product, share, n_columns, before)

    def quadratic(self, B: np.ndarray) -> float:
        """Return ``tr(B'MB)``."""
        return float(((self.F.T @ B) ** 2).sum())

    def trace(self) -> float:
        """Return the trace of M."""
        return float((self.F**2).sum())


@dataclass(frozen=True)
class SparseForm:
    """M of few rows that are mostly zeros as ``X'S X``; no product is dense in the features."""

    rows: SparseRows  # X, centered: its columns are orthogonal to the null space of S
    S: Any  # csr_array of shape (n_samples, n_samples), float64
    # Of shape (n_samples, n_samples), float64: inverse of S plus a multiple of the projection onto
    # its null space.
    inverse: np.ndarray
    outside: np.ndarray  # as in `ProductForm`

    def first_weights(self, n_columns: int) -> np.ndarray:
        """Return the weights of the mean over all bases in the null space."""
        return _null_weights(self.outside, n_columns)

    def smallest(self, added: np.ndarray, n_columns: int, before: np.ndarray | None) -> np.ndarray:
        """Return the same eigenvectors as `DenseForm`, by Lanczos iterations with the inverse.

        The inverse follows from Woodbury's formula.
        """
        from scipy.linalg import cho_factor, cho_solve

        share, rows = 1 / added, self.rows
        K = rows.products(share)
        K += self.inverse
        factor = cho_factor(K.T, overwrite_a=True, check_finite=False)

        def product(v: np.ndarray) -> np.ndarray:
            v = v.ravel() * share
            inner = cho_solve(factor, rows.times(v), check_finite=False)
            return np.asarray(v - share * rows.transposed_times(inner))

        return _largest(product, share, n_columns, before)

    def quadratic(self, B: np.ndarray) -> float:
        """Return ``tr(B'MB)``."""
        product = self.rows.times(B)
        return float(np.einsum("ij,ij->", product, self.S @ product))

    def trace(self) -> float:
        """Return the trace of M."""
        products = self.rows.products(np.ones(self.rows.shape[1]))
        return float(self.S.multiply(products).sum())


# A symmetric, positive semidefinite M of n_features^2, with the operations that `sparse_basis`
# needs.
Form: TypeAlias = DenseForm | ProductForm | SparseForm


def _largest(
    product: Callable[[np.ndarray], np.ndarray],
    share: np.ndarray,
    n_columns: int,
    before: np.ndarray | None,
) -> np.ndarray:
    """Return the eigenvectors of the largest eigenvalues of an operator.

    The iteration starts near the former eigenvectors ``before``, if given.
    """
    from scipy.sparse.linalg import LinearOperator, eigsh

    operator = LinearOperator((len(share),) * 2, matvec=product, dtype=np.float64)
    if before is None:
        start, tol, n_vectors = np.sqrt(share), _START_TOL, None
    else:  # the start is close to the solution, so few Lanczos vectors suffice
        tol, n_vectors = 0.0, min(len(share), 2 * n_columns + 4)
        # Without the random vector, features that share no row with the former ones would never
        # enter.
        start = before.sum(axis=1)
        other = np.random.default_rng(0).standard_normal(len(start))
        start += _OTHER * np.linalg.norm(start) / np.linalg.norm(other) * other
    pairs = eigsh(operator, k=n_columns, which="LA", v0=start, tol=tol, ncv=n_vectors, rng=0)
    return np.asarray(pairs[1])


def _null_weights(outside: np.ndarray, n_columns: int) -> np.ndarray:
    """Return the weights of the mean over all bases in a null space.

    ``outside`` are the squared norms of the features' axes, projected onto the null space.
    """
    share = n_columns * outside / outside.sum()
    return np.asarray(0.5 / np.sqrt(share + _EPSILON))


def sparse_basis(
    form: Form,
    n_columns: int,
    gamma: float,
    *,
    max_iter: int,
    tol: float,
    on_iteration: Callable[[float], None] | None = None,
) -> SparseBasis:
    """Minimize ``tr(B'MB) + gamma |B|_2,1`` over B with ``B'B = I``, by reweighting.

    Parameters
    ----------
    form : Form
        The matrix M.
    n_columns : int
        Number of columns of B, at most n_features.
    gamma : float
    max_iter : int
    tol : float
        Stop when the relative change of the objective is at most this.
    on_iteration : callable or None, default=None
        Called with the objective of each iteration.
    """
    weights = form.first_weights(n_columns)
    B = None
    objective: list[float] = []
    converged = False
    while not converged and len(objective) < max_iter:
        B = form.smallest(gamma * weights, n_columns, B)
        weights = row_weights(B, _EPSILON)
        value = form.quadratic(B) + gamma * smoothed_l21(B, _EPSILON)
        converged = bool(objective) and abs(objective[-1] - value) <= tol * abs(objective[-1])
        objective.append(value)
        if on_iteration is not None:
            on_iteration(value)
    assert B is not None
    return SparseBasis(B, np.array(objective), converged)


def sparse_basis_bytes(n_features: int) -> int:
    """Return the bytes that `sparse_basis` needs."""
    return 8 * N_MATRICES * n_features**2


def product_form_bytes(n_samples: int, n_features: int) -> int:
    """Return the bytes that are needed to compute a `ProductForm` and to solve it."""
    return 8 * (N_ROW_MATRICES * n_samples * n_features + 4 * n_samples**2)


def _smallest(M: np.ndarray, added: np.ndarray, n_columns: int) -> np.ndarray:
    """Return the eigenvectors of the smallest eigenvalues of ``M + diag(added)``."""
    from scipy.linalg import LinAlgError, eigh

    def solve(driver: str) -> np.ndarray:
        P = M.copy()
        P.flat[:: len(M) + 1] += added
        pairs = eigh(P, subset_by_index=[0, n_columns - 1], overwrite_a=True, driver=driver)
        return np.asarray(pairs[1])

    try:
        return solve("evr")
    except LinAlgError:  # this driver fails if a large gamma makes eigenvalues equal up to rounding
        pass
    try:
        return solve("evx")
    except LinAlgError as error:
        raise NumericalError(
            f"UDFS: the eigenvector computation failed ({error}). A value far above all others may "
            "be the cause: look for one, or scale the features (preprocess)."
        ) from None
