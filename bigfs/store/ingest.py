"""Copy a matrix into a checked, row-chunked zarr store, one chunk at a time.

A sparse matrix is stored as CSR blocks (`bigfs.store.formats.csr_store`).
"""

from __future__ import annotations

import glob
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from bigfs.core.errors import (
    InputError,
    MemoryLimitError,
    RunLockedError,
    StorageError,
    check_choice,
)
from bigfs.core.memory import DEFAULT_MEMORY_LIMIT, check_fits, return_large_arrays
from bigfs.core.paths import is_there
from bigfs.core.units import MIB, format_bytes, parse_bytes
from bigfs.runtime.progress import track
from bigfs.store.buckets import retrying_briefly
from bigfs.store.cleaning import KEEP, Cleaner, kept_ids
from bigfs.store.csr import rows_for, whole_chunks
from bigfs.store.formats import ZARR, format_named
from bigfs.store.formats.csr_store import CSRWriter, StoreWriter, with_checksum
from bigfs.store.lease import HEARTBEAT_SECONDS, LEASE, Lease, is_left
from bigfs.store.location import (
    Location,
    as_location,
    files_below,
    free_bytes,
    is_within,
    remove_tree,
    sync_path,
    sync_tree,
    zarr_store,
)
from bigfs.store.objects import ObjectPath
from bigfs.store.records import UNFINISHED, beside_the_matrix
from bigfs.store.scratch import chunk_rows, temporary_files_in
from bigfs.store.source import (
    RandomAccessSource,
    Source,
    as_part,
    is_store,
    listed,
    open_matrix,
)
from bigfs.store.values import checksum, storing

MISSING = ("error", "mean", "zero", "drop_rows")
# Rows read at a time while the number of entries per row is still unknown.
_FIRST_ROWS = 1024
# Upper bound on the compression ratio that measured values can reach.
_PACKED = 200
# Row numbers per chunk of the array of left out rows.
_NUMBERS = 2**16
# Raises an error if this process may not write any more; checks at most once in so many seconds.
Check: TypeAlias = Callable[[float], None]


@dataclass(frozen=True)
class IngestReport:
    """Report of an ingest.

    Attributes
    ----------
    path : Path or ObjectPath
    n_samples, n_features : int
    dtype : str
    n_chunks : int
    nbytes : int
        Size of the values, uncompressed.
    filled_values, dropped_rows : int
        NaN values replaced and rows dropped by the ``missing`` policy.
    appended_rows : int, default=0
        Rows that were appended to an existing store.
    """

    path: Location
    n_samples: int
    n_features: int
    dtype: str
    n_chunks: int
    nbytes: int
    filled_values: int
    dropped_rows: int
    appended_rows: int = 0

    def text(self, missing: str) -> str:
        """Return the report as lines for a terminal; ``missing`` is the policy that was applied."""
        lines = [
            f"{self.path}: {self.n_samples:,} samples x {self.n_features:,} features, "
            f"{self.dtype}, {format_bytes(self.nbytes)}"
        ]
        if self.appended_rows:
            verb = "is" if self.appended_rows == 1 else "are"
            lines.append(f"{self.appended_rows:,} of the rows {verb} new.")
        if self.filled_values:
            lines.append(f"{self.filled_values:,} missing values were replaced ({missing}).")
        if self.dropped_rows:
            lines.append(f"{self.dropped_rows:,} rows with missing values were dropped.")
        return "\n".join(lines)


