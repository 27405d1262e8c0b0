"""Progress of long work: stages report it here, and the caller decides how to show it.

For calls from Python it is shown after two seconds: as a bar if possible, otherwise as log records.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from html import escape
from typing import Any

from bigfs.core.errors import InputError
from bigfs.core.threads import set_within
from bigfs.core.units import format_seconds
from bigfs.runtime.interrupt import check_interrupt

logger = logging.getLogger("bigfs")
# Delay before progress is shown: shorter work needs no bar.
FIRST_SECONDS = 2.0
_DRAW_SECONDS = 0.2


@dataclass
class Work:
    """A piece of work whose progress is reported, and its state as displays show it."""

    label: str
    total: int | None  # number of units; None if unknown
    unit: str  # name of the units in the plural; empty if there is nothing to count
    reporter: SilentReporter
    stage: str | None = None  # name of the stage that the work is part of
    done: int = 0  # finished units
    note: str = ""  # current state, such as "objective 12.3"
    began: float = field(default_factory=time.monotonic)
    _resumed: int = 0

    def advance(self, count: int = 0, note: str | None = None) -> None:
        """Add finished units and update the note; an interrupt is raised here.

        A ``note`` of None keeps the last one.
        """
        self.done += count
        self.note = self.note if note is None else note
        self.reporter.change(self)
        check_interrupt()

    def resume(self, done: int) -> None:
        """Start with units that an earlier run finished, which do not count for the rate."""
        self._resumed = done
        self.advance(done)

    @property
    def title(self) -> str:
        """The stage and the label; only the label if it starts with the stage."""
        known = self.stage is None or self.label.startswith(self.stage)
        return self.label if known else f"{self.stage}, {self.label}"

    @property
    def seconds(self) -> float:
        """Seconds since the work began."""
        return time.monotonic() - self.began

    def rate(self, seconds: float) -> float:
        """Return the number of units per second."""
        return (self.done - self._resumed) / seconds if seconds > 0 else 0.0

    def figures(self, seconds: float) -> str:
        """Return the state as ``3/10 blocks (30 %), 1.5 blocks/s, 4.7 s left, objective 12.3``."""
        parts = [self.note] if self.note else []
        if self.unit:
            rate = self.rate(seconds)
            if self.total and rate > 0:
                parts.insert(0, f"{format_seconds((self.total - self.done) / rate)} left")
            parts.insert(0, f"{rate:.3g} {self.unit}/s")
            of, share = "", ""
            if self.total:
                of, share = f"/{self.total}", f" ({100 * self.done // self.total} %)"
            parts.insert(0, f"{self.done}{of} {self.unit}{share}")
        return ", ".join(parts or [format_seconds(seconds)])


class SilentReporter:
    """Reporter that shows nothing; base class of all reporters."""

    def start(self, work: Work) -> None:
        """Start to show a piece of work."""

    def change(self, work: Work) -> None:
        """Show that the work has advanced."""

    def finish(self, work: Work, failed: bool) -> None:
        """Show that the work has ended."""


class LogReporter(SilentReporter):
    """Reporter that logs a line every ten seconds and one at the end, with values as ``fields``."""

    interval_seconds = 10.0

    def start(self, work: Work) -> None:
        """Start the interval of the log lines."""
        self._logged = work.began

    def change(self, work: Work) -> None:
        """Log the state of the work if ten seconds have passed since the last line."""
        now = time.monotonic()
        if now - self._logged >= self.interval_seconds:
            self._logged = now
            seconds = work.seconds
            self._log("progress", work, f"{work.title}: {work.figures(seconds)}", seconds)

    def finish(self, work: Work, failed: bool) -> None:
        """Log the end of the work and its duration."""
        seconds = work.seconds
        state = "stopped after" if failed else "done,"
        count = f"{work.done} {work.unit} in " if work.unit else ""
        note = f", {work.note}" if work.note else ""
        line = f"{work.title}: {state} {count}{format_seconds(seconds)}{note}"
        self._log("stopped" if failed else "done", work, line, seconds)

    def _log(self, event: str, work: Work, line: str, seconds: float) -> None:
        rate, total = work.rate(seconds), work.total
        left = (total - work.done) / rate if total is not None and rate > 0 else None
        fields = {
            "event": event,
            "stage": work.stage,
            "work": work.label,
            "unit": work.unit,
            "done": work.done,
            "total": total,
            "note": work.note,
            "per_second": round(rate, 4),
            "seconds": round(seconds, 3),
            "seconds_left": None if left is None else round(left, 1),
        }
        logger.info("%s", line, extra={"fields": fields, "work": work})


# Context variables, which Dask's threads inherit: fits in two threads each have their own.
_reporter: ContextVar[SilentReporter | None] = ContextVar("bigfs_reporter", default=None)
_work: ContextVar[Any] = ContextVar("bigfs_work", default=None)


def has_reporter() -> bool:
    """Return True if progress is already shown by someone, such as the command line."""
    return _reporter.get() is not None


def reported_by(reporter: SilentReporter) -> AbstractContextManager[None]:
    """Show progress of the block with the given reporter."""
    return set_within(_reporter, reporter)


def say_where(note: str) -> None:
    """Update the note of the current work, which may be the work that this task is part of."""
    work = _work.get()
    if work is not None:
        work.advance(note=note)


def working_on(work: Any) -> AbstractContextManager[None]:
    """Direct `say_where` within the block to a piece of work, or to an object that forwards it."""
    return set_within(_work, work)


_stage: ContextVar[str | None] = ContextVar("bigfs_stage", default=None)


def current_stage() -> str | None:
    """Return the name of the current stage, as log lines show it; None outside of stages."""
    return _stage.get()


def in_stage(name: str) -> AbstractContextManager[None]:
    """Set the name of the stage that runs within the block."""
    return set_within(_stage, name)


# A context variable: silencing one task must not silence its neighbors in other threads.
_silent: ContextVar[bool] = ContextVar("bigfs_silent", default=False)


# Nested work logs errors only: otherwise fifty fits would log the same messages fifty times. Log
# records of progress (with the attribute ``work``) come from the outer work and pass.
logger.addFilter(
    lambda record: record.levelno >= logging.ERROR or hasattr(record, "work") or not _silent.get()
)


def silenced() -> AbstractContextManager[None]:
    """Report nothing within the block, whose work is part of work that is already reported."""
    return set_within(_silent, True)


@contextmanager
def track(label: str, total: int | None, unit: str = "blocks") -> Iterator[Work]:
    """Report one piece of work; call ``advance`` on the `Work` that it yields.

    Work can be interrupted whenever it reports progress.
    """
    check_interrupt()
    reporter = SilentReporter() if _silent.get() else _reporter.get() or LogReporter()
    work = Work(label, total, unit, reporter, current_stage())
    reporter.start(work)
    failed = True
    try:
        with working_on(work):
            yield work
        failed = False
    finally:
        reporter.finish(work, failed)


@contextmanager
def showing(what: str, verbose: Any = 1) -> Iterator[None]:
    """Show the progress of the block: a bar on a terminal and in notebooks, else log records.

    Parameters
    ----------
    what : str
        Name of the work, such as the estimator's name.
    verbose : int
        If 0, nothing is shown.

    Raises
    ------
    InputError
        If ``verbose`` is not a non-negative int.
    """
    if not isinstance(verbose, int) or verbose < 0:
        raise InputError(f"{what}: verbose must be a whole number of at least 0. Got {verbose!r}.")
    if not verbose:
        with reported_by(SilentReporter()):
            yield
    elif has_reporter():
        yield
    else:
        with closing(LateReporter(what)) as reporter, reported_by(reporter):
            yield


class LateReporter(LogReporter):
    """Reporter that shows nothing for two seconds, then a bar if possible, otherwise log records.

    Parameters
    ----------
    what : str
        Name of the work.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._work: Work | None = None
        self._bar: LogReporter | None = None
        self._began, self._logged = time.monotonic(), -self.interval_seconds
        self._lock, self._closed = threading.RLock(), False
        self._timer: threading.Timer | None = None
        if _is_notebook() or _is_terminal():
            # In the current context, since a notebook's output belongs to the running cell.
            self._timer = threading.Timer(FIRST_SECONDS, copy_context().run, (self._show,))
            self._timer.daemon = True
            self._timer.start()

    def _show(self) -> None:
        """Draw a bar from now on, also for the current work, which may not report for a while."""
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
        """Start to show a piece of work."""
        with self._lock:
            self._work = work
            if self._bar is not None:
                self._bar.start(work)

    def change(self, work: Work) -> None:
        """Move the bar, or log the state of the work: after two seconds, then every ten."""
        with self._lock:
            if self._bar is not None:
                self._bar.change(work)
            elif time.monotonic() - self._began >= FIRST_SECONDS:
                super().change(work)

    def finish(self, work: Work, failed: bool) -> None:
        """Log the end of the work and its duration."""
        with self._lock:
            self._work = None
            if self._bar is None:
                super().finish(work, failed)
            else:
                self._bar.finish(work, failed)

    def close(self) -> None:
        """Stop showing progress."""
        with self._lock:
            self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if isinstance(self._bar, NotebookReporter):
            self._bar.close()


