"""NumPy's .npy: read by ranges into buffers, never mapped (mapped pages count as memory)."""

from __future__ import annotations

import zlib
from typing import IO, Any

import numpy as np

from bigfs.core.errors import InputError, StorageError
from bigfs.store.location import Location, as_location, is_remote
from bigfs.store.source import RandomAccessSource, check_no_variable, check_shape, work_dtype
from bigfs.store.values import as_floats

_MOST_HEADER_BYTES = 10_000
_SAID = 200


class NpySource(RandomAccessSource):
    """A .npy file; stored by columns (Fortran order), each block gathers a piece of each."""

    def __init__(self, path: Location) -> None:
        self.uri = str(path)
        self._path = str(path.absolute())
        with path.open("rb") as file:
            shape, self._fortran, self._stored = read_header(file, self.uri)
            self._offset = file.tell()
        self.dtype = work_dtype(self._stored, self.uri)
        check_shape(shape, self.uri)
        self.n_samples, self.n_features = shape
        if self._fortran and is_remote(path):
            raise InputError(
                f"{self.uri} is stored by columns (Fortran order): reading rows would take a "
                "request for each column of each block. Save numpy.ascontiguousarray(X)."
            )
        expected = self._offset + shape[0] * shape[1] * self._stored.itemsize
        if path.stat().st_size < expected:
            raise InputError(
                f"{self.uri} is cut off: {path.stat().st_size:,} of {expected:,} bytes. "
                "Write it again."
            )

    @property
    def stored_dtype(self) -> np.dtype:
        """Type of the values in the file."""
        return self._stored

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return rows ``start`` to ``stop``."""
        try:
            with as_location(self._path).open("rb", buffering=0) as file:
                if self._fortran:
                    rows = self._gather(file, start, stop)
                else:
                    rows = np.empty((stop - start, self.n_features), self._stored)
                    self._fill(file, rows, start * self.n_features)
        except StorageError:
            raise
        except OSError as error:
            raise StorageError(f"Cannot read {self.uri}: {error}.") from error
        return as_floats(rows, self.dtype, self.uri, start)

    def _gather(self, file: IO[bytes], start: int, stop: int) -> np.ndarray:
        """Read a piece of each column."""
        columns = np.empty((self.n_features, stop - start), self._stored)
        for j, column in enumerate(columns):
            self._fill(file, column, j * self.n_samples + start)
        return columns.T

    def _fill(self, file: Any, out: np.ndarray, first_value: int) -> None:
        """Read consecutive values of the file into an array."""
        file.seek(self._offset + first_value * self._stored.itemsize)
        view = out.reshape(-1).view(np.uint8).data
        while view:
            count = file.readinto(view)
            if not count:
                raise StorageError(f"{self.uri} became shorter while it was read. Run again.")
            view = view[count:]


def read_header(file: IO[bytes], uri: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return shape, Fortran order and dtype of an open .npy, leaving the file at its values.

    Raises
    ------
    InputError
        If it is no .npy file or holds pickled objects.
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
        shape, fortran, dtype = read(file)
    except (StorageError, OSError, zlib.error):
        raise
    except Exception as error:  # NumPy reads it as a Python text, and raises whatever that does
        reason = (str(error).splitlines() or [type(error).__name__])[0][:_SAID].rstrip(".")
        raise InputError(f"{uri} is not in NumPy's .npy format: {reason}.") from None
    if dtype.hasobject:
        raise InputError(
            f"{uri} holds pickled Python objects, which bigfs does not load. Save plain numbers."
        )
    # A single column or row is the same bytes in both orders.
    by_columns = bool(fortran) and len(shape) == 2 and min(shape) > 1
    return tuple(int(size) for size in shape), by_columns, dtype


def open_file(path: Location, variable: str | None) -> NpySource:
    """Open a .npy file."""
    check_no_variable(path, variable)
    return NpySource(path)
