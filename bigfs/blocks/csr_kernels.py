"""Kernels of passes on one CSR block: sums in float64 over the stored entries."""

from __future__ import annotations

from typing import Any

import numpy as np

from bigfs.blocks.kernels import Moments, column_means, corrected
from bigfs.core.cost import Shape

# The values of a block by column, their means and deviations from them, in float64.
_KERNEL_BYTES = 3 * 8
# Upper bound on the entries of row differences that are processed together.
_TILE_ENTRIES = 2**20
# Products in CSR form are faster for a block with a smaller share of nonzeros; first this many of
# its rows are inspected.
_FEW_ENTRIES = 1 / 12
_INSPECTED_ROWS = 256
# Cost of a product of two entries of CSR rows, relative to that of two values of dense rows.
_ENTRY_COST = 200


def kernel_bytes(shape: Shape) -> int:
    """Return the bytes that these kernels need in addition to a CSR block."""
    return _KERNEL_BYTES * (shape.block_entries or 0)


def compact(X: Any) -> Any:
    """Return a block as CSR if it has few nonzeros, else unchanged.

    Caching of a block between passes must not change the sums, so only its entries decide.
    """
    if hasattr(X, "indptr"):
        return X
    for rows in (
        X[:_INSPECTED_ROWS],
        X,
    ):  # the first rows of most blocks already have many nonzeros
        if np.count_nonzero(rows) > _FEW_ENTRIES * rows.size:
            return X
    from scipy.sparse import csr_array

    places = np.flatnonzero(X != 0)  # once; scipy would search for the entries three times
    starts = np.searchsorted(places, X.shape[1] * np.arange(len(X) + 1)).astype(np.int32)
    columns = (places % X.shape[1]).astype(np.int32)
    return csr_array((X.ravel()[places], columns, starts), shape=X.shape)


def is_mostly_zeros(counts: np.ndarray, n_rows: int) -> bool:
    """Return True if products of rows are faster in CSR form, given the entries per column."""
    pairs = float((counts.astype(np.float64) ** 2).sum())
    return _ENTRY_COST * pairs < float(n_rows) ** 2 * len(counts)


def mostly_zeros(X: np.ndarray, *, centered: bool) -> tuple[Any, np.ndarray] | None:
    """Return dense rows as CSR if their products are faster in that form, else None.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_features)
    centered : bool
        True if the columns are to be centered.

    Returns
    -------
    entries : csr_array of shape (n_rows, n_features), float64
    mean : ndarray of shape (n_features,), float64
        Values still to be subtracted. Columns that are zero in less than half of the rows are
        already centered: subtracting large means from sums would leave rounding errors.
    """
    from scipy.sparse import csr_array

    n, counts = len(X), np.count_nonzero(X, axis=0)
    if not is_mostly_zeros(counts, n):
        return None
    mean = column_means(X) if centered else np.zeros(X.shape[1])
    filled = np.flatnonzero(2 * counts > n)
    X = X.astype(np.float64)
    X[:, filled] -= mean[filled]
    mean[filled] = 0.0
    return csr_array(X), mean


def centered_entries(X: Any) -> Any:
    """Return a CSR block in float64, with columns centered if most of their rows have an entry.

    Means of the other columns are small relative to their deviations and can be subtracted from
    products.
    """
    from scipy.sparse import csr_array

    n, counts = X.shape[0], np.bincount(X.indices, minlength=X.shape[1])
    X, filled = csr_array(X, dtype=np.float64), np.flatnonzero(2 * counts > n)
    if not len(filled):
        return X
    dense = X[:, filled].toarray()
    dense -= column_means(dense)
    ends = len(filled) * np.arange(n + 1)
    own = csr_array((dense.ravel(), np.tile(filled, n), ends), shape=X.shape)
    others = np.where(np.isin(X.indices, filled), 0.0, X.data)
    return csr_array((others, X.indices, X.indptr), shape=X.shape) + own


