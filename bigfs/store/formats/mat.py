"""MATLAB's .mat, version 5 and before: one variable, which scipy reads at once when needed."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import IO, Any

import numpy as np

from bigfs.core.errors import InputError, StorageError
from bigfs.core.units import GIB, format_bytes
from bigfs.store.csr import CSRSource
from bigfs.store.formats import h5
from bigfs.store.formats.h5 import is_hdf5
from bigfs.store.formats.memory import ArraySource
from bigfs.store.location import Location
from bigfs.store.source import Source, check_shape, choose_member, work_dtype

_NUMERIC = {"double", "single", "logical", "sparse"} | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}
# Numbers of the types that values are stored in.
_STORED = {
    1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8",
}  # fmt: skip
_COMPRESSED = 15
_COMPLEX = 0x800
_HEADER_BYTES = 128
_PIECE_BYTES = 2**18
# Sparse variables, and those of versions before 5, are read as they are opened.
_MOST_BYTES = GIB


class MatSource(Source):
    """A dense variable of a version 5 file: read as a whole, handed out by rows, and let go."""

    def __init__(self, path: Location, name: str, shape: tuple[int, ...], position: int) -> None:
        self.uri = f"{path}::{name}"
        self._path, self._name, self._position = path, name, position
        check_shape(shape, self.uri)
        self.n_samples, self.n_features = shape
        with path.open("rb") as file:
            self._stored = _Element(file, position).values_dtype(self.uri)
        self.dtype = work_dtype(self._stored, self.uri)
        # Unpacked once, and copied into an array.
        self.held_bytes = 2 * shape[0] * shape[1] * self._stored.itemsize

    @property
    def stored_dtype(self) -> np.dtype:
        """Type of the values in the file."""
        return self._stored

    def iter_blocks(self, rows: int) -> Iterator[np.ndarray]:
        """Yield consecutive arrays of at most ``rows`` rows."""
        with self._path.open("rb") as file:
            # The header may announce less than there is.
            _Element(file, self._position).check_size(self.held_bytes // 2 + _PIECE_BYTES, self.uri)
        matrix = _load(self._path, self._name)
        if matrix.shape != (self.n_samples, self.n_features) or matrix.dtype != self._stored:
            raise InputError(f"{self.uri} is damaged: it is not what its header says.")
        yield from ArraySource(matrix, self.uri).iter_blocks(rows)


class _Element:
    """A variable in an open version 5 file, by its position, unpacked as far as needed."""

    def __init__(self, file: IO[bytes], position: int) -> None:
        self._file = file
        header = file.read(_HEADER_BYTES)
        self._order = "<" if header[126:128] == b"IM" else ">"
        for _ in range(position):
            file.seek(self._tag(file.read(8))[1], 1)
        kind, self._size = self._tag(file.read(8))
        self._start, self._packed = file.tell(), kind == _COMPRESSED

    def values_dtype(self, uri: str) -> np.dtype:
        """Return the type that the values are stored in, which need not be that of the variable."""
        content = next(self._pieces(), b"")
        if self._packed:
            content = content[8:]
        try:
            if struct.unpack(f"{self._order}I", content[8:12])[0] & _COMPLEX:
                raise InputError(f"{uri}: values must be real numbers. Got complex ones.")
            # Flags, sizes and name come before the values.
            for _ in range(3):
                content = content[self._length(content) :]
            kind = self._tag(content[:8])[0]
            return np.dtype(self._order + _STORED[kind & 0xFFFF])
        except (struct.error, KeyError):
            raise InputError(f"{uri} is damaged, or holds no numbers. Write it again.") from None

    def check_size(self, most: int, uri: str) -> int:
        """Return the bytes that are there once unpacked, or raise InputError beyond so many."""
        size = 0
        try:
            for piece in self._pieces():
                size += len(piece)
                if size > most:
                    raise InputError(
                        f"{uri} unpacks to more than {format_bytes(most)}: it is damaged, or too "
                        "large for this format. Save it as .npy, or as .npz if it is sparse."
                    )
        except zlib.error as error:
            raise InputError(f"{uri} is damaged: {error}. Write it again.") from None
        return size

    def _pieces(self) -> Iterator[bytes]:
        self._file.seek(self._start)
        left = self._size
        unpack = zlib.decompressobj()
        while left > 0 and (packed := self._file.read(min(left, _PIECE_BYTES))):
            left -= len(packed)
            if not self._packed:
                yield packed
                continue
            while packed:
                yield unpack.decompress(packed, _PIECE_BYTES)
                packed = unpack.unconsumed_tail

    def _tag(self, content: bytes) -> tuple[int, int]:
        """Return the number of a type, and the size of what follows."""
        kind, size = struct.unpack(f"{self._order}II", content)
        return kind, size

    def _length(self, content: bytes) -> int:
        """Return the length of the first part of an element, tag included; short ones are in it."""
        kind, size = self._tag(content[:8])
        return 8 if kind >> 16 else 8 + -(-size // 8) * 8


def open_file(path: Location, variable: str | None, **cube: Any) -> Source:
    """Open ``variable``, ``X``, ``fea`` (the usual name of features), or the only matrix.

    ``cube`` has ``features`` and ``no_data`` of a `CubeSource`, where they are given.
    """
    from scipy.io import whosmat

    if is_hdf5(path):
        return h5.open_file(path, variable, **cube, matlab=True)
    if cube:
        raise InputError(f"{path}: features and no_data are for files of version 7.3 (-v7.3).")
    content = _scipy(whosmat, path)
    names = [name for name, _, _ in content]
    if variable is None and "X" not in names and "fea" in names:
        variable = "fea"
    matrices = [
        name
        for name, shape, kind in content
        if kind in _NUMERIC and len(shape) == 2 and min(shape) > 1
    ]
    name = choose_member(path, names, matrices, variable)
    position = names.index(name)
    _, shape, kind = content[position]
    if kind not in _NUMERIC:
        raise InputError(f"{path}: {name!r} is a {kind}, not a matrix of numbers.")
    uri = f"{path}::{name}"
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
        is_version_5 = header[126:128] in (b"IM", b"MI")
        if is_version_5 and kind != "sparse":
            return MatSource(path, name, shape, position)
        file.seek(0)
        if is_version_5:
            size = _Element(file, position).check_size(_MOST_BYTES, uri)
        elif (size := path.stat().st_size) > _MOST_BYTES:
            raise InputError(f"{path} is of version 4. Save it in MATLAB with save(..., '-v7').")
    matrix = _load(path, name)
    source = ArraySource(matrix, uri) if isinstance(matrix, np.ndarray) else CSRSource(matrix, uri)
    source.held_bytes = 2 * size
    return source


def _load(path: Location, name: str) -> Any:
    from scipy.io import loadmat

    variables = _scipy(loadmat, path, variable_names=[name], spmatrix=False)
    if name not in variables:
        raise InputError(f"{path}::{name} is damaged. Write it again.")
    return variables[name]


def list_variables(path: Location) -> list[tuple[str, tuple[int, ...], str]]:
    """Return name, shape and kind of every variable of a file."""
    from scipy.io import whosmat

    if is_hdf5(path):
        return [(name, shape[::-1], kind) for name, shape, kind in h5.list_arrays(path)]
    return list(_scipy(whosmat, path))


def _scipy(read: Any, path: Location, **options: Any) -> Any:
    try:
        with path.open("rb") as file:
            return read(file, **options)
    except StorageError:
        raise
    except NotImplementedError:
        raise InputError(
            f"{path} is a version 7.3 file (HDF5), which is not read. Save it in MATLAB with "
            "save(..., '-v7')."
        ) from None
    except Exception as error:  # scipy documents none of what a damaged file makes it raise
        raise InputError(f"{path} is not a .mat file, or damaged: {error}.") from None
