"""Kernels of passes on one CSR block: sums in float64 over the stored entries."""

from __future__ import annotations

from typing import Any

import numpy as np

from bigfs.blocks.kernels import Moments
from bigfs.core.cost import Shape

# The values of a block by columns, their means and deviations from them are float64.
_KERNEL_BYTES = 3 * 8


def kernel_bytes(shape: Shape) -> int:
    """Return what the kernels here need beside a CSR block."""
    return _KERNEL_BYTES * (shape.block_entries or 0)


class ColumnEntries:
    """The entries of a CSR block, column by column.

    Parameters
    ----------
    X : csr_array of shape (n_rows, n_features)

    Attributes
    ----------
    values : ndarray of shape (n_entries,), float64
    counts : ndarray of shape (n_features,), int64
        How many entries each column has.
    """

    def __init__(self, X: Any) -> None:
        by_column = X.tocsc()
        self.values = by_column.data.astype(np.float64, copy=False)
        self.counts = np.diff(by_column.indptr).astype(np.int64)
        self._filled = self.counts > 0
        self._starts = by_column.indptr[:-1][self._filled]

    def spread(self, per_column: np.ndarray) -> np.ndarray:
        """Return the number of its column for every entry."""
        return np.repeat(per_column, self.counts)

    def reduce(self, kind: np.ufunc, values: np.ndarray) -> np.ndarray:
        """Return what a ufunc makes of the values of each column; 0 for one without entries."""
        out = np.zeros(len(self.counts))
        if len(values):
            out[self._filled] = kind.reduceat(values, self._starts)
        return out


def csr_moments(X: Any) -> Moments:
    """Return the moments of one CSR block, zeros counted."""
    n, entries = X.shape[0], ColumnEntries(X)
    mean = entries.reduce(np.add, entries.values) / n
    minimum = entries.reduce(np.minimum, entries.values)
    maximum = entries.reduce(np.maximum, entries.values)
    zeros = n - entries.counts
    minimum = np.where(zeros > 0, np.minimum(minimum, 0.0), minimum)
    maximum = np.where(zeros > 0, np.maximum(maximum, 0.0), maximum)
    # The rounded mean of equal values can differ from them in the last bit.
    mean = np.where(minimum == maximum, minimum, mean)
    deviations = entries.values - entries.spread(mean)
    squares = entries.reduce(np.add, np.square(deviations, out=deviations)) + zeros * mean**2
    return Moments(n, mean, squares, minimum, maximum)
