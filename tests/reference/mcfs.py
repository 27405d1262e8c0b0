"""MCFS and LaplacianScore written from the papers: n x n, float64, all pairs."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from scipy.linalg import eigh
from sklearn.linear_model import lars_path


def squared_distances(X: np.ndarray) -> np.ndarray:
    """All pairs, from differences."""
    return np.stack([((X - x) ** 2).sum(axis=1) for x in X])


def neighbor_affinity(
    X: np.ndarray, k: int, weight: str = "binary", sigma: float = 1.0
) -> np.ndarray:
    """W of section 3.1: an edge where either end lists the other, ties to the lower index."""
    distances = squared_distances(X)
    np.fill_diagonal(distances, np.inf)
    edge = np.zeros(distances.shape, dtype=bool)
    for i, row in enumerate(distances):
        edge[i, np.argsort(row, kind="stable")[:k]] = True
    edge |= edge.T
    norms = np.linalg.norm(X, axis=1)
    values = {
        "binary": np.ones(edge.shape),
        "heat": np.exp(-distances / sigma),
        "dot": X @ X.T,
        "cosine": X @ X.T / np.outer(norms, norms),
    }[weight]
    return np.where(edge, values, 0.0)


def smallest_eigenvectors(W: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Solve L y = lambda D y (eq. 1) densely; drop the trivial vector of a connected graph."""
    D = np.diag(W.sum(axis=1))
    values, vectors = eigh(D - W, D)
    return values[1 : k + 1], vectors[:, 1 : k + 1]


def sparse_coefficients(X: np.ndarray, y: np.ndarray, m: int, intercept: bool) -> np.ndarray:
    """Eq. (3) by LARS with the lasso modification, at the first knot with m active features.

    scikit-learn returns the path; a coefficient that left is exactly zero in its arrays.
    """
    if intercept:
        X, y = X - X.mean(axis=0), y - y.mean()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, _, path = lars_path(X, y, method="lasso")
    for knot in path.T:
        if np.count_nonzero(np.abs(knot) > 1e-12 * np.abs(knot).max(initial=1e-300)) >= m:
            return knot
    return path[:, -1]


def mcfs_from_embedding(
    X: np.ndarray, Y: np.ndarray, m: int, intercept: bool = True, scale: str = "l2"
) -> np.ndarray:
    """Scores of eq. (4), for eigenvectors scaled to norm one."""
    scores = np.zeros(X.shape[1])
    for y in (Y / np.linalg.norm(Y, axis=0)).T:
        a = sparse_coefficients(X, y, m, intercept)
        norms = {"none": 1, "l1": np.abs(a).sum(), "l2": np.linalg.norm(a), "max": np.abs(a).max()}
        # The share of y that the features explain beside the intercept: R squared.
        centered, left = (X - X.mean(axis=0), y - y.mean()) if intercept else (X, y)
        share = 1 - ((left - centered @ a) ** 2).sum() / (left**2).sum()
        free = len(X) - 1 - np.count_nonzero(a)
        share = max(1 - (1 - share) * (len(X) - 1) / free, 1e-6 * share)
        norms["explained"] = norms["l2"] / np.sqrt(share)
        a = a / norms[scale]
        scores = np.maximum(scores, np.abs(a))
    return scores


def mcfs_scores(
    X: np.ndarray, n_clusters: int, m: int, k: int = 5, weight: str = "binary", **options: Any
) -> np.ndarray:
    """Table 1 of the paper on a connected graph."""
    X = np.asarray(X, dtype=np.float64)
    _, Y = smallest_eigenvectors(neighbor_affinity(X, k, weight), n_clusters)
    return mcfs_from_embedding(X, Y, m, **options)


def laplacian_scores(X: np.ndarray, W: np.ndarray) -> np.ndarray:
    """He, Cai, Niyogi 2005: f'Lf / f'Df with the D-weighted mean removed; small is good."""
    X = np.asarray(X, dtype=np.float64)
    d = W.sum(axis=1)
    L = np.diag(d) - W
    scores = []
    for f in X.T:
        f = f - (f @ d) / d.sum()
        scores.append((f @ L @ f) / (f @ np.diag(d) @ f))
    return np.array(scores)
