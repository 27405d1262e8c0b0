"""The Q-alpha iteration on a Gram matrix: feature weights that sharpen the spectrum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# Eigenvalues of the Gram matrix below this share of the largest are rounding.
_RANK_TOL = 1e-12
# From here on the leading eigenvector comes from Lanczos steps, begun at the one before.
_DENSE = 400
# Matrices of n_features^2 alive at once: the Gram matrix, the coordinates, and what an
# eigendecomposition works with.
N_MATRICES = 5


@dataclass(frozen=True)
class QAlphaResult:
    """Weights of the features, and how they were reached.

    Attributes
    ----------
    alpha : ndarray of shape (n_features,), float64
        Norm one, with a sum that is not negative.
    objective : ndarray of shape (n_iter,), float64
        ``tr(Q'A'A Q)`` of each iteration; in exact arithmetic it never falls.
    converged : bool
    """

    alpha: np.ndarray
    objective: np.ndarray
    converged: bool


def q_alpha(
    gram: np.ndarray, n_components: int, *, max_iter: int = 100, tol: float = 1e-8
) -> QAlphaResult:
    """Maximize ``sum_j lambda_j(A)^2`` over weights of norm one, ``A = sum_i alpha_i m_i m_i'``.

    The samples' space is replaced by the span of the features, in coordinates from the
    eigenvectors of their Gram matrix: every inner product is the same, so nothing of n remains.

    Parameters
    ----------
    gram : ndarray of shape (n_features, n_features), float64
        ``m_i'm_j`` of features of norm one; overwritten.
    n_components : int
        Leading eigenvalues in the sum.
    max_iter : int, default=100
    tol : float, default=1e-8
        Stop when no weight changes by more.

    Returns
    -------
    result : QAlphaResult
    """
    coordinates = _coordinates(gram)
    rank = len(coordinates)
    Q = np.eye(rank, min(n_components, rank))
    alpha = np.full(len(gram), 1 / np.sqrt(len(gram)))
    objective: list[float] = []
    converged = False
    while not converged and len(objective) < max_iter:
        shadow = Q.T @ coordinates
        level, found = _leading(gram * (shadow.T @ shadow), alpha)
        if found.sum() < 0:
            found = -found
        objective.append(level)
        Q = np.linalg.qr(coordinates @ (found[:, None] * shadow.T))[0]
        converged = bool(np.abs(found - alpha).max() <= tol)
        alpha = found
    return QAlphaResult(alpha, np.array(objective), converged)


def q_alpha_bytes(n_features: int) -> int:
    """Return what `q_alpha` needs, its argument included."""
    return 8 * N_MATRICES * n_features**2


def _coordinates(gram: np.ndarray) -> np.ndarray:
    """Return C of shape (rank, n_features) with ``C'C`` the Gram matrix, largest axis first."""
    values, vectors = np.linalg.eigh(gram)
    kept = values > _RANK_TOL * values[-1]
    return (vectors[:, kept] * np.sqrt(values[kept])).T[::-1].copy()


def _leading(matrix: np.ndarray, start: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the largest eigenvalue of a symmetric matrix and its vector."""
    if len(matrix) < _DENSE:
        values, vectors = np.linalg.eigh(matrix)
        return float(values[-1]), vectors[:, -1]
    from scipy.sparse.linalg import eigsh

    values, vectors = eigsh(matrix, k=1, which="LA", v0=start, tol=1e-13, maxiter=10_000)
    return float(values[0]), vectors[:, 0]
