"""Work in a separate thread, while the main thread waits for it and handles signals.

Python handles signals only in the main thread, between bytecode instructions: a main thread in a
compiled kernel would not react for minutes. When it is told to stop, the work ends at its next
check; if that takes too long, it is abandoned and the caller cleans up without it.
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
        self.requested = threading.Event()
        self._running = 0
        self._changed = threading.Condition()

    def count(self, change: int) -> None:
        """Count a task that begins (1) or ends (-1)."""
        with self._changed:
            self._running += change
            self._changed.notify_all()

    def wait_for_tasks(self, seconds: float) -> None:
        """Wait until no task is running, but at most for ``seconds``."""
        with self._changed:
            self._changed.wait_for(lambda: self._running == 0, seconds)


_stop: ContextVar[_Stop | None] = ContextVar("bigfs_stop", default=None)


def check_interrupt() -> None:
    """Raise KeyboardInterrupt if the work in the current context was told to stop."""
    stop = _stop.get()
    if stop is not None and stop.requested.is_set():
        raise KeyboardInterrupt


@contextmanager
def task() -> Iterator[None]:
    """Run the block as a task of the work; raise KeyboardInterrupt if the work was told to stop."""
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
    """Return the value of ``work()``; an interrupt takes effect without waiting for it to end.

    The work sees the caller's context variables. If the caller is not the main thread, which alone
    receives signals, the work runs in the caller's thread.

    Parameters
    ----------
    work : callable
        Should call `check_interrupt` regularly; `bigfs.runtime.progress` does so.
    watch : callable or None, default=None
        Called every few seconds in the meantime; an exception of it ends the work like an
        interrupt.

    Raises
    ------
    KeyboardInterrupt
        At most a few seconds after the signal. Work that is still busy by then continues in the
        background until its next check.
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

    # An event, since Python 3.11 considers a thread dead once a signal interrupts its join.
    ended = threading.Event()
    thread = threading.Thread(
        target=copy_context().run, args=(body,), name="bigfs-work", daemon=True
    )
    try:
        thread.start()
        # With a timeout, since a signal that is delivered to another thread does not end a wait.
        while not ended.wait(WATCH_SECONDS):
            if watch is not None:
                watch()
    except BaseException:
        stop.requested.set()
        began = time.monotonic()
        ended.wait(GRACE_SECONDS)
        # Otherwise tasks could still write after the files of the attempt were removed.
        stop.wait_for_tasks(max(0.0, GRACE_SECONDS - (time.monotonic() - began)))
        raise
    if errors:
        _raise(errors)
    return results[0]


def _raise(errors: list[Any]) -> None:
    """Raise the error of the work, without a reference cycle through this frame's variables."""
    try:
        raise errors[0]
    finally:
        errors.clear()
