"""Products of a sparse matrix with a thin block, row-parallel and fused with their recurrence."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from bigfs.spectral.rowloop import CACHE_LINE, compiled_rows

_Result = TypeVar("_Result")

# Rows a thread takes at a time.
_ROWS = 8192


class RowKernel:
    """``P = D^-1 W`` as an operator on blocks; each row is summed in one fixed order.

    Threads share the rows, so the result is the same bits for any number of them; `close` ends
    them.

    Parameters
    ----------
    csr : tuple of ndarray (indptr, indices, weights)
        W of shape (n_rows, n_columns). Column i is row i, for the first ``n_rows`` columns. One
        weight alone is that of every entry.
    degrees : ndarray of shape (n_rows,), float64
    n_threads : int
    """

    def __init__(
        self, csr: tuple[np.ndarray, np.ndarray, np.ndarray], degrees: np.ndarray, n_threads: int
    ) -> None:
        self._csr = csr
        self._degrees = degrees
        self._bounds = [(i, min(i + _ROWS, len(degrees))) for i in range(0, len(degrees), _ROWS)]
        self._pool = ThreadPoolExecutor(n_threads) if n_threads > 1 else None

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()

    def step(self, X: np.ndarray, Y: np.ndarray, a: float, b: float, c: float) -> None:
        """Compute ``Y <- a P X + b X + c Y`` in place; Y is not read where c is 0.

        Both are C-contiguous blocks of one width and type; X has a row for every column of W,
        Y one for every row.
        """
        run = compiled_rows()
        scalars = tuple(X.dtype.type(value) for value in (a, b, c))

        def rows(start: int, stop: int) -> None:
            run(*self._csr, self._degrees, X, Y, 0, *scalars, start, stop)

        for _ in self.map(rows, self._bounds):
            pass

    def map(
        self, fn: Callable[[int, int], _Result], bounds: Iterable[tuple[int, int]]
    ) -> Iterator[_Result]:
        """Return ``fn(start, stop)`` of row ranges, in their order."""
        if self._pool is None:
            return itertools.starmap(fn, bounds)
        return self._pool.map(fn, *zip(*bounds, strict=True))

    def product(self, X: np.ndarray, start: int, stop: int) -> np.ndarray:
        """Return rows ``start`` to ``stop`` of ``P X``."""
        out = np.empty((stop - start, X.shape[1]), X.dtype)
        unit, zero = X.dtype.type(1.0), X.dtype.type(0.0)
        compiled_rows()(*self._csr, self._degrees, X, out, start, unit, zero, zero, start, stop)
        return out


def warm_up() -> None:
    """Load numba and the compiled loop, which takes 100 MiB: part of a process, not of a task."""
    pointers, ids = np.arange(3, dtype=np.int32), np.arange(2, dtype=np.int32)
    for weights, vectors in (("f4", "f4"), ("f8", "f4"), ("f4", "f8"), ("f8", "f8")):
        kernel = RowKernel((pointers, ids, np.ones(2, weights)), np.ones(2), 1)
        X = np.ones((2, 1), vectors)
        kernel.step(X, X.copy(), 1.0, 0.0, 0.0)


def aligned(shape: tuple[int, int], dtype: Any) -> np.ndarray:
    """Return an uninitialized block that begins with a cache line.

    A row of one line in an array of NumPy's own lies across two.
    """
    n_bytes = shape[0] * shape[1] * np.dtype(dtype).itemsize
    memory = np.empty(n_bytes + CACHE_LINE, np.uint8)
    first = -memory.ctypes.data % CACHE_LINE
    return memory[first : first + n_bytes].view(dtype).reshape(shape)
