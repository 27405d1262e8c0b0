"""Arrays that tasks share through storage: written by whole chunks, read by row range.

Nothing large travels in the task graph. A small array (d x K) or one with a row per sample is a
zarr array under a path that the client and every worker can reach; tasks carry an `ArrayRef`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
import weakref
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.core.errors import MemoryLimitError, StorageError
from bigfs.core.units import format_bytes


@dataclass(frozen=True)
class ArrayRef:
    """The address of a stored array: a few hundred bytes, whatever its size.

    Attributes
    ----------
    path : str
        Absolute path of the zarr array.
    shape : tuple of int
    dtype : str
        NumPy name of the type.
    chunk_rows : int
        Rows per chunk; every write covers whole chunks.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    chunk_rows: int

    @property
    def nbytes(self) -> int:
        """Size of the array in bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    @classmethod
    def at(cls, path: str | Path) -> ArrayRef:
        """Return the address of an array that is already stored."""
        array = _handle(str(path))
        shape = tuple(int(size) for size in array.shape)
        return cls(str(path), shape, np.dtype(array.dtype).name, int(array.chunks[0]))

    def load(self) -> np.ndarray:
        """Read the whole array."""
        self._check_chunks(0, self.shape[0])
        return np.asarray(_handle(self.path)[...])

    def read(self, start: int, stop: int) -> np.ndarray:
        """Read rows ``start`` to ``stop``."""
        self._check_chunks(start, stop)
        return np.asarray(_handle(self.path)[start:stop])

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
        _handle(self.path)[start:stop] = values

    def open(self, owner: Scratch) -> Any:
        """Return the zarr array, read when asked; it keeps its folder's owner alive."""
        import zarr

        store = zarr.storage.LocalStore(self.path, read_only=True)
        store.owner = owner  # type: ignore[attr-defined]
        return zarr.open_array(store=store, mode="r")

    def _check_chunks(self, start: int, stop: int) -> None:
        """Raise StorageError if a chunk of the rows is missing: it would read as zeros."""
        rest = "/0" * (len(self.shape) - 1)
        for chunk in range(start // self.chunk_rows, -(-stop // self.chunk_rows)):
            if not os.path.exists(f"{self.path}/c/{chunk}{rest}"):
                raise StorageError(
                    f"{self.path}: chunk {chunk} is missing. Run again: the stage that writes it "
                    "has not finished, or its files were removed."
                )

    def check_complete(self) -> None:
        """Raise StorageError if a chunk is missing (it would read as zeros)."""
        expected = -(-self.shape[0] // self.chunk_rows) if self.shape[0] else 0
        chunks = Path(self.path) / "c"
        found = sum(1 for _ in chunks.iterdir()) if chunks.exists() else 0
        if found != expected:
            raise StorageError(
                f"{self.path}: {expected - found} of {expected} chunks are missing. "
                "Run again: the stage that writes it has not finished."
            )


@lru_cache(maxsize=64)
def _handle(path: str) -> Any:
    """Open a zarr array once per process; its metadata never changes after creation."""
    import zarr

    # Chunks of zeros are written like all others: a missing one means an unfinished write.
    return zarr.open_array(path, mode="r+").with_config({"write_empty_chunks": True})


def read_attributes(path: str | Path) -> dict[str, Any]:
    """Return the attributes that `Scratch.describe` wrote."""
    import zarr

    return dict(zarr.open_group(str(path), mode="r").attrs)


class Scratch:
    """A folder for shared arrays, with a name of its own for every attempt.

    Parameters
    ----------
    path : str or Path or None, default=None
        Folder that the client and every worker can write. None: a new folder in the system's
        temporary directory, removed with this object.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        if path is None:
            path = tempfile.mkdtemp(prefix="bigfs-")
            weakref.finalize(self, shutil.rmtree, path, ignore_errors=True)
        self._parent: Scratch | None = None
        self.path = Path(path).absolute()
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
        if path.exists():
            shutil.rmtree(path)
        zarr.create_array(
            store=str(path),
            shape=shape,
            dtype=np.dtype(dtype),
            chunks=(rows, *(max(1, size) for size in shape[1:])),
            compressors=None,
        )
        _handle.cache_clear()
        return ArrayRef(str(path), tuple(int(s) for s in shape), np.dtype(dtype).name, rows)

    def check_free(self, stage: str, needed: int) -> None:
        """Raise MemoryLimitError unless the file system has so many bytes free."""
        free = shutil.disk_usage(self.path).free
        if needed > free:
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

        zarr.open_group(str(self.path), mode="a").attrs.update(attributes)

    def unique(self, stem: str) -> str:
        """Return a name that nothing here has."""
        return f"{stem}-{uuid.uuid4().hex[:12]}"

    def remove(self, *refs: ArrayRef) -> None:
        """Delete arrays that are no longer needed."""
        for ref in refs:
            shutil.rmtree(ref.path, ignore_errors=True)

    def child(self, name: str) -> Scratch:
        """Return a folder below this one; it keeps this one alive."""
        below = Scratch(self.path / name)
        below._parent = self
        return below

    def close(self) -> None:
        """Remove the folder and all it holds."""
        shutil.rmtree(self.path, ignore_errors=True)
