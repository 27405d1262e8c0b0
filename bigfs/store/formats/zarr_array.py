"""zarr arrays and groups, versions 2 and 3, in folders, .zip files, buckets, or as objects."""

from __future__ import annotations

import logging
import math
from base64 import b64decode
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import zarr
from zarr.core.buffer import default_buffer_prototype

from bigfs.core.errors import CorruptStoreError, InputError
from bigfs.core.paths import SOURCE
from bigfs.core.threads import ignoring_warnings
from bigfs.core.units import format_bytes
from bigfs.store.fingerprint import Watch
from bigfs.store.formats import xarrays, zarr_stores
from bigfs.store.formats.csr_store import StoredCSR, read_dropped
from bigfs.store.formats.cube import DECODED_AT_ONCE, CubeSource, Place, names_of_dimensions
from bigfs.store.formats.parts import PARTS, ArrayByRows, StoredTexts, in_blocks, open_here
from bigfs.store.location import METADATA_BYTES, Location, as_location
from bigfs.store.objects import ObjectPath
from bigfs.store.records import UNFINISHED
from bigfs.store.source import (
    PLAIN_TYPES,
    Options,
    Source,
    check_names,
    check_no_variable,
    choose_member,
    no_column,
)
from bigfs.store.values import refusing, storing

logger = logging.getLogger("bigfs")
# Largest band of whole row chunks that is decoded at once.
_BAND_BYTES = 256 * 10**6
_SHOWN = 3
# Upper bound: each chunk of a read takes some kilobytes in addition to its content.
_CHUNKS_AT_ONCE = 10_000
# Size of a read: zarr holds all chunks of a read, both compressed and decompressed, in addition to
# the block.
_READ_BYTES = 32 * 10**6
# Memory for chunks of usual sizes, which the estimate for an ingest already includes.
_USUAL_BYTES = 72 * 10**6


def preview(path: Location) -> list[tuple[str, tuple[int, ...], str]]:
    """Return name, shape and type of the arrays of a group.

    The list is empty if the path is not a group or cannot be opened.
    """
    try:
        return [(name, a.shape, str(a.dtype)) for name, a in _arrays(open_node(path)).items()]
    except Exception:  # zarr has no common error for what it cannot open
        return []


def read_column(path: Location, name: str, rows: Collection[str] = ()) -> Any:
    """Return an array by its name, or a column of ``obs`` of an AnnData.

    Without a name, ``y`` of a group is returned. The name `SOURCE` returns the number of the source
    of each row, if a store has several. ``rows`` are the dimensions of the rows that the values
    belong to, if known.
    """
    node = open_node(path)
    if _is_annotated(node):
        from bigfs.store.formats import annotated

        return annotated.read_column(path, name)
    is_group = hasattr(node, "group_keys")
    if is_group and name == SOURCE and "sources" in node.attrs:
        counts = [count for _, count in node.attrs["sources"]]
        return np.repeat(np.arange(len(counts)), np.array(counts, dtype=np.int64))
    arrays = _arrays(node) if is_group else {}
    if is_group and (name or "y") not in arrays:
        raise no_column(str(path), name or "y", arrays)
    array = arrays[name or "y"] if is_group else node
    zarr_stores.expect(array)
    others = [names_of_dimensions(other) for other in arrays.values()]
    dims, uri = names_of_dimensions(array), f"{path}::{name}" if name else str(path)
    return xarrays.read_labels(array, dims, _attributes(array) if dims else {}, others, rows, uri)


