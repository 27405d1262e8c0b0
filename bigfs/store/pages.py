"""Objects in a bucket as files; those written by bigfs consist of pages with checksums.

Bytes may be corrupted in transit, and objects are read by ranges, so every page is followed by its
CRC-32C. Arrays have pages of several rows, in the layout of zarr's sharding codec; other files that
only bigfs reads have pages of 64 KiB. Files on disk have no pages.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.store.buckets import again, client, obstore_package, requests, sealed, unsealed
from bigfs.store.objects import ObjectPath

PAGE_BYTES = 2**16
_SUM_BYTES = 4
# Part size of uploads: smaller files are one request, of larger ones two parts are held in memory.
_PART_BYTES = 8 * 2**20
_READ_BYTES = 4 * 2**20


def page_rows(chunk_rows: int, row_bytes: int) -> int:
    """Return the rows per page of an array: the divisor of ``chunk_rows`` nearest to 64 KiB."""
    small = [i for i in range(1, math.isqrt(chunk_rows) + 1) if chunk_rows % i == 0]
    divisors = {*small, *(chunk_rows // i for i in small)}
    return min(divisors, key=lambda rows: (abs(math.log(rows * row_bytes / PAGE_BYTES)), rows))


def shard(chunk: memoryview, page_bytes: int) -> bytes:
    """Return a chunk as a zarr shard: its pages, each with its checksum, then their index."""
    pages = [sealed(bytes(chunk[i : i + page_bytes])) for i in range(0, len(chunk), page_bytes)]
    index = np.full((len(pages), 2), page_bytes + _SUM_BYTES, "<u8")
    index[:, 0] *= np.arange(len(pages), dtype="<u8")
    return b"".join([*pages, sealed(index.tobytes())])


def read_pages(
    path: ObjectPath, view: memoryview, begin: int, page: int = PAGE_BYTES
) -> tuple[int, int]:
    """Fill a buffer from an offset in the content of a paged object, in one request.

    Returns
    -------
    count : int
        Bytes read: fewer than requested if the content ends.
    size : int
        Size of the content, if the object consists of pages only.
    """
    end = begin + len(view)
    first, last = begin // page, -(-end // page)

    def fill() -> tuple[int, int]:
        place, count, size = first * page, 0, 0
        for stored, object_bytes in _pages(path, first, last, page + _SUM_BYTES):
            size = _content_bytes(object_bytes, page)
            content = unsealed(stored) if stored else b""
            part = content[max(0, begin - place) : end - place]
            view[count : count + len(part)] = part
            place, count = place + len(content), count + len(part)
        return count, size

    return again(path, "read", fill)


def _pages(
    path: ObjectPath, first: int, last: int, stored_bytes: int
) -> Iterator[tuple[bytes, int]]:
    """Yield stored pages and the size of the object; the last page may be partial or empty."""
    held, size = b"", 0
    for part, size in path.pieces(first * stored_bytes, last * stored_bytes):
        held += part
        end = len(held) // stored_bytes * stored_bytes
        for i in range(0, end, stored_bytes):
            yield held[i : i + stored_bytes], size
        held = held[end:]
    yield held, size


def _content_bytes(stored_bytes: int, page: int) -> int:
    return stored_bytes - _SUM_BYTES * -(-stored_bytes // (page + _SUM_BYTES))


class _Reader(io.RawIOBase):
    """Raw reader of an object that makes one request per read, for exactly the requested range."""

    def __init__(self, path: ObjectPath, own: bool) -> None:
        super().__init__()
        self.name, self.path, self._own = str(path), path, own
        self._position = 0
        self._size: int | None = None

    def find_size(self) -> int:
        """Return the size of the object, or of its content if it is paged."""
        size = self.path.stat().st_size
        return _content_bytes(size, PAGE_BYTES) if self._own else size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END:
            if self._size is None:
                self._size = self.find_size()
            offset += self._size
        elif whence == io.SEEK_CUR:
            offset += self._position
        self._position = max(0, offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        if self._size is not None:
            view = view[: max(0, self._size - self._position)]
        if not view:
            return 0
        fill = partial(read_pages, self.path) if self._own else self.path.read_into
        n_read, self._size = fill(view, self._position)
        self._position += n_read
        return n_read

    def readall(self) -> bytes:
        if self._size is None:
            self._size = self.find_size()
        return self.read(max(0, self._size - self._position)) or b""


class Upload(io.RawIOBase):
    """Writer of an object in parts, which appears only if the context exits without an error.

    Parameters
    ----------
    path : ObjectPath
    own : bool, default=False
        Whether to write it in pages, for `open_own`.
    """

    def __init__(self, path: ObjectPath, *, own: bool = False) -> None:
        super().__init__()
        self.name, self._path, self._own = str(path), path, own
        self._writer: Any = None
        self._page = bytearray()  # content of the last page, not yet full

    def writable(self) -> bool:
        """Return True: it is opened for writing."""
        return True

    def write(self, content: Any) -> int:
        """Append bytes; parts are sent when they are full."""
        view = memoryview(content).cast("B")
        if self._own:
            self._page += view
            self._send_pages(len(self._page) // PAGE_BYTES * PAGE_BYTES)
        else:
            self._send(view)
        return len(view)

    def _send_pages(self, end: int) -> None:
        starts = range(0, end, PAGE_BYTES)
        pages = [sealed(bytes(self._page[i : min(i + PAGE_BYTES, end)])) for i in starts]
        if pages:
            self._send(b"".join(pages))
            del self._page[:end]

    def _send(self, content: Any) -> None:
        with requests(self._path, "write"):
            if self._writer is None:
                self._writer = obstore_package().open_writer(
                    client(self._path.scheme, self._path.bucket), self._path.key,
                    buffer_size=_PART_BYTES, max_concurrency=1,
                )  # fmt: skip
            self._writer.write(content)

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None:
            self._send_pages(len(self._page))
            if self._writer is None:
                self._send(b"")
            with requests(self._path, "write"):
                self._writer.close()
        self._writer = None
        self.close()


def open_own(place: Path | ObjectPath, buffering: int = -1) -> Any:
    """Open a file that only bigfs reads: paged in a bucket, a plain file on disk."""
    if isinstance(place, Path):
        return place.open("rb", buffering=buffering)
    return open_object(place, buffering, own=True)


def open_object(path: ObjectPath, buffering: int, *, own: bool = False) -> Any:
    """Open an object, or the content of a paged one (``own``), for ranged reads.

    Reads are buffered by 4 MiB unless ``buffering`` is 0; see `ObjectPath.open`.
    """
    reader = _Reader(path, own)
    return reader if buffering == 0 else io.BufferedReader(reader, _READ_BYTES)
