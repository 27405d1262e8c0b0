"""Nearest neighbors inside one array: exact search, and pynndescent for larger ones.

The kernel of one partition. Every result follows one order, that of `bigfs.graph.order`, so that
neighbors found in different partitions merge without ambiguity. All metrics are squared Euclidean
distances of prepared rows: cosine of unit rows, correlation of centered unit rows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from bigfs.core.checks import check_choice, check_count
from bigfs.core.compiling import compiled
from bigfs.core.errors import InputError
from bigfs.core.text import FROM_0
from bigfs.graph.descent import descend
from bigfs.graph.order import nearest
from bigfs.graph.projection import PROJECTED_WIDTH, projected_rows

METRICS = ("euclidean", "cosine", "correlation")
ALGORITHMS = ("auto", "exact", "pynndescent")
# Up to here exact search costs less than pynndescent's first call ever, which compiles for 20 s.
EXACT_ROWS = 8192
# pynndescent explores at least this many neighbors: fewer lose recall, not only results.
_SEARCH_WIDTH = 16
# It passes row numbers through float32.
MAX_ROWS = 2**24
_LARGEST = 1e37
_SPARE = 8
_TILE_BYTES = 16 * 1024**2
_WIDE_BYTES = 32 * 1024**2
_TILE_ROWS = 65_536

# Under numba's workqueue layer two threads inside parallel kernels abort the process.
_numba_lock = threading.Lock()


def check_metric(metric: str) -> None:
    """Raise InputError for a metric that partitions by centroids do not serve."""
    check_choice("metric", metric, METRICS)


def check_n_neighbors(n_neighbors: int, n_samples: int) -> None:
    """Raise InputError unless every row has that many other rows."""
    if n_samples < 2:
        raise InputError(f"X has {n_samples} row(s): a neighbor graph needs at least 2.")
    check_count("n_neighbors", n_neighbors, n_samples - 1, f"since X has {n_samples} rows")


def prepare_rows(X: np.ndarray, metric: str, ids: np.ndarray | None = None) -> np.ndarray:
    """Return rows whose squared Euclidean distances give the metric; X itself if euclidean.

    ``ids`` (n_rows,) are the row numbers that messages name; None: 0, 1, 2...

    Raises
    ------
    InputError
        If a row is zero (cosine) or constant (correlation): it has no direction; or if values
        are so large that distances leave the range of float32.
    """
    _check_range(X, ids)
    if metric == "euclidean":
        return X
    out = np.empty(X.shape, X.dtype)
    step = max(1, _TILE_BYTES // (16 * X.shape[1]))
    for begin in range(0, len(X), step):
        tile = X[begin : begin + step].astype(np.float64)
        if metric == "correlation":
            tile -= tile.mean(axis=1, keepdims=True)
        scale = np.abs(X[begin : begin + step]).max(axis=1).astype(np.float64)
        norms = np.linalg.norm(tile, axis=1)
        # Rounding leaves a constant row with a residue of the mean.
        lost = norms <= scale * np.sqrt(X.shape[1]) * np.finfo(X.dtype).eps
        if lost.any():
            row = begin + int(lost.argmax())
            row = row if ids is None else int(ids[row])
            kind = "zero" if metric == "cosine" else "constant"
            raise InputError(
                f"Row {row} is {kind} in every feature and has no {metric} distance to other "
                f"rows. Remove such rows or set metric to 'euclidean'. {FROM_0}"
            )
        out[begin : begin + step] = tile / norms[:, None]
    return out


def _check_range(X: np.ndarray, ids: np.ndarray | None) -> None:
    """Raise InputError for values whose distances cannot be told in float32."""
    if X.dtype == np.float32 or not X.size or max(X.max(), -X.min()) <= _LARGEST:
        return
    row, column = np.unravel_index(int(np.abs(X).argmax()), X.shape)
    number = row if ids is None else ids[row]
    raise InputError(
        f"Row {number}, column {column} is {X[row, column]:.3g}: distances between such rows are "
        "above 3e38, the range of float32. Scale the data, for instance with preprocess "
        f"'standardize'. {FROM_0}"
    )


def as_distances(squared: np.ndarray, metric: str) -> np.ndarray:
    """Return distances, float32, from squared distances of prepared rows, float64.

    Raises
    ------
    InputError
        If a distance is above the range of float32.
    """
    with np.errstate(over="ignore"):
        exact = np.sqrt(squared) if metric == "euclidean" else squared / 2
        distances = exact.astype(np.float32)
    if not np.isfinite(distances[np.isfinite(squared)]).all():
        raise InputError(
            "Distances between rows are above 3e38, the range of float32. Scale the data, for "
            "instance with preprocess 'standardize'."
        )
    return distances


def search_prepared(
    rows: np.ndarray,
    n_neighbors: int,
    seed: int,
    exact_rows: int,
    effort: float = 1.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return neighbors (int32) and squared distances (float64) among prepared rows.

    Up to ``exact_rows`` rows are searched exactly, and always what is too little for an index.
    ``effort`` multiplies the number of neighbors that pynndescent explores.
    """
    if len(rows) <= max(exact_rows, 2 * _SEARCH_WIDTH, 2 * (n_neighbors + 1)):
        return search_exact(rows, n_neighbors, rows, np.arange(len(rows)))
    width = int(effort * max(n_neighbors + 1, _SEARCH_WIDTH))
    indices, squared = _search_pynndescent(rows, n_neighbors, seed, width)
    short = np.flatnonzero(indices[:, -1] < 0)
    if len(short):
        indices[short], squared[short] = search_exact(rows, n_neighbors, rows[short], short)
    return indices, squared