def open_zarr(
    node: Any,
    variable: str | None,
    uri: str | None = None,
    layer: str | None = None,
    **cube: Any,
) -> Source:
    """Open a zarr array, ``X`` (or ``variable``) of a group, a store of CSR blocks or an AnnData.

    ``cube`` has ``features`` and ``no_data`` of a `CubeSource`, if given.
    """
    uri = uri or str(node.store_path).removeprefix("file://")
    if isinstance(node, zarr.Array):
        check_no_variable(uri, variable)
        with refusing(f"{uri} is a damaged zarr folder", Exception):
            attributes = dict(node.attrs)
        return open_array(node, uri, attributes=attributes, **cube)
    if not isinstance(node, zarr.Group):
        raise InputError(f"{uri}: only zarr arrays and groups are read. Got {type(node).__name__}.")
    with refusing(f"{uri} is a damaged zarr folder", Exception):
        attributes = dict(node.attrs)
        if _is_annotated(node):
            from bigfs.store.formats.annotated import AnnotatedTree, open_stored

            folder = folder_of(node)
            tree = AnnotatedTree(node, None if folder is None else str(folder), uri)
            return open_stored(tree, variable, layer)
        if layer is not None:
            raise InputError(f"{uri} is not an AnnData and has no layers. Remove layer {layer!r}.")
        if variable in (None, "X") and "bigfs_store" in attributes and "csr" in attributes:
            place = folder_of(node)
            if place is None:
                raise InputError(f"{uri}: a sparse store is read from a folder. Give its path.")
            return StoredCSR(place, attributes)
        arrays = _arrays(node)
        beside = xarrays.named_beside(array.attrs for array in arrays.values())
        large = [n for n, array in arrays.items() if array.ndim > 1 and n not in beside]
        name = choose_member(uri, sorted(arrays), large, variable)
        group = node[name.rpartition("/")[0]] if "/" in name else node
        return open_array(arrays[name], uri, name, attributes, group, **cube)


def open_array(
    array: Any,
    uri: str,
    member: str = "",
    attributes: Mapping[str, Any] = MappingProxyType({}),
    group: Any = None,
    **cube: Any,
) -> Source:
    """Open an array, with the feature names that its group has.

    Parameters
    ----------
    array : zarr.Array
    uri : str
    member : str, default=""
        Name of the array in the store.
    attributes : mapping, default={}
        Attributes of the store.
    group : zarr.Group or None, default=None
        Group that contains the array, if known.
    **cube
        ``features`` and ``no_data`` of a `CubeSource`, if given.
    """
    dims, folder = names_of_dimensions(array), folder_of(array)
    as_matrix = array.ndim < 3 and not cube
    ours = "bigfs_store" in attributes and member == "X"
    place: Place = partial(open_here, array)
    if folder is not None:
        place = partial(open_rows, str(folder))
    source: CubeSource | None = None
    if dims is not None and not ours and as_matrix <= (array.ndim > 1):
        source = _described(array, uri, member, group, dims, place, cube)
    if as_matrix and (source is None or source.is_plain):
        names = None if source is None else source.feature_names
        with_names = attributes if names is None else {**attributes, "feature_names": names}
        matrix = ZarrSource(array, uri, member, dict(with_names))
        n_values = min(matrix.chunk_rows, matrix.n_samples) * matrix.n_features  # values of a band
        if ours or matrix.chunk_rows == 1 or n_values * matrix.dtype.itemsize <= _BAND_BYTES:
            return matrix
    if folder is not None:
        zarr_stores.expect(array)
        check_chunks(array, uri)
    return source or CubeSource(uri, place, dims, **cube)


def _described(
    array: Any, uri: str, member: str, group: Any, dims: list[str], place: Place,
    cube: Mapping[str, Any],
) -> CubeSource | None:  # fmt: skip
    """Open an array that follows xarray's conventions; return None if it does not."""
    attributes, name = _attributes(array), member.rpartition("/")[2]
    beside = {} if group is None else dict(group.arrays())
    along = [d for d in dims if d in beside and beside[d].nbytes <= METADATA_BYTES]
    if not xarrays.is_described(attributes, bool(along)):
        return None
    if not beside:
        return xarrays.decoded(uri, place, dims, attributes, **cube)
    for dim in along:
        zarr_stores.expect(beside[dim])
    others = [other for other in beside if other != name and other not in along]
    return xarrays.open_described(
        uri, array.store_path.store, array.path, place, others, cube,
        engine="zarr", consolidated=False,
    )  # fmt: skip


