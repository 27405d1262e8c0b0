"""Product of a sparse matrix with a thin block of vectors, fused with their recurrence."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from bigfs.core.threads import compiled

CACHE_LINE = 64
# Rows are prefetched this many entries of W ahead of their use: their order is irregular, so a
# processor cannot predict it.
_AHEAD = 32
_READ, _KEEP, _DATA = 0, 3, 1
# Set before the loops are compiled; numba finds it under this name.
_prefetch: Any = None


@cache
def compiled_products() -> tuple[Callable[..., None], Callable[..., None]]:
    """Return the compiled loops `_step` and `_gather`; numba is imported here."""
    global _prefetch
    _prefetch = _prefetch_instruction()
    return compiled(_step), compiled(_gather)


def _prefetch_instruction() -> Any:
    """Return a function for compiled code that prefetches ``X[i, j]`` without waiting for it."""
    # Import numba as a whole: while another thread imports it, parts of it are incomplete.
    import numba
    from llvmlite import ir
    from numba.core import cgutils, types

    def prefetch(context: Any, X: Any, i: Any, j: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, arguments[0])
            where = cgutils.get_item_pointer(
                context, builder, signature.args[0], array, arguments[1:], wraparound=False
            )
            integer, pointer = ir.IntType(32), ir.IntType(8).as_pointer()
            kind = ir.FunctionType(ir.VoidType(), [pointer, integer, integer, integer])
            fetch = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
            hints = [ir.Constant(integer, hint) for hint in (_READ, _KEEP, _DATA)]
            builder.call(fetch, [builder.bitcast(where, pointer), *hints])
            return context.get_dummy_value()

        return types.void(X, types.intp, types.intp), emit

    return numba.extending.intrinsic(prefetch)


def _step(
    indptr: Any, indices: Any, data: Any, degrees: Any, X: Any, Y: Any,
    first: int, a: Any, b: Any, c: Any,
) -> None:  # fmt: skip
    """Compute ``Y <- a P X + b X + c Y`` for consecutive rows of ``P = D^-1 W``, from ``first`` on.

    Y is not read if c is 0. A single weight applies to all entries. Each row is summed in one fixed
    order, each column independently.
    """
    width = X.shape[1]
    total = np.empty(width, X.dtype)
    last, lanes = len(indices) - 1, CACHE_LINE // X.itemsize
    is_binary = data.shape[0] == 1
    for row in range(len(degrees)):
        i = first + row
        total[:] = 0
        for entry in range(indptr[row], indptr[row + 1]):
            upcoming = indices[min(entry + _AHEAD, last)]
            for j in range(0, width, lanes):
                _prefetch(X, upcoming, j)
            weight = X.dtype.type(data[0 if is_binary else entry])
            neighbor = X[indices[entry]]
            for j in range(width):
                total[j] += weight * neighbor[j]
        scale = X.dtype.type(a / degrees[row])
        if c == 0:
            for j in range(width):
                Y[i, j] = scale * total[j] + b * X[i, j]
        else:
            for j in range(width):
                Y[i, j] = scale * total[j] + b * X[i, j] + c * Y[i, j]


def _gather(
    indptr: Any, indices: Any, data: Any, degrees: Any, X: Any, rows: Any, out: Any
) -> None:
    """Compute some rows of ``P X`` in the dtype of ``out``."""
    width = X.shape[1]
    total = np.empty(width, out.dtype)
    last, lanes = len(indices) - 1, CACHE_LINE // X.itemsize
    is_binary = data.shape[0] == 1
    for k in range(len(rows)):
        row = rows[k]
        total[:] = 0
        for entry in range(indptr[row], indptr[row + 1]):
            upcoming = indices[min(entry + _AHEAD, last)]
            for j in range(0, width, lanes):
                _prefetch(X, upcoming, j)
            weight = data[0 if is_binary else entry] / degrees[row]
            neighbor = X[indices[entry]]
            for j in range(width):
                total[j] += weight * neighbor[j]
        out[k] = total


def warm_up() -> None:
    """Load numba and the compiled loops, 100 MiB: memory of a process, not of a task."""
    step, gather = compiled_products()
    pointers, ids = np.arange(3, dtype=np.int32), np.arange(2, dtype=np.int32)
    csr = pointers, ids, np.ones(2), np.ones(2)
    for dtype in (np.float32, np.float64):
        X = np.ones((2, 1), dtype)
        scalars = tuple(X.dtype.type(value) for value in (1.0, 0.0, 0.0))
        step(*csr, X, X.copy(), 0, *scalars)
        gather(*csr, X, ids, np.ones((2, 1)))


def aligned(shape: tuple[int, int], dtype: Any) -> np.ndarray:
    """Return an uninitialized block that is aligned to a cache line.

    A row of one cache line in an array allocated by NumPy may extend across two.
    """
    n_bytes = shape[0] * shape[1] * np.dtype(dtype).itemsize
    memory = np.empty(n_bytes + CACHE_LINE, np.uint8)
    first = -memory.ctypes.data % CACHE_LINE
    return memory[first : first + n_bytes].view(dtype).reshape(shape)