def ingest(
    source: Any,
    dest: str | Location,
    *,
    missing: str = "error",
    overwrite: bool = False,
    append: bool = False,
    rows: int | None = None,
    memory_limit: int | str | None = None,
    **opening: Any,
) -> IngestReport:
    """Stream a matrix into a zarr v3 store of checksummed row chunks.

    Every value is checked while it is copied. The store appears under its name only when it is
    complete; if the ingest fails, nothing is left behind.

    Parameters
    ----------
    source : str, Path, list of them, array or Source
        Anything `open_matrix` accepts.
    dest : str, Path or ObjectPath
        The folder to create, usually ``NAME.zarr``, or ``s3://BUCKET/NAME.zarr``. In a bucket,
        where nothing can be renamed, the store is marked as unfinished until it is complete, and a
        store that is overwritten is removed first.
    missing : {"error", "mean", "zero", "drop_rows"}, default="error"
        Policy for NaN: raise an error that names the first one, replace it by the column mean (this
        reads the source once more) or by zero, or drop the row. Infinity is always an error, and so
        are values beyond 1e140, whose squares could overflow when summed.
    overwrite : bool, default=False
        Replace an existing store, provided that bigfs wrote it and it contains nothing else.
    append : bool, default=False
        Append the rows to an existing dense store with the same features. Runs that read the store
        meanwhile see its former rows; if the append fails, it has only these. ``missing`` "mean" is
        refused, as it would be the mean of the new rows alone.
    rows : int or None, default=None
        Rows per chunk of a new store. None: 8 to 32 MB per chunk. A sparse matrix stays sparse: its
        chunks are CSR blocks.
    memory_limit : int, str or None, default=None
        Maximum resident size of this process, such as ``"2 GiB"``. None: 4 GiB.
    **opening
        Settings of `open_matrix`, such as ``columns``, ``index`` (the ids are stored with the
        rows), ``csv`` or ``layer``. To select rows, open the source with `open_matrix` first.

    Returns
    -------
    report : IngestReport

    Raises
    ------
    InputError
        If the source cannot be used (an unusable value is reported with its row and column), if it
        changes while it is read, or if ``dest`` exists.
    MemoryLimitError
        If the source has to be held in memory as a whole and exceeds the limit.
    StorageError
        If writing fails.
    RunLockedError
        If another process appends to the same store, or writes it in a bucket.
    """
    check_choice("missing", missing, MISSING)
    final = as_location(dest).absolute()
    if append and overwrite:
        raise InputError(f"{final}: give append or overwrite, not both.")
    if not append:
        _check_dest(final, overwrite)
    if (format_named(final.name) or ZARR) is not ZARR:
        raise InputError(
            f"{final}: an ingest writes a zarr store, a folder, but this is the name of another "
            "kind of file. Give NAME.zarr."
        )
    with as_part() if append else nullcontext():
        matrix = open_matrix(source, **opening)
    limit = parse_bytes(DEFAULT_MEMORY_LIMIT if memory_limit is None else memory_limit)
    return_large_arrays()
    if append:
        from bigfs.store.append import append_rows

        return append_rows(matrix, final, missing, limit)
    chunk = 0
    if not matrix.sparse:  # sparse blocks are sized by their entries
        rows = rows or chunk_rows(matrix.n_features, matrix.dtype.itemsize)
        chunk = rows * matrix.n_features * matrix.dtype.itemsize
    check_fits("data", ingest_bytes(chunk, matrix.held_bytes), limit, "reading the input")
    _refuse_source(matrix, final)
    _check_free(matrix, final)
    place: AbstractContextManager[tuple[Location, Check]] = (
        _in_bucket(final, overwrite)
        if isinstance(final, ObjectPath)
        else _on_disk(final, overwrite)
    )
    with place as (partial, check):
        return write_store(matrix, partial, final, missing, rows, check=check)


def sources_in(matrix: Source) -> list[Source]:
    """Return the sources that were chained into this one, or the source itself."""
    parts = [part for part in getattr(matrix, "parts", ()) if isinstance(part, Source)]
    return parts or [matrix]


def _refuse_source(matrix: Source, final: Location) -> None:
    """Raise InputError if a store would lie inside another one, or replace its own source."""
    if isinstance(final, ObjectPath):
        if any(is_within(as_location(part.uri), final) for part in sources_in(matrix)):
            raise InputError(f"{final} is the input and cannot be replaced. Give another name.")
        return
    around = next((folder for folder in final.parents if is_store(folder)), None)
    if around is not None:
        raise InputError(f"{final} lies in the store {around}. Give another name.")


def _check_free(matrix: Source, final: Location) -> None:
    """Raise MemoryLimitError if a dense matrix cannot fit on the disk, however well compressed."""
    if isinstance(final, ObjectPath) or matrix.sparse or matrix.n_samples is None:
        return
    size = matrix.n_samples * matrix.n_features * matrix.dtype.itemsize
    free = free_bytes(next(folder for folder in final.parents if folder.exists()))
    if free is not None and size > _PACKED * free:
        raise MemoryLimitError(
            f"{final} would hold {format_bytes(size)}, but the file system has only "
            f"{format_bytes(free)} free. Nothing was written. Check the shape, or give a path on "
            "a larger disk."
        )


