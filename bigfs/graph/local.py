"""Exact nearest neighbors within arrays, and the order of neighbors.

All metrics are computed from squared Euclidean distances of prepared rows: unit rows for cosine,
centered unit rows for correlation. Neighbors are sorted by distance, and by index if distances are
equal up to rounding, so that neighbors found in different partitions merge unambiguously. Rounded
distances would not do as a sort key: seen from a far outlier all other rows are about equally far,
and the unit of the data would determine which of them round to the same number.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bigfs.blocks.kernels import slices
from bigfs.core.errors import InputError, RowError, check_count
from bigfs.core.text import FROM_0

# Metrics that partitions by centroids support.
METRICS = ("euclidean", "cosine", "correlation")
ALGORITHMS = ("auto", "exact", "pynndescent")
_LARGEST = 1e37
# Bounds on the largest squared distance within which it is safe to use float32.
_LEAST_SQUARE, _LARGEST_SQUARE = 1e-20, 1e36
# With d columns, float32 products bound squared distances to within a relative 1e-6 d, while the
# squared distances of noise vary by a relative 1 / sqrt(d). With more columns than this, the bounds
# exclude too few rows.
_NARROW_COLUMNS = 2048
_TILE_BYTES = 16 * 1024**2
_WIDE_BYTES = 32 * 1024**2
# Number of rows whose median is the center for products.
_CENTER_ROWS = 32
# Bytes of the pairs of rows whose differences are computed at a time.
_PAIR_BYTES = 4 * 1024**2
# Pairs ranked at a time, and entries of merged lists sorted at a time: 60 MB.
_RANKED_PAIRS = 2**18
_MERGED_ENTRIES = 2**20
# Distances that differ by a smaller relative amount are equal: it is the last bit of float32.
_EQUAL = 2.0**-23


def check_n_neighbors(n_neighbors: int, n_samples: int) -> None:
    """Raise InputError unless every row has ``n_neighbors`` other rows."""
    if n_samples < 2:
        raise InputError(f"X has {n_samples} row(s): a neighbor graph needs at least 2.")
    check_count("n_neighbors", n_neighbors, n_samples - 1, f"since X has {n_samples} rows")


def prepare_rows(X: np.ndarray, metric: str, ids: np.ndarray | None = None) -> np.ndarray:
    """Return rows whose squared Euclidean distances give the metric; X itself if euclidean.

    ``ids`` (n_rows,) are the row numbers used in error messages; None: 0, 1, 2...

    Raises
    ------
    InputError
        If a row is zero (cosine) or constant (correlation) and so has no direction, or if values
        are so large that distances exceed the range of float32.
    """
    ids = np.arange(len(X)) if ids is None else ids
    # Distances between such float64 values exceed the range of float32.
    if X.dtype != np.float32 and X.size and max(X.max(), -X.min()) > _LARGEST:
        row, column = np.unravel_index(int(np.abs(X).argmax()), X.shape)
        raise RowError(
            f"Row {ids[row]}, column {column} is {X[row, column]:.3g}: distances between such rows "
            "are above 3e38, the range of float32. Scale the data, for instance with preprocess "
            f"'standardize'. {FROM_0}"
        )
    if metric == "euclidean":
        return X
    out = np.empty(X.shape, X.dtype)
    for part in slices(len(X), max(1, _TILE_BYTES // (16 * X.shape[1]))):
        tile = X[part].astype(np.float64)
        if metric == "correlation":
            tile -= tile.mean(axis=1, keepdims=True)
        scale = np.abs(X[part]).max(axis=1).astype(np.float64)
        norms = np.linalg.norm(tile, axis=1)
        # Rounding leaves a residue of the mean in a constant row.
        lost = norms <= scale * np.sqrt(X.shape[1]) * np.finfo(X.dtype).eps
        if lost.any():
            number = ids[part][lost.argmax()]
            kind = "zero" if metric == "cosine" else "constant"
            raise RowError(
                f"Row {number} is {kind} in every feature and has no {metric} distance to other "
                f"rows. Remove such rows or set metric to 'euclidean'. {FROM_0}"
            )
        out[part] = tile / norms[:, None]
    return out


def as_distances(squared: np.ndarray, metric: str) -> np.ndarray:
    """Return distances, float32, from squared distances of prepared rows, float64.

    Raises
    ------
    InputError
        If a distance exceeds the range of float32.
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


def as_squares(distances: np.ndarray, metric: str) -> np.ndarray:
    """Return squared distances of prepared rows, float64, from distances."""
    wide = distances.astype(np.float64)
    return np.asarray(wide**2 if metric == "euclidean" else 2 * wide)


