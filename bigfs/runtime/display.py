"""Progress of calls from Python after two seconds: a bar where one can be shown, else records."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from html import escape
from typing import Any

from bigfs.core.errors import InputError
from bigfs.core.units import format_seconds
from bigfs.runtime.progress import (
    LogReporter,
    SilentReporter,
    Work,
    has_reporter,
    reported_by,
)

# Until then nothing is shown: what is done by then needs no bar.
FIRST_SECONDS = 2.0
_DRAW_SECONDS = 0.2


@contextmanager
def showing(what: str, verbose: Any = 1) -> Iterator[None]:
    """Show the progress of the block: a bar on a terminal and in notebooks, else log records.

    Parameters
    ----------
    what : str
        Such as the estimator's name.
    verbose : int
        0: show nothing.

    Raises
    ------
    InputError
        If ``verbose`` is no whole number of at least 0.
    """
    if not isinstance(verbose, int) or verbose < 0:
        raise InputError(f"{what}: verbose must be a whole number of at least 0. Got {verbose!r}.")
    if not verbose:
        with reported_by(SilentReporter()):
            yield
    elif has_reporter():
        yield
    else:
        reporter = LateReporter(what)
        try:
            with reported_by(reporter):
                yield
        finally:
            reporter.close()


class LateReporter(LogReporter):
    """Log records, the first of them after two seconds; by then a bar where there is a screen.

    Parameters
    ----------
    what : str
        What is going on.
    """

    def __init__(self, what: str) -> None:
        self._what, self._work, self._bar = what, None, None
        self._began, self._said = time.monotonic(), -self.interval_seconds
        self._lock, self._closed = threading.RLock(), False
        self._timer: threading.Timer | None = None
        if _is_notebook() or _is_terminal():
            # In this context: a notebook's output belongs to the cell that runs.
            self._timer = threading.Timer(FIRST_SECONDS, copy_context().run, (self._show,))
            self._timer.daemon = True
            self._timer.start()

    _work: Work | None
    _bar: LogReporter | None

    def _show(self) -> None:
        """Draw a bar from now on; work that runs already, and does not report, gets one too."""
        with self._lock:
            if self._closed:
                return
            if _is_notebook():
                self._bar = NotebookReporter(self._what, self._began)
            else:
                from rich.console import Console

                from bigfs.runtime.terminal import BarReporter

                self._bar = BarReporter(Console(stderr=True))
            if self._work is not None:
                self._bar.start(self._work)

    def start(self, work: Work) -> None:
        """Begin a piece of work."""
        with self._lock:
            self._work = work
            if self._bar is not None:
                self._bar.start(work)

    def change(self, work: Work) -> None:
        """Move the bar, or say how far the work is: after two seconds, then every ten."""
        with self._lock:
            if self._bar is not None:
                self._bar.change(work)
            elif time.monotonic() - self._began >= FIRST_SECONDS:
                super().change(work)

    def finish(self, work: Work, failed: bool) -> None:
        """End the piece of work with a record of its duration."""
        with self._lock:
            self._work = None
            if self._bar is None:
                super().finish(work, failed)
            else:
                self._bar.finish(work, failed)

    def close(self) -> None:
        """Show nothing more."""
        with self._lock:
            self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if isinstance(self._bar, NotebookReporter):
            self._bar.close()


class NotebookReporter(LogReporter):
    """One line and a bar below the cell, for all of the work; its duration is what stays."""

    def __init__(self, what: str, began: float) -> None:
        self._what, self._began, self._drawn = what, began, 0.0
        # The kernel has loaded it.
        self._handle, self._is_new = sys.modules["IPython.display"].DisplayHandle(), True

    def start(self, work: Work) -> None:
        """Show a piece of work."""
        self._draw(work)

    def change(self, work: Work) -> None:
        """Show how far it is, five times a second."""
        if time.monotonic() - self._drawn >= _DRAW_SECONDS:
            self._draw(work)

    def close(self) -> None:
        """Leave the duration."""
        line = f"{self._what}: {format_seconds(time.monotonic() - self._began)}"
        self._put({"text/plain": line})

    def _draw(self, work: Work) -> None:
        self._drawn = time.monotonic()
        line = f"{self._what}: {work.title}: {work.figures(work.seconds)}"
        share = f'value="{work.done}" max="{work.total}"' if work.total else ""
        bar = f"<progress {share}></progress> {escape(line)}"
        self._put({"text/plain": line, "text/html": bar})

    def _put(self, data: dict[str, str]) -> None:
        show = self._handle.display if self._is_new else self._handle.update
        self._is_new = False
        show(data, raw=True)


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _is_notebook() -> bool:
    """Say whether a kernel of Jupyter runs this."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_shell is not None and hasattr(get_shell(), "kernel")
