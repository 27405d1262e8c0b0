"""Arrays that tasks share through storage: written by whole chunks, read by row range.

Nothing large travels in the task graph. A small array (d x K) or one with a row per sample is a
zarr array under a path that the client and every worker can reach; tasks carry an `ArrayRef`.
Chunks are plain bytes: in a bucket they are read and written without zarr, by ranges of rows.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np

from bigfs.core.errors import MemoryLimitError, StorageError
from bigfs.core.units import format_bytes
from bigfs.store.location import Location, as_location, free_bytes, remove_tree, zarr_store
from bigfs.store.objects import ObjectPath


@dataclass(frozen=True)
class ArrayRef:
    """The address of a stored array: a few hundred bytes, whatever its size."""

    path: str  # absolute path or URI of the zarr array
    shape: tuple[int, ...]
    dtype: str  # NumPy name of the type
    chunk_rows: int  # rows per chunk; every write covers whole chunks

    @property
    def nbytes(self) -> int:
        """Size of the array in bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    @classmethod
    def at(cls, path: str | Location) -> ArrayRef:
        """Return the address of an array that is already stored."""
        array = _handle(str(path))
        shape = tuple(int(size) for size in array.shape)
        return cls(str(path), shape, np.dtype(array.dtype).name, int(array.chunks[0]))

    def load(self) -> np.ndarray:
        """Read the whole array."""
        return self.read(0, self.shape[0])

    def read(self, start: int, stop: int) -> np.ndarray:
        """Read rows ``start`` to ``stop``."""
        if self._is_remote:
            return self._fetch(start, min(stop, self.shape[0]))
        rows = np.asarray(_handle(self.path)[start:stop])
        # Afterwards: an array that is removed meanwhile would still read as zeros in part.
        self._check_chunks(start, stop)
        return rows

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Read scattered rows, a stored chunk at a time."""
        out = np.empty((len(rows), *self.shape[1:]), dtype=self.dtype)
        home = rows // self.chunk_rows
        for chunk in np.unique(home):
            in_chunk, first = home == chunk, int(chunk) * self.chunk_rows
            part = self.read(first, min(first + self.chunk_rows, self.shape[0]))
            out[in_chunk] = part[rows[in_chunk] - first]
        return out

    def write(self, start: int, values: np.ndarray) -> None:
        """Write whole chunks from row ``start`` on.

        Raises
        ------
        StorageError
            If the rows begin or end inside a chunk: two writers of one chunk lose values.
        """
        stop = start + len(values)
        if start % self.chunk_rows or (stop % self.chunk_rows and stop != self.shape[0]):
            raise StorageError(
                f"Cannot write rows {start} to {stop} of {self.path}: they do not cover whole "
                f"chunks of {self.chunk_rows} rows. Nothing was written."
            )
        if self._is_remote:
            self._send(start, np.asarray(values))
            return
        # A task that was given up must not bring back the folder of an array that is gone.
        if not os.path.exists(f"{self.path}/zarr.json"):
            raise StorageError(f"{self.path} was removed. Nothing was written. Run again.")
        _handle(self.path)[start:stop] = values

    @property
    def _is_remote(self) -> bool:
        return "://" in self.path

    def _object(self, chunk: int) -> ObjectPath:
        """Return where a chunk is in the bucket."""
        path = as_location(self.path)
        assert isinstance(path, ObjectPath)
        return path / f"c/{chunk}{'/0' * (len(self.shape) - 1)}"

    def _fetch(self, start: int, stop: int) -> np.ndarray:
        """Read rows from a bucket: one request for each chunk, of exactly these rows."""
        out = np.empty((max(0, stop - start), *self.shape[1:]), self.dtype)
        row_bytes = math.prod(self.shape[1:]) * out.itemsize
        view = out.reshape(-1).view(np.uint8).data
        while len(view):
            chunk, first = divmod(start, self.chunk_rows)
            count = min(self.chunk_rows - first, stop - start) * row_bytes
            try:
                n_read, _ = self._object(chunk).read_into(view[:count], first * row_bytes)
            except FileNotFoundError:
                raise StorageError(self._missing(chunk)) from None
            if n_read != count:
                raise StorageError(f"{self.path}: chunk {chunk} is cut off. Run again.")
            view, start = view[count:], (chunk + 1) * self.chunk_rows
        return out

    def _send(self, start: int, values: np.ndarray) -> None:
        """Write whole chunks to a bucket; the last one is filled up, as zarr does."""
        values = np.ascontiguousarray(values, self.dtype)
        for first in range(0, len(values), self.chunk_rows):
            chunk = values[first : first + self.chunk_rows]
            if len(chunk) < self.chunk_rows:
                rest = (self.chunk_rows - len(chunk), *self.shape[1:])
                chunk = np.concatenate([chunk, np.zeros(rest, self.dtype)])
            place = self._object((start + first) // self.chunk_rows)
            place.write_bytes(chunk.reshape(-1).view(np.uint8).data)

    def _missing(self, chunk: int) -> str:
        return (
            f"{self.path}: chunk {chunk} is missing. Run again: the stage that writes it has not "
            "finished, or its files were removed."
        )

    def open(self, owner: Scratch) -> Any:
        """Return the zarr array, read when asked; it keeps its folder's owner alive."""
        import zarr

        if self._is_remote:
            store = zarr_store(self.path, strict=True).with_read_only(True)
        else:
            store = zarr.storage.LocalStore(self.path, read_only=True)
        store.owner = owner
        return zarr.open_array(store=store, mode="r")

    def _check_chunks(self, start: int, stop: int) -> None:
        """Raise StorageError if a chunk of the rows is missing: it would read as zeros."""
        if 0 in self.shape:
            return
        rest = "/0" * (len(self.shape) - 1)
        for chunk in range(start // self.chunk_rows, -(-stop // self.chunk_rows)):
            if not os.path.exists(f"{self.path}/c/{chunk}{rest}"):
                raise StorageError(self._missing(chunk))

    def check_complete(self) -> None:
        """Raise StorageError if a chunk is missing (it would read as zeros)."""
        expected = -(-self.shape[0] // self.chunk_rows) if self.shape[0] else 0
        chunks = as_location(self.path) / "c"
        # The names of chunks are numbers; a killed worker may leave a part of one beside it.
        names = (path.name for path in chunks.iterdir()) if chunks.exists() else ()
        present = sum(1 for name in names if name.isdecimal())
        if present != expected:
            raise StorageError(
                f"{self.path}: {expected - present} of {expected} chunks are missing. "
                "Run again: the stage that writes it has not finished."
            )


@lru_cache(maxsize=64)
def _handle(path: str) -> Any:
    """Open a zarr array once per process; its metadata never changes after creation."""
    import zarr

    # Chunks of zeros are written like all others: a missing one means an unfinished write.
    array = zarr.open_array(zarr_store(path), mode="r+", zarr_format=3)
    return array.with_config({"write_empty_chunks": True})


def read_attributes(path: str | Location) -> dict[str, Any]:
    """Return the attributes that `Scratch.describe` wrote."""
    import zarr

    return dict(zarr.open_group(zarr_store(path), mode="r", zarr_format=3).attrs)


_TEMPORARY: ContextVar[str | None] = ContextVar("folder of temporary files", default=None)


@contextmanager
def temporary_files_in(folder: Location) -> Iterator[None]:
    """Have files without a name written in a folder, whose disk a plan counts them on."""
    former = _TEMPORARY.set(str(folder) if isinstance(folder, Path) else None)
    try:
        yield
    finally:
        _TEMPORARY.reset(former)


def temporary_file() -> IO[bytes]:
    """Open a file without a name: not even a process that is killed leaves it."""
    return tempfile.TemporaryFile(prefix="bigfs-", dir=_TEMPORARY.get())


class Scratch:
    """A folder for shared arrays, with a name of its own for every attempt.

    Parameters
    ----------
    path : str, Path, ObjectPath or None, default=None
        Folder that the client and every worker can write. None: a new folder in the system's
        temporary directory, removed with this object.
    """

    def __init__(self, path: str | Location | None = None) -> None:
        if path is None:
            path = tempfile.mkdtemp(prefix="bigfs-")
            weakref.finalize(self, shutil.rmtree, path, ignore_errors=True)
        self._parent: Scratch | None = None
        self.path = as_location(path).absolute()
        self.path.mkdir(parents=True, exist_ok=True)

    def create(
        self, name: str, shape: tuple[int, ...], dtype: Any, chunk_rows: int | None = None
    ) -> ArrayRef:
        """Create an array whose rows tasks will write.

        Parameters
        ----------
        name : str
            Where it lives below this folder; an existing array of the name is replaced.
        shape : tuple of int
        dtype : numpy dtype
        chunk_rows : int or None, default=None
            Rows per chunk. None: one chunk, for small arrays.
        """
        import zarr

        rows = max(1, min(shape[0], chunk_rows or shape[0]))
        path = self.path / name
        if isinstance(path, ObjectPath):
            remove_tree(path)
        elif path.exists():
            shutil.rmtree(path)
        zarr.create_array(
            store=zarr_store(path),
            shape=shape,
            dtype=np.dtype(dtype),
            chunks=(rows, *(max(1, size) for size in shape[1:])),
            compressors=None,
        )
        _handle.cache_clear()
        return ArrayRef(str(path), tuple(int(s) for s in shape), np.dtype(dtype).name, rows)

    def check_free(self, stage: str, needed: int) -> None:
        """Raise MemoryLimitError unless the file system has so many bytes free."""
        free = free_bytes(self.path)
        if free is not None and needed > free:
            raise MemoryLimitError(
                f"Stage '{stage}' needs about {format_bytes(needed)} of scratch and the file "
                f"system of {self.path} has {format_bytes(free)} free. Nothing was written. Free "
                "space there, or put the run directory on a larger disk."
            )

    def put(self, name: str, values: np.ndarray) -> ArrayRef:
        """Store a small array as one chunk."""
        ref = self.create(name, values.shape, values.dtype)
        ref.write(0, values)
        return ref

    def describe(self, **attributes: Any) -> None:
        """Make the folder a zarr group with these attributes (JSON values)."""
        import zarr

        group = zarr.open_group(zarr_store(self.path), mode="a", zarr_format=3)
        group.update_attributes(attributes)

    def unique(self, stem: str) -> str:
        """Return an unused name."""
        return f"{stem}-{uuid.uuid4().hex[:12]}"

    def remove(self, *refs: ArrayRef) -> None:
        """Delete arrays that are no longer needed."""
        for ref in refs:
            remove_tree(ref.path)

    def child(self, name: str) -> Scratch:
        """Return a folder below this one; it keeps this one alive."""
        below = Scratch(self.path / name)
        below._parent = self
        return below

    def close(self) -> None:
        """Remove the folder and all it holds."""
        remove_tree(self.path)
