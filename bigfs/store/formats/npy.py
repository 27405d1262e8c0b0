"""NumPy's .npy: read by ranges into buffers, never mapped (mapped pages count as memory)."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import numpy as np

from bigfs.core.errors import InputError, StorageError
from bigfs.store.source import RandomAccessSource, check_shape, work_dtype


class NpySource(RandomAccessSource):
    """A .npy file of rows."""

    def __init__(self, path: Path) -> None:
        self.uri = str(path)
        self._path = str(path.absolute())
        with path.open("rb") as file:
            shape, fortran, self._stored = read_header(file, self.uri)
            self._offset = file.tell()
        check_shape(shape, self.uri)
        if fortran and shape[1] > 1:
            raise InputError(
                f"{self.uri} is stored by columns (Fortran order), which cannot be read by rows. "
                "Save numpy.ascontiguousarray(X) instead."
            )
        self.n_samples, self.n_features = shape
        self.dtype = work_dtype(self._stored, self.uri)
        expected = self._offset + shape[0] * shape[1] * self._stored.itemsize
        if path.stat().st_size < expected:
            raise InputError(
                f"{self.uri} is cut off: {path.stat().st_size:,} of {expected:,} bytes. "
                "Write it again."
            )

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return rows ``start`` to ``stop``."""
        rows = np.empty((stop - start, self.n_features), self._stored)
        try:
            with Path(self._path).open("rb") as file:
                file.seek(self._offset + start * self.n_features * self._stored.itemsize)
                count = file.readinto(memoryview(rows).cast("B"))
        except OSError as error:
            raise StorageError(f"Cannot read {self.uri}: {error}.") from error
        if count != rows.nbytes:
            raise StorageError(f"{self.uri} ends before row {stop}. It changed while being read.")
        return rows.astype(self.dtype, copy=False)


def read_header(file: IO[bytes], uri: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return shape, Fortran order and dtype of an open .npy, leaving the file at its values.

    Raises
    ------
    InputError
        If it is no .npy file or holds pickled objects.
    """
    try:
        version = np.lib.format.read_magic(file)
        read: Any = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = read(file)
    except (ValueError, EOFError) as error:
        raise InputError(f"{uri} is not a .npy file: {error}") from None
    if dtype.hasobject:
        raise InputError(
            f"{uri} holds pickled Python objects, which bigfs never loads. Save plain numbers."
        )
    return tuple(int(size) for size in shape), bool(fortran), dtype


def open_file(path: Path, variable: str | None) -> NpySource:
    """Open a .npy file."""
    if variable is not None:
        raise InputError(f"{path} holds one array; input.variable must be null. Got {variable!r}.")
    return NpySource(path)