@contextmanager
def _on_disk(final: Path, overwrite: bool) -> Iterator[tuple[Location, Check]]:
    """Yield a folder beside a store that is renamed to it if the context exits without an error.

    The second value, a check as in a bucket, does nothing: nobody else writes to the folder.
    """
    beside = f"{final.name}.partial-{uuid.uuid4().hex[:8]}"
    partial, replaced = final.with_name(beside), final.with_name(f"{beside}-replaced")
    try:
        with holding(partial, final), temporary_files_in(final.parent):
            yield partial, lambda _: None
        _check_dest(final, overwrite)  # again: another process may have created it meanwhile
        with writing_to(final):
            sync_tree(partial)
            if final.exists():
                final.rename(replaced)
            try:
                partial.rename(final)
            except OSError:
                if replaced.exists():
                    replaced.rename(final)
                raise
            sync_path(final.parent)
    finally:
        remove_tree(partial)
        if final.exists():
            remove_tree(replaced)


@contextmanager
def holding(partial: Location, final: Location, grows: bool = False) -> Iterator[None]:
    """Create a folder beside a store under a lease, and remove those left by killed processes."""
    if isinstance(partial, ObjectPath) or isinstance(final, ObjectPath):
        # Appends hold the lease of the store, so no other one writes beside it.
        form = re.compile(rf"{re.escape(final.name)}\.partial-[0-9a-f]{{8}}")
        for left in final.parent.iterdir() if grows else ():
            if form.fullmatch(left.name) and not beside_the_matrix(left):
                remove_tree(left)
        yield
        return
    for left in final.parent.glob(f"{glob.escape(final.name)}.partial-*"):
        if not left.is_symlink() and is_left(left, left.name[-8:]):
            remove_tree(left)
    with writing_to(final, grows):
        partial.mkdir(parents=True)
    with Lease(partial, partial.name[-8:]):
        yield


@contextmanager
def _in_bucket(final: ObjectPath, overwrite: bool) -> Iterator[tuple[Location, Check]]:
    """Yield the store's own location, marked as unfinished until the context exits normally.

    The second value raises an error if another ingest has taken over meanwhile.
    """
    with Lease(final) as lease:
        _check_dest(final, overwrite)  # again: another process may have created it meanwhile
        final.remove_below(LEASE)
        marker = final / UNFINISHED
        marker.write_text("")
        try:
            yield final, lease.check
            lease.check()
            marker.unlink()
        except StorageError:  # removing would fail too; the store stays marked
            raise
        except BaseException:
            with retrying_briefly(), suppress(StorageError, RunLockedError):
                lease.check()  # a store of another ingest, which took over, stays
                final.remove_below(LEASE)
            raise


def ingest_bytes(chunk: int, held: int = 0) -> int:
    """Return the memory an ingest needs in bytes, from its chunk size and what its source holds."""
    return 3 * chunk + 28 * MIB + held


def _check_dest(dest: Location, overwrite: bool) -> None:
    if isinstance(dest, ObjectPath):
        exists = dest.is_file() or bool(set(files_below(dest)) - {LEASE})
    else:
        exists = is_there(dest, "the store")
    if not exists:
        return
    if not overwrite:
        raise InputError(
            f"{dest} already exists. Give another name, or --overwrite (overwrite=True)."
        )
    unfinished = isinstance(dest, ObjectPath) and (dest / UNFINISHED).is_file()
    if not unfinished and not is_store(dest):
        raise InputError(
            f"{dest} is not a store that bigfs wrote, so it is not overwritten. Give another name."
        )
    others = [name for name in beside_the_matrix(dest) if name not in (UNFINISHED, LEASE)]
    if others or (isinstance(dest, Path) and dest.is_symlink()):
        what = "is a link" if not others else f"holds {listed(others)} besides the matrix"
        raise InputError(f"{dest} {what}, so it is not overwritten. Give another name.")