def _attributes(array: Any) -> dict[str, Any]:
    """Return the attributes of an array as xarray wrote them."""
    attributes = dict(array.attrs)
    filled = attributes.get("_FillValue")
    # In version 2 xarray uses the fill value of the array as the one for missing values; in
    # version 3 it encodes that of floats in base64.
    if array.metadata.zarr_format == 2 and array.fill_value is not None:
        attributes["_FillValue"] = array.fill_value
    elif isinstance(filled, str) and array.dtype.kind == "f":
        with suppress(ValueError):
            attributes["_FillValue"] = np.frombuffer(b64decode(filled), "<f8")[0]
    return attributes


def _arrays(group: Any) -> dict[str, Any]:
    """Return the arrays of a group and its subgroups by name; empty for an array."""
    if not hasattr(group, "group_keys"):
        return {}
    with ignoring_warnings():  # zarr warns about other files in the folder
        nodes = sorted(group.members(max_depth=None))
    return {name: node for name, node in nodes if hasattr(node, "shape")}


def _is_annotated(node: Any) -> bool:
    """Return True if a node is the group of an AnnData or a MuData."""
    if not hasattr(node, "group_keys"):
        return False
    kind = node.attrs.get("encoding-type")
    return kind in ("anndata", "MuData") or kind is None and "obs" in node and "var" in node


def open_node(path: Location) -> Any:
    """Open the array or group at a path: a folder, a .zip of one, or a folder in a bucket.

    Raises
    ------
    InputError
        If there is none, or its metadata is damaged.
    """
    store, inside = zarr_stores.checked_store(path)
    with refusing(f"{path} is a damaged zarr folder", Exception):
        if not inside and isinstance(store, zarr.storage.ZipStore):
            tops = {name.partition("/")[0] for name in store._zf.namelist()}
            inside = "" if not tops.isdisjoint(zarr_stores.METADATA) else min(tops, default="")
        try:
            return zarr.open(store, path=inside, mode="r")
        except FileNotFoundError:
            raise InputError(
                f"{path} is a folder, but not a zarr array or group. Give files in it by a "
                f"pattern, such as '{path}/*.h5ad'."
            ) from None


def open_file(
    path: Location, variable: str | None, layer: str | None = None, **cube: Any
) -> Source:
    """Open a zarr array or group at a path.

    Raises
    ------
    InputError
        If its ingest into a bucket is not finished.
    """
    if isinstance(path, ObjectPath) and (path / UNFINISHED).is_file():
        raise InputError(
            f"{path} is not finished: its ingest is still running, or was interrupted. Wait for "
            "it, or ingest again with --overwrite."
        )
    return open_zarr(open_node(path), variable, str(path), layer, **cube)


def open_object(node: Any, options: Options) -> Source:
    """Open a zarr array or group that is given as an object."""
    source = open_zarr(node, options.variable, **options.settings)
    folder = folder_of(node)
    if source.watch is None and isinstance(folder, Path):
        source.watch = Watch(folder)  # another array may be stored at its path later
    return source


