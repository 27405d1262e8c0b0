"""Objects of a bucket as files; those of ours are in pages with checksums.

Bytes may change on their way, and an object is read by ranges: so every page of it is followed by
its CRC-32C. Arrays have a page for some rows, in the layout that zarr gives an array with shards;
other files that only bigfs reads have pages of 64 KiB. On a disk there are no pages.
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
# Smaller files are one request; of larger ones two parts are held in memory.
_PART_BYTES = 8 * 2**20
_READ_BYTES = 4 * 2**20


def page_rows(chunk_rows: int, row_bytes: int) -> int:
    """Return the rows of a page of an array: the divisor of a chunk's nearest to 64 KiB."""
    small = [i for i in range(1, math.isqrt(chunk_rows) + 1) if chunk_rows % i == 0]
    divisors = {*small, *(chunk_rows // i for i in small)}
    return min(divisors, key=lambda rows: (abs(math.log(rows * row_bytes / PAGE_BYTES)), rows))


def shard(chunk: memoryview, page_bytes: int) -> bytes:
    """Return a chunk as zarr stores a shard: its pages, each with its checksum, and their index."""
    pages = [sealed(bytes(chunk[i : i + page_bytes])) for i in range(0, len(chunk), page_bytes)]
    index = np.full((len(pages), 2), page_bytes + _SUM_BYTES, "<u8")
    index[:, 0] *= np.arange(len(pages), dtype="<u8")
    return b"".join([*pages, sealed(index.tobytes())])


def read_pages(
    path: ObjectPath, view: memoryview, begin: int, page: int = PAGE_BYTES
) -> tuple[int, int]:
    """Fill memory from a place in the content of an object in pages, by one request.

    Returns
    -------
    count : int
        Bytes there were: fewer than asked for where the content ends.
    size : int
        Of the content, of an object that has nothing but pages.
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
    """Yield stored pages and the size of the object; the last page may be short or empty."""
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
    """Ranged reads of an object: a request for each, of exactly what is asked for."""

    def __init__(self, path: ObjectPath, own: bool) -> None:
        super().__init__()
        self.name, self.path, self._own = str(path), path, own
        self._position = 0
        self._size: int | None = None

    def find_size(self) -> int:
        """Return the size of the object, or of its content where it is in pages."""
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
    """Writes an object in parts; it appears when the block ends well, and only then.

    Parameters
    ----------
    path : ObjectPath
    own : bool, default=False
        Whether it is in pages, for `open_own`.
    """

    def __init__(self, path: ObjectPath, *, own: bool = False) -> None:
        super().__init__()
        self.name, self._path, self._own = str(path), path, own
        self._writer: Any = None
        self._page = bytearray()  # what no full page has been made of, in pages

    def writable(self) -> bool:
        """Say that it is written."""
        return True

    def write(self, content: Any) -> int:
        """Take the next bytes; parts are sent when they are full."""
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
    """Open a file that only bigfs reads: one of pages in a bucket, a plain one on a disk."""
    if isinstance(place, Path):
        return place.open("rb", buffering=buffering)
    return open_object(place, buffering, own=True)


def open_object(path: ObjectPath, buffering: int, *, own: bool = False) -> Any:
    """Open an object as it is, or the content of one in pages, for ranged reads.

    It reads by 4 MiB unless ``buffering`` is 0; see `ObjectPath.open`.
    """
    reader = _Reader(path, own)
    return reader if buffering == 0 else io.BufferedReader(reader, _READ_BYTES)
