"""Solvers of UDFS: a neighborhood's discriminative matrix, the l2,1-penalized eigenproblem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from bigfs.core.errors import NumericalError
from bigfs.solvers.l21 import row_weights, smoothed_l21
from bigfs.solvers.sparserows import SparseRows

# Rows of B below its root count as empty; it keeps the weights finite.
_EPSILON = 1e-16
# Matrices of n_features^2 alive at once: M, its reweighted copy, an eigensolver's workspace.
N_MATRICES = 4
# Matrices of n_samples x n_features alive at once where M is kept as a product.
N_ROW_MATRICES = 6
# An eigenvalue of M below this share of the largest is zero.
_NULL = 1e-10
# A change of an inverse by less than this share is left out.
_NEGLIGIBLE = 1e-7
# Of the first eigenproblem of a product: its solution only has to be a start.
_START_TOL = 1e-3
# Share of what is not in the last solution where a Lanczos iteration begins.
_OTHER = 0.01


def local_factors(Z: np.ndarray, ridge: float) -> np.ndarray:
    """Return R with ``R'R = Z'(Z Z' + ridge I)^-1 Z``, for each of several neighborhoods.

    From the eigenvectors of ``Z Z'``, which is singular for centered rows: nothing is inverted
    but its eigenvalues with the ridge added.

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
    # Of shape (n_iter,), float64: after each iteration; it never rises, but for rounding.
    objective: np.ndarray
    converged: bool


@dataclass(frozen=True)
class DenseForm:
    """M itself, (n_features, n_features), float64."""

    M: np.ndarray

    def first_weights(self, n_columns: int) -> np.ndarray:
        """Return the diagonal to begin with: ones, as in the paper.

        Where M vanishes on more dimensions than columns are wanted, it is that of `ProductForm`.
        """
        values = np.linalg.eigvalsh(self.M)
        n_null = int((values < _NULL * values[-1]).sum())
        if n_null <= n_columns:
            return np.ones(len(self.M))
        null = _smallest(self.M, np.zeros(len(self.M)), n_null)
        return _null_weights(np.einsum("ij,ij->i", null, null), n_columns)

    def smallest(self, added: np.ndarray, n_columns: int, before: np.ndarray | None) -> np.ndarray:
        """Return the eigenvectors of the smallest eigenvalues of M with its diagonal added to."""
        return _smallest(self.M, added, n_columns)

    def quadratic(self, B: np.ndarray) -> float:
        """Return ``tr(B'MB)``."""
        return float(np.einsum("ij,ij->", B, self.M @ B))

    def trace(self) -> float:
        """Return the trace of M."""
        return float(np.trace(self.M))


@dataclass(frozen=True)
class ProductForm:
    """``M = F F'`` of few rows, where the null space of M has more dimensions than the basis.

    Then the paper's first problem, with the identity added, has every basis of that null space
    for a solution, and rounding would choose. The weights to begin with are those of the mean
    over all of them: a row's squared norm is in proportion to its feature's share of the space.
    """

    F: np.ndarray  # of shape (n_features, rank), float64: orthogonal columns
    # Of shape (n_features,), float64: squared norm of each feature's axis, projected onto the null
    # space.
    outside: np.ndarray

    def first_weights(self, n_columns: int) -> np.ndarray:
        """Return the weights of the mean over the null space."""
        return _null_weights(self.outside, n_columns)

    def smallest(self, added: np.ndarray, n_columns: int, before: np.ndarray | None) -> np.ndarray:
        """Solve by Lanczos steps with the inverse, which Woodbury's formula gives."""
        from scipy.linalg import cho_factor, cho_solve

        F, share = self.F, 1 / added
        squares = np.einsum("ij,ij->j", F, F)
        # Empty features share the least weight, which multiplies F'F, a diagonal matrix: products
        # are made of the others.
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
    """``M = X'S X`` of few rows, mostly zeros: no product is dense in features."""

    rows: SparseRows  # X, centered: its columns are orthogonal to the null space of S
    S: Any  # csr_array of shape (n_samples, n_samples), float64
    # Of shape (n_samples, n_samples), float64: that of S and a projection onto its null space.
    inverse: np.ndarray
    outside: np.ndarray  # as in `ProductForm`

    def first_weights(self, n_columns: int) -> np.ndarray:
        """Return the weights of the mean over the null space."""
        return _null_weights(self.outside, n_columns)

    def smallest(self, added: np.ndarray, n_columns: int, before: np.ndarray | None) -> np.ndarray:
        """Solve by Lanczos steps with the inverse, which Woodbury's formula gives."""
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


# A symmetric, positive semidefinite M of n_features^2, as far as `sparse_basis` uses it.
Form: TypeAlias = DenseForm | ProductForm | SparseForm


def _largest(
    product: Callable[[np.ndarray], np.ndarray],
    share: np.ndarray,
    n_columns: int,
    before: np.ndarray | None,
) -> np.ndarray:
    """Return eigenvectors of the largest eigenvalues of a product, near those of before."""
    from scipy.sparse.linalg import LinearOperator, eigsh

    operator = LinearOperator((len(share),) * 2, matvec=product, dtype=np.float64)
    if before is None:
        start, tol, n_vectors = np.sqrt(share), _START_TOL, None
    else:  # close to the solution, which few vectors find
        tol, n_vectors = 0.0, min(len(share), 2 * n_columns + 4)
        # Features that share no row with those of before would never come in.
        start = before.sum(axis=1)
        other = np.random.default_rng(0).standard_normal(len(start))
        start += _OTHER * np.linalg.norm(start) / np.linalg.norm(other) * other
    pairs = eigsh(operator, k=n_columns, which="LA", v0=start, tol=tol, ncv=n_vectors, rng=0)
    return np.asarray(pairs[1])


def _null_weights(outside: np.ndarray, n_columns: int) -> np.ndarray:
    """Return the weights of the mean over all bases in a null space."""
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
        M.
    n_columns : int
        At most n_features.
    gamma : float
    max_iter : int
    tol : float
        Stop when the objective changes by less than this share.
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
    """Return the bytes to make and to solve a `ProductForm`."""
    return 8 * (N_ROW_MATRICES * n_samples * n_features + 4 * n_samples**2)


def _smallest(M: np.ndarray, added: np.ndarray, n_columns: int) -> np.ndarray:
    """Return the eigenvectors of the smallest eigenvalues of M with its diagonal added to."""
    from scipy.linalg import LinAlgError, eigh

    def solve(driver: str) -> np.ndarray:
        P = M.copy()
        P.flat[:: len(M) + 1] += added
        pairs = eigh(P, subset_by_index=[0, n_columns - 1], overwrite_a=True, driver=driver)
        return np.asarray(pairs[1])

    try:
        return solve("evr")
    except LinAlgError:  # it gives up where a large gamma has eigenvalues agree up to rounding
        pass
    try:
        return solve("evx")
    except LinAlgError as error:
        raise NumericalError(
            f"UDFS: the eigenvectors of its matrix are not found ({error}). A value far above all "
            "others may be the reason: look for it, or scale the features (preprocess)."
        ) from None
