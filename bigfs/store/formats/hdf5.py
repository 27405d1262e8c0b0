"""HDF5 files, whose format is recognized by their content and not by their name.

A file written by a known library is read as that library reads it, or refused with the name of its
format. Only arrays of no known format are read as they are stored, in blocks. Links to other files
and oversized chunks are refused.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import numpy as np

from bigfs.core.errors import CorruptStoreError, InputError
from bigfs.core.units import MIB, format_bytes
from bigfs.store.formats import CUBE
from bigfs.store.formats.cube import CubeSource
from bigfs.store.formats.parts import open_dense
from bigfs.store.formats.xarrays import is_described, named_beside, open_described, read_labels
from bigfs.store.formats.zarr_stores import MOST_ANNOUNCED, UNCOUNTED_BYTES, counts_beyond
from bigfs.store.location import METADATA_BYTES, Location, as_location
from bigfs.store.source import Source, choose_member, no_column
from bigfs.store.values import decoding, installed, refusing

_GZIP = 1
_GZIP_FACTOR = 1032  # DEFLATE's maximum ratio
_MOST_LINKS = 20


@dataclass(frozen=True)
class _Kind:
    """Format in HDF5: the test that recognizes it, and its reader or a remedy."""

    what: str
    matches: Callable[[Any], bool]
    module: str = ""
    takes: tuple[str, ...] = ()
    cure: str = ""

    @property
    def reader(self) -> Any:
        """Module that reads the format."""
        return import_module(f"bigfs.store.formats.{self.module}")


def _has(*names: str) -> Callable[[Any], bool]:
    return lambda file: all(name in file for name in names)


def _has_attribute(*names: str) -> Callable[[Any], bool]:
    """Return a test for any of the attributes, in the root of a file or in its groups."""
    return lambda file: any(
        name in node.attrs
        for node in (file, *(find(file, key, "") for key in file if _is_group(file, key)))
        for name in names
    )


def _is_group(file: Any, name: str) -> bool:
    import h5py

    is_hard = isinstance(file.get(name, getlink=True), h5py.HardLink)
    return is_hard and file.get(name, getclass=True) is h5py.Group


_KINDS = (
    _Kind("MuData", _has("mod", "obs", "var"), "annotated", ("layer",)),
    _Kind(
        "AnnData",
        lambda file: file.attrs.get("encoding-type") == "anndata" or _has("obs", "var")(file),
        "annotated", ("layer",),
    ),
    _Kind("loom", _has("matrix", "row_attrs", "col_attrs"), "tenx", ("layer",)),
    _Kind("counts of Cell Ranger", lambda file: bool(genomes_of(file)), "tenx", ("feature_types",)),
    _Kind(
        "a list of molecules of Cell Ranger", _has("barcode_idx", "umi"),
        cure="Give filtered_feature_bc_matrix.h5.",
    ),
    _Kind("a list of molecules of Cell Ranger", _has("barcode", "gene", "umi"),
          cure="Give filtered_gene_bc_matrices_h5.h5."),
    _Kind(
        "a store of pandas", _has_attribute("pandas_type", "pandas_version"),
        cure="Convert it: pandas.read_hdf(FILE).to_parquet('X.parquet').",
    ),
    _Kind(
        "a model of Keras, or its weights",
        lambda file: _has("layers", "vars")(file) or _has("model_weights")(file)
        or _has_attribute("keras_version", "layer_names", "weight_names")(file),
        cure="It holds no data of samples.",
    ),
    _Kind(
        "a store of Seurat", _has("assays"),
        cure="Convert it in R: SeuratDisk::Convert(FILE, dest = 'h5ad').",
    ),
)  # fmt: skip


def genomes_of(file: Any) -> list[str]:
    """Return the groups of counts that Cell Ranger wrote.

    Version 3 writes a single group, and earlier versions write one per genome.
    """
    return [
        name
        for name in file
        if _is_group(file, name)
        and {"barcodes", "indptr"} <= set(file[name])
        and (name == "matrix" or "gene_names" in file[name])
    ]


def open_file(path: Location, variable: str | None, **settings: Any) -> Source:
    """Open a file by the reader of its format, or one of its arrays as it is stored.

    ``settings`` are those of the format, if given.
    """
    with open_h5(path) as file, decoding(str(path)):
        kind = _kind_of(file)
    if kind is None or (variable is not None and not kind.module):
        _check(path, "arrays", CUBE, settings)
        from bigfs.store.formats import mat  # imports this module, for version 7.3

        reader = mat.open_file if mat.is_hdf5(path) else open_array
    elif not kind.module:
        raise InputError(f"{path} is {kind.what}, which is not supported. {kind.cure}")
    else:
        _check(path, kind.what, kind.takes, settings)
        reader = kind.reader.open_file
    opened: Source = reader(path, variable, **settings)
    return opened


def _check(path: Location, what: str, takes: tuple[str, ...], settings: dict[str, Any]) -> None:
    """Raise InputError for settings that files of this kind do not support."""
    for name, value in settings.items():
        if name not in takes:
            raise InputError(
                f"{path} holds {what}, which has no {name}. Got {value!r}; remove it "
                f"(input.{name})."
            )


def open_array(path: Location, variable: str | None, **cube: Any) -> Source:
    """Open the named array of a file, or the only one with two or more dimensions.

    ``cube`` has ``features`` and ``no_data`` of a `CubeSource`, if given.
    """
    with open_h5(path) as file, decoding(str(path)):
        arrays = _arrays(file)
        large = {n for n, a in arrays.items() if len(a.shape) > 1 and min(a.shape) > 1}
        named = None if variable is None else variable.strip("/")
        matrices = sorted(large - named_beside(array.attrs for array in arrays.values()) or large)
        name = choose_member(path, list(arrays), matrices, named)
        uri, place = f"{path}::{name}", partial(open_member, str(path.absolute()), name)
        array = member(file, name, str(path))
        if array.dtype.kind not in "fiub":
            raise InputError(f"{uri} holds {array.dtype}, not numbers. Name another array.")
        dims = dimensions(array)
        others = None
        if is_described(array.attrs, "DIMENSION_LIST" in array.attrs):
            refuse_links(file, str(path))
            others = _not_needed(array.parent, name.rpartition("/")[2], dims, uri)
        is_matrix = len(array.shape) == 2 and not cube
    if others is not None:
        opened = path if isinstance(path, Path) else path.open("rb")
        return open_described(uri, opened, name, place, others, cube,
                              engine="h5netcdf", phony_dims="access")  # fmt: skip
    return open_dense(place, uri) if is_matrix else CubeSource(uri, place, dims, **cube)


def preview(path: Location) -> list[tuple[str, tuple[int, ...], str]]:
    """Return name, shape and type of every array of a file."""
    with open_h5(path) as file, decoding(str(path)):
        return [(name, array.shape, str(array.dtype)) for name, array in _arrays(file).items()]


def read_column(path: Location, name: str, rows: Collection[str] = ()) -> Any:
    """Return an array by its name, or a column of an AnnData or a loom file.

    It holds labels, or values by which rows are chosen. ``rows`` are the dimensions of the rows
    that the values belong to, if known.
    """
    with open_h5(path) as file, decoding(str(path)):
        kind = _kind_of(file)
        node = find(file, name.strip("/"), str(path)) if name else None
        if kind is None or node is not None and hasattr(node, "shape"):
            if node is None or not hasattr(node, "shape"):
                raise no_column(str(path), name, _arrays(file))
            uri = f"{path}::{name}"
            others = [dimensions(array) for array in _arrays(file).values()]
            array = H5Rows(node, uri)
            return read_labels(array, dimensions(node), array.attrs, others, rows, uri)
    return kind.reader.read_column(path, name)


def write(file: IO[bytes], selected: Any) -> None:
    """Write the selected columns as AnnData."""
    from bigfs.store.formats.annotated import write

    write(file, selected)


def _kind_of(file: Any) -> _Kind | None:
    return next((kind for kind in _KINDS if kind.matches(file)), None)


def _arrays(file: Any) -> dict[str, Any]:
    """Return the arrays of a file by name."""
    arrays: dict[str, Any] = {}

    def note(name: str, node: Any) -> None:
        if hasattr(node, "shape") and node.shape and not name.startswith("#"):  # internal to MATLAB
            arrays[name] = node

    file.visititems(note)  # does not follow links to other files
    return arrays


def _not_needed(group: Any, name: str, dims: list[str] | None, uri: str) -> list[str]:
    """Return the members of a group that are neither the named array nor its coordinates.

    Coordinates above `METADATA_BYTES` are returned too, so that they are not read.
    """

    def is_needed(other: str) -> bool:
        if other == name:
            return True
        node = find(group, other, uri) if other in (dims or ()) else None
        return hasattr(node, "shape") and H5Rows(node, uri).nbytes <= METADATA_BYTES

    return [other for other in group if not is_needed(other)]


def dimensions(array: Any) -> list[str] | None:
    """Return the names of the dimensions, or None if they are not unique.

    The name of a dimension is its label, the name of its scale, or its number if it has neither.
    """
    names = []
    for i, dim in enumerate(array.dims):
        scale = "" if not len(dim) else dim[0].name.rpartition("/")[2]
        names.append(dim.label or scale or str(i))
    return names if len(set(names)) == len(names) else None


@contextmanager
def open_member(path: str, name: str) -> Iterator[Any]:
    """Open an array of a file, or a group, whose items are its arrays.

    The file is opened anew for every read. If it stayed open, it would be locked for writers.
    """
    with open_h5(as_location(path)) as file:
        yield checked(member(file, name, path), f"{path}::{name}")


class H5Rows:
    """Array of a file whose compressed chunks are checked before they are read."""

    def __init__(self, dataset: Any, uri: str) -> None:
        self._dataset, self._uri = dataset, uri
        self.shape, self.dtype, self.chunks = dataset.shape, dataset.dtype, dataset.chunks
        self.attrs = dataset.attrs
        if dataset.external or dataset.is_virtual:
            raise InputError(
                f"{uri} keeps its values in other files, which is not supported. Copy them into it."
            )
        plist = dataset.id.get_create_plist()
        filters = [plist.get_filter(i) for i in range(plist.get_nfilters())]
        _check_filters(filters, uri)
        self._gzip = [i for i, chosen in enumerate(filters) if chosen[0] == _GZIP]
        self.nbytes, stored = dataset.size * self.dtype.itemsize, dataset.id.get_storage_size()
        if self.nbytes > UNCOUNTED_BYTES and self.nbytes > MOST_ANNOUNCED * stored:
            raise CorruptStoreError(
                f"{uri} announces {format_bytes(self.nbytes)} but stores {format_bytes(stored)}. "
                "It is damaged, or was never filled. Write the file again."
            )

    def __getitem__(self, key: slice | tuple[slice, ...]) -> np.ndarray:
        """Return a range of rows, or of every dimension; texts are returned as objects."""
        ranges = key if isinstance(key, tuple) else (key,)
        if self.chunks is not None:
            self.check_packed(ranges)
        if self.dtype.kind != "O":
            return np.asarray(self._dataset[ranges])
        if len(self.shape) == 1:
            self._check_texts(ranges[0])
        return np.asarray(self._dataset.asstr()[ranges])

    def _check_texts(self, part: slice) -> None:
        """Raise InputError if the texts of a range are too long in total.

        Only contiguous arrays in local files are checked. They have a record for each text, which
        consists of its length, the address of the heap with the text, and its index there.
        """
        place, file = self._dataset.id.get_offset(), self._dataset.file
        if place is None or not Path(file.filename).is_file():
            return
        width = 4 + file.id.get_create_plist().get_sizes()[0] + 4
        with open(file.filename, "rb") as raw:
            start, stop, _ = part.indices(self.shape[0])
            raw.seek(place + width * start)
            content = raw.read(width * (stop - start))
        lengths = np.frombuffer(content, f"V{width}").view(np.uint8).reshape(-1, width)[:, :4]
        size = int(lengths.copy().view("<u4").sum(dtype=np.int64))
        if size > METADATA_BYTES:
            raise InputError(
                f"{self._uri} holds {format_bytes(size)} in {len(lengths):,} texts, which are too "
                "long for names or ids. Write shorter ones."
            )

    def check_packed(self, ranges: tuple[slice, ...]) -> None:
        """Raise CorruptStoreError if a chunk in the given ranges exceeds the size of its shape."""
        most = math.prod(self.chunks) * self.dtype.itemsize
        ranges += tuple(slice(0, n) for n in self.shape[len(ranges) :])
        starts = [
            range(part.start // step, -(-part.stop // step))
            for part, step in zip(ranges, self.chunks, strict=True)
        ]
        for place in itertools.product(*starts):
            offset = tuple(i * step for i, step in zip(place, self.chunks, strict=True))
            chunk = self._dataset.id.get_chunk_info_by_coord(offset)
            packed = any(not chunk.filter_mask >> i & 1 for i in self._gzip)
            large = chunk.size > 2 * most + MIB
            if packed and not large and chunk.size * _GZIP_FACTOR > most + UNCOUNTED_BYTES:
                _, content = self._dataset.id.read_direct_chunk(offset)
                large = counts_beyond(memoryview(content), zlib.decompressobj(), most + MIB)
            if large:
                raise CorruptStoreError(
                    f"{self._uri}: the chunk at {offset} is larger than its shape allows. Write "
                    "the file again."
                )


class _H5Group:
    """Group of a file whose arrays are checked before they are read."""

    def __init__(self, group: Any, uri: str) -> None:
        self._group, self._uri = group, uri

    def __getitem__(self, name: str) -> Any:
        return checked(member(self._group, name, self._uri), f"{self._uri}/{name}")


def checked(node: Any, uri: str) -> Any:
    """Return an open array or group of a file as an object that checks chunks when reading."""
    with decoding(uri):
        return H5Rows(node, uri) if hasattr(node, "shape") else _H5Group(node, uri)


def _check_filters(filters: list[Any], uri: str) -> None:
    """Raise InputError for an unknown compression filter.

    If hdf5plugin is installed, its filters are known too.
    """
    import h5py

    for code, _, _, name in filters:
        if not h5py.h5z.filter_avail(code):
            with suppress(ImportError):
                import_module("hdf5plugin")  # registers its filters
        if not h5py.h5z.filter_avail(code):
            raise InputError(
                f"{uri} is compressed by {name.decode(errors='replace') or code}, which this HDF5 "
                "cannot decompress. Install hdf5plugin, or write it again with gzip."
            )


@contextmanager
def open_h5(path: Location) -> Iterator[Any]:
    """Open a file for reading.

    Raises
    ------
    InputError
        If it is not an HDF5 file, or the package h5py is not installed.
    """
    with installed(f"{path}: HDF5 files need h5py", "h5py"):
        import h5py
    if isinstance(path, Path) and not path.is_file():
        raise InputError(f"{path} is not a file.")
    with refusing(f"{path} cannot be opened as an HDF5 file", OSError):
        # Every chunk is requested once, and without a chunk cache a file opens six times faster.
        source = path if isinstance(path, Path) else path.open("rb")
        file = h5py.File(source, "r", rdcc_nbytes=0)
    with file:
        yield file


def find(group: Any, name: str, uri: str, *, links: int = 0) -> Any:
    """Return an array or group by its name, or None if it does not exist.

    Raises
    ------
    InputError
        If the name leads to another file, or the file is damaged there.
    """
    import h5py

    for part in name.split("/"):
        # h5py has no common error for damage.
        with refusing(f"{uri}: {name} is damaged", Exception):
            link = group.get(part, getlink=True) if isinstance(group, h5py.Group) else None
            if isinstance(link, h5py.HardLink):
                group = group.get(part)
                continue
        if isinstance(link, h5py.ExternalLink):
            raise _outside(uri, name)
        if link is None or links > _MOST_LINKS:
            return None
        # A soft link may lead to a link to another file.
        start = group.file if link.path.startswith("/") else group
        group = find(start, link.path.strip("/"), uri, links=links + 1)
    return group


def refuse_links(file: Any, uri: str) -> None:
    """Raise InputError if a file links to another one, since a library would follow the link."""
    import h5py

    def is_outside(name: str, link: Any) -> str | None:
        return name if isinstance(link, h5py.ExternalLink) else None

    name = file.visititems_links(is_outside)
    if name is not None:
        raise _outside(uri, name)


def _outside(uri: str, name: str) -> InputError:
    return InputError(
        f"{uri}: {name} links to another file, which is not supported. Copy it into this file."
    )


def member(group: Any, name: str, uri: str) -> Any:
    """Return an array or group that must exist.

    Raises
    ------
    CorruptStoreError
        If it is missing.
    """
    node = find(group, name, uri)
    if node is None:
        raise CorruptStoreError(f"{uri}: {name} is missing. Write the file again.")
    return node
