"""Exact search with a known bound: single precision rules out most of the rows."""

from __future__ import annotations

from itertools import product

import numpy as np

from bigfs.graph.local import as_distances, search_exact

# Pairs that are compared at a time: their gaps stay in the processor's cache.
_QUERIES, _ROWS = 256, 512
_TILE_BYTES = 4 * 1024**2
# Squares beyond this would leave the range of float32.
_LARGEST = 1e36


def search_within(
    rows: np.ndarray,
    n_neighbors: int,
    metric: str,
    queries: np.ndarray,
    own: np.ndarray,
    bounds: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the exact neighbors of prepared queries that are no farther than their bounds.

    Parameters
    ----------
    rows, queries : ndarray of shape (n_rows, n_features) and (n_queries, n_features)
        Prepared rows, see `bigfs.graph.local.prepare_rows`.
    n_neighbors : int
    metric : str
    own : ndarray of shape (n_queries,), int
        Each query's own row, left out, or -1.
    bounds : ndarray of shape (n_queries,), float32
        Distances beyond which nothing is wanted; infinite if not known.

    Returns
    -------
    indices : ndarray of shape (n_queries, n_neighbors), int32
        By (float32 distance, index); -1 where fewer rows are within the bound.
    squared : ndarray of shape (n_queries, n_neighbors), float64
    """
    center = rows.mean(axis=0, dtype=np.float64)
    near, near_norms = _narrow(rows, center)
    far, far_norms = _narrow(queries, center)
    largest = float(max(near_norms.max(), far_norms.max()))
    if not largest <= _LARGEST or not np.isfinite(bounds).all():
        return search_exact(rows, n_neighbors, queries, own)
    wide = bounds.astype(np.float64)
    reach = (wide**2 if metric == "euclidean" else 2 * wide) * (1 + 1e-6)
    # |a|^2 + |b|^2 - 2ab loses up to this much to rounding.
    reach += 8 * (rows.shape[1] + 4) * np.finfo(np.float32).eps * (far_norms + largest)
    far *= -2
    limits = (reach - far_norms)[:, None].astype(np.float32)
    query, row = [], []
    for begin, first in product(range(0, len(queries), _QUERIES), range(0, len(rows), _ROWS)):
        tile, span = slice(begin, begin + _QUERIES), slice(first, first + _ROWS)
        gaps = far[tile] @ near[span].T
        gaps += near_norms[span]
        hits = np.flatnonzero(gaps <= limits[tile])
        query.append(begin + hits // gaps.shape[1])
        row.append(first + hits % gaps.shape[1])
    return _nearest_hits(
        rows, queries, np.concatenate(query), np.concatenate(row), own, n_neighbors, metric
    )


def _narrow(rows: np.ndarray, center: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return rows from a center in float32, and their squared norms."""
    with np.errstate(over="ignore"):
        narrow = (rows - center.astype(rows.dtype)).astype(np.float32, copy=False)
        return narrow, np.einsum("ij,ij->i", narrow, narrow)


def _nearest_hits(
    rows: np.ndarray,
    queries: np.ndarray,
    query: np.ndarray,
    row: np.ndarray,
    own: np.ndarray,
    k: int,
    metric: str,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the k nearest of each query's hits, by distances from the differences in float64."""
    others = row != own[query]
    query, row = query[others], row[others]
    squared = pair_squares(rows, queries, query, row)
    order = np.lexsort((row, as_distances(squared, metric), query))
    counts = np.bincount(query, minlength=len(queries))
    place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    kept = place < k
    chosen, place = order[kept], place[kept]
    indices = np.full((len(queries), k), -1, dtype=np.int32)
    nearest = np.full((len(queries), k), np.inf)
    indices[query[chosen], place] = row[chosen]
    nearest[query[chosen], place] = squared[chosen]
    return indices, nearest


def pair_squares(
    rows: np.ndarray, queries: np.ndarray, query: np.ndarray, row: np.ndarray
) -> np.ndarray:
    """Return squared distances of pairs of rows, (n_pairs,) float64, from the differences."""
    squared = np.empty(len(query))
    step = max(1, _TILE_BYTES // (16 * rows.shape[1]))
    for begin in range(0, len(query), step):
        tile = slice(begin, begin + step)
        gaps = queries[query[tile]].astype(np.float64) - rows[row[tile]]
        squared[tile] = np.einsum("ij,ij->i", gaps, gaps)
    return squared
