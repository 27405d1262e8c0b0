"""Warnings of libraries that say nothing to those who run bigfs."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

# The filters are the process's: a thread that leaves ``catch_warnings`` restores those of its
# entry, and with them takes away what another thread has set since.
_lock = threading.RLock()


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
