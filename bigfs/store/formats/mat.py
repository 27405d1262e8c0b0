"""MATLAB's .mat files: up to version 5 by scipy, which loads whole variables; 7.3 is HDF5."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import IO, Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.core.units import GIB, format_bytes
from bigfs.store.csr import CSRSource
from bigfs.store.formats.cube import CubeSource, open_loaded, open_transposed
from bigfs.store.formats.hdf5 import find, open_h5, open_member
from bigfs.store.formats.memory import ArraySource
from bigfs.store.formats.parts import CSCParts
from bigfs.store.location import Location
from bigfs.store.source import Source, choose_member, listed
from bigfs.store.values import decoding, refusing

_NUMERIC = {"double", "single", "logical", "sparse"} | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}
# The usual names of a matrix of features, and of its classes.
_FEATURES, _CLASSES = "fea", "gnd"
# Storage types of values by their numbers in the file.
_STORED = {
    1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8",
}  # fmt: skip
_COMPRESSED = 15
_COMPLEX, _SPARSE = 0x800, 5
_HEADER_BYTES = 128
_PIECE_BYTES = 2**18
# Upper bound for sparse variables, and those of versions before 5, which are loaded when opened.
_MOST_BYTES = GIB


@contextmanager
def _open_sparse(path: str, name: str) -> Iterator[dict[str, Any]]:
    """Open a sparse matrix of version 7.3, with its parts under bigfs's names."""
    with open_member(path, name) as group:
        yield {"data": group["data"], "indices": group["ir"], "indptr": group["jc"]}


@contextmanager
def _open_element(path: Location, position: int) -> Iterator[_Element | None]:
    """Open a variable of a version 5 file by its position; yield None for earlier versions."""
    with path.open("rb") as file:
        mark = file.read(_HEADER_BYTES)[126:128]
        yield _Element(file, position, mark == b"IM") if mark in (b"IM", b"MI") else None


