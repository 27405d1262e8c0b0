"""Kernels of passes on one dense row block: sums in float64, merged without cancellation.

Every partial result carries its own count and mean, and two of them are merged by the update of
Chan, Golub and LeVeque (1979): nothing is computed as a difference of large raw sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigfs.store.values import SMALLEST

# Size of the rows converted to float64 at a time: the temporary is about 8 MB for any block.
_TILE_BYTES = 8 * 1024**2
# Tile of a Gram product: it fits a core's cache, but has enough rows for an efficient product.
_GRAM_TILE_BYTES = 256 * 1024
_GRAM_TILE_ROWS = 128
# Values that differ by at most this many machine epsilons of their dtype are equal: summation in
# another order may differ by that.
ROUNDING = 4
# Number of rows whose mean is near enough to that of a block.
_HEAD_ROWS = 256


def tile_rows(n_features: int) -> int:
    """Return the number of rows that are converted to float64 at a time."""
    return max(16, _TILE_BYTES // (8 * max(1, n_features)))


def tile_bytes(n_features: int) -> int:
    """Return the bytes of these rows in float64: 8 MiB, or more if rows are long."""
    return 8 * tile_rows(n_features) * n_features


def row_tiles(n_rows: int, n_features: int) -> Iterator[slice]:
    """Yield slices of the rows in order, each of the rows converted to float64 at a time."""
    return slices(n_rows, tile_rows(n_features))


def slices(n_rows: int, step: int) -> Iterator[slice]:
    """Yield slices of ``n_rows`` rows in order, ``step`` rows at a time."""
    return (slice(begin, begin + step) for begin in range(0, n_rows, step))


def float_tiles(
    X: np.ndarray, shift: np.ndarray | float = 0.0
) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield the rows of a dense block minus ``shift`` in float64, a tile at a time.

    All tiles share one buffer: allocating memory for each can cost as much as its product.
    """
    buffer = np.empty((min(len(X), tile_rows(X.shape[1])), X.shape[1]))
    for part in row_tiles(*X.shape):
        rows = X[part]
        yield part, np.subtract(rows, shift, out=buffer[: len(rows)], dtype=np.float64)


def as_dense(rows: Any) -> np.ndarray:
    """Return rows of a block as a dense array; dense rows are returned unchanged."""
    dense: np.ndarray = rows.toarray() if hasattr(rows, "indptr") else rows
    return dense


@dataclass
class Moments:
    """Count and per-feature moments of a set of rows."""

    count: int  # number of rows
    mean: np.ndarray  # of shape (n_features,), float64
    squares: np.ndarray  # of shape (n_features,), float64: sums of squared deviations from the mean
    # Each of shape (n_features,), float64.
    minimum: np.ndarray
    maximum: np.ndarray

    @property
    def variance(self) -> np.ndarray:
        """Per-feature variance with divisor n, shape (n_features,)."""
        return self.squares / self.count

    @property
    def unit(self) -> float:
        """Root mean squared distance of rows from their mean; 1 if all rows are equal."""
        return float(np.sqrt(self.squares.sum() / self.count)) or 1.0

    @property
    def constant(self) -> np.ndarray:
        """Mask of the features that are equal in all rows, shape (n_features,), bool."""
        return self.minimum == self.maximum


@dataclass
class PartialGram:
    """Centered products of the columns of ``Z = [X Y]`` over some rows: part of a Gram pass."""

    count: int
    mean: np.ndarray  # of shape (n_columns,), float64
    # Of shape (n_columns, n_columns), float64, Fortran order: ``Z'Z - n z z'``, with z the mean;
    # upper triangle only.
    joint: np.ndarray


@dataclass
class Gram:
    """Centered second moments of all rows, with those of a companion Y."""

    count: int
    mean: np.ndarray  # of shape (n_features,), float64
    # Of shape (n_features, n_features), float64: ``X'X - n x x'``, with x the mean.
    gram: np.ndarray
    y_mean: np.ndarray  # of shape (n_targets,), float64
    xty: np.ndarray  # of shape (n_features, n_targets), float64: ``X'Y - n x y'``

    def uncentered(self) -> tuple[np.ndarray, np.ndarray]:
        """Return ``X'X`` and ``X'Y`` without centering."""
        return (
            self.gram + self.count * np.multiply.outer(self.mean, self.mean),
            self.xty + self.count * np.multiply.outer(self.mean, self.y_mean),
        )


def level_columns(moments: Moments, dtype: np.dtype) -> np.ndarray:
    """Return a mask of the columns that vary only by rounding, or too little to square, (d,), bool.

    Such columns are treated as constant; see `bigfs.blocks.preprocess.Transform`.
    """
    gap = moments.maximum - moments.minimum
    size = np.maximum(np.abs(moments.minimum), np.abs(moments.maximum))
    return (gap > 0) & ((gap <= ROUNDING * np.finfo(dtype).eps * size) | (gap < SMALLEST))


def column_means(X: np.ndarray) -> np.ndarray:
    """Return the means of one block, float64; exact for constant columns.

    The rounded mean of equal values can differ from them in the last bit; then a constant feature
    would have a variance, and a correlation with everything.
    """
    mean = X.mean(axis=0, dtype=np.float64)
    constant = (X == X[0]).all(axis=0)
    mean[constant] = X[0, constant]
    return mean


