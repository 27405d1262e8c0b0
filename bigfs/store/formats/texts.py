"""Texts, packed or not: opened by their ending."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import IO, Any

from bigfs.core.errors import InputError
from bigfs.store.location import Location
from bigfs.store.values import refusing

# A million columns of 30 characters. A file without line breaks would be held as a whole.
LINE_BYTES = 32 * 2**20
_FAULTS = (
    OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, UnicodeError,
    NotImplementedError,
)  # fmt: skip


@contextmanager
def open_text(path: Location) -> Iterator[IO[bytes]]:
    """Open a file for reading, unpacked."""
    lower = path.name.lower()
    unpack = next((PACKED[end] for end in PACKED if lower.endswith(end)), None)
    with refusing(f"{path} cannot be read, it is damaged or not a readable text table", *_FAULTS):
        with path.open("rb") as raw, (unpack or nullcontext)(raw) as file:
            yield file


def whole_lines(file: IO[bytes], size: int, path: Location) -> Iterator[bytes]:
    """Yield pieces of an open file that end with a line."""
    while lines := file.read(size):
        end = file.readline(LINE_BYTES)
        if len(end) == LINE_BYTES:
            raise InputError(f"{path}: a line is longer than 32 MiB. Write it again.")
        yield lines + end


def _zstd(raw: IO[bytes]) -> Any:
    import pyarrow as pa

    return pa.CompressedInputStream(pa.PythonFile(raw, "r"), "zstd")


@contextmanager
def _member(raw: IO[bytes]) -> Iterator[IO[bytes]]:
    """Open the only file in a zip."""
    with zipfile.ZipFile(raw) as archive:
        names = [n for n in archive.namelist() if not n.endswith("/") and "__MACOSX" not in n]
        if len(names) != 1:
            raise InputError(f"the zip holds {len(names)} files, and must hold one table.")
        with archive.open(names[0]) as file:
            yield file


PACKED: dict[str, Any] = {
    ".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": _zstd, ".zip": _member,
}  # fmt: skip
