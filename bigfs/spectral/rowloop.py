"""The loop of `bigfs.spectral.kernels`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from bigfs.core.compiling import compiled

CACHE_LINE = 64
# Entries of W between a product and the row that is asked of memory meanwhile: rows come in no
# order that a processor could guess.
_AHEAD = 32
_READ, _KEEP, _DATA = 0, 3, 1
# What numba finds under this name when it compiles the loop.
_prefetch: Any = None


@cache
def compiled_rows() -> Callable[..., None]:
    """Return the compiled loop; numba is imported here."""
    global _prefetch
    _prefetch = _prefetch_instruction()
    return compiled(_rows)


def _prefetch_instruction() -> Any:
    """Return a function for compiled code: fetch ``X[i, j]``, and do not wait for it."""
    from llvmlite import ir
    from numba.core import cgutils, types
    from numba.extending import intrinsic

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

    return intrinsic(prefetch)


def _rows(
    indptr: Any, indices: Any, data: Any, degrees: Any, X: Any, Y: Any,
    first: int, a: Any, b: Any, c: Any, start: int, stop: int,
) -> None:  # fmt: skip
    """Handle rows ``start`` to ``stop``, row i in place ``i - first`` of Y; compiled by numba.

    One weight alone is that of every entry.
    """
    width = X.shape[1]
    total = np.empty(width, X.dtype)
    last, lanes = indptr[stop] - 1, CACHE_LINE // X.itemsize
    alike = data.shape[0] == 1
    for i in range(start, stop):
        total[:] = 0
        for entry in range(indptr[i], indptr[i + 1]):
            soon = indices[min(entry + _AHEAD, last)]
            for j in range(0, width, lanes):
                _prefetch(X, soon, j)
            weight = X.dtype.type(data[0 if alike else entry])
            row = X[indices[entry]]
            for j in range(width):
                total[j] += weight * row[j]
        scale = X.dtype.type(a / degrees[i])
        if c == 0:
            for j in range(width):
                Y[i - first, j] = scale * total[j] + b * X[i, j]
        else:
            for j in range(width):
                Y[i - first, j] = scale * total[j] + b * X[i, j] + c * Y[i - first, j]