class _Element:
    """Variable in an open version 5 file, decompressed only as far as needed."""

    def __init__(self, file: IO[bytes], position: int, is_little: bool) -> None:
        self._file, self._order = file, "<" if is_little else ">"
        for _ in range(position):
            file.seek(self._tag(file.read(8))[1], 1)
        kind, self._size = self._tag(file.read(8))
        self._start, self._packed = file.tell(), kind == _COMPRESSED

    def content(self, uri: str) -> np.dtype | None:
        """Return the type in which the values are stored, or None for a sparse variable.

        The type may differ from that of the variable.
        """
        what = f"{uri} is damaged or holds no numbers"
        with refusing(what, struct.error, KeyError, zlib.error):
            content = next(self._pieces(), b"")[8 if self._packed else 0 :]
            flags = struct.unpack(f"{self._order}I", content[8:12])[0]
            if flags & _COMPLEX:
                raise InputError(f"{uri}: values must be real numbers. Got complex numbers.")
            if flags & 0xFF == _SPARSE:
                return None
            # Flags, sizes and name come before the values.
            for _ in range(3):
                content = content[self._length(content) :]
            kind = self._tag(content[:8])[0]
            return np.dtype(self._order + _STORED[kind & 0xFFFF])

    def check_size(self, most: int, uri: str) -> int:
        """Return the decompressed size in bytes, or raise InputError if it exceeds ``most``."""
        size = 0
        with refusing(f"{uri} is damaged", zlib.error):
            for piece in self._pieces():
                size += len(piece)
                if size > most:
                    raise InputError(
                        f"{uri} unpacks to more than {format_bytes(most)}: it is damaged, or too "
                        "large for this format. Save it as .npy, or as .npz if it is sparse."
                    )
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
        """Return the type number in a tag and the size of the data that follows."""
        kind, size = struct.unpack(f"{self._order}II", content)
        return kind, size

    def _length(self, content: bytes) -> int:
        """Return the length of the first part of an element, with its tag.

        The data of a short part is stored in the tag itself.
        """
        kind, size = self._tag(content[:8])
        return 8 if kind >> 16 else 8 + -(-size // 8) * 8


def open_file(path: Location, variable: str | None, **cube: Any) -> Source:
    """Open ``variable``, ``X``, ``fea`` (the usual name of features), or the only matrix.

    ``cube`` has ``features`` and ``no_data`` of a `CubeSource`, if given.
    """
    known = {name: (shape, kind) for name, shape, kind in preview(path)}
    name = _chosen(path, known, variable, cube.get("features"))
    shape, kind = known[name]
    uri = f"{path}::{name}"
    if is_hdf5(path):
        place = str(path.absolute()), name
        if kind == "sparse":
            _refuse_cube(uri, cube)
            return CSCParts(partial(_open_sparse, *place), shape, uri)
        dense = partial(open_transposed, partial(open_member, *place))
        return CubeSource(uri, dense, None, **cube)
    position = list(known).index(name)
    with _open_element(path, position) as element:
        stored = None if element is None else element.content(uri)
        if stored is None:
            size = path.stat().st_size if element is None else element.check_size(_MOST_BYTES, uri)
    if stored is not None:
        load = partial(_load_dense, path.absolute(), name, position, shape, stored)
        return open_loaded(uri, shape, stored, load, **cube)
    if size > _MOST_BYTES:
        raise InputError(f"{path} is of version 4. Save it in MATLAB with save(..., '-v7').")
    _refuse_cube(uri, cube)
    matrix = _load(path, name)
    held = ArraySource(matrix, uri) if isinstance(matrix, np.ndarray) else CSRSource(matrix, uri)
    held.held_bytes += 2 * size
    return held


def read_column(path: Location, name: str) -> np.ndarray:
    """Return a variable as labels, which are numbers or texts; by default ``gnd`` or ``y``."""
    known = {name: kind for name, _, kind in preview(path)}
    name = name or (_CLASSES if _CLASSES in known else "y")
    if name not in known:
        raise InputError(f"{path} has no variable {name!r}. It has {listed(list(known))}.")
    uri = f"{path}::{name}"
    if is_hdf5(path):
        if known[name] not in _NUMERIC - {"sparse"}:
            raise InputError(f"{uri} is a {known[name]}; labels are numbers in version 7.3.")
        with open_member(str(path.absolute()), name) as array:
            return np.asarray(array[tuple(slice(0, n) for n in array.shape)]).T
    with _open_element(path, list(known).index(name)) as element:
        if element is not None:
            element.check_size(_MOST_BYTES, uri)
    values = _load(path, name)
    if not isinstance(values, np.ndarray):
        raise InputError(f"{uri} is sparse. Labels are one number or text for each sample.")
    if values.dtype == object:  # a cell array of texts
        cells = [np.asarray(cell) for cell in values.ravel()]
        if not all(cell.dtype.kind == "U" and cell.size <= 1 for cell in cells):
            raise InputError(
                f"{uri} is a cell array with elements that are not texts, so it cannot be labels."
            )
        return np.array(["".join(cell.ravel()) for cell in cells])
    return values


def _chosen(path: Location, known: dict[str, Any], name: str | None, features: Any) -> str:
    """Return the name of the variable to read."""
    if name is None and "X" not in known and _FEATURES in known:
        name = _FEATURES
    large = {n: len(shape) for n, (shape, kind) in known.items()
             if kind in _NUMERIC and len(shape) > 1 and min(shape) > 1}  # fmt: skip
    # A hyperspectral scene may come with an image of its classes, which has no features.
    wanted = [n for n, count in large.items() if count > 2 or features is None]
    name = choose_member(path, list(known), wanted or list(large), name)
    if known[name][1] not in _NUMERIC:
        raise InputError(f"{path}: {name!r} is a {known[name][1]}, not a matrix of numbers.")
    return name


def preview(path: Location) -> list[tuple[str, tuple[int, ...], str]]:
    """Return name, shape and MATLAB class (or "sparse") of every variable of a file."""
    from scipy.io import whosmat

    if not is_hdf5(path):
        return list(_scipy(whosmat, path))
    variables = []
    with open_h5(path) as file, decoding(str(path)):
        for name in (name for name in file if not name.startswith("#")):  # internal to MATLAB
            node = find(file, name, str(path))
            if node is None:
                continue
            is_number = hasattr(node, "shape") and node.dtype.kind in "fiub"
            kind: Any = node.attrs.get("MATLAB_class", b"double" if is_number else b"struct")
            kind = kind.decode(errors="replace") if isinstance(kind, bytes) else str(kind)
            shape = tuple(getattr(node, "shape", ()))[::-1]
            if "MATLAB_sparse" in node.attrs:
                columns = int(node["jc"].shape[0]) - 1 if "jc" in node else 0
                shape, kind = (int(node.attrs["MATLAB_sparse"]), columns), "sparse"
            variables.append((name, shape, kind))
    return variables


def _refuse_cube(uri: str, cube: dict[str, Any]) -> None:
    if cube:
        raise InputError(
            f"{uri} is sparse or of version 4: input.features and input.no_data do not apply."
        )


def _load_dense(
    path: Location, name: str, position: int, shape: tuple[int, ...], dtype: np.dtype
) -> np.ndarray:
    """Return a dense variable of a version 5 file, which is checked against its header.

    The data may decompress to more than the header announces.
    """
    uri = f"{path}::{name}"
    size = math.prod(shape) * dtype.itemsize
    with _open_element(path, position) as element:
        if element is not None:
            element.check_size(size + _PIECE_BYTES, uri)
    values: np.ndarray = _load(path, name)
    if values.shape != shape or values.dtype != dtype:
        raise InputError(f"{uri} is damaged: it does not match its header.")
    return values


def _load(path: Location, name: str) -> Any:
    from scipy.io import loadmat

    variables = _scipy(loadmat, path, variable_names=[name], spmatrix=False)
    if name not in variables:
        raise InputError(f"{path}::{name} is damaged. Write it again.")
    return variables[name]


def is_hdf5(path: Location) -> bool:
    """Return True if a .mat file is of version 7.3."""
    with path.open("rb") as file:
        return file.read(16).startswith(b"MATLAB 7.3")


def _scipy(read: Any, path: Location, **options: Any) -> Any:
    # scipy does not document the exceptions that it raises for damaged files.
    with refusing(f"{path} is not a .mat file, or is damaged", Exception), path.open("rb") as file:
        return read(file, **options)
