"""Progress of long work: stages report here, and whoever runs them decides how to show it.

Of calls from Python it is shown after two seconds: a bar where one can be shown, else records.
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
# Until then nothing is shown: what is done by then needs no bar.
FIRST_SECONDS = 2.0
_DRAW_SECONDS = 0.2


@dataclass
class Work:
    """A piece of work, as displays see it and as whoever does it reports on it."""

    label: str
    total: int | None  # its units; None: not known
    unit: str  # in the plural; empty where there is nothing to count
    reporter: SilentReporter
    stage: str | None = None  # that it is a part of
    done: int = 0  # finished units
    note: str = ""  # where it stands, such as "objective 12.3"
    began: float = field(default_factory=time.monotonic)
    _resumed: int = 0

    def advance(self, count: int = 0, note: str | None = None) -> None:
        """Add finished units and say where the work stands; an interrupt is heard here."""
        self.done += count
        self.note = self.note if note is None else note
        self.reporter.change(self)
        check_interrupt()

    def resume(self, done: int) -> None:
        """Begin with what an earlier run has finished, which says nothing of the rate."""
        self._resumed = done
        self.advance(done)

    @property
    def title(self) -> str:
        """The stage and the label, said once where they are the same."""
        known = self.stage is None or self.label.startswith(self.stage)
        return self.label if known else f"{self.stage}, {self.label}"

    @property
    def seconds(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began

    def rate(self, seconds: float) -> float:
        """Return units per second."""
        return (self.done - self._resumed) / seconds if seconds > 0 else 0.0

    def figures(self, seconds: float) -> str:
        """Return ``3/10 blocks (30 %), 1.5 blocks/s, 4.7 s left, objective 12.3``."""
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
    """Shows nothing; the base of a terminal's bar, a notebook's and plain log lines."""

    def start(self, work: Work) -> None:
        """Begin to show a piece of work."""

    def change(self, work: Work) -> None:
        """Show that it went on."""

    def finish(self, work: Work, failed: bool) -> None:
        """End it."""


class LogReporter(SilentReporter):
    """Log lines: one every ten seconds and one at the end, with their figures as ``fields``."""

    interval_seconds = 10.0

    def start(self, work: Work) -> None:
        """Begin a piece of work."""
        self._said = work.began

    def change(self, work: Work) -> None:
        """Say how far it is, every ten seconds."""
        now = time.monotonic()
        if now - self._said >= self.interval_seconds:
            self._said = now
            seconds = work.seconds
            self._say("progress", work, f"{work.title}: {work.figures(seconds)}", seconds)

    def finish(self, work: Work, failed: bool) -> None:
        """End the piece of work with its duration."""
        seconds = work.seconds
        state = "stopped after" if failed else "done,"
        count = f"{work.done} {work.unit} in " if work.unit else ""
        note = f", {work.note}" if work.note else ""
        line = f"{work.title}: {state} {count}{format_seconds(seconds)}{note}"
        self._say("stopped" if failed else "done", work, line, seconds)

    def _say(self, event: str, work: Work, line: str, seconds: float) -> None:
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


# Of this context, which threads of Dask share: fits in two threads each have their own.
_reporter: ContextVar[SilentReporter | None] = ContextVar("bigfs_reporter", default=None)
_work: ContextVar[Any] = ContextVar("bigfs_work", default=None)


def has_reporter() -> bool:
    """Say whether somebody shows the progress already, such as the command line."""
    return _reporter.get() is not None


def reported_by(reporter: SilentReporter) -> AbstractContextManager[None]:
    """Show progress by a reporter within the block."""
    return set_within(_reporter, reporter)


def say_where(note: str) -> None:
    """Say where the work stands that this, perhaps a task of it, is a part of."""
    work = _work.get()
    if work is not None:
        work.advance(note=note)


def working_on(work: Any) -> AbstractContextManager[None]:
    """Have `say_where` within the block go to a piece of work, or to what sends it there."""
    return set_within(_work, work)


_stage: ContextVar[str | None] = ContextVar("bigfs_stage", default=None)


def current_stage() -> str | None:
    """Return the stage that the caller is a part of, as log lines name it."""
    return _stage.get()


def in_stage(name: str) -> AbstractContextManager[None]:
    """Name the stage that runs within the block."""
    return set_within(_stage, name)


# Of each thread: one task's silence is not its neighbors'.
_silent: ContextVar[bool] = ContextVar("bigfs_silent", default=False)


# Of work within work only errors are said: fifty fits would say the same fifty times. Its own
# progress is that of what it is a part of.
logger.addFilter(
    lambda record: record.levelno >= logging.ERROR or hasattr(record, "work") or not _silent.get()
)


def silenced() -> AbstractContextManager[None]:
    """Report nothing within the block: its work is a part of what is reported already."""
    return set_within(_silent, True)


@contextmanager
def track(label: str, total: int | None, unit: str = "blocks") -> Iterator[Work]:
    """Report one piece of work; call ``advance`` on what it yields.

    Whatever reports its progress can be interrupted there.
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
        with closing(LateReporter(what)) as reporter, reported_by(reporter):
            yield


class LateReporter(LogReporter):
    """Log records, the first of them after two seconds; by then a bar where there is a screen.

    Parameters
    ----------
    what : str
        What is going on.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._work: Work | None = None
        self._bar: LogReporter | None = None
        self._began, self._said = time.monotonic(), -self.interval_seconds
        self._lock, self._closed = threading.RLock(), False
        self._timer: threading.Timer | None = None
        if _is_notebook() or _is_terminal():
            # In this context: a notebook's output belongs to the cell that runs.
            self._timer = threading.Timer(FIRST_SECONDS, copy_context().run, (self._show,))
            self._timer.daemon = True
            self._timer.start()

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
        self._drawn = time.monotonic()
        line = f"{self._what}: {work.title}: {work.figures(work.seconds)}"
        share = f'value="{work.done}" max="{work.total}"' if work.total else ""
        bar = f"<progress {share}></progress> {escape(line)}"
        self._put({"text/plain": line, "text/html": bar})

    def change(self, work: Work) -> None:
        """Show how far it is, five times a second."""
        if time.monotonic() - self._drawn >= _DRAW_SECONDS:
            self.start(work)

    def close(self) -> None:
        """Leave the duration."""
        line = f"{self._what}: {format_seconds(time.monotonic() - self._began)}"
        self._put({"text/plain": line})

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