def corrected(
    mean: np.ndarray, squares: np.ndarray, rest: np.ndarray, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return corrected means and sums of squares, from the sums of deviations (0 for exact means).

    For values far from zero, a mean may be off by more than their spread. A mean that is off only
    by rounding keeps its bits: the trend of highly variable features depends on the last ones.
    """
    error = rest / n
    off = np.abs(error) > ROUNDING * np.finfo(np.float64).eps * np.abs(mean)
    return np.where(off, mean + error, mean), np.maximum(squares - rest * error, 0.0)


def block_moments(X: np.ndarray) -> Moments:
    """Return the moments of one block of shape (rows, n_features)."""
    mean = column_means(X)
    squares, rest = np.zeros(X.shape[1]), np.zeros(X.shape[1])
    for _, tile in float_tiles(X, mean):
        squares += np.einsum("ij,ij->j", tile, tile)
        rest += tile.sum(axis=0)
    mean, squares = corrected(mean, squares, rest, len(X))
    minimum, maximum = X.min(axis=0), X.max(axis=0)
    return Moments(len(X), mean, squares, minimum.astype(np.float64), maximum.astype(np.float64))


def merge_moments(a: Moments, b: Moments) -> Moments:
    """Merge the moments of two sets of rows."""
    count = a.count + b.count
    delta = b.mean - a.mean
    return Moments(
        count,
        a.mean + delta * (b.count / count),
        a.squares + b.squares + delta**2 * (a.count * b.count / count),
        np.minimum(a.minimum, b.minimum),
        np.maximum(a.maximum, b.maximum),
    )


def block_gram(X: np.ndarray, Y: np.ndarray | None) -> PartialGram:
    """Return the centered products of the columns of ``[X Y]`` over one block.

    The rows go through one small buffer: they are converted, shifted and multiplied while in cache.

    Parameters
    ----------
    X : ndarray of shape (rows, n_features), float32 or float64
    Y : ndarray of shape (rows, n_targets) or None
    """
    from scipy.linalg.blas import dsyrk

    parts = [X] if Y is None else [X, Y]
    width = sum(part.shape[1] for part in parts)
    # The block's own mean would need another pass over it; any value near it will do. For a
    # constant column it is the value itself.
    shift = np.concatenate([column_means(part[:_HEAD_ROWS]) for part in parts])
    joint, sums = np.zeros((width, width), order="F"), np.zeros(width)
    step = min(len(X), max(_GRAM_TILE_ROWS, _GRAM_TILE_BYTES // (8 * width)))
    buffer, ones = np.empty((step, width)), np.ones(step)
    # One shift per row of the buffer: one long subtraction is faster than many short ones.
    shifts = np.tile(shift, (step, 1))
    for begin in range(0, len(X), step):
        tile = buffer[: len(X) - begin]
        column = 0
        for part in parts:
            tile[:, column : column + part.shape[1]] = part[begin : begin + step]
            column += part.shape[1]
        tile -= shifts[: len(tile)]
        # A C-ordered tile is its own transpose in Fortran order: no copy is made.
        joint = dsyrk(1.0, tile.T, beta=1.0, c=joint, overwrite_c=1)
        sums += ones[: len(tile)] @ tile
    offset = sums / len(X)
    joint = dsyrk(-float(len(X)), offset[:, None], beta=1.0, c=joint, overwrite_c=1)
    return PartialGram(len(X), shift + offset, joint)


def merge_gram(a: PartialGram, b: PartialGram) -> PartialGram:
    """Merge the products of two sets of rows, reusing the memory of the first."""
    from scipy.linalg.blas import dsyrk

    count = a.count + b.count
    delta = b.mean - a.mean
    a.joint += b.joint
    # In place: at 10,000 features a temporary of d x d is 800 MB.
    weight = a.count * b.count / count
    joint = dsyrk(weight, delta[:, None], beta=1.0, c=a.joint, overwrite_c=1)
    return PartialGram(count, a.mean + delta * (b.count / count), joint)


def complete_gram(total: PartialGram, n_features: int) -> Gram:
    """Return the Gram matrix and X'Y as views of the merged products, without a copy."""
    gram = total.joint[:n_features, :n_features]
    for row in range(n_features - 1):
        gram[row + 1 :, row] = gram[row, row + 1 :]
    mean, y_mean = total.mean[:n_features], total.mean[n_features:]
    return Gram(total.count, mean, gram, y_mean, total.joint[:n_features, n_features:])


def correlations_of(products: np.ndarray) -> np.ndarray:
    """Return absolute correlations from centered products; 0 for constant columns."""
    spread = np.sqrt(products.diagonal())
    inverse = np.divide(1.0, spread, out=np.zeros(len(spread)), where=spread > 0)
    return np.abs(products * inverse * inverse[:, None])


def block_xtv(X: np.ndarray, V: np.ndarray, shift: np.ndarray | None = None) -> np.ndarray:
    """Return ``(X - shift)'V`` of one block, shape (n_features, n_columns), float64.

    For a CSR block the shift is subtracted from the product.
    """
    if hasattr(X, "indptr"):
        product: np.ndarray = X.astype(np.float64).T @ V
        if shift is not None:
            product -= np.multiply.outer(shift, V.sum(axis=0))
        return product
    total = np.zeros((X.shape[1], V.shape[1]))
    for part, tile in float_tiles(X, 0.0 if shift is None else shift):
        total += tile.T @ V[part]
    return total