def copy_rows(matrix: Source, folder: Location) -> None:
    """Write a store for internal use, which keeps the missing values of a dense matrix."""
    rows = None if matrix.sparse else chunk_rows(matrix.n_features, matrix.dtype.itemsize)
    write_store(matrix, folder, folder, "error" if matrix.sparse else KEEP, rows)


def writing_to(store: Location, grows: bool = False) -> AbstractContextManager[None]:
    """Convert disk errors to StorageError; ``grows`` if rows are appended to an existing store."""
    if grows:
        return storing(f"Cannot append to {store}", "It still has its former rows.")
    return storing(f"Cannot write {store}", "Nothing was left there.")


def write_store(
    matrix: Source,
    partial: Location,
    final: Location,
    missing: str,
    rows: int | None,
    after: RandomAccessSource | None = None,
    check: Check = lambda _: None,
) -> IngestReport:
    """Write a store, and raise an error if the source changed meanwhile.

    Parameters
    ----------
    matrix : Source
    partial, final : Path or ObjectPath
        Location it is written to, and its final location.
    missing : {"error", "mean", "zero", "drop_rows"}
    rows : int or None
        Rows per chunk. None, for sparse matrices only: chunks of 16 MB.
    after : RandomAccessSource or None, default=None
        Dense store, with ``rows`` rows per chunk, that the rows are appended to. If its last chunk
        is not full, its rows are written again before the new ones.
    check : callable, optional
        ``check(seconds)`` is called before each write. It raises an error if this process may not
        write any more, at most once in so many seconds.
    """
    matrix.begin()
    try:
        report = _write_chunks(matrix, partial, final, missing, rows, after, check)
    except (InputError, StorageError):
        matrix.check_unchanged()  # if it changed, this is the actual cause
        raise
    matrix.check_unchanged()
    return report


