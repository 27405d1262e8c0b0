"""NumPy's .npz: one member, streamed out of the zip; sparse parts are made dense by block."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from bigfs.core.errors import InputError, StorageError
from bigfs.store.formats.memory import SparseSource
from bigfs.store.formats.npy import read_header
from bigfs.store.location import Location
from bigfs.store.source import Source, check_shape, choose_member, work_dtype

_CSR = {"data", "indices", "indptr", "shape"}
_PIECE_BYTES = 2**18
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError)


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
                self._fill(file, block.reshape(-1).view(np.uint8).data)
                yield block.astype(self.dtype, copy=False)

    def _fill(self, file: Any, view: memoryview) -> None:
        """Unpack the next bytes into memory, in pieces: zipfile copies all it has per step."""
        try:
            while view:
                count = file.readinto(view[:_PIECE_BYTES])
                if not count:
                    raise InputError(f"{self.uri} is cut off. Write it again.")
                view = view[count:]
        except StorageError:
            raise
        except _DAMAGE as error:
            raise InputError(f"{self.uri} is damaged: {error}. Write it again.") from None


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
    except zipfile.BadZipFile as error:
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
    if variable is None and "X" not in names and set(names) >= _CSR:
        return SparseSource(_load_sparse(path, "format" in names), str(path))
    matrices = [name for name in names if _is_matrix(path, name)]
    return NpzSource(path, choose_member(path, names, matrices, variable))


def _is_matrix(path: Location, member: str) -> bool:
    try:
        shape, _, dtype = member_header(path, member)
    except InputError:  # such as pickled labels beside the matrix
        return False
    return len(shape) == 2 and dtype.kind in "fiub"


def _load_sparse(path: Location, has_format: bool) -> Any:
    """Load what ``scipy.sparse.save_npz`` wrote, or the bare parts of a CSR matrix."""
    from scipy.sparse import csr_matrix, load_npz

    try:
        with path.open("rb") as file:
            if has_format:
                found = load_npz(file).tocsr()
            else:
                with np.load(file, allow_pickle=False) as parts:
                    shape = tuple(int(size) for size in parts["shape"])
                    content = (parts["data"], parts["indices"], parts["indptr"])
                    found = csr_matrix(content, shape=shape)
        found.check_format(full_check=True)  # indices outside the shape would crash later
    except StorageError:
        raise
    except (*_DAMAGE, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} does not hold the parts of a sparse matrix: {error}.") from None
    return found
