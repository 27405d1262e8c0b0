"""NumPy's .npz: one member, or the parts of a CSR matrix, streamed out of the zip."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any

import numpy as np

from bigfs.core.errors import InputError, StorageError
from bigfs.store.csr import CSRLayout, CSRSource, SparseSource, as_block, csr_layout
from bigfs.store.formats.npy import read_header
from bigfs.store.location import Location
from bigfs.store.source import Source, check_shape, choose_member, work_dtype
from bigfs.store.values import as_floats

_CSR = {"data", "indices", "indptr", "shape"}
# What scipy writes for every sparse form.
_SCIPY = {"data", "shape", "format"}
_PIECE_BYTES = 2**18
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError,
    UnicodeDecodeError,  # of a name
)  # fmt: skip


class NpzSource(Source):
    """One two-dimensional member of a .npz file, read from its first row to its last."""

    def __init__(self, path: Location, member: str) -> None:
        self.uri = f"{path}::{member}"
        self._path, self._member = path, f"{member}.npy"
        shape, fortran, self._stored = member_header(path, member)
        self.dtype = work_dtype(self._stored, self.uri)
        check_shape(shape, self.uri)
        if fortran:
            raise InputError(
                f"{self.uri} is stored by columns (Fortran order), and a zip file cannot be read "
                "by rows then. Save numpy.ascontiguousarray(X), or a .npy file."
            )
        self.n_samples, self.n_features = shape

    def iter_blocks(self, rows: int) -> Iterator[np.ndarray]:
        """Yield consecutive arrays of at most ``rows`` rows."""
        n_samples = self.n_samples or 0
        with open_zip(self._path) as archive, archive.open(self._member) as file:
            read_header(file, self.uri)
            for start in range(0, n_samples, rows):
                block = np.empty((min(rows, n_samples - start), self.n_features), self._stored)
                unpack(file, block.reshape(-1).view(np.uint8).data, self.uri)
                yield as_floats(block, self.dtype, self.uri, start)


class NpzCSRSource(SparseSource):
    """The parts of a CSR matrix in a .npz file, read from its first row to its last."""

    def __init__(self, path: Location) -> None:
        self.uri, self._path = str(path), path
        shapes = {name: member_header(path, name) for name in ("data", "indices", "indptr")}
        self._types = {name: header[2] for name, header in shapes.items()}
        self.dtype = work_dtype(self._types["data"], self.uri)
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as parts:
                shape = tuple(int(size) for size in parts["shape"])
                self._indptr = parts["indptr"].astype(np.int64)
        except StorageError:
            raise
        except (*_DAMAGE, ValueError, TypeError, KeyError) as error:
            raise self._not_sparse(str(error)) from None
        check_shape(shape, self.uri)
        self.n_samples, self.n_features = shape
        n_entries = int(self._indptr[-1]) if self._indptr.size else 0
        rises = self._indptr.shape == (shape[0] + 1,) and not (np.diff(self._indptr) < 0).any()
        if not rises or self._indptr[0]:
            raise self._not_sparse("indptr has no place for each row")
        if any(shapes[name][0] != (n_entries,) for name in ("data", "indices")):
            raise self._not_sparse(f"data and indices must have {n_entries} values")
        if self._types["indices"].kind not in "iu":
            raise self._not_sparse("indices must be whole numbers")
        self._index_type = np.int32 if self._types["indices"].itemsize == 4 else np.int64

    @property
    def stored_dtype(self) -> np.dtype:
        """Type of the values in the file."""
        return self._types["data"]

    @cached_property
    def layout(self) -> CSRLayout:
        """Blocks of 8 to 16 MB of entries."""
        return csr_layout(self._indptr, self.dtype.itemsize)

    def iter_csr(self, rows: int) -> Iterator[Any]:
        """Yield consecutive CSR blocks of at most ``rows`` rows."""
        from scipy.sparse import csr_array

        n_samples = self.n_samples or 0
        with ExitStack() as stack:
            files = {}
            for name in ("data", "indices"):
                archive = stack.enter_context(open_zip(self._path))
                files[name] = stack.enter_context(archive.open(f"{name}.npy"))
                read_header(files[name], self.uri)
            for start in range(0, n_samples, rows):
                pointers = self._indptr[start : min(start + rows, n_samples) + 1]
                parts = {}
                for name, file in files.items():
                    parts[name] = np.empty(int(pointers[-1] - pointers[0]), self._types[name])
                    unpack(file, parts[name].view(np.uint8).data, self.uri)
                shape = (len(pointers) - 1, self.n_features)
                columns = parts["indices"].astype(self._index_type, copy=False)
                content = (parts["data"], columns, pointers - pointers[0])
                try:
                    block = csr_array(content, shape=shape)
                    block.check_format(full_check=True)  # indices outside the shape would crash
                except ValueError as error:
                    raise self._not_sparse(str(error)) from None
                yield as_block(block, self.dtype)

    def _not_sparse(self, why: str) -> InputError:
        return InputError(f"{self.uri} does not hold the parts of a sparse matrix: {why}.")


def unpack(file: Any, view: memoryview, uri: str) -> None:
    """Unpack the next bytes into memory, in pieces: zipfile copies all it has per step."""
    try:
        while view:
            count = file.readinto(view[:_PIECE_BYTES])
            if not count:
                raise InputError(f"{uri} is cut off. Write it again.")
            view = view[count:]
    except StorageError:
        raise
    except _DAMAGE as error:
        raise InputError(f"{uri} is damaged: {error}. Write it again.") from None


@contextmanager
def open_zip(path: Location) -> Iterator[zipfile.ZipFile]:
    """Open a zip file, wherever it is."""
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        yield archive


def member_names(path: Location) -> list[str]:
    """Return the names of the arrays of a .npz file.

    Raises
    ------
    InputError
        If it is no zip file.
    """
    try:
        with open_zip(path) as archive:
            return [n.removesuffix(".npy") for n in archive.namelist() if n.endswith(".npy")]
    except _DAMAGE as error:
        raise InputError(f"{path} is not a .npz file: {error}.") from None


def member_header(path: Location, member: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return shape, Fortran order and dtype of a member.

    Raises
    ------
    InputError
        If the member is damaged or holds pickled objects.
    """
    uri = f"{path}::{member}"
    try:
        with open_zip(path) as archive, archive.open(f"{member}.npy") as file:
            return read_header(file, uri)
    except StorageError:
        raise
    except _DAMAGE as error:
        raise InputError(f"{uri} is damaged: {error}. Write it again.") from None


