"""One thread per kernel: the same bits whatever the number of workers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# threadpoolctl's limits belong to the process, while tasks run in several of its threads: the
# first task in sets the limit and the last one out restores it, or one task's exit would give
# its neighbor two threads in the middle of a product.
_lock = threading.Lock()
_depth = 0
_limiter: Any = None


@contextmanager
def single_thread() -> Iterator[None]:
    """Hold BLAS and OpenMP at one thread within the block, and restore them after it."""
    global _depth, _limiter
    from threadpoolctl import threadpool_limits

    with _lock:
        if _depth == 0:
            _limiter = threadpool_limits(limits=1)
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                _limiter.restore_original_limits()
                _limiter = None