class ColumnEntries:
    """The entries of a CSR block, column by column.

    Parameters
    ----------
    X : csr_array of shape (n_rows, n_features)

    Attributes
    ----------
    values : ndarray of shape (n_entries,), float64
    rows : ndarray of shape (n_entries,), int32
    counts : ndarray of shape (n_features,), int64
        Number of entries of each column.
    """

    def __init__(self, X: Any) -> None:
        by_column = X.tocsc()
        self.values = by_column.data.astype(np.float64, copy=False)
        self.rows = by_column.indices
        self.counts = np.diff(by_column.indptr).astype(np.int64)
        self._filled = self.counts > 0
        self._starts = by_column.indptr[:-1][self._filled]

    def spread(self, per_column: np.ndarray) -> np.ndarray:
        """Return the value of its column for every entry."""
        return np.repeat(per_column, self.counts)

    def reduce(self, kind: np.ufunc, values: np.ndarray) -> np.ndarray:
        """Return each column's values reduced by a ufunc; 0 for a column without entries."""
        out = np.zeros(len(self.counts))
        if len(values):
            out[self._filled] = kind.reduceat(values, self._starts)
        return out


def csr_moments(X: Any) -> Moments:
    """Return the moments of one CSR block, including zeros."""
    n, entries = X.shape[0], ColumnEntries(X)
    mean = entries.reduce(np.add, entries.values) / n
    zeros = n - entries.counts
    minimum, maximum = _extremes(entries, n)
    # The rounded mean of equal values can differ from them in the last bit.
    mean = np.where(minimum == maximum, minimum, mean)
    deviations = entries.values - entries.spread(mean)
    rest = entries.reduce(np.add, deviations) - zeros * mean
    squares = entries.reduce(np.add, np.square(deviations, out=deviations)) + zeros * mean**2
    mean, squares = corrected(mean, squares, rest, n)
    return Moments(n, mean, squares, minimum, maximum)


def _extremes(entries: ColumnEntries, n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the minimum and maximum of each column, including zeros."""
    minimum = entries.reduce(np.minimum, entries.values)
    maximum = entries.reduce(np.maximum, entries.values)
    zeros = entries.counts < n_rows
    minimum[zeros] = np.minimum(minimum[zeros], 0.0)
    maximum[zeros] = np.maximum(maximum[zeros], 0.0)
    return minimum, maximum


def csr_edge_sum(X: Any, heads: np.ndarray, tails: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the sum of ``w (x_i - x_j)^2`` per feature over edges, float64, in tiles of edges."""
    from scipy.sparse import csr_array

    total = np.zeros(X.shape[1])
    # An edge's difference has at most as many entries as its two rows together.
    counts = np.diff(X.indptr)
    ends = np.cumsum(counts[heads].astype(np.int64) + counts[tails])
    pairs = np.stack([heads, tails], axis=1).astype(X.indices.dtype)
    begin = 0
    while begin < len(heads):
        reach = _TILE_ENTRIES + (ends[begin - 1] if begin else 0)
        end = max(begin + 1, int(np.searchsorted(ends, reach, side="right")))
        # One product computes all differences, without copies of the rows.
        signs = np.tile([1.0, -1.0], end - begin)
        indptr = np.arange(0, 2 * (end - begin) + 1, 2, dtype=pairs.dtype)
        edges = (signs, pairs[begin:end].ravel(), indptr)
        gaps = csr_array(edges, shape=(end - begin, X.shape[0])) @ X
        squares = np.repeat(weights[begin:end], np.diff(gaps.indptr)) * gaps.data**2
        total += np.bincount(gaps.indices, squares, minlength=len(total))
        begin = end
    return total


def edge_bytes(n_entries: int) -> int:
    """Return the bytes that `csr_edge_sum` and `csr_spread` need for rows with ``n_entries``."""
    return max(48 * _TILE_ENTRIES, 56 * n_entries)


def csr_spread(X: Any, degrees: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the degree-weighted mean and squared deviations of the columns of a CSR block."""
    entries, weight = ColumnEntries(X), float(degrees.sum())
    own = degrees[entries.rows]
    mean = entries.reduce(np.add, own * entries.values) / weight
    minimum, maximum = _extremes(entries, X.shape[0])
    # The rounded mean of equal values can differ from them in the last bit.
    mean = np.where(minimum == maximum, minimum, mean)
    squares = entries.reduce(np.add, own * (entries.values - entries.spread(mean)) ** 2)
    of_zeros = np.where(entries.counts == X.shape[0], 0.0, weight - entries.reduce(np.add, own))
    return mean, squares + np.maximum(of_zeros, 0.0) * mean**2
