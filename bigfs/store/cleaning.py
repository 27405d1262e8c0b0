"""Cleaning of values on their way into a store: rejected, filled, or their rows dropped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from bigfs.core.errors import CorruptStoreError, InputError
from bigfs.core.text import FROM_0
from bigfs.runtime.progress import track
from bigfs.store.csr import as_block, rows_of_entries
from bigfs.store.fingerprint import changed
from bigfs.store.source import Source
from bigfs.store.values import (
    INFINITE,
    MISSING,
    TOO_LARGE,
    all_usable,
    checksum,
    place_of,
    usable,
    values_of,
)

# The policy for internal copies of data that can be read only once: NaN is kept.
KEEP = "keep"


class Cleaner:
    """Check every value, and fill or drop NaN according to the policy.

    Parameters
    ----------
    matrix : Source
        Source of the blocks; sparse blocks stay sparse.
    missing : {"error", "mean", "zero", "drop_rows", "keep"}
    rows : int
        Number of rows read at a time.
    """

    def __init__(self, matrix: Source, missing: str, rows: int) -> None:
        self._matrix, self._missing, self._rows = matrix, missing, rows
        self._dropped: list[np.ndarray] = []
        self.n_read = self.filled = self.dropped = 0
        self._fill: np.ndarray | None = None
        self._sums: list[str] | None = None  # checksums of the blocks when read for the means
        if missing == "mean":
            self._fill, self._sums = self._means()

    def clean(self) -> Iterator[Any]:
        """Yield the cleaned blocks."""
        for i, block in enumerate(self._matrix.iter_rows(self._rows)):
            if self._sums is not None and self._sums[i : i + 1] != [checksum(block)]:
                raise changed(self._matrix.uri)
            cleaned = block if all_usable(values_of(block)) else self._clean(block)
            self.n_read += block.shape[0]
            del block  # not held while the next block is read
            yield cleaned
            del cleaned

    def dropped_positions(self) -> list[int]:
        """Return the positions of the dropped rows."""
        return np.concatenate(self._dropped).tolist() if self._dropped else []

    def _clean(self, block: Any) -> Any:
        """Return a block with NaN handled; raise an error at the first invalid value."""
        values = values_of(block)
        nan = np.isnan(values)
        bad = ~usable(values)
        if self._missing != "error":
            bad &= ~nan
        if bad.any():
            entry = int(bad.argmax())
            row, column = place_of(block, entry)
            raise refusal(self._matrix, self.n_read + row, column, float(values.flat[entry]))
        if self._missing == KEEP:
            return block
        if self._missing == "drop_rows":
            keep = np.ones(block.shape[0], dtype=bool)
            keep[rows_of_entries(block)[nan] if nan.ndim == 1 else nan.any(axis=1)] = False
            self.dropped += int((~keep).sum())
            self._dropped.append(self.n_read + np.flatnonzero(~keep))
            return block[keep]
        self.filled += int(nan.sum())
        fill = np.zeros(block.shape[1], block.dtype) if self._fill is None else self._fill
        if nan.ndim == 2:
            return np.where(nan, fill, block)
        filled = block.copy()
        filled.data[nan] = fill[block.indices[nan]]
        return as_block(filled, block.dtype)

    def _means(self) -> tuple[np.ndarray, list[str]]:
        """Return the column means, ignoring NaN, and the checksums of the blocks, in one pass."""
        d, sums = self._matrix.n_features, []
        total, count = np.zeros(d), np.zeros(d, dtype=np.int64)
        with track("column means", self._matrix.n_samples, "rows") as progress:
            for block in self._matrix.iter_rows(self._rows):
                values = values_of(block)
                finite = np.isfinite(values)
                numbers = np.where(finite, values, 0)
                with np.errstate(over="ignore"):  # refused below
                    if finite.ndim == 2:
                        total += numbers.sum(axis=0, dtype=np.float64)
                        count += finite.sum(axis=0)
                    else:
                        total += np.bincount(block.indices, numbers.astype(np.float64), d)
                        count += block.shape[0] - np.bincount(block.indices[~finite], minlength=d)
                sums.append(checksum(block))
                progress.advance(block.shape[0])
        useless = (count == 0) | ~np.isfinite(total)
        if useless.any():
            column = int(useless.argmax())
            why = "values whose sum overflows" if count[column] else "no values at all"
            raise InputError(
                f"{self._matrix.uri}: column {column}{_named(self._matrix, column)} has {why}, so "
                "it has no mean. Drop it, or use missing = zero."
            )
        return (total / count).astype(self._matrix.dtype), sums


def kept_ids(matrix: Source, dropped: list[int]) -> Iterator[list[str]]:
    """Yield the ids of the rows that were not dropped."""
    left_out, row = set(dropped), 0
    for piece in matrix.iter_index():
        yield [text for i, text in enumerate(piece, row) if i not in left_out]
        row += len(piece)


def refusal(matrix: Source, row: int, column: int, value: float) -> InputError:
    """Return the error for an unusable value."""
    shown, cure = str(value), INFINITE if np.isinf(value) else TOO_LARGE
    if np.isnan(value):
        shown, cure = "NaN", MISSING
    uri, row = matrix.locate(row)
    where = f"{uri}: row {row}, column {column}{_named(matrix, column)} is"
    if matrix.checked and not np.isfinite(value):
        return CorruptStoreError(
            f"{where} {shown}, but was not when the data were ingested: the store has been changed "
            "since. Ingest the source again; 'bigfs inspect --verify' names the changed chunks. "
            f"{FROM_0}"
        )
    return InputError(f"{where} {shown}. {cure} {FROM_0}")


def _named(matrix: Source, column: int) -> str:
    """Return the name of a column in parentheses; empty if it has none."""
    return f" ({matrix.feature_names[column]!r})" if matrix.feature_names else ""
