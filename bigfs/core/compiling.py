"""Compilation by numba, which is imported when the first function needs it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, cast


@cache
def compiled(function: Callable[..., Any], *fastmath: str, **options: Any) -> Callable[..., Any]:
    """Return a function as machine code that needs no lock, kept on disk for the next process.

    Where numba finds no folder that can be written, this process compiles for itself. numba is
    imported here, and a function compiled once in a process; the flags and options are numba's.
    """
    import numba

    options["fastmath"] = set(fastmath)
    try:
        compiled_function = numba.njit(nogil=True, cache=True, **options)(function)
    except RuntimeError:  # "cannot cache function: no locator available"
        compiled_function = numba.njit(nogil=True, **options)(function)
    return cast(Callable[..., Any], compiled_function)
