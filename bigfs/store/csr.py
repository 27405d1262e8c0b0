"""Sparse matrices as sources of CSR row blocks, and the invariants of such blocks.

A block is a ``scipy.sparse.csr_array`` with sorted int32 indices, no duplicates and no explicit
zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from bigfs.core.cost import Shape
from bigfs.core.errors import InputError
from bigfs.core.units import GIB, format_bytes
from bigfs.store.source import CSRLayout, RandomAccessSource, Source
from bigfs.store.values import all_usable, check_exact, place_of, refusing, usable, values_of

# Maximum size of a block. A pass copies a block several times: to sort it by columns, and as
# float64.
_BLOCK_BYTES = 16 * 10**6
# Upper bound for rows with few entries, so that narrow dense arrays with one row per sample stay
# small too.
_MOST_ROWS = 2**16
DENSE_LIMIT_BYTES = 2 * GIB


class CSRSource(RandomAccessSource):
    """A scipy sparse matrix in the memory of this process."""

    sparse, shareable = True, False

    def __init__(self, X: Any, uri: str = "X") -> None:
        self.set_matrix(uri, X.shape, X.dtype)
        from scipy.sparse import csr_array

        with refusing(f"{uri} is a damaged sparse matrix", ValueError):
            rows = X.tocsr()
            # A new object that shares the arrays, since the check may set attributes.
            self._X = csr_array((rows.data, rows.indices, rows.indptr), shape=rows.shape)
            self._X.check_format(full_check=True)  # indices outside the shape would crash later

    @cached_property
    def layout(self) -> CSRLayout:
        """Blocks of 8 to 16 MB of entries."""
        return csr_layout(self._X.indptr, self.dtype.itemsize)

    @property
    def n_entries(self) -> int:
        """Number of stored entries, including explicit zeros."""
        return int(self._X.indptr[-1])

    @property
    def parts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Values, column indices and row pointers, including explicit zeros."""
        return self._X.data, self._X.indices, self._X.indptr

    def block_entries(self, rows: int) -> int:
        """Return the number of entries in the largest block of ``rows`` rows."""
        return largest_block(self._X.indptr, rows)

    def read_rows(self, start: int, stop: int) -> Any:
        """Return rows ``start`` to ``stop`` as a CSR block."""
        return as_block(self._X[start:stop], self.dtype, self.uri, start)


def entry_bytes(itemsize: int) -> int:
    """Return the size of a stored entry in bytes: its value and its int32 column index."""
    return itemsize + 4


