"""Chunks of zarr arrays on disk: none is read or unpacked beyond what the metadata announce."""

from __future__ import annotations

import asyncio
import bz2
import lzma
import os
import stat
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.storage import LocalStore

from bigfs.core.errors import CorruptStoreError, InputError
from bigfs.core.units import format_bytes
from bigfs.store.location import METADATA_BYTES, Location, files_below
from bigfs.store.objects import ObjectPath
from bigfs.store.values import decoding

_METADATA = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")
# More files than any disk lists in reasonable time; each also takes some kilobytes to be read.
MOST_CHUNKS = 10**6
_SLACK_BYTES = 2**20
_PIECE_BYTES = 2**18
# The largest block of a Zstandard frame.
_ZSTD_BLOCK = 2**17
_STREAMED: dict[str, Any] = {
    "zlib": zlib.decompressobj,
    "gzip": lambda: zlib.decompressobj(wbits=zlib.MAX_WBITS | 16),
    "bz2": bz2.BZ2Decompressor,
    "lzma": lzma.LZMADecompressor,
}
_COMPRESSORS = {*_STREAMED, "blosc", "zstd", "lz4"}


class CheckedFiles(LocalStore):
    """A folder that zarr reads; what is no file, or too large, is damage.

    Parameters
    ----------
    root : str or Path
    """

    _most_bytes: int | None = None
    _codec: str | None = None

    def __init__(self, root: str | Path) -> None:
        super().__init__(root, read_only=True)

    def expect(self, array: Any) -> None:
        """Take down how large chunks of an array are, and how they are packed.

        Raises
        ------
        InputError
            If there are too many, or they are packed twice: nothing bounds what that gives.
        """
        grid = [-(-n // step) for n, step in zip(array.shape, _steps(array), strict=True)]
        chunks = grid[0] * (grid[1] if len(grid) > 1 else 1)
        if chunks > MOST_CHUNKS:
            raise InputError(
                f"{self.root}: {chunks:,} chunks of {' x '.join(map(str, _steps(array)))} values "
                f"are too many, {MOST_CHUNKS:,} are read. Write it again with larger chunks."
            )
        names = [_name(codec) for codec in _codecs(array)]
        packed = [name for name in names if name in _COMPRESSORS]
        if len(packed) > 1:
            raise InputError(
                f"{self.root}: its chunks are packed twice ({', '.join(packed)}). Write it again."
            )
        wider = 8 if array.metadata.zarr_format == 2 and array.metadata.filters else 1
        size = chunk_bytes(array) if array.shards is None else _size(array, array.shards)
        self._most_bytes = 2 * wider * size + _SLACK_BYTES
        self._codec = packed[0] if packed and array.shards is None else None

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """Return a file or a range of it, None if there is none."""
        name = key.rpartition("/")[2]
        most = METADATA_BYTES if name in _METADATA else self._most_bytes
        if most is None:  # of an array that nobody has announced
            most = METADATA_BYTES
        if not await asyncio.to_thread(self._check_file, key, most):
            return None
        if byte_range is not None or name in _METADATA or self._codec is None:
            return await super().get(key, prototype, byte_range)
        content = await super().get(key, prototype or default_buffer_prototype())
        if content is not None:
            packed = content.as_numpy_array().view(np.uint8).data
            await asyncio.to_thread(self._check_packed, key, packed, most)
        return content

    def _check_file(self, key: str, most: int) -> bool:
        try:
            status = os.stat(Path(self.root) / key)
        except (FileNotFoundError, NotADirectoryError):
            return False
        if stat.S_ISDIR(status.st_mode):
            return False
        if not stat.S_ISREG(status.st_mode):
            raise CorruptStoreError(f"{self.root}/{key} is not a file. Write the array again.")
        if status.st_size > most:
            raise self._too_large(key, most)
        return True

    def _check_packed(self, key: str, packed: memoryview, most: int) -> None:
        with decoding(f"{self.root}/{key}", "Write the array again."):
            if _unpacks_beyond(packed, str(self._codec), most):
                raise self._too_large(key, most)

    def _too_large(self, key: str, most: int) -> CorruptStoreError:
        return CorruptStoreError(
            f"{self.root}/{key} holds more than the {format_bytes(most)} that a chunk can. Write "
            "the array again."
        )


def chunk_bytes(array: Any) -> int:
    """Return the bytes of a chunk of an array."""
    return _size(array, array.chunks)


def _size(array: Any, shape: tuple[int, ...]) -> int:
    size = array.dtype.itemsize
    for n in shape:
        size *= n
    return int(size)


def _steps(array: Any) -> tuple[int, ...]:
    return tuple(array.shards or array.chunks)


def _codecs(array: Any) -> list[Any]:
    metadata = array.metadata
    if metadata.zarr_format == 2:
        return [*(metadata.filters or ()), *([metadata.compressor] if metadata.compressor else [])]
    return list(metadata.codecs)


def _name(codec: Any) -> str:
    """Return the plain name of a codec, of either version of zarr."""
    name = getattr(codec, "codec_id", None) or type(codec).__name__.removesuffix("Codec").lower()
    return str(name).removeprefix("numcodecs.")


def _unpacks_beyond(packed: memoryview, codec: str, most: int) -> bool:
    """Say whether a packed chunk gives more than so many bytes, without holding them."""
    if codec in _STREAMED:
        if len(packed) * 1032 <= most and codec in ("zlib", "gzip"):  # DEFLATE packs no better
            return False
        return counts_beyond(packed, _STREAMED[codec](), most)
    if codec == "blosc":
        return int.from_bytes(packed[4:8], "little") > most
    if codec == "lz4":
        return int.from_bytes(packed[:4], "little") > most
    return _zstd_bytes(packed) > most


def counts_beyond(packed: memoryview, unpack: Any, most: int) -> bool:
    """Say whether a decompressor gives more than so many bytes, without holding them."""
    count = 0
    for start in range(0, len(packed), _PIECE_BYTES):
        piece: Any = packed[start : start + _PIECE_BYTES]
        while not unpack.eof:
            unpacked = unpack.decompress(piece, _PIECE_BYTES)
            count += len(unpacked)
            if count > most:
                return True
            piece = getattr(unpack, "unconsumed_tail", b"")
            if not unpacked or (not piece and len(unpacked) < _PIECE_BYTES):
                break
    return False


def _zstd_bytes(packed: memoryview) -> int:
    """Return the size that a Zstandard frame states in its header, or that its blocks can give."""
    descriptor = packed[4]
    single = bool(descriptor & 0x20)
    at = 5 + (not single) + (0, 1, 2, 4)[descriptor & 3]
    width = (1 if single else 0, 2, 4, 8)[descriptor >> 6]
    if width:
        return int.from_bytes(packed[at : at + width], "little") + (256 if width == 2 else 0)
    size, last = 0, False
    while not last:
        block = int.from_bytes(packed[at : at + 3], "little")
        last, kind, count = bool(block & 1), block >> 1 & 3, block >> 3
        if at + 3 > len(packed) or kind == 3:
            break  # damaged, which its decoder says
        size += count if kind < 2 else _ZSTD_BLOCK
        at += 3 + (1 if kind == 1 else count)
    return size


def chunk_grid(array: Any) -> tuple[int, ...]:
    """Return how many chunks (shards, where there are) lie along each axis."""
    steps = array.shards or array.chunks
    return tuple(-(-size // step) for size, step in zip(array.shape, steps, strict=True))


def missing_chunks(array: Any, path: Location) -> list[str]:
    """Return the keys of the chunks (or shards) of an array that are not in its folder."""
    if array.metadata.zarr_format == 3:
        encode = array.metadata.encode_chunk_key
    else:
        separator = array.metadata.dimension_separator

        def encode(index: tuple[int, ...]) -> str:
            return str(separator.join(str(i) for i in index))

    if isinstance(path, ObjectPath):
        there = set(files_below(path))
    else:
        there = {p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()}
    expected = (encode(index) for index in np.ndindex(*chunk_grid(array)))
    return [key for key in expected if key not in there]
