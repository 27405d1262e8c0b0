"""Stores by which zarr reads and writes folders, .zip files, and objects in a bucket.

A missing chunk of an array that bigfs wrote is an error, and does not read as zeros. A chunk of any
other array is not read or decompressed beyond the size that its metadata announces.
"""

from __future__ import annotations

import bz2
import lzma
import math
import os
import stat
import zipfile
import zlib
from asyncio import to_thread
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.storage import LocalStore, ZipStore

from bigfs.core.errors import CorruptStoreError, InputError, StorageError
from bigfs.core.units import format_bytes
from bigfs.store.location import METADATA_BYTES, Location, files_below, zarr_store
from bigfs.store.objects import ObjectPath
from bigfs.store.values import decoding

if TYPE_CHECKING:
    from bigfs.store.scratch import ArrayRef, Carried, Scratch

METADATA = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")
# Upper bound: no disk lists more files in reasonable time, and reading each takes some kilobytes.
MOST_CHUNKS = 10**6
# Up to this size, the announced size of an array is not compared with its stored size. A larger
# array may announce at most this many times what is stored: no compression of measured data saves
# more.
UNCOUNTED_BYTES, MOST_ANNOUNCED = 2**28, 10_000
_SLACK_BYTES = 2**20
_PIECE_BYTES = 2**18
# The largest block of a Zstandard frame.
_ZSTD_BLOCK = 2**17
# The first 28 bits of the number that skippable frames begin with.
_ZSTD_SKIPPABLE = 0x184D2A5
_STREAMED: dict[str, Any] = {
    "zlib": zlib.decompressobj,
    "gzip": lambda: zlib.decompressobj(wbits=zlib.MAX_WBITS | 16),
    "bz2": bz2.BZ2Decompressor,
    "lzma": lzma.LZMADecompressor,
}
_COMPRESSORS = {*_STREAMED, "blosc", "zstd", "lz4"}


def _is_metadata(key: str) -> bool:
    return key.rpartition("/")[2] in METADATA


def _missing(place: Location, key: str) -> CorruptStoreError:
    """Return the error for a missing chunk."""
    return CorruptStoreError(
        f"{place}: chunk {key} is missing and would read as zeros. Ingest the source again, then "
        "run 'bigfs inspect --verify'."
    )


class ZarrObjects(Store):
    """Zarr store of objects in a bucket, which raises bigfs's own errors.

    Parameters
    ----------
    path : ObjectPath
        Common prefix of all keys.
    strict : bool
        Whether a missing chunk is an error; otherwise it reads as the fill value.
    """

    supports_writes = supports_deletes = supports_listing = True

    def __init__(self, path: ObjectPath, strict: bool, *, read_only: bool = False) -> None:
        super().__init__(read_only=read_only)
        self.path, self.strict = path, strict

    def with_read_only(self, read_only: bool = False) -> ZarrObjects:
        """Return the same store, read-only or writable."""
        return ZarrObjects(self.path, self.strict, read_only=read_only)

    def __str__(self) -> str:
        return str(self.path)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ZarrObjects) and other.path == self.path

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return an object or a range of it, or None if it does not exist."""
        place = self.path / key
        is_proved = byte_range is None and (self.strict or _is_metadata(key))
        try:
            content = await to_thread(lambda: place.fetch(_range(place, byte_range), is_proved)[0])
        except FileNotFoundError:
            if self.strict and not _is_metadata(key):
                raise _missing(self.path, key) from None
            return None
        return prototype.buffer.from_bytes(content)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Return ranges of several objects."""
        return [await self.get(key, prototype, part) for key, part in key_ranges]

    async def exists(self, key: str) -> bool:
        """Return True if an object exists."""
        return (self.path / key).is_file()

    async def set(self, key: str, value: Buffer) -> None:
        """Write an object as a whole, in one request."""
        self._check_writable()
        await to_thread((self.path / key).write_bytes, value.as_buffer_like())

    async def delete(self, key: str) -> None:
        """Remove an object."""
        self._check_writable()
        (self.path / key).unlink()

    def list(self) -> AsyncIterator[str]:
        """Return all keys."""
        return self.list_prefix("")

    async def list_prefix(self, prefix: str) -> AsyncGenerator[str, None]:
        """Yield all keys below a prefix."""
        start = f"{prefix.rstrip('/')}/" if prefix else ""
        for name in self._below(prefix).objects_below():
            yield start + name

    async def list_dir(self, prefix: str) -> AsyncGenerator[str, None]:
        """Yield the names directly below a prefix."""
        for place in self._below(prefix).iterdir():
            yield place.name

    def _below(self, prefix: str) -> ObjectPath:
        return self.path / prefix.rstrip("/") if prefix else self.path


