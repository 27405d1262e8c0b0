"""The n x n reference: all distances, sorted by (float32 distance, index)."""

from __future__ import annotations

import numpy as np


def brute_neighbors(
    X: np.ndarray, n_neighbors: int, metric: str = "euclidean"
) -> tuple[np.ndarray, np.ndarray]:
    rows = np.asarray(X, dtype=np.float64)
    if metric == "correlation":
        rows = rows - rows.mean(axis=1, keepdims=True)
    if metric != "euclidean":
        rows = rows / np.linalg.norm(rows, axis=1)[:, None]
    squared = np.array([((rows - row) ** 2).sum(axis=1) for row in rows])
    distances = np.sqrt(squared) if metric == "euclidean" else squared / 2
    np.fill_diagonal(distances, np.inf)
    distances = distances.astype(np.float32)
    number = np.broadcast_to(np.arange(len(X)), distances.shape)
    order = np.lexsort((number, distances), axis=1)[:, :n_neighbors]
    return order, np.take_along_axis(distances, order, axis=1)


def check_graph(indices: np.ndarray, distances: np.ndarray, X: np.ndarray) -> None:
    """Assert what every euclidean graph promises."""
    n, k = indices.shape
    assert indices.dtype == np.int32 and distances.dtype == np.float32
    assert indices.min() >= 0 and indices.max() < n
    assert (indices != np.arange(n)[:, None]).all()
    assert all(len(set(row)) == k for row in indices.tolist())
    gaps = X[:, None].astype(np.float64) - X[indices]
    true = np.sqrt(np.einsum("ijf,ijf->ij", gaps, gaps))
    np.testing.assert_allclose(distances, true, rtol=3e-7)
    rising = distances[:, 1:] > distances[:, :-1]
    tied = (distances[:, 1:] == distances[:, :-1]) & (indices[:, 1:] > indices[:, :-1])
    assert (rising | tied).all()


def manifold(n_samples: int, n_features: int, seed: int = 0) -> np.ndarray:
    """Return rows near a curved 6-dimensional surface in several clusters, float32."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(scale=3, size=(10, 6))
    Z = centers[rng.integers(10, size=n_samples)] + rng.normal(size=(n_samples, 6))
    X = np.tanh(Z @ rng.normal(size=(6, 32)) / 3) @ rng.normal(size=(32, n_features))
    return (X + 0.05 * rng.normal(size=X.shape)).astype(np.float32)