def rows_for(entries_per_row: float, itemsize: int) -> int:
    """Return the number of rows per block, given the mean number of entries per row."""
    row_bytes = 8 + entries_per_row * entry_bytes(itemsize)
    return int(min(_MOST_ROWS, max(1, _BLOCK_BYTES // row_bytes)))


def expected_layout(mean: float, n_rows: int, most: int, itemsize: int) -> CSRLayout:
    """Return an estimated layout for ``mean`` entries per row and at most ``most`` in all."""
    rows = min(n_rows, rows_for(mean, itemsize))
    return CSRLayout(rows, most, min(most, int(2 * mean * rows) + 1))


def csr_layout(indptr: np.ndarray, itemsize: int) -> CSRLayout:
    """Return the layout in which no block exceeds 16 MB, unless a single row does.

    Parameters
    ----------
    indptr : ndarray of shape (n_samples + 1,)
        Row pointers of the whole matrix.
    itemsize : int
        Bytes per value.
    """
    n, n_entries = len(indptr) - 1, int(indptr[-1])
    rows = min(n, rows_for(n_entries / n, itemsize))
    while rows > 1 and largest_block(indptr, rows) * entry_bytes(itemsize) > _BLOCK_BYTES:
        rows = -(-rows // 2)
    return CSRLayout(rows, n_entries, largest_block(indptr, rows))


def largest_block(indptr: np.ndarray, rows: int) -> int:
    """Return the number of entries in the largest block of ``rows`` rows."""
    edges = np.append(indptr[:-1:rows], indptr[-1:]).astype(np.int64)
    return int(np.diff(edges).max())


def as_block(X: Any, dtype: np.dtype, uri: str = "X", first_row: int = 0) -> Any:
    """Return sparse rows or a dense array as a CSR block; the input is not modified.

    Parameters
    ----------
    X : sparse matrix or ndarray of shape (n_rows, n_features)
    dtype : numpy.dtype
        float32 or float64.
    uri : str, default="X"
    first_row : int, default=0
        Row number of the first row, for the error message if an integer would be rounded.
    """
    from scipy.sparse import csr_array

    block = csr_array(X.to_scipy_sparse() if hasattr(X, "to_scipy_sparse") else X)  # pydata's
    if block.dtype != dtype:
        check_exact(block, uri, first_row)
        block = block.astype(dtype)
    if not block.has_canonical_format or not block.data.all():
        block = block.copy()
        block.sum_duplicates()
        block.eliminate_zeros()
    columns, pointers = (
        part.astype(np.int32, copy=False) for part in (block.indices, block.indptr)
    )
    return csr_array((block.data, columns, pointers), shape=block.shape)


def stack(blocks: list[Any]) -> Any:
    """Return blocks stacked vertically; CSR blocks give a CSR block."""
    from scipy.sparse import vstack

    if len(blocks) == 1:
        return blocks[0]
    if isinstance(blocks[0], np.ndarray):
        return np.concatenate(blocks)
    return as_block(vstack(blocks, "csr"), blocks[0].dtype)


def whole_chunks(blocks: Iterator[Any], rows: int) -> Iterator[Any]:
    """Regroup blocks of any length into chunks of exactly ``rows`` rows and a last one.

    A chunk is valid until the next one is requested: the buffer of a dense chunk is reused.
    """
    waiting: list[Any] = []
    buffer: np.ndarray | None = None
    count = 0
    for block in blocks:
        while block.shape[0]:
            room = rows - count
            fits = block.shape[0] <= room  # slicing a CSR block would copy it
            part, block = (block, block[:0]) if fits else (block[:room], block[room:])
            start, count = count, count + part.shape[0]
            if isinstance(part, np.ndarray) and len(part) < rows:
                # Copied into the buffer at once: keeping the parts until the chunk is complete
                # would need the memory of a second chunk.
                buffer = np.empty((rows, part.shape[1]), part.dtype) if buffer is None else buffer
                buffer[start:count] = part
                waiting = [buffer[:count]]
            else:
                waiting.append(part)
            del part
            if count == rows:
                full = stack(waiting)
                waiting, count = [], 0
                yield full
                del full
    if waiting:
        yield stack(waiting)


def rows_of_entries(block: Any) -> np.ndarray:
    """Return the row of each entry of a CSR block."""
    return np.repeat(np.arange(block.shape[0]), np.diff(block.indptr))


def first_unusable(block: Any) -> tuple[int, int, float] | None:
    """Return row, column and value of the first unusable value; None if all are usable."""
    values = values_of(block)
    if all_usable(values):
        return None
    number = int((~usable(values)).argmax())
    return *place_of(block, number), float(values.flat[number])


def is_large(shape: Shape) -> bool:
    """Return True if sparse data of this shape must not be made dense, even block by block."""
    return shape.n_samples * shape.n_features * shape.itemsize > DENSE_LIMIT_BYTES


def check_dense(source: Source, what: str, cure: str = "Drop rare features first.") -> None:
    """Raise InputError if a sparse matrix is too large to be made dense, block by block.

    Parameters
    ----------
    source : Source
    what : str
        Operation that makes it dense, as the start of a sentence.
    cure : str
    """
    if not source.sparse or source.estimated_samples is None:
        return
    size = source.estimated_samples * source.n_features * source.dtype.itemsize
    if size > DENSE_LIMIT_BYTES:
        raise InputError(
            f"{source.uri}: {what} does not support sparse matrices and converts them to dense "
            f"blocks, up to {format_bytes(DENSE_LIMIT_BYTES)} in total; this matrix would need "
            f"{format_bytes(size)}. {cure}"
        )
