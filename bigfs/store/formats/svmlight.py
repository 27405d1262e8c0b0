"""svmlight and LIBSVM files, with a class and entries per line, parsed by scikit-learn.

A file does not state the number of features, nor whether they are numbered from 0 or 1. It is read
once for that when it is opened, and again for its rows.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.store.csr import as_block, rows_for
from bigfs.store.formats.parts import in_blocks
from bigfs.store.formats.texts import open_text, whole_lines
from bigfs.store.location import Location
from bigfs.store.source import CSRLayout, Source, check_no_variable
from bigfs.store.values import refusing

_FAULTS = (ValueError, OverflowError, TypeError, IndexError, MemoryError)
_CURE = "Each line needs a class, followed by FEATURE:VALUE pairs in ascending order of features."
_PIECE_BYTES = 2**22


class SvmlightSource(Source):
    """Sparse rows of an svmlight file."""

    sparse = True

    def __init__(self, path: Location) -> None:
        self._path = path.absolute()
        first, last, n_rows, self._n_entries, self._largest_row = 2**31, -1, 0, 0, 0
        for X, _ in _pieces(path):
            n_rows += X.shape[0]
            self._n_entries += X.nnz
            if X.nnz:
                first, last = min(first, X.indices.min()), max(last, X.indices.max())
                self._largest_row = max(self._largest_row, int(np.diff(X.indptr).max()))
        # As in scikit-learn, features are numbered from 1 unless there is a feature 0.
        self._first = min(int(first), 1)
        self.set_matrix(str(path), (n_rows, max(0, int(last) + 1 - self._first)), np.float64)
        self.held_bytes = 12 * _PIECE_BYTES

    @property
    def layout(self) -> CSRLayout:
        """Layout by the mean number of entries per row."""
        n_rows = self.n_samples or 1
        mean = self._n_entries / n_rows
        rows = min(n_rows, rows_for(mean, self.dtype.itemsize))
        return CSRLayout(rows, self._n_entries, min(self._n_entries, rows * self._largest_row))

    def iter_rows(self, rows: int) -> Iterator[Any]:
        """Yield consecutive CSR blocks of at most ``rows`` rows."""
        from scipy.sparse import csr_array

        for X, _ in _pieces(self._path):
            entries = (X.data, X.indices - self._first, X.indptr)
            what = f"{self.uri} has changed since it was opened"
            with refusing(what, ValueError, cure="Run again."):
                block = csr_array(entries, shape=(X.shape[0], self.n_features))
                block.check_format(full_check=True)
            yield from in_blocks(as_block(block, self.dtype), rows)


def _pieces(path: Location) -> Iterator[tuple[Any, np.ndarray]]:
    """Yield the entries and the classes of pieces of lines.

    Features are numbered as in the file.
    """
    from sklearn.datasets import load_svmlight_file

    with open_text(path) as file:
        line = 1
        for lines in whole_lines(file, _PIECE_BYTES, path):
            what = f"{path}: the lines from {line:,} on are not in svmlight format"
            with refusing(what, *_FAULTS, cure=_CURE):
                yield load_svmlight_file(io.BytesIO(lines), zero_based=True)
            line += lines.count(b"\n")


def open_file(path: Location, variable: str | None) -> Source:
    """Open an svmlight file."""
    check_no_variable(path, variable)
    return SvmlightSource(path)


def read_column(path: Location, name: str) -> np.ndarray:
    """Return the classes, which have no name."""
    if name:
        raise InputError(f"{path} has no column {name!r}. For its classes give {path}.")
    return np.concatenate([y for _, y in _pieces(path)])
