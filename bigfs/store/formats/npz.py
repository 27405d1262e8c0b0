"""NumPy's .npz: one member, or the parts of a sparse matrix, decompressed in pieces."""

from __future__ import annotations

import math
import weakref
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.core.threads import parsed
from bigfs.core.units import GIB, format_bytes
from bigfs.store.csr import CSRSource
from bigfs.store.formats.cube import CubeSource, Later, open_transposed
from bigfs.store.formats.npy import FileArray, load, read_header
from bigfs.store.formats.parts import PARTS, CSCParts, CSRParts
from bigfs.store.location import Location
from bigfs.store.scratch import temporary_file
from bigfs.store.source import Source, choose_member, listed, work_dtype
from bigfs.store.values import as_floats, check_vector, refusing

_CSR = {"data", "indices", "indptr", "shape"}
# Members that scipy writes for every sparse format.
_SCIPY = {"data", "shape", "format"}
_PIECE_BYTES = 2**18
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError,
    UnicodeDecodeError,  # a name that is not UTF-8
)  # fmt: skip


class NpzSource(Source):
    """Streamed member of a .npz file in C order, whose first dimensions are the rows."""

    def __init__(self, member: _Member, n_features: int) -> None:
        shape = math.prod(member.shape) // n_features, n_features
        self.set_matrix(member.uri, shape, member.dtype)
        self._member = member

    def iter_rows(self, rows: int) -> Iterator[np.ndarray]:
        """Yield consecutive arrays of at most ``rows`` rows."""
        n_samples = self.n_samples or 0
        with self._member.unpacking() as file:
            for start in range(0, n_samples, rows):
                block = np.empty((min(rows, n_samples - start), self.n_features), self._stored)
                unpack(file, block.reshape(-1).view(np.uint8).data, self.uri)
                yield as_floats(block, self.dtype, self.uri, start)


@dataclass(frozen=True)
class _Member:
    """Place (see `cube.Place`) of a .npz member in C order, decompressed to a temporary file."""

    path: Location
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype

    def __getstate__(self) -> dict[str, Any]:
        # A copy may be used in another working directory.
        return {**vars(self), "path": self.path.absolute()}

    @property
    def uri(self) -> str:
        """Name used in error messages."""
        return f"{self.path}::{self.name}"

    @property
    def n_bytes(self) -> int:
        """Decompressed bytes, which is the size of the temporary file."""
        return math.prod(self.shape) * self.dtype.itemsize

    @contextmanager
    def unpacking(self) -> Iterator[Any]:
        """Open the member, positioned at its values."""
        with open_zip(self.path) as archive, archive.open(f"{self.name}.npy") as file:
            read_header(file, self.uri)
            yield file

    @contextmanager
    def __call__(self) -> Iterator[Later]:
        """Yield the array, which is decompressed at the first read."""
        with temporary_file() as file:
            yield Later(self.shape, self.dtype, lambda: self.unpacked(file))

    def unpacked(self, file: IO[bytes]) -> FileArray:
        """Decompress the member into an open file and return it as an array."""
        left = self.n_bytes
        with self.unpacking() as packed:
            while left:
                piece = bytearray(min(left, _PIECE_BYTES))
                unpack(packed, memoryview(piece), self.uri)
                left -= file.write(piece)
        file.flush()
        return FileArray(file, self.shape, self.dtype, 0, self.uri)


def unpack(file: Any, view: memoryview, uri: str) -> None:
    """Decompress the next bytes into a buffer.

    This is done in pieces, because zipfile copies everything that one step yields.

    Raises
    ------
    InputError
        If the file is damaged or ends too early.
    """
    with refusing(f"{uri} is damaged", *_DAMAGE):
        while view:
            count = file.readinto(view[:_PIECE_BYTES])
            if not count:
                raise InputError(f"{uri} is cut off. Write it again.")
            view = view[count:]


@contextmanager
def open_zip(path: Location) -> Iterator[zipfile.ZipFile]:
    """Open a zip file, local or in a bucket."""
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        yield archive


def member_names(path: Location) -> list[str]:
    """Return the names of the arrays of a .npz file.

    Raises
    ------
    InputError
        If it is not a zip file.
    """
    with refusing(f"{path} is not a .npz file", *_DAMAGE), open_zip(path) as archive:
        return [n.removesuffix(".npy") for n in archive.namelist() if n.endswith(".npy")]


