"""State that threads share: context variables and warnings of a block, BLAS's threads, kernels.

Kernels are compiled by numba, which is imported when the first one needs it, and have one thread
each: the same bits follow whatever the number of workers. And reads that other threads may disturb.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from typing import Any, TypeVar, cast

T = TypeVar("T")
# The filters are the process's: a thread that leaves ``catch_warnings`` restores those of its
# entry, and with them takes away what another thread has set since.
_warnings_lock = threading.RLock()
# OpenBLAS has one thread pool for the process, while tasks run in several of its threads: the
# first task in sets its limit and the last one out restores it, or one task's exit would give
# its neighbor two threads in the middle of a product. OpenMP's limit belongs to each thread.
_lock = threading.Lock()
_depth = 0
_blas: Any = None
_cached_controller: tuple[int, Any] | None = None


def _forget_parent() -> None:
    """Begin anew in a forked process: threads of its parent may have held the locks."""
    global _warnings_lock, _lock, _depth, _blas
    _warnings_lock, _lock, _depth, _blas = threading.RLock(), threading.Lock(), 0, None


os.register_at_fork(after_in_child=_forget_parent)


@contextmanager
def set_within(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Set a context variable within the block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def ignoring_warnings(category: type[Warning] = Warning, message: str = "") -> Iterator[None]:
    """Ignore some warnings within a block that is short: one thread at a time is in it."""
    with _warnings_lock, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message, category)
        yield


@contextmanager
def single_thread() -> Iterator[None]:
    """Hold BLAS and OpenMP at one thread within the block, and restore them after it."""
    global _depth, _blas
    with _lock:
        controller = _controller()
        if _depth == 0:
            _take_control()
            _blas = controller.limit(limits=1, user_api="blas")
        _depth += 1
    openmp = controller.limit(limits=1, user_api="openmp")
    try:
        yield
    finally:
        openmp.restore_original_limits()
        with _lock:
            _depth -= 1
            if _depth == 0:
                _take_control()
                _blas.restore_original_limits()
                _take_control()
                _blas = None


def blas_kernels() -> str:
    """Return the types of processor whose kernels BLAS uses: its own, or OPENBLAS_CORETYPE."""
    kernels = {library.get("architecture") for library in _controller().info()}
    return ", ".join(sorted(kernels - {None}))


def _controller() -> Any:
    """Return the controller of the libraries that are loaded, found anew after an import.

    Looking for them reads the process's memory map: milliseconds, twice for every task.
    """
    global _cached_controller
    # SciPy brings an OpenBLAS of its own: loaded within a block, it would have all threads there.
    import scipy.linalg  # noqa: F401
    from threadpoolctl import ThreadpoolController

    if _cached_controller is None or _cached_controller[0] != len(sys.modules):
        _cached_controller = (len(sys.modules), ThreadpoolController())
    return _cached_controller[1]


def _take_control() -> None:
    """Let this thread set OpenBLAS's limit.

    threadpoolctl 3.8 and later obeys the first thread that sets it and silently ignores all
    others, which would leave a task of another thread unlimited.
    """
    from threadpoolctl import OpenBLASController

    if hasattr(OpenBLASController, "clear_controlling_thread"):
        OpenBLASController.clear_controlling_thread(force=True)


def parsed(read: Callable[..., T], *args: object) -> T:
    """Return ``read(*args)``, which parses the header of an array; called again where that fails.

    A header is Python text. CPython up to 3.11.7 and 3.12.1 has one depth of parsing for all
    threads, and raises a SystemError where they mix (issue 106905 of its own).
    """
    for _ in range(9):
        with suppress(SystemError):
            return read(*args)
    return read(*args)


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
