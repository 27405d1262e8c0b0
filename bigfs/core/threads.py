"""State that threads share: context variables, warning filters, BLAS threads, compiled kernels.

Kernels are compiled by numba, which is imported when the first one is needed. Each kernel uses a
single thread, so that results are bitwise identical for any number of workers. Also here: reads
that other threads may disturb.
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
# Warning filters are global to the process: a thread that leaves ``catch_warnings`` restores the
# filters from when it entered, and so discards those that another thread has set since.
_warnings_lock = threading.RLock()
# OpenBLAS has one thread pool per process, while tasks run in several threads. The first task to
# enter sets the limit and the last one to leave restores it; otherwise the exit of one task would
# give another several threads in the middle of a product. OpenMP's limit is per thread.
_lock = threading.Lock()
_depth = 0
_blas: Any = None
_cached_controller: tuple[int, Any] | None = None


def _forget_parent() -> None:
    """Reset locks and limits in a forked process: threads of its parent may have held them."""
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
    """Ignore warnings within a block, which should be short: only one thread at a time enters it.

    Only warnings of a category, whose message matches the given pattern, are ignored.
    """
    with _warnings_lock, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message, category)
        yield


@contextmanager
def single_thread() -> Iterator[None]:
    """Limit BLAS and OpenMP to one thread within the block, and restore their limits after it."""
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
    """Return the processor types whose kernels BLAS uses, detected or set by OPENBLAS_CORETYPE."""
    kernels = {library.get("architecture") for library in _controller().info()}
    return ", ".join(sorted(kernels - {None}))


def _controller() -> Any:
    """Return the controller of the loaded libraries, cached until another module is imported.

    Finding the libraries reads the process's memory map, which would take milliseconds twice per
    task.
    """
    global _cached_controller
    # SciPy has its own OpenBLAS; if it were loaded within a block, it would use all threads there.
    import scipy.linalg  # noqa: F401
    from threadpoolctl import ThreadpoolController

    if _cached_controller is None or _cached_controller[0] != len(sys.modules):
        _cached_controller = (len(sys.modules), ThreadpoolController())
    return _cached_controller[1]


def _take_control() -> None:
    """Allow this thread to set OpenBLAS's limit.

    threadpoolctl 3.8 and later obeys only the first thread that sets it and silently ignores all
    others, so that a task in another thread would not be limited.
    """
    from threadpoolctl import OpenBLASController

    if hasattr(OpenBLASController, "clear_controlling_thread"):
        OpenBLASController.clear_controlling_thread(force=True)


def parsed(read: Callable[..., T], *args: object) -> T:
    """Return ``read(*args)``, which parses the header of an array; retry after a SystemError.

    A header is a Python literal. CPython up to 3.11.7 and 3.12.1 counts the depth of parsing
    globally, and raises SystemError if threads parse at the same time (CPython issue 106905).
    """
    for _ in range(9):
        with suppress(SystemError):
            return read(*args)
    return read(*args)


@cache
def compiled(function: Callable[..., Any], *fastmath: str, **options: Any) -> Callable[..., Any]:
    """Return a function compiled by numba, without the GIL and with an on-disk cache.

    If numba finds no writable folder for the cache, the function is compiled for this process only.
    numba is imported lazily here, and each function is compiled once per process. The ``fastmath``
    flags and the options are those of `numba.njit`.
    """
    import numba

    options["fastmath"] = set(fastmath)
    try:
        compiled_function = numba.njit(nogil=True, cache=True, **options)(function)
    except RuntimeError:  # "cannot cache function: no locator available"
        compiled_function = numba.njit(nogil=True, **options)(function)
    return cast(Callable[..., Any], compiled_function)
