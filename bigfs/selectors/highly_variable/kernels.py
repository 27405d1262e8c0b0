"""Kernels of HighlyVariable on one block of counts: entries by columns, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bigfs.blocks.csr_kernels import csr_moments
from bigfs.blocks.csr_kernels import kernel_bytes as csr_kernel_bytes
from bigfs.blocks.kernels import Moments, merge_moments, tile_rows
from bigfs.core.cost import Shape
from bigfs.core.errors import InputError
from bigfs.core.text import FROM_0
from bigfs.core.units import MIB
from bigfs.store.csr import as_block
from bigfs.store.scratch import ArrayRef

# Measured: for every entry its row, the total of that, and terms of the deviance.
_DEVIANCE_BYTES = 6 * 8
# The rows of a batch are a copy.
_COPY_BYTES = 8
# A tile of a dense block in CSR form.
_TILE_BYTES = 96 * MIB


@dataclass
class Counts:
    """The moments of every batch over some rows, and sums of deviances."""

    moments: dict[int, Moments] = field(default_factory=dict)  # by batch
    # Dict of int to ndarray of shape (n_features,), float64: by batch: ``sum of x log(x/n_i) + (n_i
    # - x) log((n_i - x)/n_i)``, n_i the total of row i.
    log_products: dict[int, np.ndarray] = field(default_factory=dict)
    whole_numbers: bool = True  # whether all values are

    def add(self, other: Counts) -> Counts:
        """Add those of other rows."""
        for batch, moments in other.moments.items():
            own = self.moments.get(batch)
            self.moments[batch] = moments if own is None else merge_moments(own, moments)
        for batch, sums in other.log_products.items():
            self.log_products[batch] = self.log_products.get(batch, 0.0) + sums
        self.whole_numbers &= other.whole_numbers
        return self


def kernel_bytes(shape: Shape, *, deviance: bool, batched: bool) -> int:
    """Return the bytes that the kernels need beside a block."""
    if shape.block_entries is None:
        return _TILE_BYTES
    copied = _COPY_BYTES * shape.block_entries if batched else 0
    own = _DEVIANCE_BYTES * shape.block_entries if deviance else csr_kernel_bytes(shape)
    return own + copied


def count_kernel(X: Any, first_row: int, batches: ArrayRef | None, deviance: bool) -> Counts:
    """Return the moments of each batch in a block, and its sums for the deviance if asked.

    Raises
    ------
    InputError
        At a negative value, with its row and column.
    """
    total = Counts()
    for batch, rows in _by_batch(X, first_row, batches, check=True):
        part = Counts({batch: csr_moments(rows)})
        part.whole_numbers = bool((rows.data == np.floor(rows.data)).all())
        if deviance:
            part.log_products[batch] = _log_products(rows)
        total.add(part)
    return total


def clipped_kernel(
    X: Any, first_row: int, batches: ArrayRef | None, mean: ArrayRef, clip: ArrayRef
) -> np.ndarray:
    """Return ``sum of (min(x, clip) - mean)^2`` of each batch, (n_batches, n_features)."""
    means, clips = mean.load(), clip.load()
    total = np.zeros(means.shape)
    for batch, rows in _by_batch(X, first_row, batches):
        # In the order of the rows: to bring entries into that of the columns takes as long as this.
        values = np.minimum(rows.data, clips[batch][rows.indices])
        values -= means[batch][rows.indices]
        squares = np.bincount(rows.indices, np.square(values, out=values), len(means[batch]))
        zeros = rows.shape[0] - np.bincount(rows.indices, minlength=len(squares))
        total[batch] += squares + zeros * means[batch] ** 2
    return total


def _by_batch(
    X: Any, first_row: int, batches: ArrayRef | None, check: bool = False
) -> Iterator[tuple[int, Any]]:
    """Yield the rows of each batch in CSR form; a dense block goes by tiles."""
    n_rows = X.shape[0]
    step = n_rows if hasattr(X, "indptr") else tile_rows(X.shape[1])
    for begin in range(0, n_rows, step):
        tile = X if step >= n_rows and hasattr(X, "indptr") else X[begin : begin + step]
        rows = as_block(tile, X.dtype)
        if check:
            _check_counts(rows, first_row + begin)
        if batches is None:
            yield 0, rows
            continue
        codes = batches.read(first_row + begin, first_row + begin + rows.shape[0])
        for batch in np.unique(codes).tolist():
            own = codes == batch
            yield batch, rows if own.all() else rows[np.flatnonzero(own)]


def _check_counts(rows: Any, first_row: int) -> None:
    if rows.nnz and rows.data.min() < 0:
        entry = int((rows.data < 0).argmax())
        row = first_row + int(np.searchsorted(rows.indptr, entry, side="right")) - 1
        raise InputError(
            f"HighlyVariable: Negative values in data: row {row}, column "
            f"{int(rows.indices[entry])} is {rows.data[entry]:g}. Give it counts as they were "
            f"measured, not centered or scaled data. {FROM_0}"
        )


def _log_products(rows: Any) -> np.ndarray:
    from scipy.special import xlogy

    x = rows.data.astype(np.float64)
    row_of = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    totals = np.bincount(row_of, x, minlength=rows.shape[0])[row_of]
    terms = xlogy(x, x / totals)
    # The total of a row of fractions may be rounded to less than its only value.
    rest = np.maximum(totals - x, 0.0)
    terms += xlogy(rest, rest / totals)
    return np.bincount(rows.indices, terms, minlength=rows.shape[1])
