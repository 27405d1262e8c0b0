"""One thread per kernel: the same bits whatever the number of workers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# OpenBLAS has one thread pool for the process, while tasks run in several of its threads: the
# first task in sets its limit and the last one out restores it, or one task's exit would give
# its neighbor two threads in the middle of a product. OpenMP's limit belongs to each thread.
_lock = threading.Lock()
_depth = 0
_blas: Any = None


@contextmanager
def single_thread() -> Iterator[None]:
    """Hold BLAS and OpenMP at one thread within the block, and restore them after it."""
    global _depth, _blas
    from threadpoolctl import threadpool_limits

    with _lock:
        if _depth == 0:
            _take_control()
            _blas = threadpool_limits(limits=1, user_api="blas")
        _depth += 1
    openmp = threadpool_limits(limits=1, user_api="openmp")
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


def _take_control() -> None:
    """Let this thread set OpenBLAS's limit.

    threadpoolctl 3.8 and later obeys the first thread that sets it and silently ignores all
    others, which would leave a task of another thread unlimited.
    """
    from threadpoolctl import OpenBLASController

    if hasattr(OpenBLASController, "clear_controlling_thread"):
        OpenBLASController.clear_controlling_thread(force=True)