def open_file(path: Location, variable: str | None) -> Source:
    """Open the member ``variable``, ``X``, the parts of a sparse matrix, or the only matrix."""
    names = member_names(path)
    if variable is None and "X" not in names and (set(names) >= _CSR or set(names) >= _SCIPY):
        return _open_sparse(path, "format" in names)
    matrices = [name for name in names if _is_matrix(path, name)]
    return NpzSource(path, choose_member(path, names, matrices, variable))


def _is_matrix(path: Location, member: str) -> bool:
    try:
        shape, _, dtype = member_header(path, member)
    except InputError:  # such as pickled labels beside the matrix
        return False
    return len(shape) == 2 and dtype.kind in "fiub"


def _open_sparse(path: Location, has_format: bool) -> SparseSource:
    """Open what ``scipy.sparse.save_npz`` wrote, or the bare parts of a CSR matrix.

    A matrix that is not stored by rows is loaded.
    """
    from scipy.sparse import load_npz

    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as parts:
            kind = parts["format"].item() if has_format else b"csr"
        if kind in (b"csr", "csr"):
            return NpzCSRSource(path)
        with path.open("rb") as file:
            return CSRSource(load_npz(file), str(path))
    except (StorageError, InputError):
        raise
    except (*_DAMAGE, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} does not hold the parts of a sparse matrix: {error}.") from None
