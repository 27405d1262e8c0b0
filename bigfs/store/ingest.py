"""Bring a matrix into a checked, row-chunked zarr store, one chunk at a time."""

from __future__ import annotations

import shutil
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.core.errors import InputError, StorageError
from bigfs.core.progress import track
from bigfs.store.chunking import chunk_rows
from bigfs.store.source import Source, is_store, open_matrix

MISSING = ("error", "mean", "zero", "drop_rows")


@dataclass(frozen=True)
class IngestReport:
    """What an ingest wrote.

    Attributes
    ----------
    path : Path
    n_samples, n_features : int
    dtype : str
    n_chunks : int
    nbytes : int
        Size of the values, uncompressed.
    filled_values, dropped_rows : int
        NaN replaced and rows left out by the ``missing`` policy.
    """

    path: Path
    n_samples: int
    n_features: int
    dtype: str
    n_chunks: int
    nbytes: int
    filled_values: int
    dropped_rows: int


def ingest(
    source: Any,
    dest: str | Path,
    *,
    variable: str | None = None,
    missing: str = "error",
    overwrite: bool = False,
    rows: int | None = None,
) -> IngestReport:
    """Stream a matrix into a zarr v3 store of row chunks with checksums.

    Every value is checked on the way. The store appears under its name only when it is
    complete; on any failure nothing is left.

    Parameters
    ----------
    source : str, Path, array or Source
        Anything `open_matrix` takes.
    dest : str or Path
        The folder to create, usually ``NAME.zarr``.
    variable : str or None, default=None
        Array to read where a file holds several.
    missing : {"error", "mean", "zero", "drop_rows"}, default="error"
        What to do with NaN: stop and name the first, replace by the column's mean (one more
        read of the source) or by zero, or leave the row out. Infinity is always an error.
    overwrite : bool, default=False
        Replace a store that is already there.
    rows : int or None, default=None
        Rows per chunk; None: 8 to 32 MB per chunk.

    Returns
    -------
    report : IngestReport

    Raises
    ------
    InputError
        If the source cannot be used, naming row and column, or ``dest`` exists.
    StorageError
        If writing fails.
    """
    if missing not in MISSING:
        raise InputError(f"missing must be one of {', '.join(MISSING)}. Got {missing!r}.")
    matrix = open_matrix(source, variable=variable)
    final = Path(dest).absolute()
    _check_dest(final, overwrite)
    partial = final.with_name(f"{final.name}.partial-{uuid.uuid4().hex[:8]}")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        report = _write(matrix, partial, final, missing, rows)
        if final.exists():
            shutil.rmtree(final)
        partial.rename(final)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"Cannot write {final}: {error}. Nothing was left there.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return report


def _check_dest(dest: Path, overwrite: bool) -> None:
    if not dest.exists():
        return
    if not overwrite:
        raise InputError(
            f"{dest} already exists. Give another name, or --overwrite (overwrite=True)."
        )
    if not is_store(dest):
        raise InputError(f"{dest} is not a bigfs store and is not overwritten. Remove it yourself.")


