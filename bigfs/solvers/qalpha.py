"""The Q-alpha iteration on a Gram matrix: feature weights that sharpen the spectrum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

# Eigenvalues of the Gram matrix below this share of the largest are rounding.
_RANK_TOL = 1e-12
# From here on the leading eigenvector comes from Lanczos steps, begun at the one before.
DENSE_FEATURES = 400
# Lanczos vectors where products are dear: the start is near the solution.
_FEW_VECTORS = 8
# Matrices of n_features^2 alive at once: the Gram matrix, the coordinates, and what an
# eigendecomposition works with.
N_MATRICES = 5
# Matrices of n_samples x n_features alive at once: the rows, the coordinates, two on the way.
N_ROW_MATRICES = 4
# Returns the largest eigenvalue of G, and its vector, for the present components.
_Leading: TypeAlias = Callable[[np.ndarray, np.ndarray], tuple[float, np.ndarray]]


@dataclass(frozen=True)
class QAlphaResult:
    """Weights of the features, and how they were reached."""

    alpha: np.ndarray  # of shape (n_features,), float64: norm one, with a sum that is not negative
    # Of shape (n_iter,), float64: ``tr(Q'A'A Q)`` of each iteration; in exact arithmetic it never
    # falls.
    objective: np.ndarray
    converged: bool


def q_alpha(
    given: np.ndarray,
    n_components: int,
    *,
    of_rows: bool = False,
    max_iter: int = 100,
    tol: float = 1e-8,
    on_iteration: Callable[[float], None] | None = None,
) -> QAlphaResult:
    """Maximize ``sum_j lambda_j(A)^2`` over weights of norm one, ``A = sum_i alpha_i m_i m_i'``.

    The samples' space is replaced by the span of the features, in coordinates from the
    eigenvectors of their Gram matrix: every inner product is the same, so nothing of n remains.

    Parameters
    ----------
    given : ndarray of shape (n_features, n_features), float64
        ``m_i'm_j`` of features of norm one; overwritten.
    n_components : int
        Leading eigenvalues in the sum.
    of_rows : bool, default=False
        ``given`` are the rows instead, of shape (n_samples, n_features), with columns of norm one:
        for fewer rows than features. The coordinates come from the rows' own Gram matrix, and the
        matrix whose leading eigenvector is wanted is only multiplied by: nothing is n_features^2.
    max_iter : int, default=100
    tol : float, default=1e-8
        Stop when no weight changes by more.
    on_iteration : callable or None, default=None
        Called with the objective of each iteration.

    Returns
    -------
    result : QAlphaResult
    """
    coordinates, leading = (_of_rows if of_rows else _of_gram)(given)
    rank, n_features = coordinates.shape
    Q = np.eye(rank, min(n_components, rank))
    alpha = np.full(n_features, 1 / np.sqrt(n_features))
    objective: list[float] = []
    converged = False
    while not converged and len(objective) < max_iter:
        shadow = Q.T @ coordinates
        level, leading_vector = leading(shadow, alpha)
        if leading_vector.sum() < 0:
            leading_vector = -leading_vector
        objective.append(level)
        if on_iteration is not None:
            on_iteration(level)
        Q = np.linalg.qr(coordinates @ (leading_vector[:, None] * shadow.T))[0]
        converged = bool(np.abs(leading_vector - alpha).max() <= tol)
        alpha = leading_vector
    return QAlphaResult(alpha, np.array(objective), converged)


def _of_gram(gram: np.ndarray) -> tuple[np.ndarray, _Leading]:
    """Return coordinates of the features' span, and the leading pair of G in them."""
    values, vectors = np.linalg.eigh(gram)
    kept = values > _RANK_TOL * values[-1]
    # Their products are the Gram matrix; largest axis first.
    coordinates = (vectors[:, kept] * np.sqrt(values[kept])).T[::-1].copy()

    def leading(shadow: np.ndarray, alpha: np.ndarray) -> tuple[float, np.ndarray]:
        return _leading(gram * (shadow.T @ shadow), alpha)

    return coordinates, leading


def _of_rows(rows: np.ndarray) -> tuple[np.ndarray, _Leading]:
    """Return the same from rows, without a matrix of n_features^2."""
    from scipy.sparse.linalg import LinearOperator, eigsh

    values, vectors = np.linalg.eigh(rows @ rows.T)
    kept = values > _RANK_TOL * values[-1]
    coordinates = (vectors[:, kept].T @ rows)[::-1].copy()
    size = (rows.shape[1],) * 2

    def leading(shadow: np.ndarray, alpha: np.ndarray) -> tuple[float, np.ndarray]:
        def product(v: np.ndarray) -> np.ndarray:
            inner = coordinates @ (shadow * v.ravel()).T
            return np.asarray(np.einsum("qd,qd->d", inner.T @ coordinates, shadow))

        pairs = eigsh(
            LinearOperator(size, matvec=product, dtype=np.float64),
            k=1, which="LA", v0=alpha, tol=1e-13, maxiter=10_000, ncv=_FEW_VECTORS,
        )  # fmt: skip
        return float(pairs[0][0]), pairs[1][:, 0]

    return coordinates, leading


def q_alpha_bytes(n_features: int) -> int:
    """Return the bytes that `q_alpha` needs, its argument included."""
    return 8 * N_MATRICES * n_features**2


def q_alpha_of_rows_bytes(n_samples: int, n_features: int) -> int:
    """Return the bytes that `q_alpha` needs on rows, its argument included."""
    return 8 * (N_ROW_MATRICES * n_samples * n_features + 3 * n_samples**2)


def _leading(matrix: np.ndarray, start: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the largest eigenvalue of a symmetric matrix and its vector."""
    if len(matrix) < DENSE_FEATURES:
        values, vectors = np.linalg.eigh(matrix)
        return float(values[-1]), vectors[:, -1]
    from scipy.sparse.linalg import eigsh

    values, vectors = eigsh(matrix, k=1, which="LA", v0=start, tol=1e-13, maxiter=10_000)
    return float(values[0]), vectors[:, 0]
