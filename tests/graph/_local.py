"""Neighbors inside one array by the kernels of a partition, with checked parameters."""

from __future__ import annotations

import numpy as np

from bigfs.core.errors import check_choice
from bigfs.graph.descent import EXACT_ROWS, search_prepared
from bigfs.graph.local import (
    METRICS,
    as_distances,
    check_n_neighbors,
    prepare_rows,
    search_exact,
)


def knn_exact(
    X: np.ndarray, n_neighbors: int, metric: str = "euclidean", query: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the exact nearest neighbors of every row, or of query rows.

    Candidates come from a blocked matrix product; their distances are then computed from the
    differences in float64, and a row whose candidates are not provably enough is searched again.

    Parameters
    ----------
    X : ndarray of shape (n_samples, n_features), float32 or float64
    n_neighbors : int
        In [1, n_samples - 1], or [1, n_samples] with a query.
    metric : {"euclidean", "cosine", "correlation"}, default="euclidean"
    query : ndarray of shape (n_queries, n_features) or None
        None: the rows of X, each without itself.

    Returns
    -------
    indices : ndarray of shape (n_queries, n_neighbors), int32
    distances : ndarray of shape (n_queries, n_neighbors), float32
        True distances, ascending; equal ones by ascending index.

    Raises
    ------
    InputError
        If ``n_neighbors`` or ``metric`` is out of range, or a row has no direction.
    """
    check_choice("metric", metric, METRICS)
    check_n_neighbors(n_neighbors, len(X) + (query is not None))
    rows = prepare_rows(X, metric)
    if query is None:
        indices, squared = search_exact(rows, n_neighbors, rows, np.arange(len(X)))
    else:
        nobody = np.full(len(query), -1)
        queries = prepare_rows(query, metric)
        indices, squared = search_exact(rows, n_neighbors, queries, nobody)
    return indices, as_distances(squared, metric)


def knn_local(
    X: np.ndarray,
    n_neighbors: int,
    *,
    metric: str = "euclidean",
    seed: int = 0,
    algorithm: str = "auto",
) -> tuple[np.ndarray, np.ndarray]:
    """Return the nearest neighbors of every row of an array in memory.

    Exact for up to 8,192 rows, by pynndescent above.

    Parameters
    ----------
    X : ndarray of shape (n_samples, n_features), float32 or float64
    n_neighbors : int
        In [1, n_samples - 1].
    metric : {"euclidean", "cosine", "correlation"}, default="euclidean"
    seed : int, default=0
    algorithm : {"auto", "exact", "pynndescent"}, default="auto"

    Returns
    -------
    indices : ndarray of shape (n_samples, n_neighbors), int32
        No row lists itself, no neighbor twice.
    distances : ndarray of shape (n_samples, n_neighbors), float32
        True distances, ascending; equal ones by ascending index.

    Raises
    ------
    InputError
        If a parameter is out of range, or a row has no direction.
    """
    check_choice("metric", metric, METRICS)
    check_n_neighbors(n_neighbors, len(X))
    rows = prepare_rows(X, metric)
    exact_rows = {"auto": EXACT_ROWS, "exact": len(X), "pynndescent": 0}[algorithm]
    indices, squared = search_prepared(rows, n_neighbors, seed, exact_rows)
    return indices, as_distances(squared, metric)