class NotebookReporter(LogReporter):
    """Reporter with one line and a bar below the cell; only the total duration stays."""

    def __init__(self, what: str, began: float) -> None:
        self._what, self._began, self._drawn = what, began, 0.0
        # The kernel has already imported the module.
        self._handle, self._is_new = sys.modules["IPython.display"].DisplayHandle(), True

    def start(self, work: Work) -> None:
        """Show a piece of work."""
        self._drawn = time.monotonic()
        line = f"{self._what}: {work.title}: {work.figures(work.seconds)}"
        share = f'value="{work.done}" max="{work.total}"' if work.total else ""
        bar = f"<progress {share}></progress> {escape(line)}"
        self._put({"text/plain": line, "text/html": bar})

    def change(self, work: Work) -> None:
        """Update the bar, at most five times per second."""
        if time.monotonic() - self._drawn >= _DRAW_SECONDS:
            self.start(work)

    def close(self) -> None:
        """Replace the bar by the total duration."""
        line = f"{self._what}: {format_seconds(time.monotonic() - self._began)}"
        self._put({"text/plain": line})

    def _put(self, data: dict[str, str]) -> None:
        show = self._handle.display if self._is_new else self._handle.update
        self._is_new = False
        show(data, raw=True)


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _is_notebook() -> bool:
    """Return True if the code runs in a Jupyter kernel."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_shell is not None and hasattr(get_shell(), "kernel")