def _write_chunks(
    matrix: Source,
    partial: Location,
    final: Location,
    missing: str,
    rows: int | None,
    after: RandomAccessSource | None,
    check: Check,
) -> IngestReport:
    dtype, what = (matrix.dtype, "ingest") if after is None else (after.dtype, "append")
    if matrix.layout is not None:
        rows = rows or matrix.layout.rows
    cleaner = Cleaner(matrix, missing, rows or _FIRST_ROWS)
    blocks, n_before, is_new = cleaner.clean(), 0, after is None
    if rows is None:  # chunks of 16 MB, if all rows are like those of the first block
        first = list(islice(blocks, 1))  # empty if no row is left
        entries = first[0].nnz / max(1, first[0].shape[0]) if first else 1.0
        rows = rows_for(entries, dtype.itemsize)
        blocks = chain(first, blocks)
    if after is not None:
        n_before = after.n_samples % rows
        last = after.read(after.n_samples - n_before, after.n_samples)
        blocks = chain([last], (block.astype(dtype, copy=False) for block in blocks))
    total = None if matrix.n_samples is None else -(-(n_before + matrix.n_samples) // rows)
    with track(what, total, "chunks") as progress:
        with writing_to(final, not is_new):
            writer: ChunkWriter | CSRWriter
            if matrix.sparse:
                writer = CSRWriter(partial, rows, matrix.n_features, dtype)
            else:
                writer = ChunkWriter(partial, rows, matrix.n_features, dtype, matrix.n_samples)
        for chunk in whole_chunks(blocks, rows):
            with writing_to(final, not is_new):
                check(HEARTBEAT_SECONDS)
                writer.append(chunk)
            del chunk
            progress.advance(1)
    if matrix.n_samples is not None and cleaner.n_read != matrix.n_samples:
        raise InputError(
            f"{matrix.uri} has {cleaner.n_read} rows, but its shape says {matrix.n_samples}. "
            "It is damaged or changed while it was read; write it again."
        )
    if is_new and writer.n_samples < 2:
        why = f" after {cleaner.dropped:,} rows with NaN were dropped" if cleaner.dropped else ""
        if len(left_out := matrix.left_out([])):
            why += f"; input.rows leaves out {len(left_out):,}"
        raise InputError(
            f"{matrix.uri}: at least 2 samples are needed. Got {writer.n_samples}{why}."
        )
    with writing_to(final, not is_new):
        check(0.0)
        if matrix.index is not None:
            ids = kept_ids(matrix, cleaner.dropped_positions())
            if after is not None:
                ids = chain(after.ids.pieces(after.n_samples - n_before, after.n_samples), ids)
            writer.write_ids(ids)
        writer.finish(
            source=matrix.uri,
            stored_dtype=(matrix.dtype if cleaner.filled else matrix.stored_dtype).str,
            feature_names=matrix.feature_names,
            missing=missing,
            filled_values=cleaner.filled,
            dropped_rows=cleaner.dropped,
            **({} if matrix.index is None else {"index": matrix.index}),
            **write_left_out(partial, matrix.left_out(cleaner.dropped_positions())),
            **({} if matrix.grid is None else {"grid": matrix.grid}),
            **_types(matrix, cleaner.filled),
            **sources_left(matrix, cleaner.dropped_positions()),
        )
    return IngestReport(
        path=final,
        n_samples=writer.n_samples - n_before,
        n_features=matrix.n_features,
        dtype=dtype.name,
        n_chunks=len(writer.checksums),
        nbytes=writer.nbytes,
        filled_values=cleaner.filled,
        dropped_rows=cleaner.dropped,
    )


def _types(matrix: Source, n_filled: int) -> dict[str, Any]:
    """Return the column types of a table as an attribute; empty if values were filled."""
    return {} if n_filled or not matrix.column_types else {"column_types": {**matrix.column_types}}


def write_left_out(partial: Location, rows: Any, chunk: int = _NUMBERS) -> dict[str, int]:
    """Write the row numbers of the source that are not in the store, and return their count."""
    if not len(rows):
        return {}
    import zarr

    numbers = np.asarray(rows, dtype=np.int64)
    store = zarr.open_group(zarr_store(partial), mode="r+")
    store.create_array(
        "dropped", data=numbers, chunks=(chunk,), dimension_names=("dropped_row",),
        overwrite=True, **with_checksum(),
    )  # fmt: skip
    return {"dropped": len(numbers)}


def sources_left(matrix: Source, dropped: list[int]) -> dict[str, Any]:
    """Return the number of rows kept from each of several sources, as an attribute."""
    if not matrix.sources:
        return {}
    ends = np.cumsum([count for _, count in matrix.sources])
    n_dropped = np.bincount(np.searchsorted(ends, dropped, side="right"), minlength=len(ends))
    counts = zip(matrix.sources, n_dropped.tolist(), strict=True)
    return {"sources": [[uri, count - n] for (uri, count), n in counts]}


class ChunkWriter(StoreWriter):
    """Writer of the array ``X`` of a new group, one whole chunk at a time."""

    def __init__(
        self, path: Location, rows: int, n_features: int, dtype: np.dtype, n_samples: int | None
    ) -> None:
        super().__init__(path, rows)
        self._array = self._group.create_array(
            "X",
            shape=(n_samples or rows, n_features),
            dtype=dtype,
            chunks=(rows, n_features),
            dimension_names=("sample", "feature"),  # xarray requires dimension names
            **self._packing,
        )

    def append(self, chunk: np.ndarray) -> None:
        """Write one chunk; only the last one may be shorter.

        Raises
        ------
        StorageError
            If the rows do not start at a chunk boundary or extend into the next chunk.
        """
        start, stop = self.n_samples, self.n_samples + len(chunk)
        if start % self._rows or len(chunk) > self._rows:
            raise StorageError(
                f"Cannot write rows {start} to {stop}: they are not exactly one chunk of "
                f"{self._rows} rows. Nothing was left."
            )
        if stop > self._array.shape[0]:
            # Doubled, so that resizes are rare: each makes zarr list all chunks.
            self._array.resize((max(stop, 2 * self._array.shape[0]), self._array.shape[1]))
        self._array[start:stop] = chunk
        self.n_samples = stop
        self.checksums.append(checksum(chunk))

    @property
    def nbytes(self) -> int:
        """Size of the values, uncompressed."""
        return self.n_samples * self._array.shape[1] * self._array.dtype.itemsize

    def finish(self, **attributes: Any) -> None:
        """Set the final number of rows, and the attributes that mark the group as a store."""
        if self.n_samples != self._array.shape[0]:
            self._array.resize((self.n_samples, self._array.shape[1]))
        super().finish(n_samples=self.n_samples, **attributes)