def _range(place: ObjectPath, byte_range: ByteRequest | None) -> dict[str, Any] | None:
    """Return the range of an object in the form of obstore, or None for the whole object."""
    if isinstance(byte_range, RangeByteRequest):
        return {"range": (byte_range.start, byte_range.end)}
    if isinstance(byte_range, OffsetByteRequest):
        return {"range": {"offset": byte_range.offset}}
    if isinstance(byte_range, SuffixByteRequest):
        if place.scheme == "az":  # Azure does not support suffix ranges
            return {"range": {"offset": max(0, place.stat().st_size - byte_range.suffix)}}
        return {"range": {"suffix": byte_range.suffix}}
    return None


class KeptFiles(LocalStore):
    """Zarr store of the folder of one array, in which a missing chunk is an error.

    Parameters
    ----------
    root : str or Path
    read_only : bool, default=False
    owner : Scratch or None, default=None
        Scratch that contains the folder, which is kept as long as this object exists.
    """

    def __init__(
        self, root: str | Path, *, read_only: bool = False, owner: Scratch | None = None
    ) -> None:
        super().__init__(root, read_only=read_only)
        self.owner = owner

    def with_read_only(self, read_only: bool = False) -> KeptFiles:
        """Return the same store, read-only or writable."""
        return KeptFiles(self.root, read_only=read_only, owner=self.owner)

    async def get(self, key: str, *args: Any, **options: Any) -> Buffer | None:
        """Return a file or a range of it."""
        return self._checked(key, await super().get(key, *args, **options))

    def get_sync(self, key: str, **options: Any) -> Buffer | None:
        """Return a file or a range of it."""
        return self._checked(key, super().get_sync(key, **options))

    def _checked(self, key: str, content: Buffer | None) -> Buffer | None:
        if content is None and key.startswith("c."):
            chunk = key.split(".")[1]
            raise StorageError(
                f"{self.root}: chunk {chunk} is missing. Run again: the stage that writes it has "
                "not finished, or its files were removed."
            )
        return content

    def __reduce__(self) -> tuple[Any, ...]:
        from bigfs.store.scratch import ArrayRef

        if self.owner is None:
            return KeptFiles, (self.root,)
        return _opened, (ArrayRef.at(self.root).carried(self.owner),)


def _opened(array: ArrayRef | Carried) -> KeptFiles:
    """Return the store of an unpickled array, in a new folder if its values were pickled."""
    from bigfs.store.scratch import Carried, Scratch

    if isinstance(array, Carried):
        owner = Scratch()
        return KeptFiles(array.put(owner).path, read_only=True, owner=owner)
    return KeptFiles(array.path, read_only=True)


class _CheckedStore(Store):
    """Zarr store that checks what it reads.

    It raises CorruptStoreError if a key is not a file or its content is too large and, if it is
    strict, if a chunk is missing.
    """

    strict: bool
    expected: dict[str, tuple[int, str | None]]
    _place: Path

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """Return a file or a range of it, or None if it does not exist."""
        most, codec = METADATA_BYTES, None  # for an array that `expect` has not registered
        if not _is_metadata(key):
            for path, expected in self.expected.items():
                most, codec = expected if not path or key.startswith(f"{path}/") else (most, codec)
        size = self._size_of(key)
        if size is None and self.strict and not _is_metadata(key):
            raise _missing(self._place, key)
        if size is None:
            return None
        if size > most:
            raise self._too_large(key, most)
        prototype = prototype or default_buffer_prototype()
        content = await super().get(key, prototype, byte_range)  # type: ignore[safe-super]
        if content is not None and byte_range is None and codec is not None:
            packed = content.as_numpy_array().view(np.uint8).data
            if codec in _STREAMED:
                await to_thread(self._check_packed, key, packed, codec, most)
            else:  # the header states the size, so the check is fast
                self._check_packed(key, packed, codec, most)
        return content

    def _size_of(self, key: str) -> int | None:
        raise NotImplementedError

    def _check_packed(self, key: str, packed: memoryview, codec: str, most: int) -> None:
        with decoding(f"{self._place}/{key}", "Write the array again."):
            if _unpacks_beyond(packed, codec, most):
                raise self._too_large(key, most)

    def _too_large(self, key: str, most: int) -> CorruptStoreError:
        return CorruptStoreError(
            f"{self._place}/{key} holds more than the {format_bytes(most)} of a chunk. Write the "
            "array again."
        )