def member_header(path: Location, member: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return the shape of a member, whether it is in Fortran order, and its dtype.

    Raises
    ------
    InputError
        If the member is damaged or holds pickled objects.
    """
    uri = f"{path}::{member}"
    with refusing(f"{uri} is damaged", *_DAMAGE), open_zip(path) as archive:
        with archive.open(f"{member}.npy") as file:
            return read_header(file, uri)


def open_file(path: Location, variable: str | None, **cube: Any) -> Source:
    """Open the member ``variable``, ``X``, the parts of a sparse matrix, or the only matrix.

    ``cube`` has ``features`` and ``no_data`` of a `CubeSource`, if given.
    """
    names = member_names(path)
    is_sparse = set(names) >= _CSR or set(names) >= _SCIPY
    if variable is None and "X" not in names and is_sparse and "features" not in cube:
        return _open_sparse(path, "format" in names)
    shapes = {name: _numbers(path, name) for name in names}
    large = {name: len(shape) for name, shape in shapes.items() if len(shape) > 1}
    wanted = [name for name, n in large.items() if n > 2 or "features" not in cube]
    name = choose_member(path, names, wanted or list(large), variable)
    shape, by_columns, dtype = member_header(path, name)
    member = _Member(path, name, shape[::-1] if by_columns else shape, dtype)
    work_dtype(dtype, member.uri)
    place = partial(open_transposed, member) if by_columns else member
    source = CubeSource(member.uri, place, None, **cube)
    if source.has_features_last and not by_columns and "no_data" not in cube:
        streamed = NpzSource(member, source.n_features)
        streamed.grid = source.grid if len(shape) > 2 else None
        return streamed
    source.temporary_bytes += member.n_bytes
    source.starts_quickly = False
    return source


def _numbers(path: Location, member: str) -> tuple[int, ...]:
    """Return the shape of a member, which is empty if it does not hold numbers."""
    try:
        shape, _, dtype = member_header(path, member)
    except InputError:  # such as pickled labels next to the matrix
        return ()
    return shape if dtype.kind in "fiub" else ()


def _open_sparse(path: Location, has_format: bool) -> Source:
    """Open a file of ``scipy.sparse.save_npz``, or the bare parts of a CSR matrix.

    A matrix that is stored neither as CSR nor as CSC is loaded as a whole.

    Raises
    ------
    InputError
        If the parts are damaged, or a matrix to be loaded exceeds 1 GiB decompressed.
    """
    from scipy.sparse import load_npz

    uri = str(path)
    faults = (*_DAMAGE, ValueError, TypeError, KeyError)
    with refusing(f"{uri} does not hold the parts of a sparse matrix", *faults):
        with path.open("rb") as file, np.load(file, allow_pickle=False) as parts:
            get = partial(parsed, parts.__getitem__)
            kind = str(np.asarray(get("format")).astype("U")) if has_format else "csr"
            shape = get("shape")
        if kind in ("csr", "csc"):
            place = _UnpackedParts(path, {name: member_header(path, name) for name in PARTS})
            source = (CSRParts if kind == "csr" else CSCParts)(place, shape, uri)
            source.shareable = False
            source.temporary_bytes += place.n_bytes
            return source
        with open_zip(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > GIB:
            raise InputError(
                f"{uri} is stored as {kind}, which is loaded as a whole: {format_bytes(size)} "
                "unpacked. Save it as csr: scipy.sparse.save_npz(FILE, X.tocsr())."
            )
        with path.open("rb") as file:
            return CSRSource(load_npz(file), uri)


class _UnpackedParts:
    """Place (see `cube.Place`) of a sparse matrix; parts are decompressed at the first read."""

    def __init__(self, path: Location, headers: dict[str, Any]) -> None:
        self._made_of = path.absolute(), headers
        members = {name: _Member(path, name, h[0], h[2]) for name, h in headers.items()}
        self.n_bytes = sum(member.n_bytes for member in members.values())
        self._arrays = {
            name: Later(member.shape, member.dtype, partial(self._unpacked, member))
            for name, member in members.items()
        }

    def __reduce__(self) -> Any:
        # The decompressed files are only open in this process.
        return type(self), self._made_of

    def _unpacked(self, member: _Member) -> FileArray:
        file = temporary_file()
        weakref.finalize(self, file.close)
        return member.unpacked(file)

    @contextmanager
    def __call__(self) -> Iterator[dict[str, Later]]:
        """Yield the parts by name."""
        yield self._arrays


def read_column(path: Location, name: str, rows: Collection[str] = ()) -> np.ndarray:
    """Return an array of labels, by default ``y``; ``rows`` are as in `check_vector`."""
    name = name or "y"
    names = member_names(path)
    if name not in names:
        raise InputError(
            f"{path} has no array {name!r} (it has {listed(names)}). Name one as {path}::NAME."
        )
    shape, _, dtype = member_header(path, name)
    check_vector(shape, dtype, f"{path}::{name}", rows)
    return load(path, name)


def preview(path: Location) -> list[tuple[str, tuple[int, ...], str]]:
    """Return name, shape and type of every array; a damaged one has the error as its type."""
    arrays: list[tuple[str, tuple[int, ...], str]] = []
    for name in member_names(path):
        try:
            shape, _, dtype = member_header(path, name)
            arrays.append((name, shape, str(dtype)))
        except InputError as error:
            arrays.append((name, (), str(error)))
    return arrays
