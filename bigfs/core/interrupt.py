"""Work in a thread of its own, while the main thread waits and is there for signals.

Python handles a signal in the main thread only, between two of its instructions: a main thread
in a compiled kernel would not hear of it for minutes. Told to stop, the work ends at the next of
its checks; if that takes too long it is left to itself, and the caller cleans up without it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

T = TypeVar("T")

GRACE_SECONDS = 3.0
_stop: ContextVar[threading.Event | None] = ContextVar("bigfs_stop", default=None)


def check_interrupt() -> None:
    """Raise KeyboardInterrupt if the work that this is a part of was told to stop."""
    stop = _stop.get()
    if stop is not None and stop.is_set():
        raise KeyboardInterrupt


def run_apart(work: Callable[[], T]) -> T:
    """Return what ``work()`` returns; an interrupt does not wait for what it is doing.

    The work sees the caller's context variables. Outside of the main thread, which alone gets
    signals, it runs in the caller's thread.

    Parameters
    ----------
    work : callable
        Calls `check_interrupt` now and then, as `bigfs.core.progress` does for it.

    Raises
    ------
    KeyboardInterrupt
        At most a few seconds after the signal. Work that is still busy by then goes on, and
        ends at its next check.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    stop = threading.Event()
    results: list[T] = []
    errors: list[BaseException] = []

    def body() -> None:
        _stop.set(stop)
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(
        target=copy_context().run, args=(body,), name="bigfs-work", daemon=True
    )
    try:
        thread.start()
        thread.join()
    except BaseException:
        stop.set()
        thread.join(GRACE_SECONDS)
        raise
    if errors:
        _raise(errors)
    return results[0]


def _raise(errors: list[Any]) -> None:
    """Raise the error of the work, without a cycle through this frame's variables."""
    try:
        raise errors[0]
    finally:
        errors.clear()
