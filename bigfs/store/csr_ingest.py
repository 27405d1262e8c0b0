"""Bring a sparse matrix into a store of CSR row blocks, one block at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.runtime.progress import track
from bigfs.store.csr import SparseSource, as_block, csr_checksum, csr_chunks, rows_for
from bigfs.store.fingerprint import changed
from bigfs.store.formats.csr_store import CSRWriter
from bigfs.store.location import Location
from bigfs.store.values import usable

# Rows read at a time where only reading tells how many entries a row has.
_FIRST_ROWS = 1024


class CSRCleaner:
    """Checks every entry, and fills or drops NaN as the policy says.

    Parameters
    ----------
    matrix : SparseSource
    missing : {"error", "mean", "zero", "drop_rows"}
    rows : int
        Rows read at a time.
    refuse : callable
        ``refuse(row, column, value)`` returns the error for a value that cannot be used.
    """

    def __init__(
        self,
        matrix: SparseSource,
        missing: str,
        rows: int,
        refuse: Callable[[int, int, float], InputError],
    ) -> None:
        self._matrix, self._missing, self._rows, self._refuse = matrix, missing, rows, refuse
        self.n_read = self.filled = self.dropped = 0
        self._fill = np.zeros(matrix.n_features)
        self._sums: list[str] | None = None
        self._dropped: list[np.ndarray] = []
        if missing == "mean":
            self._fill, self._sums = self._means()

    def blocks(self) -> Iterator[Any]:
        """Yield the cleaned blocks."""
        for i, block in enumerate(self._matrix.iter_csr(self._rows)):
            if self._sums is not None and self._sums[i : i + 1] != [csr_checksum(block)]:
                raise changed(self._matrix.uri)
            good = usable(block.data)
            cleaned = block if good.all() else self._mended(block, good)
            self.n_read += block.shape[0]
            del block  # nor is it held while the next one is read
            yield cleaned
            del cleaned

    def dropped_positions(self) -> list[int]:
        """Return which rows were dropped."""
        return np.concatenate(self._dropped).tolist() if self._dropped else []

    def _mended(self, block: Any, good: np.ndarray) -> Any:
        nan = np.isnan(block.data)
        bad = ~good if self._missing == "error" else ~good & ~nan
        row_of = np.repeat(np.arange(block.shape[0]), np.diff(block.indptr))
        if bad.any():
            entry = int(bad.argmax())
            row, column = self.n_read + int(row_of[entry]), int(block.indices[entry])
            raise self._refuse(row, column, float(block.data[entry]))
        if self._missing == "drop_rows":
            keep = np.ones(block.shape[0], dtype=bool)
            keep[row_of[nan]] = False
            self.dropped += int((~keep).sum())
            self._dropped.append(self.n_read + np.flatnonzero(~keep))
            return block[keep]
        self.filled += int(nan.sum())
        mended = block.copy()
        mended.data[nan] = self._fill[block.indices[nan]]
        return as_block(mended, block.dtype)

    def _means(self) -> tuple[np.ndarray, list[str]]:
        """Return the means of the columns without NaN, and the blocks' checksums: one read."""
        d, sums = self._matrix.n_features, []
        total, missing, n = np.zeros(d), np.zeros(d, dtype=np.int64), 0
        with track("column means", self._matrix.n_samples, "rows") as progress:
            for block in self._matrix.iter_csr(self._rows):
                finite = np.isfinite(block.data)
                with np.errstate(over="ignore"):  # refused below
                    weights = np.where(finite, block.data, 0).astype(np.float64)
                    total += np.bincount(block.indices, weights, minlength=d)
                missing += np.bincount(block.indices[~finite], minlength=d)
                n += block.shape[0]
                sums.append(csr_checksum(block))
                progress.advance(block.shape[0])
        useless = (missing == n) | ~np.isfinite(total)
        if useless.any():
            column = int(useless.argmax())
            names = self._matrix.feature_names
            name = f" ({names[column]!r})" if names else ""
            why = "no values at all" if missing[column] == n else "values too large to add up"
            raise InputError(
                f"{self._matrix.uri}: column {column}{name} has {why}, so it has no mean. Drop it, "
                "or use missing = zero."
            )
        return total / (n - missing), sums


def write_csr(
    matrix: SparseSource,
    partial: Location,
    rows: int | None,
    missing: str,
    refuse: Callable[[int, int, float], InputError],
    writing: Callable[[], AbstractContextManager[None]],
) -> tuple[CSRWriter, CSRCleaner]:
    """Write the blocks of a sparse matrix; the caller finishes the store.

    Parameters
    ----------
    matrix : SparseSource
    partial : Path or ObjectPath
        The folder to create.
    rows : int or None
        Rows per block. None: those of the matrix's layout; where that is not known, as many as
        make 16 MB of entries in blocks like the first.
    missing, refuse
        As in `CSRCleaner`.
    writing : callable
        Returns what turns failures of the disk into StorageError.

    Returns
    -------
    writer : CSRWriter
    cleaner : CSRCleaner
    """
    layout = matrix.layout
    rows = rows or (None if layout is None else layout.rows)
    cleaner = CSRCleaner(matrix, missing, rows or _FIRST_ROWS, refuse)
    blocks = cleaner.blocks()
    if rows is None:
        first = next(blocks)
        rows = rows_for(first.nnz / max(1, first.shape[0]), matrix.dtype.itemsize)
        blocks = chain([first], blocks)
    n_chunks = None if matrix.n_samples is None else -(-matrix.n_samples // rows)
    with track("ingest", n_chunks, "blocks") as progress:
        with writing():
            writer = CSRWriter(partial, rows, matrix.n_features, np.dtype(matrix.dtype))
        for chunk in csr_chunks(blocks, rows):
            with writing():
                writer.append(chunk)
            del chunk
            progress.advance(1)
    return writer, cleaner