def search_exact(
    rows: np.ndarray,
    n_neighbors: int,
    queries: np.ndarray,
    own: np.ndarray,
    reach: np.ndarray | None = None,
    *,
    rounded: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the exact neighbors of prepared queries among prepared rows.

    Matrix products give approximate distances, which exclude most of the rows. The distances of the
    remaining rows are computed from differences, in float64.

    Parameters
    ----------
    rows, queries : ndarray of shape (n_rows, n_features) and (n_queries, n_features)
        See `prepare_rows`.
    n_neighbors : int
    own : ndarray of shape (n_queries,), int
        Row number of each query among ``rows``, which is excluded; -1 if it is not among them.
    reach : ndarray of shape (n_queries,), float64, or None, default=None
        Squared distances beyond which no neighbors are needed. If all are finite, products in
        single precision suffice. None, or any infinite value: not known.
    rounded : bool, default=True
        If True, distances that differ by at most the last bit of float32 are ties.

    Returns
    -------
    indices : ndarray of shape (n_queries, n_neighbors), int32
        -1 if there are fewer rows, or fewer within reach.
    squared : ndarray of shape (n_queries, n_neighbors), float64
        Infinite where ``indices`` is -1.
    """
    n, m = len(rows), len(queries)
    if reach is not None and not np.isfinite(reach).all():
        reach = None
    is_narrow = reach is not None and rows.shape[1] <= _NARROW_COLUMNS
    is_narrow = is_narrow and _LEAST_SQUARE <= _largest_square(rows, queries) <= _LARGEST_SQUARE
    dtype: np.dtype[Any] = np.dtype(np.float32 if is_narrow else np.float64)
    precision = np.finfo(dtype)
    # The median of some rows: outliers do not move it, and rounding errors grow with the distance
    # from it.
    some = rows[:: -(-n // _CENTER_ROWS)].astype(np.float64)
    center = np.partition(some, len(some) // 2, axis=0)[len(some) // 2]
    # |a|^2 + |b|^2 - 2ab loses up to this share of both squared norms to rounding.
    share = 8.0 * (rows.shape[1] + 4) * precision.eps
    spans = list(slices(n, max(1, _WIDE_BYTES // (8 * rows.shape[1]))))
    kept = _from_center(rows, center, dtype) if len(spans) == 1 else None
    indices = np.full((m, n_neighbors), -1, dtype=np.int32)
    squared = np.full((m, n_neighbors), np.inf)
    norms = np.empty(n, dtype)
    for tile in slices(m, max(1, _TILE_BYTES // (dtype.itemsize * max(n, rows.shape[1])))):
        part, part_norms = _from_center(queries[tile], center, dtype)
        part *= -2
        least = np.empty((len(part), n), dtype)
        for span in spans:
            near, norms[span] = kept or _from_center(rows[span], center, dtype)
            np.matmul(part, near.T, out=least[:, span])
        # Lower bound on the squared distance, without the query's own squared norm.
        least += (1 - share) * norms
        themselves = np.flatnonzero(own[tile] >= 0)
        least[themselves, own[tile][themselves]] = np.inf
        if reach is None:
            most, last = least + 2 * share * norms, min(n, n_neighbors) - 1
            most.partition(last, axis=1)
            limit = most[:, last] + (1 + share) * part_norms
            del most
        else:
            limit = reach[tile]
        limit = (1 + 1e-6) * limit - (1 - share) * part_norms
        is_near = least <= np.minimum(limit, precision.max).astype(dtype)[:, None]
        _rank(rows, queries[tile], is_near, indices[tile], squared[tile], 2 * rounded)
    return indices, squared


def _largest_square(rows: np.ndarray, queries: np.ndarray) -> float:
    """Return an upper bound on the squared distances."""
    most = max(float(max(part.max(), -part.min())) for part in (rows, queries) if part.size)
    return 4.0 * rows.shape[1] * most**2


def _from_center(
    rows: np.ndarray, center: np.ndarray, dtype: np.dtype[Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows relative to a center, in the given dtype, and their squared norms."""
    shifted = (rows - center).astype(dtype, copy=False)
    return shifted, np.einsum("ij,ij->i", shifted, shifted)


def _rank(
    rows: np.ndarray,
    queries: np.ndarray,
    near: np.ndarray,
    indices: np.ndarray,
    squared: np.ndarray,
    power: int,
) -> None:
    """Fill in the nearest rows of each query among those ``near`` it, bool (n_queries, n_rows)."""
    counts, k = near.sum(axis=1), indices.shape[1]
    widest = int(counts.max(initial=0))
    for tile in slices(len(queries), max(1, _RANKED_PAIRS // max(1, widest))):
        query, row = np.divmod(np.flatnonzero(near[tile]), near.shape[1])
        before = np.cumsum(counts[tile]) - counts[tile]
        place = np.arange(len(query)) - before[query]
        ids = np.full((len(counts[tile]), widest), -1)
        far = np.full(ids.shape, np.inf)
        ids[query, place] = row
        part = queries[tile]
        # Distances from differences, in float64.
        for pairs in slices(len(query), max(1, _PAIR_BYTES // (16 * rows.shape[1]))):
            gaps = part[query[pairs]].astype(np.float64) - rows[row[pairs]]
            far[query[pairs], place[pairs]] = np.einsum("ij,ij->i", gaps, gaps)
        best, values = nearest(ids, far, min(k, widest), power)
        indices[tile, : best.shape[1]], squared[tile, : best.shape[1]] = best, values


def nearest(
    ids: np.ndarray, distances: np.ndarray, n_neighbors: int, power: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Return the first ids of each row by (distance, id), and their distances, ascending.

    Parameters
    ----------
    ids : ndarray of shape (n_rows, width), int
    distances : ndarray of shape (n_rows, width), float32 or float64
        Infinite for missing entries.
    n_neighbors : int
    power : {0, 1, 2}, default=1
        2: distances are squared; 0: distances that differ by rounding are not ties.
    """
    order = np.argsort(distances, axis=1, kind="stable")
    ids = np.take_along_axis(ids, order, axis=1)
    distances = np.take_along_axis(distances, order, axis=1)
    with np.errstate(over="ignore"):
        beyond = distances[:, 1:] > distances[:, :-1] * (1 + power * _EQUAL)
    tied = np.flatnonzero(~beyond[:, :n_neighbors].all(axis=1))
    if len(tied):
        group = np.zeros((len(tied), ids.shape[1]), dtype=np.int64)
        np.cumsum(beyond[tied], axis=1, out=group[:, 1:])
        ids[tied] = np.take_along_axis(ids[tied], np.lexsort((ids[tied], group), axis=1), axis=1)
    return ids[:, :n_neighbors], distances[:, :n_neighbors]


def merge_neighbors(
    rows: np.ndarray, neighbors: np.ndarray, distances: np.ndarray, first_row: int, n_rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return each row's k best distinct neighbors by (distance, index).

    Parameters
    ----------
    rows : ndarray of shape (n_lists,), int
        Row that each list belongs to; every row of the range has at least one list.
    neighbors, distances : ndarray of shape (n_lists, n_neighbors)
    first_row, n_rows : int

    Returns
    -------
    indices : ndarray of shape (n_rows, n_neighbors), int32
    distances : ndarray of shape (n_rows, n_neighbors), float32
    """
    k = neighbors.shape[1]
    order = np.argsort(rows, kind="stable")
    local = rows[order] - first_row
    counts = np.bincount(local, minlength=n_rows)
    begins = np.cumsum(counts) - counts
    indices = neighbors[order[begins]]
    merged = distances[order[begins]]
    several = np.flatnonzero(counts > 1)
    widest = int(counts.max(initial=1))
    for tile in slices(len(several), max(1, _MERGED_ENTRIES // (widest * k))):
        part = several[tile]
        slots = begins[part, None] + np.arange(widest)
        present = np.arange(widest) < counts[part, None]
        lists = order[np.where(present, slots, begins[part, None])]
        ids = neighbors[lists].reshape(len(part), -1)
        far = distances[lists]
        far[~present] = np.inf
        far = far.reshape(len(part), -1)
        by_id = np.lexsort((far, ids), axis=1)
        ids = np.take_along_axis(ids, by_id, axis=1)
        far = np.take_along_axis(far, by_id, axis=1)
        far[:, 1:][ids[:, 1:] == ids[:, :-1]] = np.inf  # duplicates count once
        indices[part], merged[part] = nearest(ids, far, k)
    return indices, merged


def merge_exact(
    a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the nearest neighbors of the same queries from those found in two blocks."""
    rows = np.tile(np.arange(len(a[0])), 2)
    neighbors, distances = map(np.concatenate, zip(a, b, strict=True))
    return merge_neighbors(rows, neighbors, distances, 0, len(a[0]))


def share_listed(listed: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Return the share of each row's true neighbors that are among those listed."""
    return np.array([np.isin(t, f).mean() for f, t in zip(listed, true, strict=True)])
