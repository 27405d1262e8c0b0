"""Context variables that hold within a block of code, and warnings that are ignored there."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
# The filters are the process's: a thread that leaves ``catch_warnings`` restores those of its
# entry, and with them takes away what another thread has set since.
_lock = threading.RLock()


@contextmanager
def set_within(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Set a context variable within the block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def _forget_parent() -> None:
    """Begin anew in a forked process: threads of its parent may have held the lock."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_forget_parent)


@contextmanager
def ignoring_warnings(category: type[Warning] = Warning, message: str = "") -> Iterator[None]:
    """Ignore some warnings within a block that is short: one thread at a time is in it."""
    with _lock, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message, category)
        yield
