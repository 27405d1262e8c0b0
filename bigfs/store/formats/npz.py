"""NumPy's .npz: one member, streamed out of the zip; CSR parts are densified by block."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bigfs.core.errors import InputError
from bigfs.store.formats.memory import SparseSource
from bigfs.store.formats.npy import read_header
from bigfs.store.source import Source, check_shape, work_dtype

_CSR = {"data", "indices", "indptr", "shape"}


class NpzSource(Source):
    """One two-dimensional member of a .npz file, read from its first row to its last."""

    def __init__(self, path: Path, member: str) -> None:
        self.uri = f"{path}::{member}"
        self._path, self._member = path, f"{member}.npy"
        with zipfile.ZipFile(path) as archive, archive.open(self._member) as file:
            shape, fortran, self._stored = read_header(file, self.uri)
        check_shape(shape, self.uri)
        if fortran and shape[1] > 1:
            raise InputError(
                f"{self.uri} is stored by columns (Fortran order), which cannot be read by rows. "
                "Save numpy.ascontiguousarray(X) instead."
            )
        self.n_samples, self.n_features = shape
        self.dtype = work_dtype(self._stored, self.uri)

    def iter_blocks(self, rows: int) -> Iterator[np.ndarray]:
        """Yield consecutive arrays of at most ``rows`` rows."""
        assert self.n_samples is not None
        with zipfile.ZipFile(self._path) as archive, archive.open(self._member) as file:
            read_header(file, self.uri)
            for start in range(0, self.n_samples, rows):
                count = min(rows, self.n_samples - start)
                size = count * self.n_features * self._stored.itemsize
                try:
                    content = file.read(size)
                except (zipfile.BadZipFile, EOFError, OSError) as error:
                    raise InputError(f"{self.uri} is damaged: {error}. Write it again.") from None
                if len(content) != size:
                    raise InputError(f"{self.uri} ends before row {start + count}.")
                block = np.frombuffer(content, self._stored).reshape(count, -1)
                yield block.astype(self.dtype, copy=False)


def member_names(path: Path) -> list[str]:
    """Return the names of the arrays of a .npz file.

    Raises
    ------
    InputError
        If it is no zip file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return [n.removesuffix(".npy") for n in archive.namelist() if n.endswith(".npy")]
    except (zipfile.BadZipFile, OSError) as error:
        raise InputError(f"{path} is not a .npz file: {error}.") from None


def open_file(path: Path, variable: str | None) -> Source:
    """Open the member ``variable``, ``X``, the parts of a CSR matrix, or the only matrix."""
    names = member_names(path)
    if variable is None and "X" not in names and set(names) >= _CSR:
        return SparseSource(_load_csr(path), str(path))
    if variable is not None:
        if variable not in names:
            raise InputError(f"{path} has no array {variable!r}. It has {', '.join(names)}.")
        return NpzSource(path, variable)
    if "X" in names:
        return NpzSource(path, "X")
    matrices = [name for name in names if len(_shape(path, name)) == 2]
    if len(matrices) != 1:
        raise InputError(
            f"{path} holds {len(matrices)} matrices ({', '.join(names) or 'nothing'}). Name one "
            "with input.variable (--variable)."
        )
    return NpzSource(path, matrices[0])


def _shape(path: Path, member: str) -> tuple[int, ...]:
    with zipfile.ZipFile(path) as archive, archive.open(f"{member}.npy") as file:
        return read_header(file, f"{path}::{member}")[0]


def _load_csr(path: Path) -> object:
    from scipy.sparse import csr_matrix

    try:
        with np.load(path, allow_pickle=False) as parts:
            shape = tuple(int(size) for size in parts["shape"])
            return csr_matrix((parts["data"], parts["indices"], parts["indptr"]), shape=shape)
    except (ValueError, zipfile.BadZipFile, EOFError, TypeError) as error:
        raise InputError(f"{path} does not hold the parts of a CSR matrix: {error}.") from None