def search_exact(
    rows: np.ndarray, n_neighbors: int, queries: np.ndarray, own: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the exact neighbors of prepared queries among prepared rows.

    ``own`` (n_queries,) is each query's own row, left out, or -1. Where fewer than
    ``n_neighbors`` rows are left, indices end in -1 and squared distances in infinity.
    """
    n, m = len(rows), len(queries)
    center = rows.mean(axis=0, dtype=np.float64)
    width = max(1, _WIDE_BYTES // (8 * rows.shape[1]))
    spans = [slice(begin, begin + width) for begin in range(0, n, width)]
    kept = _widen(rows, center) if len(spans) == 1 else None
    indices = np.full((m, n_neighbors), -1, dtype=np.int32)
    squared = np.full((m, n_neighbors), np.inf)
    step = max(1, _TILE_BYTES // (8 * max(n, rows.shape[1])))
    for begin in range(0, m, step):
        tile = slice(begin, min(begin + step, m))
        part, part_norms = _widen(queries[tile], center)
        part *= -2
        approximate = np.empty((len(part), n))
        largest = 0.0
        for span in spans:
            wide, norms = kept or _widen(rows[span], center)
            np.matmul(part, wide.T, out=approximate[:, span])
            approximate[:, span] += norms
            largest = max(largest, float(norms.max()))
        approximate += part_norms[:, None]
        # |a|^2 + |b|^2 - 2ab loses up to this much to rounding.
        slack = 8 * (rows.shape[1] + 4) * np.finfo(np.float64).eps * (part_norms + largest)
        themselves = np.flatnonzero(own[tile] >= 0)
        approximate[themselves, own[tile][themselves]] = np.inf
        _select(rows, queries[tile], approximate, slack, indices[tile], squared[tile])
    return indices, squared


def _widen(rows: np.ndarray, center: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return rows from a center in float64, and their squared norms."""
    wide = rows.astype(np.float64)
    wide -= center
    return wide, np.einsum("ij,ij->i", wide, wide)


def _select(
    rows: np.ndarray,
    queries: np.ndarray,
    approximate: np.ndarray,
    slack: np.ndarray,
    indices: np.ndarray,
    squared: np.ndarray,
) -> None:
    """Fill in each query's best from approximate squared distances (n_queries, n_rows)."""
    n, k = len(rows), indices.shape[1]
    width = min(n, k + _SPARE)
    if width < n:
        pool = np.argpartition(approximate, width - 1, axis=1)[:, :width]
    else:
        pool = np.broadcast_to(np.arange(n), approximate.shape)
    rough = np.take_along_axis(approximate, pool, axis=1)
    exact = _pair_distances(rows, queries, pool)
    exact[np.isinf(rough)] = np.inf
    best, values = nearest(pool, exact, min(k, width), power=2)
    keep = slice(0, best.shape[1])
    indices[:, keep] = np.where(np.isinf(values), -1, best)
    squared[:, keep] = values
    if width == n:
        return
    # What is not in the pool is at least this far; ties beyond it need a wider pool.
    reach = squared[:, k - 1] * (1 + 1e-6) + slack
    for row in np.flatnonzero(rough.max(axis=1) <= reach):
        wider = np.flatnonzero(approximate[row] <= reach[row])[None]
        exact = _pair_distances(rows, queries[row : row + 1], wider)
        exact[np.isinf(approximate[row, wider])] = np.inf
        best, values = nearest(wider, exact, k, power=2)
        indices[row], squared[row] = best[0], values[0]


def _pair_distances(rows: np.ndarray, queries: np.ndarray, pool: np.ndarray) -> np.ndarray:
    """Return squared distances (n_queries, width), float64, from the differences."""
    squared = np.empty(pool.shape)
    width = max(1, min(pool.shape[1], _TILE_BYTES // (8 * rows.shape[1])))
    step = max(1, _TILE_BYTES // (8 * rows.shape[1] * width))
    for begin in range(0, len(queries), step):
        tile = queries[begin : begin + step, None].astype(np.float64)
        for left in range(0, pool.shape[1], width):
            gaps = tile - rows[pool[begin : begin + step, left : left + width]]
            squared[begin : begin + step, left : left + width] = np.einsum(
                "ijf,ijf->ij", gaps, gaps
            )
    return squared


def _search_pynndescent(
    rows: np.ndarray, n_neighbors: int, seed: int, width: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return neighbors and squared distances; rows with too few of them end in -1 and inf."""
    if len(rows) >= MAX_ROWS:
        raise InputError(
            f"pynndescent takes fewer than {MAX_ROWS:,} rows at a time. Got {len(rows):,}: "
            "lower memory_limit, so that the rows are divided into more partitions."
        )
    wider = int(PROJECTED_WIDTH * width)
    data = projected_rows(rows, n_neighbors, wider, seed)
    if data is not None:
        width = wider
    else:
        data = rows if rows.dtype == np.float32 else _centered(rows)
    with _numba_lock:
        candidates = descend(data, width, seed)
        del data
    squares = _compiled_squares()
    indices = np.full((len(rows), n_neighbors), -1, np.int32)
    squared = np.full((len(rows), n_neighbors), np.inf)
    for begin in range(0, len(rows), _TILE_ROWS):
        tile = slice(begin, begin + _TILE_ROWS)
        far = squares(rows, begin, candidates[tile])
        indices[tile], squared[tile] = nearest(candidates[tile], far, n_neighbors, power=2)
    indices[np.isinf(squared)] = -1
    return indices, squared


def _centered(rows: np.ndarray) -> np.ndarray:
    """Return rows from their mean, float32: far from the origin it has few digits."""
    data = np.empty(rows.shape, np.float32)
    center = rows.mean(axis=0)
    step = max(1, _TILE_BYTES // (8 * rows.shape[1]))
    for begin in range(0, len(rows), step):
        data[begin : begin + step] = rows[begin : begin + step] - center
    return data


def _squares(rows: Any, first_row: int, candidates: Any) -> np.ndarray:
    """Return the squared distances of some rows from their candidates; compiled by numba."""
    squared = np.full(candidates.shape, np.inf)
    for i in range(candidates.shape[0]):
        for c in range(candidates.shape[1]):
            j = candidates[i, c]
            if j < 0 or j == first_row + i:
                continue
            total = 0.0
            for f in range(rows.shape[1]):
                gap = np.float64(rows[first_row + i, f]) - np.float64(rows[j, f])
                total += gap * gap
            squared[i, c] = total
    return squared


@cache
def _compiled_squares() -> Callable[..., np.ndarray]:
    """Compile `_squares` once per process."""
    # Sums may be reordered for speed.
    return compiled(_squares, fastmath={"reassoc", "contract"})
