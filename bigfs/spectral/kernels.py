"""Products of a sparse matrix with a thin block, row-parallel and fused with their recurrence."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from types import TracebackType
from typing import Any

import numpy as np

# Rows a thread takes at a time.
_ROWS = 8192


class RowKernel:
    """``P = D^-1 W`` as an operator on blocks; each row is summed in one fixed order.

    Threads share the rows, so the result is the same bits for any number of them. Use it in a
    ``with`` block, which ends the threads.

    Parameters
    ----------
    W : scipy CSR matrix of shape (n_samples, n_samples)
    degrees : ndarray of shape (n_samples,), float64
    n_threads : int
    """

    def __init__(self, W: Any, degrees: np.ndarray, n_threads: int) -> None:
        self._csr = (W.indptr, W.indices, W.data)
        self._inverse = 1.0 / degrees
        self._bounds = [(i, min(i + _ROWS, len(degrees))) for i in range(0, len(degrees), _ROWS)]
        self._pool = ThreadPoolExecutor(n_threads) if n_threads > 1 else None

    def __enter__(self) -> RowKernel:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def step(self, X: np.ndarray, Y: np.ndarray, a: float, b: float, c: float) -> None:
        """Compute ``Y <- a P X + b X + c Y`` in place; Y is not read where c is 0.

        Both are C-contiguous blocks of shape (n_samples, width) and of one type.
        """
        run = _compiled()
        scalars = tuple(X.dtype.type(value) for value in (a, b, c))

        def rows(bounds: tuple[int, int]) -> None:
            run(*self._csr, self._inverse, X, Y, *scalars, *bounds)

        if self._pool is None:
            for bounds in self._bounds:
                rows(bounds)
        else:
            for _ in self._pool.map(rows, self._bounds):
                pass


@cache
def _compiled() -> Callable[..., None]:
    """Return the compiled loop; numba is imported when it is first needed."""
    import numba

    return numba.njit(nogil=True, cache=True)(_rows)  # type: ignore[no-any-return]


def _rows(
    indptr: Any, indices: Any, data: Any, inverse: Any, X: Any, Y: Any,
    a: Any, b: Any, c: Any, start: int, stop: int,
) -> None:  # fmt: skip
    """Handle rows ``start`` to ``stop``; compiled by numba."""
    width = X.shape[1]
    total = np.empty(width, X.dtype)
    for i in range(start, stop):
        total[:] = 0
        for entry in range(indptr[i], indptr[i + 1]):
            weight = X.dtype.type(data[entry])
            row = X[indices[entry]]
            for j in range(width):
                total[j] += weight * row[j]
        scale = a * X.dtype.type(inverse[i])
        if c == 0:
            for j in range(width):
                Y[i, j] = scale * total[j] + b * X[i, j]
        else:
            for j in range(width):
                Y[i, j] = scale * total[j] + b * X[i, j] + c * Y[i, j]