class ZarrSource(ArrayByRows):
    """Two-dimensional zarr array of numbers.

    An array in a local folder or a bucket is pickled as its address and metadata, and is reopened
    after unpickling. An array in another kind of store is pickled as an object.
    """

    chunk_rows: int
    _cure = "Ingest the source again, then run 'bigfs inspect --verify'."

    def __init__(self, array: Any, uri: str, member: str, attributes: dict[str, Any]) -> None:
        super().__init__(partial(open_here, array), uri)
        self._stored = _named_dtype(attributes.get("stored_dtype")) or self._stored
        zarr_stores.expect(array)
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
        self.shareable = not isinstance(array.store_path.store, zarr.storage.MemoryStore)
        self._folder = folder = folder_of(array)
        if folder is not None:
            if self.index is not None:
                self.ids = StoredTexts(partial(open_rows, str(folder.parent / "index"), True))
            check_chunks(array, uri, member, ours=self.checked)
            # The array is reopened by a store that checks chunks when they are read.
            self._place = partial(open_rows, str(folder), self.checked, _stamp(folder))

    def _committed(self, attributes: dict[str, Any]) -> int:
        """Return the number of committed rows; an append may be adding more."""
        rows = attributes.get("n_samples")
        if type(rows) is not int or not 2 <= rows <= self.n_samples:
            raise CorruptStoreError(
                f"{self.uri}: its metadata are damaged, n_samples is {rows!r}, but X has "
                f"{self.n_samples} rows. Ingest the source again."
            )
        if rows < self.n_samples:
            logger.warning(
                "%s: of its %d rows, only the first %d are used; an append was interrupted, or "
                "another program added the others. Use 'bigfs ingest --append' to add rows.",
                self.uri, self.n_samples, rows,
            )  # fmt: skip
        return rows

    def _decoded_bytes(self, array: Any) -> int:
        """Return the bytes needed to decode chunks, in addition to a block of rows.

        They hold a band of chunks, and the chunks that are decompressed at once, both counted
        twice. The bytes that chunks of usual sizes need are subtracted.
        """
        size = int(array.dtype.itemsize)
        band = min(int(array.chunks[0]), self.n_samples) * self.n_features * size
        bands, across = zarr_stores.chunk_grid(array)
        at_once = min(DECODED_AT_ONCE, min(bands, max(1, _READ_BYTES // band)) * across)
        beside = 2 * at_once * math.prod(array.chunks) * size + 2 * band
        return max(0, beside - _USUAL_BYTES)

    @property
    def dropped(self) -> Sequence[int]:  # type: ignore[override]
        """Rows of the original that an ingest left out."""
        return read_dropped(self._dropped, as_location(str(self._folder)).parent)

    def _stored_rows(self, array: Any, start: int, stop: int) -> np.ndarray:
        """Return rows as stored, reading a limited number of chunks at a time."""
        wrap = default_buffer_prototype().nd_buffer.from_numpy_array
        chunk, grid = int(array.chunks[0]), zarr_stores.chunk_grid(array)
        band = max(1, chunk * array.shape[1] * array.dtype.itemsize)
        step = max(1, min(_CHUNKS_AT_ONCE // grid[1], _READ_BYTES // band)) * chunk
        rows = np.empty((stop - start, array.shape[1]), array.dtype)
        bounds = [start, *range(start // step * step + step, stop, step), stop]
        for a, b in pairwise(bounds):
            array.get_basic_selection(slice(a, b), out=wrap(rows[a - start : b - start]))
        return rows

    def iter_rows(self, rows: int) -> Iterator[np.ndarray]:
        """Yield consecutive arrays of at most ``rows`` rows, decoding each chunk once."""
        band = max(rows, self.chunk_rows) // self.chunk_rows * self.chunk_rows
        for start in range(0, self.n_samples, band):
            yield from in_blocks(self.read(start, min(start + band, self.n_samples)), rows)

    # Tasks do not need the names, and 50,000 of them take a megabyte.
    beside_tasks = MappingProxyType({"feature_names": None, "_dropped": ()})


def _named_dtype(name: Any) -> np.dtype | None:
    """Return the numeric dtype that an attribute names, or None if it names none."""
    try:
        dtype = np.dtype(name) if isinstance(name, str) else None
    except (TypeError, ValueError, SyntaxError):  # NumPy also parses lists of fields
        return None
    return dtype if dtype is not None and dtype.kind in "fiub" else None


def _stamp(folder: Location) -> tuple[int, int] | str | None:
    """Return the modification time and inode of the metadata file, or its entity tag.

    They change if the array at the path is replaced by another. None if there is no such file.
    """
    archive = zarr_stores.zip_of(folder)
    for place in (folder / "zarr.json", folder / ".zarray") if archive is None else (archive,):
        if place.is_file():
            status: Any = place.stat()
            remote = isinstance(place, ObjectPath)
            return status.e_tag if remote else (status.st_mtime_ns, status.st_ino)
    return None


@lru_cache(maxsize=16)
def _array_at(path: str, stamp: tuple[int, int] | str | None, strict: bool) -> Any:
    """Open an array once per process; the stamp distinguishes arrays at the same path."""
    with storing(f"{path} cannot be opened by this process", "Every worker needs the path."):
        store, inside = zarr_stores.checked_store(as_location(path), strict)
        array = zarr.open_array(store, path=inside, mode="r")
        zarr_stores.expect(array)
        return array


def folder_of(node: Any) -> Location | None:
    """Return the path of an array or group, or None if only this process can open it."""
    store = node.store_path.store
    place: Location
    # Exact types, because a subclass may read in another way.
    if type(store) in (zarr.storage.LocalStore, zarr_stores.CheckedFiles):
        place = Path(store.root).absolute()
    elif type(store) in (zarr.storage.ZipStore, zarr_stores.CheckedZip):
        place = Path(store.path).absolute()
    elif isinstance(getattr(store, "path", None), ObjectPath):
        place = store.path
    else:
        return None
    return place / node.store_path.path if node.store_path.path else place


def check_chunks(array: Any, uri: str, member: str = "", *, ours: bool = False) -> None:
    """Raise if a store written by bigfs lacks chunks, and warn if another store does.

    Raises
    ------
    CorruptStoreError
        If chunks of a store written by bigfs are missing, or nearly all chunks of another large
        array are.
    """
    folder = folder_of(array)
    missing = [] if folder is None else zarr_stores.missing_chunks(array, folder)
    if not missing:
        return
    prefix = f"{member}/" if member else ""
    keys = ", ".join(prefix + key for key in missing[:_SHOWN])
    keys += ", ..." if len(missing) > _SHOWN else ""
    which = f"chunk {keys} is" if len(missing) == 1 else f"chunks {keys} are"
    total = math.prod(zarr_stores.chunk_grid(array))
    if ours:
        raise CorruptStoreError(
            f"{uri}: {which} missing ({len(missing)} of {total}) and would read as zeros. Ingest "
            "the source again, then run 'bigfs inspect --verify'."
        )
    stored = total - len(missing)
    if array.nbytes > zarr_stores.UNCOUNTED_BYTES and total > zarr_stores.MOST_ANNOUNCED * stored:
        raise CorruptStoreError(
            f"{uri} announces {format_bytes(array.nbytes)} but stores {stored} of {total:,} "
            "chunks. It is damaged, or was never filled. Write it again."
        )
    logger.warning(
        "%s: %s not stored (%d of %d) and read as the fill value %s.",
        uri, which, len(missing), total, array.fill_value,
    )  # fmt: skip


@contextmanager
def open_rows(path: str, strict: bool = False, stamp: Any = None) -> Iterator[Any]:
    """Open an array in the process that reads it.

    Parameters
    ----------
    path : str
    strict : bool, default=False
        Whether a missing chunk is an error.
    stamp : tuple, str or None, default=None
        Stamp of the array that is meant, by which opened arrays are cached. None: that of the array
        now at the path.
    """
    yield _array_at(path, stamp or _stamp(as_location(path)), strict)


@contextmanager
def open_parts(path: str) -> Iterator[dict[str, Any]]:
    """Open the arrays of a sparse matrix."""
    places = {name: f"{path}/{name}" for name in PARTS}
    yield {n: _array_at(p, _stamp(as_location(p)), False) for n, p in places.items()}
