"""zarr arrays and groups, versions 2 and 3."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.core.errors import CorruptStoreError, InputError, StorageError
from bigfs.store.formats.csr_store import StoredCSR, read_dropped
from bigfs.store.formats.zarr_files import CheckedFiles, chunk_bytes, chunk_grid, missing_chunks
from bigfs.store.location import Location, as_location, zarr_store
from bigfs.store.objects import ObjectPath
from bigfs.store.records import UNFINISHED
from bigfs.store.source import RandomAccessSource, Source, check_names, check_shape, work_dtype
from bigfs.store.values import as_floats, decoding

logger = logging.getLogger("bigfs")
_SHOWN = 3
_SAID = 200
# The largest band of whole chunks that is decoded at once.
_BAND_BYTES = 256 * 10**6
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

    def __init__(self, array: Any, uri: str, member: str, attributes: dict[str, Any]) -> None:
        import zarr

        self.uri = uri
        stored = _numpy_dtype(array, uri)
        self.dtype = work_dtype(stored, uri)
        self._stored_dtype = _named_dtype(attributes.get("stored_dtype")) or stored
        check_shape(array.shape, uri)
        if 0 in (*array.chunks, *(array.shards or ())):
            raise InputError(f"{uri}: its metadata are damaged, chunks have no rows or columns.")
        self.n_samples, self.n_features = (int(size) for size in array.shape)
        self.chunk_rows = self._readable_chunk(int(array.chunks[0]))
        names = attributes.get("feature_names")
        if names is not None and not isinstance(names, list):
            raise InputError(f"{uri}: its attribute feature_names must be a list of texts.")
        self.feature_names = None if names is None else [str(name) for name in names]
        check_names(self.feature_names, self.n_features, uri)
        self.checked = member == "X" and "bigfs_store" in attributes
        if self.checked:
            self.n_samples = self._committed(attributes)
        self.index = attributes.get("index") if self.checked else None
        self.grid = attributes.get("grid") if self.checked else None
        self._dropped = attributes.get("dropped", ()) if self.checked else ()
        self.sources = attributes.get("sources", ()) if self.checked else ()
        self.held_bytes = 0 if self.checked else self._decoded_bytes(array)
        self._prefix = f"{member}/" if member else ""
        self._array = array
        store = array.store_path.store
        self.shareable = not isinstance(store, zarr.storage.MemoryStore)
        self._path = self._stamp = None
        if type(store) in (zarr.storage.LocalStore, CheckedFiles):
            folder = Path(store.root).absolute() / array.store_path.path
            self._path, self._stamp = str(folder), _stamp(folder)
            CheckedFiles(folder).expect(array)
            self._check_chunks(missing_chunks(array, folder))
            self._array = None  # opened again so that chunks are looked at before they are read
        elif isinstance(getattr(store, "path", None), ObjectPath):
            place = store.path / array.store_path.path if array.store_path.path else store.path
            self._path, self._stamp = str(place), _stamp(place)
            self._check_chunks(missing_chunks(array, place))
            self._array = None  # opened again so that a chunk that vanishes later is an error

    def _committed(self, attributes: dict[str, Any]) -> int:
        """Return the rows that count; more of them may just be appended."""
        rows = attributes.get("n_samples", self.n_samples)
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

    def _readable_chunk(self, rows: int) -> int | None:
        """Return the rows of a chunk, None if a band of such chunks is too large for a block."""
        if min(rows, self.n_samples) * self.n_features * self.dtype.itemsize <= _BAND_BYTES:
            return rows
        logger.warning(
            "%s: chunks of %d rows are larger than a block and are decoded again for each one. "
            "To read every chunk once, bring it into a store first: bigfs ingest.",
            self.uri, rows,
        )  # fmt: skip
        return None

    def _decoded_bytes(self, array: Any) -> int:
        """Return the bytes to decode beyond a block: a band of chunks, and some of them packed."""
        band = min(int(array.chunks[0]), self.n_samples) * self.n_features * array.dtype.itemsize
        bands, across = chunk_grid(array)
        at_once = min(_DECODED_AT_ONCE, min(bands, max(1, _READ_BYTES // band)) * across)
        beside = 2 * at_once * chunk_bytes(array) + (0 if self.chunk_rows is None else 2 * band)
        return max(0, beside - _USUAL_BYTES)

    @property
    def stored_dtype(self) -> np.dtype:
        """Type of the array; of a store that bigfs wrote, that of what it was made from."""
        return self._stored_dtype

    @property
    def dropped(self) -> Sequence[int]:  # type: ignore[override]
        """Rows of the original that an ingest left out."""
        return read_dropped(self._dropped, as_location(str(self._path)).parent)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return rows ``start`` to ``stop``."""
        if self._array is None:
            self._array = _open_array(str(self._path), self._stamp, self.checked)
        if self.checked and self._path is not None and "://" not in self._path:
            self._check_range(start, stop)
        cure = "Ingest the source again, then run 'bigfs inspect --verify'."
        with decoding(f"{self.uri}: rows {start} to {stop}", cure):
            rows = self._rows(start, stop)
        return as_floats(rows, self.dtype, self.uri, start)

    def iter_index(self) -> Iterator[list[str]]:
        """Yield the ids of the rows that an ingest kept, chunk by chunk."""
        if self.index is None or self._path is None:
            return
        yield from self.read_index(0, self.n_samples)

    def read_index(self, start: int, stop: int) -> Iterator[list[str]]:
        """Yield the ids of rows ``start`` to ``stop`` of a store that has them, chunk by chunk."""
        import zarr

        place = as_location(str(self._path)).parent / "index"
        ids = zarr.open_array(zarr_store(place), mode="r")
        for at in range(start, stop, ids.chunks[0]):
            yield [str(text) for text in np.asarray(ids[at : min(at + ids.chunks[0], stop)])]

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
        chunk = self.chunk_rows or 1
        band = max(rows, chunk) // chunk * chunk
        for start in range(0, self.n_samples, band):
            block = self.read(start, min(start + band, self.n_samples))
            for first in range(0, len(block), rows):
                yield block[first : first + rows]

    def _check_range(self, start: int, stop: int) -> None:
        """Raise if a chunk has vanished since the array was opened; it would read as zeros."""
        rows = int(self._array.chunks[0])
        keys = [
            self._array.metadata.encode_chunk_key((i, 0))
            for i in range(start // rows, -(-stop // rows))
        ]
        self._check_chunks([key for key in keys if not (Path(str(self._path)) / key).is_file()])

    def _check_chunks(self, missing: list[str]) -> None:
        """Raise for missing chunks of our own stores, and warn of those of others."""
        if not missing:
            return
        keys = ", ".join(self._prefix + key for key in missing[:_SHOWN])
        if len(missing) > _SHOWN:
            keys += ", ..."
        which = f"chunk {keys} is" if len(missing) == 1 else f"chunks {keys} are"
        total = int(np.prod(chunk_grid(self._array)))
        if self.checked:
            raise CorruptStoreError(
                f"{self.uri}: {which} missing ({len(missing)} of {total}) and would read as "
                "zeros. Ingest the source again, then run 'bigfs inspect --verify'."
            )
        logger.warning(
            "%s: %s not stored (%d of %d) and read as the fill value %s.",
            self.uri, which, len(missing), total, self._array.fill_value,
        )  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if self._path is not None:
            state["_array"] = None
        # 50,000 names are a megabyte, and no task needs them.
        state["feature_names"] = None
        state["_dropped"] = ()
        return state


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


def _stamp(folder: Location) -> int | str | None:
    """Return the time of the metadata: another array at the same path has another."""
    if isinstance(folder, ObjectPath):
        names = [name for name in ("zarr.json", ".zarray") if (folder / name).is_file()]
        return (folder / names[0]).stat().e_tag if names else None
    for name in ("zarr.json", ".zarray"):
        if (folder / name).exists():
            return (folder / name).stat().st_mtime_ns
    return 0


@lru_cache(maxsize=16)
def _open_array(path: str, stamp: int | str | None, strict: bool) -> Any:
    """Open an array once per process; the stamp tells arrays at the same path apart."""
    import zarr

    try:
        if "://" in path:
            return zarr.open_array(zarr_store(path, strict=strict), mode="r")
        files = CheckedFiles(path)
        array = zarr.open_array(files, mode="r")
        files.expect(array)
        return array
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(
            f"{path} cannot be opened by this process: {error}. Every worker needs the path."
        ) from error


def list_arrays(folder: Location) -> list[tuple[str, tuple[int, ...], str]]:
    """Return name, shape and type of the arrays of a group; none where it is no group."""
    import zarr

    try:
        group = zarr.open_group(zarr_store(folder), mode="r")
        return [(name, array.shape, str(array.dtype)) for name, array in group.arrays()]
    except Exception:  # zarr has no one error for what it cannot open
        return []


def _folder_of(node: Any) -> Location | None:
    """Return where an array or group is, so that a task can open it; None if only here."""
    import zarr

    store = node.store_path.store
    place: Location
    if type(store) in (zarr.storage.LocalStore, CheckedFiles):
        place = Path(store.root).absolute()
    elif isinstance(getattr(store, "path", None), ObjectPath):
        place = store.path
    else:
        return None
    return place / node.store_path.path if node.store_path.path else place


def _open_csr(group: Any, uri: str) -> StoredCSR:
    """Open a store of CSR blocks, which its tasks open again by its place."""
    place = _folder_of(group)
    if place is None:
        raise InputError(f"{uri}: a sparse store is read from a folder or a bucket. Give its path.")
    return StoredCSR(place, dict(group.attrs))


@dataclass(frozen=True)
class ZarrPlace:
    """The place of an array or group that a process opens when it reads."""

    path: str

    @contextmanager
    def open(self) -> Iterator[ZarrPlace]:
        """Return the group, whose arrays are its items."""
        yield self

    def warn_of_missing(self, names: Sequence[str]) -> None:
        """Say which arrays have chunks that are not there."""
        for name in names:
            missing = missing_chunks(self[name], as_location(self.path) / name)
            if missing:
                logger.warning(
                    "%s: %d chunks of %s (%s, ...) are not stored and read as zeros.",
                    self.path, len(missing), name, missing[0],
                )  # fmt: skip

    def __getitem__(self, name: str) -> Any:
        folder = as_location(self.path) / name
        return _open_array(str(folder), _stamp(folder), False)


def _open_annotated(group: Any, layer: str | None, uri: str) -> Source:
    """Open a matrix of an AnnData."""
    from bigfs.store.formats.annotated import open_stored
    from bigfs.store.formats.parts import OpenPlace

    folder = _folder_of(group)

    def place(name: str) -> Any:
        return OpenPlace(group[name]) if folder is None else ZarrPlace(str(folder / name))

    try:
        source = open_stored(group.get, place, uri, layer)
    except (InputError, StorageError):
        raise
    except Exception as error:  # zarr has no one error for damaged metadata
        raise _damaged(uri, error) from None
    return source


def _open_array_of(
    array: Any, uri: str, member: str, attributes: dict[str, Any], group: Any, cube: dict[str, Any]
) -> Source:
    """Open a matrix, or an array of more dimensions, with the coordinates in its group."""
    if len(array.shape) < 3 and not cube:
        return ZarrSource(array, uri, member, attributes)
    from bigfs.store.formats.cube import CubeSource, names_of_dimensions
    from bigfs.store.formats.parts import OpenPlace

    dims = names_of_dimensions(array)
    named = [name for name in dims or () if group is not None and name in group]
    coordinates = {name: np.asarray(group[name][...]) for name in named if group[name].ndim == 1}
    folder = _folder_of(array)
    if folder is None:
        return CubeSource(uri, OpenPlace(array), dims, cube.get("features"), coordinates,
                          dict(array.attrs), cube.get("no_data"))  # fmt: skip
    missing = missing_chunks(array, folder)
    if missing:
        logger.warning(
            "%s: %d chunks (%s, ...) are not stored and read as the fill value %s.",
            uri, len(missing), missing[0], array.fill_value,
        )  # fmt: skip
    place = ZarrMember(str(folder))
    return CubeSource(
        uri, place, dims, cube.get("features"), coordinates, dict(array.attrs), cube.get("no_data")
    )


@dataclass(frozen=True)
class ZarrMember:
    """The place of an array that a process opens when it reads."""

    path: str

    @contextmanager
    def open(self) -> Iterator[Any]:
        """Open the array."""
        yield _open_array(self.path, _stamp(as_location(self.path)), False)


def open_zarr(
    node: Any,
    variable: str | None,
    uri: str | None = None,
    layer: str | None = None,
    **cube: Any,
) -> Source:
    """Open a zarr array, ``X`` (or ``variable``) of a group, a store of CSR blocks, an AnnData.

    ``features`` and ``no_data`` are those of a `CubeSource`.
    """
    import zarr

    uri = uri or str(node.store_path).removeprefix("file://")
    if isinstance(node, zarr.Array):
        if variable is not None:
            raise InputError(f"{uri} holds one matrix; variable must be None. Got {variable!r}.")
        return _open_array_of(node, uri, "", _attributes(node, uri), None, cube)
    if not isinstance(node, zarr.Group):
        raise InputError(f"{uri}: only zarr arrays and groups are read. Got {type(node).__name__}.")
    if layer is not None and variable is not None:
        raise InputError(f"{uri}: give a layer or a variable, not both.")
    attributes = _attributes(node, uri)
    if variable is None and (layer is not None or attributes.get("encoding-type") == "anndata"):
        return _open_annotated(node, layer, uri)
    name, members = variable or _only_matrix(node), "no arrays"
    if "bigfs_store" in attributes and "csr" in attributes and name == "X":
        return _open_csr(node, uri)
    try:
        member = node.get(name)
    except StorageError:
        raise
    except Exception as error:  # zarr has no one error for damaged metadata
        raise _damaged(uri, error) from None
    if not isinstance(member, zarr.Array):
        with warnings.catch_warnings(), suppress(Exception):
            warnings.simplefilter("ignore")  # zarr warns of other files in the folder
            members = ", ".join(sorted(node.array_keys())) or members
        raise InputError(
            f"{uri} is a zarr group without an array {name!r}. It has {members}; name one with "
            "variable= (--variable)."
        )
    return _open_array_of(member, uri, name, attributes, node, cube)


def _only_matrix(group: Any) -> str:
    """Return the name of the array to read: ``X``, or the only one of two dimensions or more."""
    with warnings.catch_warnings(), suppress(Exception):
        warnings.simplefilter("ignore")  # zarr warns of other files in the folder
        if "X" not in group:
            large = [name for name, array in group.arrays() if array.ndim > 1]
            return large[0] if len(large) == 1 else "X"
    return "X"


def _attributes(node: Any, uri: str) -> dict[str, Any]:
    try:
        return dict(node.attrs)
    except Exception as error:  # as of their type, of which zarr checks nothing
        raise _damaged(uri, error) from None


def _damaged(uri: str, error: Exception) -> InputError:
    reason = f"{type(error).__name__}: {error}"[:_SAID]
    return InputError(f"{uri} is a damaged zarr folder ({reason}). Write it again.")


def open_file(
    path: Location, variable: str | None, layer: str | None = None, **cube: Any
) -> Source:
    """Open a zarr folder."""
    import zarr

    if isinstance(path, ObjectPath) and (path / UNFINISHED).is_file():
        raise InputError(
            f"{path} is not finished: its ingest still runs, or was cut off. Wait for it, or "
            "ingest again with --overwrite."
        )
    try:
        node = zarr.open(
            CheckedFiles(path) if isinstance(path, Path) else zarr_store(path), mode="r"
        )
    except StorageError:
        raise
    except Exception as error:  # zarr has no one error for folders that are something else
        known = any((path / name).exists() for name in ("zarr.json", ".zarray", ".zgroup"))
        if not known:
            raise InputError(f"{path} is a folder, but no zarr array or group.") from None
        raise _damaged(str(path), error) from None
    return open_zarr(node, variable, str(path), layer, **cube)
