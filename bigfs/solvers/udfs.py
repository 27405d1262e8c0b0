"""UDFS in small: one neighborhood's discriminative matrix, and the l2,1-penalized eigenproblem."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bigfs.solvers.l21 import row_weights, smoothed_l21

# Rows of B below its root count as empty; it keeps the weights finite.
_EPSILON = 1e-16
# Matrices of n_features^2 alive at once: M, its reweighted copy, an eigensolver's workspace.
N_MATRICES = 4


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
    """What `sparse_basis` found.

    Attributes
    ----------
    B : ndarray of shape (n_features, n_columns), float64
        Orthonormal columns.
    objective : ndarray of shape (n_iter,), float64
        After each iteration; it never rises, but for rounding.
    converged : bool
    """

    B: np.ndarray
    objective: np.ndarray
    converged: bool


def sparse_basis(
    M: np.ndarray, n_columns: int, gamma: float, *, max_iter: int, tol: float
) -> SparseBasis:
    """Minimize ``tr(B'MB) + gamma |B|_2,1`` over B with ``B'B = I``, by reweighting.

    Parameters
    ----------
    M : ndarray of shape (n_features, n_features), float64
        Symmetric, positive semidefinite.
    n_columns : int
        At most n_features.
    gamma : float
    max_iter : int
    tol : float
        Stop when the objective changes by less than this share.
    """
    weights = np.ones(len(M))
    objective: list[float] = []
    converged = False
    while not converged and len(objective) < max_iter:
        B = _smallest(M, gamma * weights, n_columns)
        weights = row_weights(B, _EPSILON)
        now = float(np.einsum("ij,ij->", B, M @ B)) + gamma * smoothed_l21(B, _EPSILON)
        converged = bool(objective) and abs(objective[-1] - now) <= tol * abs(objective[-1])
        objective.append(now)
    return SparseBasis(B, np.array(objective), converged)


def sparse_basis_bytes(n_features: int) -> int:
    """Return what `sparse_basis` needs."""
    return 8 * N_MATRICES * n_features**2


def _smallest(M: np.ndarray, added: np.ndarray, n_columns: int) -> np.ndarray:
    """Return the eigenvectors of the smallest eigenvalues of M with its diagonal added to."""
    from scipy.linalg import LinAlgError, eigh

    def solve(driver: str) -> np.ndarray:
        P = M.copy()
        P.flat[:: len(M) + 1] += added
        found = eigh(P, subset_by_index=[0, n_columns - 1], overwrite_a=True, driver=driver)
        return np.asarray(found[1])

    try:
        return solve("evr")
    except LinAlgError:  # it gives up where a large gamma has eigenvalues agree up to rounding
        return solve("evx")
