"""Arrays of HDF5 files, read by rows; links out of a file and oversized chunks are refused."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.core.errors import CorruptStoreError, InputError
from bigfs.core.units import MIB, format_bytes
from bigfs.store.formats.zarr_files import MOST_ANNOUNCED, UNCOUNTED_BYTES, counts_beyond
from bigfs.store.location import METADATA_BYTES, Location, as_location
from bigfs.store.values import installed, refusing

_GZIP = 1
_GZIP_FACTOR = 1032  # DEFLATE packs no better
_MOST_LINKS = 20


@contextmanager
def open_member(path: str, name: str) -> Iterator[Any]:
    """Open an array of a file, or a group, whose arrays are its items; anew for every read.

    A file that stays open would be locked for whoever wants to write it.
    """
    with open_h5(as_location(path)) as file:
        yield checked(member(file, name, path), f"{path}::{name}")


class H5Rows:
    """An array whose packed chunks are looked at before they are read."""

    def __init__(self, dataset: Any, uri: str) -> None:
        self._dataset, self._uri = dataset, uri
        self.shape, self.dtype, self.chunks = dataset.shape, dataset.dtype, dataset.chunks
        self.attrs = dataset.attrs
        if dataset.external or dataset.is_virtual:
            raise InputError(f"{uri} keeps its values in other files, which is not read. Copy it.")
        plist = dataset.id.get_create_plist()
        filters = [plist.get_filter(i) for i in range(plist.get_nfilters())]
        _check_filters(filters, uri)
        self._gzip = [i for i, chosen in enumerate(filters) if chosen[0] == _GZIP]
        self.nbytes, stored = dataset.size * self.dtype.itemsize, dataset.id.get_storage_size()
        if self.nbytes > UNCOUNTED_BYTES and self.nbytes > MOST_ANNOUNCED * stored:
            raise CorruptStoreError(
                f"{uri} announces {format_bytes(self.nbytes)} and stores {format_bytes(stored)}. "
                "It is damaged, or was never filled. Write the file again."
            )

    def __getitem__(self, key: slice | tuple[slice, ...]) -> np.ndarray:
        """Return a range of rows, or of every dimension; of texts as objects."""
        ranges = key if isinstance(key, tuple) else (key,)
        if self.chunks is not None:
            self.check_packed(ranges)
        if self.dtype.kind != "O":
            return np.asarray(self._dataset[ranges])
        if len(self.shape) == 1:
            self._check_texts(ranges[0])
        return np.asarray(self._dataset.asstr()[ranges])

    def _check_texts(self, part: slice) -> None:
        """Raise InputError for texts that are too long; where they lie one after the other.

        The file has the length of each text, the place and the number of it.
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
        """Raise CorruptStoreError if a chunk in some ranges is more than its shape says."""
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
                    f"{self._uri}: the chunk at {offset} holds more than a chunk can. Write the "
                    "file again."
                )


class _H5Group:
    """A group whose arrays are looked at before they are read."""

    def __init__(self, group: Any, uri: str) -> None:
        self._group, self._uri = group, uri

    def __getitem__(self, name: str) -> Any:
        return checked(member(self._group, name, self._uri), f"{self._uri}/{name}")


def checked(node: Any, uri: str) -> Any:
    """Return an open array or group of a file as what is read of it."""
    return H5Rows(node, uri) if hasattr(node, "shape") else _H5Group(node, uri)


def _check_filters(filters: list[Any], uri: str) -> None:
    """Raise InputError for a packing that is not known here; hdf5plugin, if there, has more."""
    import h5py

    for code, _, _, name in filters:
        if not h5py.h5z.filter_avail(code):
            with suppress(ImportError):
                import_module("hdf5plugin")  # registers its filters
        if not h5py.h5z.filter_avail(code):
            raise InputError(
                f"{uri} is packed by {name.decode(errors='replace') or code}, which this HDF5 "
                "cannot unpack. Install hdf5plugin, or write it again with gzip."
            )


@contextmanager
def open_h5(path: Location) -> Iterator[Any]:
    """Open a file for reading.

    Raises
    ------
    InputError
        If it is no HDF5 file, or the package h5py is not there.
    """
    with installed(f"{path}: HDF5 files need h5py", "h5py"):
        import h5py
    if isinstance(path, Path) and not path.is_file():
        raise InputError(f"{path} is not a file.")
    with refusing(f"{path} cannot be opened as an HDF5 file", OSError):
        # Every chunk is asked for once, and without a cache of them a file opens six times faster.
        source = path if isinstance(path, Path) else path.open("rb")
        file = h5py.File(source, "r", rdcc_nbytes=0)
    with file:
        yield file


def find(group: Any, name: str, uri: str, *, links: int = 0) -> Any:
    """Return an array or group by its name, None if it is not there.

    Raises
    ------
    InputError
        If the name leads into another file, or the file is damaged there.
    """
    import h5py

    for part in name.split("/"):
        # h5py has no one error for damage.
        with refusing(f"{uri}: {name} is damaged", Exception):
            link = group.get(part, getlink=True) if isinstance(group, h5py.Group) else None
            if isinstance(link, h5py.HardLink):
                group = group.get(part)
                continue
        if isinstance(link, h5py.ExternalLink):
            raise InputError(f"{uri}: {name} leads to another file, which is not read. Copy it.")
        if link is None or links > _MOST_LINKS:
            return None
        # A soft link may lead to one that leads outside.
        start = group.file if link.path.startswith("/") else group
        group = find(start, link.path.strip("/"), uri, links=links + 1)
    return group


def refuse_links(file: Any, uri: str) -> None:
    """Raise InputError if anything in a file leads to another: a library would follow it."""
    import h5py

    def is_outside(name: str, link: Any) -> str | None:
        return name if isinstance(link, h5py.ExternalLink) else None

    name = file.visititems_links(is_outside)
    if name is not None:
        raise InputError(f"{uri}: {name} leads to another file, which is not read. Copy it.")


def member(group: Any, name: str, uri: str) -> Any:
    """Return an array or group that has to be there."""
    node = find(group, name, uri)
    if node is None:
        raise CorruptStoreError(f"{uri}: {name} is missing. Write the file again.")
    return node
