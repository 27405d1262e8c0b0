"""UDFS written from the paper: the n x n matrix of all neighborhoods, dense."""

from __future__ import annotations

import numpy as np
from scipy.linalg import helmert

from tests.reference.mcfs import squared_distances


def discriminative_matrix(X: np.ndarray, k: int, ridge: float) -> np.ndarray:
    """``X'MX`` of Yang et al. 2011, M as the sum of ``S_i H (H X_i'X_i H + ridge)^-1 H S_i'``.

    Along the ones, the matrix in brackets is the ridge alone, and H leaves nothing of that. It is
    inverted in an orthonormal basis Q of the rest, ``H = Q'Q``: whole, its condition is that of a
    small ridge, and rounding of 1e-9 came through.
    """
    X = np.asarray(X, dtype=np.float64)
    n = len(X)
    distances = squared_distances(X)
    np.fill_diagonal(distances, -1.0)
    Q = helmert(k + 1)
    M = np.zeros((n, n))
    for i in range(n):
        members = np.argsort(distances[i], kind="stable")[: k + 1]
        S = np.zeros((n, k + 1))
        S[members, np.arange(k + 1)] = 1
        Z = Q @ S.T @ X
        M += S @ Q.T @ np.linalg.inv(Z @ Z.T + ridge * np.eye(k)) @ Q @ S.T
    return X.T @ M @ X


def udfs_scores(
    X: np.ndarray, c: int, k: int, gamma: float, ridge: float, n_iter: int
) -> np.ndarray:
    """Algorithm 1: row norms of W after some iterations from D = I.

    Where P vanishes on more than c dimensions every basis of these solves the first problem: D is
    that of the root mean square of all of them.
    """
    P = discriminative_matrix(X, k, ridge)
    D = np.eye(len(P))
    values, vectors = np.linalg.eigh(P)
    null = vectors[:, values < 1e-10 * values[-1]]
    if null.shape[1] > c:
        D = np.diag(1 / (2 * np.sqrt(np.diag(null @ null.T) * c / null.shape[1])))
    for _ in range(n_iter):
        W = np.linalg.eigh(P + gamma * D)[1][:, :c]
        norms = np.linalg.norm(W, axis=1)
        D = np.diag(1 / (2 * np.sqrt(norms**2 + 1e-16)))
    return norms