def _write(
    matrix: Source, partial: Path, final: Path, missing: str, rows: int | None
) -> IngestReport:
    import zarr
    from zarr.codecs import BloscCodec

    n_features, dtype = matrix.n_features, np.dtype(matrix.dtype)
    rows = rows or chunk_rows(n_features, dtype.itemsize)
    cleaner = _Cleaner(matrix, missing, _fill_values(matrix, missing, rows))
    group = zarr.create_group(store=str(partial))
    array = group.create_array(
        "X",
        # Grown chunk by chunk: how many rows there are is known only at the end.
        shape=(0, n_features),
        dtype=dtype,
        chunks=(rows, n_features),
        compressors=BloscCodec(cname="lz4", clevel=3, shuffle="shuffle"),
    ).with_config({"write_empty_chunks": True})
    checksums: list[str] = []
    total = None if matrix.n_samples is None else -(-matrix.n_samples // rows)
    with track("ingest", total, "chunks") as progress:
        for chunk in _whole_chunks(cleaner.clean(matrix.iter_blocks(rows)), rows):
            start = rows * len(checksums)
            # Only the last chunk may be short: each write covers one whole chunk.
            assert start == array.shape[0] and len(chunk) <= rows
            array = _append(array, chunk)
            checksums.append(checksum(chunk))
            progress.advance(1)
    n_samples = int(array.shape[0])
    if n_samples < 2:
        raise InputError(
            f"{matrix.uri}: at least 2 samples are needed. Got {n_samples}"
            + (f" after {cleaner.dropped} rows with NaN were dropped." if cleaner.dropped else ".")
        )
    group.attrs.update(
        bigfs_store=1,
        source=matrix.uri,
        feature_names=matrix.feature_names,
        missing=missing,
        filled_values=cleaner.filled,
        dropped_rows=cleaner.dropped,
        checksums=checksums,
    )
    return IngestReport(
        path=final,
        n_samples=n_samples,
        n_features=n_features,
        dtype=dtype.name,
        n_chunks=len(checksums),
        nbytes=n_samples * n_features * dtype.itemsize,
        filled_values=cleaner.filled,
        dropped_rows=cleaner.dropped,
    )


def _append(array: Any, chunk: np.ndarray) -> Any:
    """Grow the array by one chunk and write it."""
    start = int(array.shape[0])
    array.resize((start + len(chunk), array.shape[1]))
    array[start : start + len(chunk)] = chunk
    return array


def checksum(chunk: np.ndarray) -> str:
    """Return the CRC-32 of a chunk's values as little-endian bytes."""
    values = np.ascontiguousarray(chunk, dtype=chunk.dtype.newbyteorder("<"))
    return f"{zlib.crc32(values.view(np.uint8).data):08x}"


def _whole_chunks(blocks: Iterator[np.ndarray], rows: int) -> Iterator[np.ndarray]:
    """Regroup blocks of any length into chunks of exactly ``rows`` rows and a last one."""
    held: list[np.ndarray] = []
    count = 0
    for block in blocks:
        while count + len(block) >= rows:
            take = rows - count
            yield block[:take] if not held else np.concatenate([*held, block[:take]])
            block, held, count = block[take:], [], 0
        if len(block):
            held.append(block)
            count += len(block)
    if held:
        yield held[0] if len(held) == 1 else np.concatenate(held)


class _Cleaner:
    """Checks every value, and fills or drops NaN as the policy says."""

    def __init__(self, matrix: Source, missing: str, fill: np.ndarray | None) -> None:
        self._matrix, self._missing, self._fill = matrix, missing, fill
        self._first_row = 0
        self.filled = self.dropped = 0

    def clean(self, blocks: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        for block in blocks:
            good = np.isfinite(block)
            cleaned = block if good.all() else self._mend(block, good)
            self._first_row += len(block)
            yield cleaned

    def _mend(self, block: np.ndarray, good: np.ndarray) -> np.ndarray:
        nan = np.isnan(block)
        bad = ~good if self._missing == "error" else ~good & ~nan
        if bad.any():
            self._refuse(block, bad)
        if self._missing == "drop_rows":
            keep = ~nan.any(axis=1)
            self.dropped += int((~keep).sum())
            return block[keep]
        self.filled += int(nan.sum())
        return np.where(nan, np.zeros(1, block.dtype) if self._fill is None else self._fill, block)

    def _refuse(self, block: np.ndarray, bad: np.ndarray) -> None:
        row = int(bad.any(axis=1).argmax())
        column = int(bad[row].argmax())
        names = self._matrix.feature_names
        name = f" ({names[column]!r})" if names else ""
        value = block[row, column]
        is_nan = bool(np.isnan(value))
        cure = (
            "Remove or fill it, or choose a policy: missing = mean, zero or drop_rows."
            if is_nan
            else "Infinity cannot be filled: correct the data."
        )
        raise InputError(
            f"{self._matrix.uri}: row {self._first_row + row}, column {column}{name} is "
            f"{'NaN' if is_nan else value}. {cure}"
        )


def _fill_values(matrix: Source, missing: str, rows: int) -> np.ndarray | None:
    """Return the means of the columns without NaN, for the policy ``mean``: one read."""
    if missing != "mean":
        return None
    total = np.zeros(matrix.n_features)
    count = np.zeros(matrix.n_features, dtype=np.int64)
    for block in matrix.iter_blocks(rows):
        there = np.isfinite(block)
        total += np.where(there, block, 0).sum(axis=0, dtype=np.float64)
        count += there.sum(axis=0)
    if not count.all():
        column = int((count == 0).argmax())
        raise InputError(
            f"{matrix.uri}: column {column} has no values at all, so it has no mean. Drop it, or "
            "use missing = zero."
        )
    return (total / count).astype(matrix.dtype)
