"""Work in a thread of its own, while the main thread waits for it and handles signals.

Python handles a signal in the main thread only, between two of its instructions: a main thread
in a compiled kernel would not hear of it for minutes. Told to stop, the work ends at the next of
its checks; if that takes too long it is left to itself, and the caller cleans up without it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

T = TypeVar("T")

GRACE_SECONDS = 3.0
WATCH_SECONDS = 2.0


class _Stop:
    """Signals work to stop, and counts its tasks that run in this process."""

    def __init__(self) -> None:
        self.told = threading.Event()
        self._running = 0
        self._changed = threading.Condition()

    def count(self, change: int) -> None:
        """Note that a task begins or ends."""
        with self._changed:
            self._running += change
            self._changed.notify_all()

    def wait_for_tasks(self, seconds: float) -> None:
        """Return when no task runs, or after so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._running == 0, seconds)


_stop: ContextVar[_Stop | None] = ContextVar("bigfs_stop", default=None)


def check_interrupt() -> None:
    """Raise KeyboardInterrupt if the work that this is a part of was told to stop."""
    stop = _stop.get()
    if stop is not None and stop.told.is_set():
        raise KeyboardInterrupt


@contextmanager
def task() -> Iterator[None]:
    """Run the block as a task of the work: it does not begin once the work was told to stop."""
    check_interrupt()
    stop = _stop.get()
    if stop is None:
        yield
        return
    stop.count(1)
    try:
        yield
    finally:
        stop.count(-1)


def run_apart(work: Callable[[], T], watch: Callable[[], None] | None = None) -> T:
    """Return the value of ``work()``; an interrupt does not wait for it to end.

    The work sees the caller's context variables. Outside of the main thread, which alone gets
    signals, it runs in the caller's thread.

    Parameters
    ----------
    work : callable
        Calls `check_interrupt` now and then, as `bigfs.runtime.progress` does for it.
    watch : callable or None, default=None
        Called every few seconds meanwhile; what it raises ends the work like an interrupt.

    Raises
    ------
    KeyboardInterrupt
        At most a few seconds after the signal. Work that is still busy by then goes on, and
        ends at its next check.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    stop = _Stop()
    results: list[T] = []
    errors: list[BaseException] = []

    def body() -> None:
        _stop.set(stop)
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)
        finally:
            ended.set()

    # An event, since Python 3.11 takes a thread for dead once a signal interrupts its join.
    ended = threading.Event()
    thread = threading.Thread(
        target=copy_context().run, args=(body,), name="bigfs-work", daemon=True
    )
    try:
        thread.start()
        # Not without an end: a signal that another thread caught does not end a wait.
        while not ended.wait(WATCH_SECONDS):
            if watch is not None:
                watch()
    except BaseException:
        stop.told.set()
        began = time.monotonic()
        ended.wait(GRACE_SECONDS)
        # What a task still writes would come after the files of the attempt were removed.
        stop.wait_for_tasks(max(0.0, GRACE_SECONDS - (time.monotonic() - began)))
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
