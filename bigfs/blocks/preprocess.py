"""Preprocessing as part of reading: each block is transformed when it is read in a pass.

Nothing is written out. The statistics of the whole data that a transform needs (means, ranges) come
from one pass for the moments and are stored once, for every task to read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bigfs.blocks.kernels import Moments
from bigfs.core.errors import RowError
from bigfs.core.text import FROM_0
from bigfs.store.csr import rows_of_entries
from bigfs.store.scratch import ArrayRef, Scratch
from bigfs.store.values import place_of, values_of

KINDS = (
    "none", "standardize", "rescale", "minmax", "unit_norm", "log1p", "normalize_total",
    "normalize_log1p",
)  # fmt: skip
# Sum of every row under ``normalize_total``.
TOTAL = 1e4
_LARGEST_SCALE = 1e38


@dataclass(frozen=True)
class Transform:
    """A transform, with the stored shift and scale of its columns."""

    kind: str = "none"
    # Of shape (2, n_features) or None: shift and scale; a value x becomes ``(x - shift) * scale``.
    # Entries of CSR blocks are only scaled, so that zeros stay zeros: see `offset`.
    columns: ArrayRef | None = None
    # Of shape (2, n_level) or None: indices of columns that vary only by rounding, and the value
    # that all their rows get, so that every method sees them as exactly constant.
    level: ArrayRef | None = None

    def apply(self, X: Any, first_row: int) -> Any:
        """Return the transformed block, dense or CSR; the input block is not modified.

        Raises
        ------
        InputError
            For a row of zeros under ``unit_norm``, a value of -1 or less under ``log1p``, or a
            negative one under ``normalize_total``.
        """
        if self.level is not None:
            X = _leveled(X, *self.level.load())
        if self.kind == "none":
            return X
        if self.columns is not None:
            shift, scale = self.columns.load()
            if hasattr(X, "indptr"):
                return _scaled(X, scale)
            # The inverse of a spread near the smallest float32 values exceeds the float32 range.
            dtype = X.dtype if scale.max(initial=0.0) < _LARGEST_SCALE else np.float64
            out = X - shift.astype(dtype)
            out *= scale.astype(dtype)
            return out.astype(X.dtype, copy=False)
        if self.kind.startswith("normalize"):
            X = _normalize_total(X, first_row, self.kind)
            if self.kind == "normalize_total":
                return X
        return _unit_norm(X, first_row) if self.kind == "unit_norm" else _log1p(X, first_row)

    def offset(self) -> np.ndarray | None:
        """Return the offset missing from columns of CSR blocks, ``-shift * scale``; None if zero.

        Means, minima and maxima of the entries lack it; centered quantities do not depend on it.
        """
        if self.columns is None:
            return None
        shift, scale = self.columns.load()
        shifted: np.ndarray = -shift * scale
        return shifted if shifted.any() else None


def needs_moments(kind: str) -> bool:
    """Return True if a transform needs a pass over the data first."""
    return kind in ("standardize", "rescale", "minmax")


def resolve(
    kind: str, moments: Moments | None, scratch: Scratch, level: ArrayRef | None = None
) -> Transform:
    """Return a transform ready for the workers.

    ``standardize`` gives columns mean 0 and variance 1, ``minmax`` maps them to [0, 1],
    ``rescale`` gives them mean 0 and divides all by one number, so that the mean variance of those
    that vary is 1; a constant column becomes 0 under all three. ``unit_norm`` scales rows to
    Euclidean norm 1, ``normalize_total`` to a sum of 10,000; ``normalize_log1p`` takes ``log1p`` of
    that.
    """
    if moments is None or not needs_moments(kind):
        return Transform(kind, None, level)
    # The mean of equal values can differ from them in the last bit, and the spread from zero.
    constant = moments.maximum == moments.minimum
    if kind == "standardize":
        shift, spread = moments.mean, np.sqrt(moments.variance)
    elif kind == "rescale":
        root = np.sqrt(moments.variance[~constant].mean()) if not constant.all() else 1.0
        shift, spread = moments.mean, np.full(len(moments.mean), root)
    else:
        shift, spread = moments.minimum, moments.maximum - moments.minimum
    scale = np.where(constant, 0.0, 1.0 / np.where(constant, 1.0, spread))
    columns = scratch.put(scratch.unique("transform"), np.stack([shift, scale]))
    return Transform(kind, columns, level)


def _leveled(X: Any, columns: np.ndarray, values: np.ndarray) -> Any:
    """Return a block, dense or CSR, in which the given columns have one value each."""
    columns = columns.astype(np.int64)
    X = X.copy()
    if not hasattr(X, "indptr"):
        X[:, columns] = values
        return X
    of_column = np.full(X.shape[1], np.nan)
    of_column[columns] = values
    entries = of_column[X.indices]
    X.data = np.where(np.isnan(entries), X.data, entries).astype(X.dtype)
    if not values.all():
        X.eliminate_zeros()
    return X


def _with_values(X: Any, values: np.ndarray) -> Any:
    """Return a block with its values (entries, if CSR) replaced."""
    from scipy.sparse import csr_array

    if not hasattr(X, "indptr"):
        return values
    return csr_array((values, X.indices, X.indptr), shape=X.shape)


def _by_row(X: Any, factors: np.ndarray) -> np.ndarray:
    """Return row factors in the dtype of a block, shaped to multiply its values."""
    factors = factors.astype(X.dtype)
    return np.repeat(factors, np.diff(X.indptr)) if hasattr(X, "indptr") else factors[:, None]


def _scaled(X: Any, scale: np.ndarray) -> Any:
    """Return a CSR block with scaled columns; columns scaled by zero keep no entries."""
    out = X.copy()
    out.data *= scale[X.indices].astype(X.dtype)
    if not scale.all():
        out.eliminate_zeros()
    return out


def _normalize_total(X: Any, first_row: int, kind: str) -> Any:
    """Return rows, dense or CSR, scaled to a sum of `TOTAL` each; rows of zeros are unchanged."""
    values = values_of(X)
    if values.size and values.min() < 0:
        row, column = place_of(X, int(values.argmin()))
        raise RowError(
            f"preprocess '{kind}': row {first_row + row}, column {column} is {values.min():g}; "
            f"values must not be negative. Use another preprocess. {FROM_0}"
        )
    if hasattr(X, "indptr"):
        totals = np.bincount(rows_of_entries(X), values, X.shape[0])
    else:
        totals = X.sum(axis=1, dtype=np.float64)
    factors = np.divide(TOTAL, totals, out=np.ones(len(totals)), where=totals > 0)
    return _with_values(X, values * _by_row(X, factors))


def _unit_norm(X: Any, first_row: int) -> Any:
    if hasattr(X, "indptr"):
        squares = np.bincount(rows_of_entries(X), np.square(X.data, dtype=np.float64), X.shape[0])
    else:
        squares = np.einsum("ij,ij->i", X, X, dtype=np.float64)
    norms = np.sqrt(squares)
    if not norms.all():
        row = first_row + int((norms == 0).argmax())
        raise RowError(
            f"preprocess 'unit_norm': row {row} is all zeros and has no direction. "
            f"Drop such rows or use another preprocess. {FROM_0}"
        )
    return _with_values(X, values_of(X) / _by_row(X, norms))


def _log1p(X: Any, first_row: int) -> Any:
    values = values_of(X)
    if values.size and values.min() <= -1:
        number = int((values <= -1).argmax())
        row, column = place_of(X, number)
        raise RowError(
            f"preprocess 'log1p': row {first_row + row}, column {column} is "
            f"{values.flat[number]:g}; values must be above -1. Use another preprocess. {FROM_0}"
        )
    return _with_values(X, np.log1p(values))
