"""Rows of zarr arrays, versions 2 and 3, and the places by which processes open them."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from bigfs.core.errors import CorruptStoreError, InputError, StorageError
from bigfs.core.units import format_bytes
from bigfs.store.formats.csr_store import read_dropped
from bigfs.store.formats.parts import PARTS, StoredTexts
from bigfs.store.formats.zarr_files import (
    MOST_ANNOUNCED,
    UNCOUNTED_BYTES,
    CheckedFiles,
    CheckedZip,
    checked_store,
    chunk_bytes,
    chunk_grid,
    expect,
    missing_chunks,
    zip_of,
)
from bigfs.store.location import Location, as_location
from bigfs.store.objects import ObjectPath
from bigfs.store.source import (
    PLAIN_TYPES,
    RandomAccessSource,
    check_names,
    check_shape,
    work_dtype,
)
from bigfs.store.values import as_floats, decoding

logger = logging.getLogger("bigfs")
_SHOWN = 3
# Each chunk that is read at once takes some kilobytes beside its content.
_CHUNKS_AT_ONCE = 10_000
# Chunks that zarr reads at once are all there packed and unpacked, beside the block.
_READ_BYTES = 32 * 10**6
# Chunks that zarr decodes at once, and what the usual ones take within what an ingest needs.
_DECODED_AT_ONCE = 10
_USUAL_BYTES = 72 * 10**6


class ZarrSource(RandomAccessSource):
    """A two-dimensional zarr array of numbers.

    An array in a local folder or a bucket pickles to its address and metadata, and is opened
    again where it is unpickled; an array on another store is kept as an object.
    """

    chunk_rows: int

    def __init__(self, array: Any, uri: str, member: str, attributes: dict[str, Any]) -> None:
        import zarr

        self.uri = uri
        stored = _numpy_dtype(array, uri)
        self.dtype = work_dtype(stored, uri)
        self._stored = _named_dtype(attributes.get("stored_dtype")) or stored
        check_shape(array.shape, uri)
        if 0 in (*array.chunks, *(array.shards or ())):
            raise InputError(f"{uri}: its metadata are damaged, chunks have no rows or columns.")
        self.n_samples, self.n_features = (int(size) for size in array.shape)
        self.chunk_rows = int(array.chunks[0])
        names = attributes.get("feature_names")
        if names is not None and not isinstance(names, list):
            raise InputError(f"{uri}: its attribute feature_names must be a list of texts.")
        self.feature_names = None if names is None else [str(name) for name in names]
        check_names(self.feature_names, self.n_features, uri)
        self.checked = member == "X" and "bigfs_store" in attributes
        if self.checked:
            self.n_samples = self._committed(attributes)
        ours = attributes if self.checked else {}
        self.index, self.grid = ours.get("index"), ours.get("grid")
        types = ours.get("column_types")
        if isinstance(types, dict):
            self.column_types = {n: t for n, t in types.items() if t in PLAIN_TYPES}
        self._dropped, self.sources = ours.get("dropped", ()), ours.get("sources", ())
        self.held_bytes = 0 if self.checked else self._decoded_bytes(array)
        self._array, self._path, self._stamp = array, None, None
        self.shareable = not isinstance(array.store_path.store, zarr.storage.MemoryStore)
        folder = folder_of(array)
        if folder is not None:
            self._path, self._stamp = str(folder), _stamp(folder)
            if self.index is not None:
                self.ids = StoredTexts(partial(open_rows, str(folder.parent / "index"), True))
            expect(array)
            check_chunks(array, uri, member, ours=self.checked)
            self._array = None  # opened again so that chunks are looked at when they are read

    def _committed(self, attributes: dict[str, Any]) -> int:
        """Return the rows that count; more of them may just be appended."""
        rows = attributes.get("n_samples")
        if type(rows) is not int or not 2 <= rows <= self.n_samples:
            raise CorruptStoreError(
                f"{self.uri}: its metadata are damaged, {rows!r} of {self.n_samples} rows count. "
                "Ingest the source again."
            )
        if rows < self.n_samples:
            logger.warning(
                "%s: of its %d rows %d count; an append was cut off, or another program added the "
                "others. 'bigfs ingest --append' adds rows.",
                self.uri, self.n_samples, rows,
            )  # fmt: skip
        return rows

    @property
    def band_bytes(self) -> int:
        """Size of the chunks beside each other."""
        return min(self.chunk_rows, self.n_samples) * self.n_features * self.dtype.itemsize

    def _decoded_bytes(self, array: Any) -> int:
        """Return the bytes to decode beyond a block: a band of chunks, and some of them packed."""
        band = min(int(array.chunks[0]), self.n_samples) * self.n_features * array.dtype.itemsize
        bands, across = chunk_grid(array)
        at_once = min(_DECODED_AT_ONCE, min(bands, max(1, _READ_BYTES // band)) * across)
        beside = 2 * at_once * chunk_bytes(array) + 2 * band
        return max(0, beside - _USUAL_BYTES)

    @property
    def dropped(self) -> Sequence[int]:  # type: ignore[override]
        """Rows of the original that an ingest left out."""
        return read_dropped(self._dropped, as_location(str(self._path)).parent)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return rows ``start`` to ``stop``."""
        if self._array is None:
            self._array = _open_array(str(self._path), self._stamp, self.checked)
        cure = "Ingest the source again, then run 'bigfs inspect --verify'."
        with decoding(f"{self.uri}: rows {start} to {stop}", cure):
            rows = self._rows(start, stop)
        return as_floats(rows, self.dtype, self.uri, start)

    def _rows(self, start: int, stop: int) -> np.ndarray:
        """Return rows as they are stored; a limited number of chunks is read at a time."""
        from zarr.core.buffer import default_buffer_prototype

        array, wrap = self._array, default_buffer_prototype().nd_buffer.from_numpy_array
        chunk, grid = int(array.chunks[0]), chunk_grid(array)
        band = max(1, chunk * array.shape[1] * array.dtype.itemsize)
        step = max(1, min(_CHUNKS_AT_ONCE // grid[1], _READ_BYTES // band)) * chunk
        rows = np.empty((stop - start, array.shape[1]), array.dtype)
        bounds = [start, *range(start // step * step + step, stop, step), stop]
        for a, b in pairwise(bounds):
            array.get_basic_selection(slice(a, b), out=wrap(rows[a - start : b - start]))
        return rows

    def iter_blocks(self, rows: int) -> Iterator[np.ndarray]:
        """Yield consecutive arrays of at most ``rows`` rows; chunks are decoded once."""
        band = max(rows, self.chunk_rows) // self.chunk_rows * self.chunk_rows
        for start in range(0, self.n_samples, band):
            block = self.read(start, min(start + band, self.n_samples))
            for first in range(0, len(block), rows):
                yield block[first : first + rows]

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return state if self._path is None else {**state, "_array": None}

    # 50,000 names are a megabyte.
    beside_tasks = MappingProxyType({"feature_names": None, "_dropped": ()})


def _named_dtype(name: Any) -> np.dtype | None:
    """Return the type of numbers that an attribute names, None if it names none."""
    try:
        dtype = np.dtype(name) if isinstance(name, str) else None
    except (TypeError, ValueError, SyntaxError):  # NumPy reads a number of fields from it
        return None
    return dtype if dtype is not None and dtype.kind in "fiub" else None


def _numpy_dtype(array: Any, uri: str) -> np.dtype:
    try:
        return np.dtype(array.dtype)
    except TypeError:
        raise InputError(f"{uri}: values must be real numbers. Got {array.dtype}.") from None


def _stamp(folder: Location) -> tuple[int, int] | str | None:
    """Return time and number of the file of metadata: another array at the path has others."""
    archive = zip_of(folder)
    for place in (folder / "zarr.json", folder / ".zarray") if archive is None else (archive,):
        if place.is_file():
            status: Any = place.stat()
            remote = isinstance(place, ObjectPath)
            return status.e_tag if remote else (status.st_mtime_ns, status.st_ino)
    return None


@lru_cache(maxsize=16)
def _open_array(path: str, stamp: tuple[int, int] | str | None, strict: bool) -> Any:
    """Open an array once per process; the stamp tells arrays at the same path apart."""
    import zarr

    try:
        store, inside = checked_store(as_location(path), strict)
        array = zarr.open_array(store, path=inside, mode="r")
        expect(array)
        return array
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(
            f"{path} cannot be opened by this process: {error}. Every worker needs the path."
        ) from error


def folder_of(node: Any) -> Location | None:
    """Return where an array or group is, so that a task can open it; None if only here."""
    import zarr

    store = node.store_path.store
    place: Location
    # Another class of store is somebody's own.
    if type(store) in (zarr.storage.LocalStore, CheckedFiles):
        place = Path(store.root).absolute()
    elif type(store) in (zarr.storage.ZipStore, CheckedZip):
        place = Path(store.path).absolute()
    elif isinstance(getattr(store, "path", None), ObjectPath):
        place = store.path
    else:
        return None
    return place / node.store_path.path if node.store_path.path else place


def check_chunks(array: Any, uri: str, member: str = "", *, ours: bool = False) -> None:
    """Raise for missing chunks of our own stores, and warn of those of others.

    Raises
    ------
    CorruptStoreError
        Also for a large array of somebody else of which next to nothing is stored.
    """
    folder = folder_of(array)
    missing = [] if folder is None else missing_chunks(array, folder)
    if not missing:
        return
    prefix = f"{member}/" if member else ""
    keys = ", ".join(prefix + key for key in missing[:_SHOWN])
    keys += ", ..." if len(missing) > _SHOWN else ""
    which = f"chunk {keys} is" if len(missing) == 1 else f"chunks {keys} are"
    total = math.prod(chunk_grid(array))
    if ours:
        raise CorruptStoreError(
            f"{uri}: {which} missing ({len(missing)} of {total}) and would read as zeros. Ingest "
            "the source again, then run 'bigfs inspect --verify'."
        )
    stored = total - len(missing)
    if array.nbytes > UNCOUNTED_BYTES and total > MOST_ANNOUNCED * stored:
        raise CorruptStoreError(
            f"{uri} announces {format_bytes(array.nbytes)} and stores {stored} of {total:,} "
            "chunks. It is damaged, or was never filled. Write it again."
        )
    logger.warning(
        "%s: %s not stored (%d of %d) and read as the fill value %s.",
        uri, which, len(missing), total, array.fill_value,
    )  # fmt: skip


@contextmanager
def open_rows(path: str, strict: bool = False) -> Iterator[Any]:
    """Open an array, for a process that reads it; strict: a missing chunk is an error."""
    yield _open_array(path, _stamp(as_location(path)), strict)


@contextmanager
def open_parts(path: str) -> Iterator[dict[str, Any]]:
    """Open the arrays of a sparse matrix."""
    places = {name: f"{path}/{name}" for name in PARTS}
    yield {n: _open_array(p, _stamp(as_location(p)), False) for n, p in places.items()}