class CheckedFiles(_CheckedStore, LocalStore):
    """Read-only zarr store of a folder, whose files are checked.

    Parameters
    ----------
    root : str or Path
    strict : bool
        Whether a missing chunk is an error; otherwise it reads as the fill value.
    """

    def __init__(self, root: str | Path, strict: bool) -> None:
        super().__init__(root, read_only=True)
        self.expected, self._place, self.strict = {}, Path(root), strict

    def _size_of(self, key: str) -> int | None:
        try:
            status = os.stat(self._place / key)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if stat.S_ISDIR(status.st_mode):
            return None
        if not stat.S_ISREG(status.st_mode):
            raise CorruptStoreError(f"{self._place}/{key} is not a file. Write the array again.")
        return status.st_size


class CheckedZip(_CheckedStore, ZipStore):
    """Read-only zarr store of a .zip of a folder, whose members are checked."""

    def __init__(self, path: Path, strict: bool) -> None:
        super().__init__(path, read_only=True)
        self.expected, self._place, self.strict = {}, path, strict
        with decoding(str(path)):
            self._sync_open()

    def _size_of(self, key: str) -> int | None:
        info = self._zf.NameToInfo.get(key)
        return None if info is None else info.file_size


def expect(array: Any) -> None:
    """Tell the store of an array the size of its chunks and their compression.

    Raises
    ------
    InputError
        If chunks are empty, if there are too many, or if they are compressed twice, for which the
        decompressed size has no upper bound.
    """
    store, steps = array.store_path.store, array.shards or array.chunks
    place = str(array.store_path).removeprefix("file://")
    if 0 in (*array.chunks, *steps):
        raise InputError(f"{place}: its metadata are damaged, chunks have no rows or columns.")
    inner = [-(-n // step) for n, step in zip(steps, array.chunks, strict=True)]
    n_chunks = max(math.prod(chunk_grid(array)[:2]), math.prod(inner))
    if n_chunks > MOST_CHUNKS:
        raise InputError(
            f"{place}: {n_chunks:,} chunks of {' x '.join(map(str, array.chunks))} values are too "
            f"many, at most {MOST_CHUNKS:,} are supported. Write it again with larger chunks."
        )
    names = [] if array.shards else map(_name, (*array.filters, *array.compressors))
    packed = [name for name in names if name in _COMPRESSORS]
    if len(packed) > 1:
        raise InputError(
            f"{place}: its chunks are compressed twice ({', '.join(packed)}). Write it again."
        )
    if isinstance(store, _CheckedStore):
        wider = 8 if array.metadata.zarr_format == 2 and array.metadata.filters else 1
        size = math.prod(steps) * int(array.dtype.itemsize)
        codec = packed[0] if packed else None
        store.expected[array.path] = 2 * wider * size + _SLACK_BYTES, codec


def zip_of(place: Location) -> Path | None:
    """Return the .zip file that a path is or lies in, or None if there is none."""
    if isinstance(place, ObjectPath):
        return None
    around = (place, *place.parents)
    return next((path for path in around if path.suffix == ".zip" and path.is_file()), None)


def checked_store(place: Location, strict: bool = False) -> tuple[Any, str]:
    """Return the store by which zarr opens a path, and the path within the store."""
    archive = zip_of(place)
    if archive is not None and isinstance(place, Path):
        inside = place.relative_to(archive).as_posix()
        return CheckedZip(archive, strict), "" if inside == "." else inside
    if isinstance(place, Path):
        return CheckedFiles(place, strict), ""
    return zarr_store(place, strict=strict), ""


def _name(codec: Any) -> str:
    """Return the plain name of a codec of either version of zarr."""
    name = getattr(codec, "codec_id", None) or type(codec).__name__.removesuffix("Codec").lower()
    return str(name).removeprefix("numcodecs.")


def _unpacks_beyond(packed: memoryview, codec: str, most: int) -> bool:
    """Return True if a compressed chunk decompresses to more than ``most`` bytes.

    The decompressed bytes are not kept.
    """
    if codec in _STREAMED:
        if len(packed) * 1032 <= most and codec in ("zlib", "gzip"):  # DEFLATE's maximum ratio
            return False
        new = _STREAMED[codec]
        return counts_beyond(packed, new(), most, None if codec == "zlib" else new)
    if codec == "blosc":
        return int.from_bytes(packed[4:8], "little") > most
    if codec == "lz4":
        return int.from_bytes(packed[:4], "little") > most
    return _zstd_bytes(packed) > most


def counts_beyond(
    packed: memoryview, unpack: Any, most: int, following: Callable[[], Any] | None = None
) -> bool:
    """Return True if decompressors yield more than ``most`` bytes, which are not kept.

    ``following`` returns the decompressor for a stream that follows another one, as decoders read
    them together. None: what follows the first stream is ignored.
    """
    count, start = 0, 0
    piece: Any = b""
    is_full = False  # the last call may have left output behind
    while True:
        if unpack.eof:
            if following is None:
                return False
            piece, unpack = unpack.unused_data.lstrip(b"\0"), following()
        if not piece and not is_full:
            piece, start = packed[start : start + _PIECE_BYTES], start + _PIECE_BYTES
            if not piece:
                return False
        try:
            unpacked = unpack.decompress(piece, _PIECE_BYTES)
        except (OSError, EOFError, zlib.error, lzma.LZMAError):
            return False  # the decoder reports or ignores it
        count += len(unpacked)
        if count > most:
            return True
        piece, is_full = getattr(unpack, "unconsumed_tail", b""), len(unpacked) == _PIECE_BYTES


def _zstd_bytes(packed: memoryview) -> int:
    """Return the decompressed size of all Zstandard frames in a chunk, or an upper bound."""
    size = at = 0
    while at + 8 < len(packed):
        magic = int.from_bytes(packed[at : at + 4], "little")
        if magic >> 4 == _ZSTD_SKIPPABLE:
            at += 8 + int.from_bytes(packed[at + 4 : at + 8], "little")
            continue
        of_frame, at = _zstd_frame(packed, at)
        size += of_frame
    return size


def _zstd_frame(packed: memoryview, at: int) -> tuple[int, int]:
    """Return the decompressed size of the frame at a position, and the position of the next one.

    If the header does not state the size, an upper bound is computed from the blocks.
    """
    descriptor = packed[at + 4]
    single = bool(descriptor & 0x20)
    at += 5 + (not single) + (0, 1, 2, 4)[descriptor & 3]
    width = (1 if single else 0, 2, 4, 8)[descriptor >> 6]
    stated = int.from_bytes(packed[at : at + width], "little") + (256 if width == 2 else 0)
    at += width
    size, last = 0, False
    while not last:
        block = int.from_bytes(packed[at : at + 3], "little")
        last, kind, count = bool(block & 1), block >> 1 & 3, block >> 3
        if at + 3 > len(packed) or kind == 3:
            return max(size, stated), len(packed)  # damaged, which the decoder reports
        size += count if kind < 2 else _ZSTD_BLOCK
        at += 3 + (1 if kind == 1 else count)
    return stated if width else size, at + (4 if descriptor & 4 else 0)  # 4 bytes of a checksum


def chunk_grid(array: Any) -> tuple[int, ...]:
    """Return the number of chunks, or of shards if the array has them, along each axis."""
    steps = array.shards or array.chunks
    return tuple(-(-size // step) for size, step in zip(array.shape, steps, strict=True))


def missing_chunks(array: Any, path: Location) -> list[str]:
    """Return the keys of the chunks (or shards) of an array that are not in its folder."""
    expected = map(array.metadata.encode_chunk_key, np.ndindex(*chunk_grid(array)))
    there = _keys_below(path)
    return [key for key in expected if key not in there]


def _keys_below(path: Location) -> set[str]:
    archive = zip_of(path)
    if archive is None:
        return set(files_below(path))
    with zipfile.ZipFile(archive) as file:
        names = file.namelist()
    begin = "" if path == archive else f"{path.relative_to(archive).as_posix()}/"  # type: ignore[union-attr]
    return {name.removeprefix(begin) for name in names if name.startswith(begin)}
