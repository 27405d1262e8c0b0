"""Arrays that tasks share through storage: written in whole chunks, read by row ranges.

The task graph carries no large data. A small array (d x K) or one with a row per sample is a zarr
array at a path that the client and every worker can access; tasks carry an `ArrayRef`. Chunks are
uncompressed and are read and written without zarr, by row ranges. In a bucket they are shards with
verified checksums.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import tempfile
import uuid
import weakref
from contextlib import AbstractContextManager, closing
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np

from bigfs.core.errors import InputError, MemoryLimitError, StorageError
from bigfs.core.paths import parse_json
from bigfs.core.threads import set_within
from bigfs.core.units import MIB, format_bytes
from bigfs.store.location import (
    Location,
    as_location,
    files_below,
    free_bytes,
    read_small,
    remove_tree,
    replaced_file,
    zarr_store,
)
from bigfs.store.objects import ObjectPath
from bigfs.store.pages import page_rows, read_pages, shard

# Size limit of the metadata; those of an array without attributes are a few hundred bytes.
_METADATA_BYTES = 2**16
_CHUNK = re.compile(r"c(\.\d+)+")
# Maximum size of an array in a temporary folder that a pickle can include.
CARRIED_BYTES = 256 * MIB
MB = 10**6
_CHUNK_BYTES = 16 * MB
_BLOCK_BYTES = 32 * MB


@dataclass(frozen=True)
class ArrayRef:
    """The address of a stored array: a few hundred bytes, whatever the size of the array."""

    path: str  # absolute path or URI of the zarr array
    shape: tuple[int, ...]
    dtype: str  # NumPy dtype name
    chunk_rows: int  # rows per chunk; every write covers whole chunks
    page_rows: int = 0  # rows per checksummed page, in a bucket; 0: no checksums

    @property
    def nbytes(self) -> int:
        """Size of the array in bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    @classmethod
    def at(cls, path: str | Location) -> ArrayRef:
        """Return the address of an existing array."""
        try:
            about = parse_json(read_small(as_location(path) / "zarr.json", _METADATA_BYTES))
        except FileNotFoundError:
            raise StorageError(f"{path} was removed. Run again.") from None
        chunk, *_ = about["chunk_grid"]["configuration"]["chunk_shape"]
        codec = about["codecs"][0].get("configuration", {})
        page = codec.get("chunk_shape", [0])[0]  # page rows of a shard
        return cls(str(path), tuple(about["shape"]), about["data_type"], chunk, page)

    def load(self) -> np.ndarray:
        """Read the whole array."""
        return self.read(0, self.shape[0])

    def read(self, start: int, stop: int) -> np.ndarray:
        """Read rows ``start`` to ``stop``."""
        stop = min(stop, self.shape[0])
        out = np.empty((max(0, stop - start), *self.shape[1:]), self.dtype)
        row_bytes = math.prod(self.shape[1:]) * out.itemsize
        view = out.reshape(-1).view(np.uint8).data
        self._check_place()
        while len(view):
            chunk, first = divmod(start, self.chunk_rows)
            count = min(self.chunk_rows - first, stop - start) * row_bytes
            try:
                n_read = self._read_chunk(chunk, view[:count], first * row_bytes, row_bytes)
            except FileNotFoundError:
                raise StorageError(
                    f"{self.path}: chunk {chunk} is missing. Run again: the stage that writes it "
                    "has not finished, or its files were removed."
                ) from None
            if n_read != count:
                raise StorageError(f"{self.path}: chunk {chunk} is cut off. Run again.")
            view, start = view[count:], (chunk + 1) * self.chunk_rows
        return out

    def _read_chunk(self, chunk: int, view: memoryview, begin: int, row_bytes: int) -> int:
        """Fill a buffer from an offset in a chunk; return the number of bytes read."""
        place = self._place(chunk)
        if isinstance(place, Path):
            with place.open("rb") as file:
                file.seek(begin)
                return file.readinto(view)
        if self.page_rows:
            return read_pages(place, view, begin, self.page_rows * row_bytes)[0]
        return place.read_into(view, begin)[0]

    def take(self, rows: np.ndarray | range) -> np.ndarray:
        """Read the given rows, one stored chunk at a time."""
        rows = np.asarray(rows)
        out = np.empty((len(rows), *self.shape[1:]), dtype=self.dtype)
        home = rows // self.chunk_rows
        for chunk in np.unique(home):
            in_chunk, first = home == chunk, int(chunk) * self.chunk_rows
            part = self.read(first, min(first + self.chunk_rows, self.shape[0]))
            out[in_chunk] = part[rows[in_chunk] - first]
        return out

    def write(self, start: int, values: np.ndarray) -> None:
        """Write whole chunks, starting at row ``start``.

        Raises
        ------
        StorageError
            If the rows begin or end inside a chunk: two writers of the same chunk would lose
            values.
        """
        stop = start + len(values)
        if start % self.chunk_rows or (stop % self.chunk_rows and stop != self.shape[0]):
            raise StorageError(
                f"Cannot write rows {start} to {stop} of {self.path}: they do not cover whole "
                f"chunks of {self.chunk_rows} rows. Nothing was written."
            )
        # An abandoned task must not recreate the folder of a removed array.
        self._check_place()
        values = np.ascontiguousarray(values, self.dtype)
        assert values.shape[1:] == self.shape[1:], f"{self.path}: {values.shape}, {self.shape}"
        for first in range(0, len(values), self.chunk_rows):
            chunk = values[first : first + self.chunk_rows]
            if len(chunk) < self.chunk_rows:  # the last chunk is zero-padded, as by zarr
                rest = (self.chunk_rows - len(chunk), *self.shape[1:])
                chunk = np.concatenate([chunk, np.zeros(rest, self.dtype)])
            place = self._place((start + first) // self.chunk_rows)
            content = chunk.reshape(-1).view(np.uint8).data
            if isinstance(place, Path):
                with replaced_file(place, sync=False) as file:
                    file.write(content)
                continue
            page_bytes = self.page_rows * (len(content) // self.chunk_rows)
            place.write_bytes(shard(content, page_bytes) if page_bytes else content)

    def _place(self, chunk: int) -> Location:
        """Return the location of a chunk."""
        return as_location(self.path) / f"c.{chunk}{'.0' * (len(self.shape) - 1)}"

    def _check_place(self) -> None:
        """Raise StorageError if an array on disk was removed or replaced."""
        if "://" not in self.path and ArrayRef.at(self.path) != self:
            raise StorageError(f"{self.path} was replaced by another run. Run again.")

    def open(self, owner: Scratch) -> Any:
        """Return the array as a lazy, read-only zarr array that keeps its folder's owner alive.

        A missing chunk is an error. A pickle of it contains what `carried` returns.
        """
        import zarr

        store = zarr_store(self.path, strict=True).with_read_only(True)
        store.owner = owner
        return zarr.open_array(store=store, mode="r")

    def carried(self, owner: Scratch) -> ArrayRef | Carried:
        """Return the content of a pickle: the address, or the values if the folder is temporary.

        Raises
        ------
        InputError
            If the folder is temporary and the array exceeds the limit for pickles.
        """
        if not owner.is_temporary:
            return self
        name = Path(self.path).name
        if self.nbytes > CARRIED_BYTES:
            raise InputError(
                f"'{name}' has {format_bytes(self.nbytes)} in a temporary folder, but a pickle or "
                f"copy can hold at most {format_bytes(CARRIED_BYTES)}. Use bigfs.run, whose run "
                "directory is permanent."
            )
        return Carried(name, self.load(), self.chunk_rows)

    def check_complete(self) -> None:
        """Raise StorageError if a chunk is missing (it would read as zeros)."""
        expected = -(-self.shape[0] // self.chunk_rows) if self.shape[0] else 0
        # A killed worker may leave a partly written chunk under another name.
        names = files_below(as_location(self.path))
        present = sum(1 for name in names if _CHUNK.fullmatch(name))
        if present != expected:
            raise StorageError(
                f"{self.path}: {expected - present} of {expected} chunks are missing. "
                "Run again: the stage that writes it has not finished."
            )


@dataclass(frozen=True)
class Carried:
    """An array from a temporary folder, by value."""

    name: str
    values: np.ndarray
    chunk_rows: int

    def put(self, scratch: Scratch) -> ArrayRef:
        """Store the array in a folder."""
        return scratch.put(self.name, self.values, self.chunk_rows)


def read_attributes(path: str | Location) -> dict[str, Any]:
    """Return the attributes written by `Scratch.describe`."""
    import zarr

    return dict(zarr.open_group(zarr_store(path), mode="r", zarr_format=3).attrs)


_TEMPORARY: ContextVar[str | None] = ContextVar("folder of temporary files", default=None)


def temporary_files_in(folder: Location) -> AbstractContextManager[None]:
    """Return a context in which unnamed files are created in a folder.

    A plan checks the disk of this folder for their size.
    """
    return set_within(_TEMPORARY, str(folder) if isinstance(folder, Path) else None)


def temporary_file() -> IO[bytes]:
    """Open an unnamed temporary file, which disappears even if the process is killed."""
    return tempfile.TemporaryFile(prefix="bigfs-", dir=_TEMPORARY.get())


class Scratch:
    """A folder for shared arrays, with a unique name for every attempt.

    Parameters
    ----------
    path : str, Path, ObjectPath or None, default=None
        Folder that the client and every worker can write to. None: a new folder in the system's
        temporary directory, removed with this object.
    """

    _parent: Scratch | None = None

    def __init__(self, path: str | Location | None = None) -> None:
        # Whether the folder is removed with this object, or with its parent.
        self.is_temporary = path is None
        if path is None:
            path = tempfile.mkdtemp(prefix="bigfs-")
            weakref.finalize(self, _remove_own, path, os.getpid())
        self.path = as_location(path).absolute()
        self.path.mkdir(parents=True, exist_ok=True)

    def __getstate__(self) -> dict[str, Any]:
        if self.is_temporary:
            raise InputError(
                "A copy or pickle of this object would refer to a temporary folder that is removed "
                "with it. Write its data to a permanent store (bigfs.ingest), and use that."
            )
        return dict(vars(self))

    def create(
        self, name: str, shape: tuple[int, ...], dtype: Any, chunk_rows: int | None = None
    ) -> ArrayRef:
        """Create an array whose rows will be written by tasks.

        Parameters
        ----------
        name : str
            Name below this folder; an existing array of this name is replaced.
        shape : tuple of int
        dtype : numpy dtype
        chunk_rows : int or None, default=None
            Rows per chunk. None: one chunk, for small arrays.
        """
        rows = max(1, min(shape[0], chunk_rows or shape[0]))
        row_bytes = math.prod(shape[1:]) * np.dtype(dtype).itemsize
        path = self.path / name
        is_paged = isinstance(path, ObjectPath) and row_bytes > 0
        page = page_rows(rows, row_bytes) if is_paged else 0
        ref = ArrayRef(str(path), tuple(int(s) for s in shape), np.dtype(dtype).name, rows, page)
        remove_tree(path)
        path.mkdir(parents=True, exist_ok=True)
        with replaced_file(path / "zarr.json", sync=False) as file:
            file.write(_metadata(ref.shape, ref.dtype, rows, page))
        return ref

    def check_free(self, stage: str, needed: int) -> None:
        """Raise MemoryLimitError unless the file system has ``needed`` bytes free."""
        free = free_bytes(self.path)
        if free is not None and needed > free:
            raise MemoryLimitError(
                f"Stage '{stage}' needs about {format_bytes(needed)} of scratch space, but the "
                f"file system of {self.path} has {format_bytes(free)} free. Free space there, or "
                "put the run directory on a larger disk. Finished stages are kept."
            )

    def put(self, name: str, values: np.ndarray, chunk_rows: int | None = None) -> ArrayRef:
        """Store an in-memory array, by default as one chunk."""
        ref = self.create(name, values.shape, values.dtype, chunk_rows)
        ref.write(0, values)
        return ref

    def describe(self, **attributes: Any) -> None:
        """Make the folder a zarr group with the given attributes (JSON values)."""
        import zarr

        group = zarr.open_group(zarr_store(self.path), mode="a", zarr_format=3)
        group.update_attributes(attributes)

    def unique(self, stem: str) -> str:
        """Return an unused name."""
        return f"{stem}-{uuid.uuid4().hex[:12]}"

    def remove(self, *refs: ArrayRef) -> None:
        """Remove arrays that are no longer needed."""
        for ref in refs:
            remove_tree(ref.path)

    def child(self, name: str) -> Scratch:
        """Return a subfolder, which keeps this object alive."""
        below = Scratch(self.path / name)
        below._parent, below.is_temporary = self, self.is_temporary
        return below

    def temporary(self, stem: str) -> AbstractContextManager[Scratch]:
        """Return a context manager for a new subfolder, which is removed on exit."""
        return closing(self.child(self.unique(stem)))

    def close(self) -> None:
        """Remove the folder and its content."""
        remove_tree(self.path)


@lru_cache(maxsize=1024)
def _metadata(shape: tuple[int, ...], dtype: str, rows: int, page: int) -> bytes:
    """Return zarr's metadata for an array; the parameters are those of `ArrayRef`.

    Cached, since zarr needs 4 ms for them, and iterations create the same arrays repeatedly.
    """
    import zarr
    from zarr.codecs import Crc32cCodec

    files: dict[str, Any] = {}
    rest = tuple(max(1, size) for size in shape[1:])
    zarr.create_array(
        store=zarr.storage.MemoryStore(files),
        shape=shape,
        dtype=np.dtype(dtype),
        chunks=(page or rows, *rest),
        shards=(rows, *rest) if page else None,
        # One folder for each array: file systems are slow at creating and removing folders.
        chunk_key_encoding={"name": "default", "separator": "."},
        compressors=[Crc32cCodec()] if page else None,
    )
    return bytes(files["zarr.json"].to_bytes())


def _remove_own(path: str, process: int) -> None:
    """Remove a temporary folder, unless called from a copy of its owner in a forked process."""
    if os.getpid() == process:
        shutil.rmtree(path, ignore_errors=True)


class Kept:
    """Base class of records with arrays in a folder that ``scratch`` keeps alive."""

    scratch: Scratch

    def __getstate__(self) -> dict[str, Any]:
        if not self.scratch.is_temporary:
            return dict(vars(self))
        state = {
            k: v.carried(self.scratch) if isinstance(v, ArrayRef) else v
            for k, v in vars(self).items()
        }
        return {**state, "scratch": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state["scratch"] is None:
            folder = Scratch()
            state = {k: v.put(folder) if isinstance(v, Carried) else v for k, v in state.items()}
            state["scratch"] = folder
        vars(self).update(state)


def chunk_rows(n_features: int, itemsize: int) -> int:
    """Return the rows of a stored chunk: 8 to 16 MB, or a single row if that is larger.

    Parameters
    ----------
    n_features, itemsize : int
        Number of values per row, and bytes per value as stored.
    """
    return max(1, _CHUNK_BYTES // (n_features * itemsize))


_default_chunk_rows = chunk_rows  # block_rows has a parameter of this name


def block_rows(n_features: int, itemsize: int, chunk_rows: int | None = None) -> int:
    """Return the number of rows in a task's block: whole chunks, about 32 MB.

    A block is between 16 and 64 MB if the chunks are below 32 MB, and one chunk if they are larger.

    Parameters
    ----------
    n_features, itemsize : int
        Number of values per row, and bytes per value in the dtype of the kernels.
    chunk_rows : int or None, default=None
        Rows of a stored chunk. None if any row range can be read: then the chunks that `ingest`
        would write are assumed, so that the blocks, and therefore the sums, are bitwise identical
        either way.
    """
    unit = chunk_rows or _default_chunk_rows(n_features, itemsize)
    unit_bytes = unit * n_features * itemsize
    return unit * max(1, (_BLOCK_BYTES + unit_bytes // 2) // unit_bytes)


def copied_rows(n_samples: int | None, rows: int | None, usual: int) -> int:
    """Return the rows per chunk of a copy: the usual number, or a divisor of the block ``rows``.

    If no divisor is near the usual size, `check_block_rows` reports it later.
    """
    if rows is None or rows % usual == 0 or (n_samples is not None and rows >= n_samples):
        return usual
    count = -(-rows // usual)
    return usual if rows % count else rows // count


def check_block_rows(rows: int, chunk_rows: int, n_samples: int) -> None:
    """Raise ``InputError`` if blocks of ``rows`` rows would read chunks twice."""
    if rows % chunk_rows and rows < n_samples:
        raise InputError(
            f"blocks.rows must be a multiple of the {chunk_rows} rows of a chunk, or chunks are "
            f"read twice. Got {rows}; set it to {-(-rows // chunk_rows) * chunk_rows}."
        )


def block_bounds(n_samples: int, rows: int) -> list[tuple[int, int]]:
    """Return the first row and one past the last row of every block."""
    return [(start, min(start + rows, n_samples)) for start in range(0, n_samples, rows)]
