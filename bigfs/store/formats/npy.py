"""NumPy's .npy, read by ranges into buffers, not memory-mapped (mapped pages count as memory)."""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, ClassVar

import numpy as np

from bigfs.core.errors import InputError, StorageError
from bigfs.core.threads import parsed
from bigfs.store.formats.cube import CubeSource, Place, open_transposed
from bigfs.store.formats.parts import ArrayByRows
from bigfs.store.location import Location, as_location, is_remote, read_into
from bigfs.store.source import Source, check_no_variable, work_dtype
from bigfs.store.values import check_vector, refusing

_MOST_HEADER_BYTES = 10_000
_REASON_LENGTH = 200


@contextmanager
def _open_values(
    path: str, shape: tuple[int, ...], dtype: np.dtype, offset: int
) -> Iterator[FileArray]:
    """Open the values of a .npy file in C order; the file is opened anew for every read."""
    with as_location(path).open("rb", buffering=0) as file:
        yield FileArray(file, shape, dtype, offset, path)


@dataclass(frozen=True)
class FileArray:
    """Array in C order in an open file, of which pieces are read into buffers."""

    file: Any
    shape: tuple[int, ...]
    dtype: np.dtype
    offset: int
    uri: str

    chunks: ClassVar[None] = None

    def __getitem__(self, key: slice | tuple[slice, ...]) -> np.ndarray:
        """Return a range of every dimension, or of the first ones, with steps of 1."""
        given = key if isinstance(key, tuple) else (key,)
        ranges = [range(*part.indices(n)) for part, n in zip(given, self.shape, strict=False)]
        ranges += [range(n) for n in self.shape[len(ranges) :]]
        out = np.empty([len(part) for part in ranges], self.dtype)
        # From the last dimension that is not read in full, values are contiguous in the file.
        split = max((i for i, n in enumerate(self.shape) if len(ranges[i]) < n), default=0)
        starts = [part.start for part in ranges]
        for place in np.ndindex(*out.shape[:split]) if out.size else ():
            at = [start + i for start, i in zip(starts, place, strict=False)] + starts[split:]
            first_value = int(np.ravel_multi_index(at, self.shape))
            begin = self.offset + first_value * self.dtype.itemsize
            ended = f"{self.uri} became shorter while it was read. Run again."
            read_into(self.file, begin, out[place], ended)
        return out


def read_header(file: IO[bytes], uri: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return shape, Fortran order and dtype of an open .npy file, and leave it at its values.

    Raises
    ------
    InputError
        If it is not a .npy file or holds pickled objects.
    """
    try:
        version = np.lib.format.read_magic(file)
        size = int.from_bytes(file.read(2 if version == (1, 0) else 4), "little")
        if size > _MOST_HEADER_BYTES:
            raise ValueError(f"its header has {size:,} bytes")
        file.seek(np.lib.format.MAGIC_LEN)
        read: Any = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        start = file.tell()

        def from_start() -> Any:
            file.seek(start)
            return read(file)

        shape, fortran, dtype = parsed(from_start)
    except (StorageError, OSError, zlib.error):
        raise
    except Exception as error:  # NumPy evaluates it as a Python literal, which may raise anything
        first = (str(error).splitlines() or [type(error).__name__])[0]
        reason = first[:_REASON_LENGTH].rstrip(".")
        raise InputError(f"{uri} is not in NumPy's .npy format: {reason}.") from None
    if dtype.hasobject:
        raise InputError(
            f"{uri} holds pickled Python objects, which bigfs does not load. Save plain numbers."
        )
    # A single column or row is the same bytes in both orders.
    by_columns = bool(fortran) and len(shape) > 1 and math.prod(shape) > max(shape)
    return tuple(int(size) for size in shape), by_columns, dtype


def open_file(path: Location, variable: str | None, **cube: Any) -> Source:
    """Open a .npy file.

    If it is stored by columns (Fortran order), each block is gathered from a piece of each column.
    ``cube`` has ``features`` and ``no_data`` of a `CubeSource`, if given.
    """
    check_no_variable(path, variable)
    uri = str(path)
    with path.open("rb") as file:
        shape, by_columns, stored = read_header(file, uri)
        offset = file.tell()
    if by_columns and is_remote(path):
        raise InputError(
            f"{uri} is stored by columns (Fortran order): reading rows would take a request for "
            "each column of each block. Save numpy.ascontiguousarray(X)."
        )
    work_dtype(stored, uri)
    expected = offset + math.prod(shape) * stored.itemsize
    if path.stat().st_size < expected:
        raise InputError(
            f"{uri} is cut off: {path.stat().st_size:,} of {expected:,} bytes. Write it again."
        )
    in_file = shape[::-1] if by_columns else shape
    place: Place = partial(_open_values, str(path.absolute()), in_file, stored, offset)
    place = partial(open_transposed, place) if by_columns else place
    if len(shape) == 2 and not cube:
        return ArrayByRows(place, uri)
    return CubeSource(uri, place, None, **cube)


def read_column(path: Location, name: str, rows: Collection[str] = ()) -> np.ndarray:
    """Return the array as labels, which have no name; ``rows`` are as in `check_vector`."""
    with path.open("rb") as file:
        shape, _, dtype = read_header(file, str(path))
    check_vector(shape, dtype, str(path), rows)
    return load(path)


def load(path: Location, member: str | None = None) -> np.ndarray:
    """Load the array of a .npy file, or a member of a .npz file by its name."""
    with refusing(f"{path}: the labels cannot be read", ValueError):
        return parsed(_load, path, member)


def _load(path: Location, member: str | None) -> np.ndarray:
    with path.open("rb") as file:
        loaded = np.load(file, allow_pickle=False)
        if member is None:
            return np.asarray(loaded)
        with loaded:
            return np.asarray(loaded[member])


def write(file: IO[bytes], selected: Any) -> None:
    """Write the selected columns as one array."""
    columns = selected.columns
    shape = (columns.n_samples, columns.n_features)
    header = {"descr": columns.dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    for block in selected.blocks:
        file.write(np.ascontiguousarray(block).data)
