"""Progress of long work: stages report here, and whoever runs them decides how to show it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from bigfs.core.context import set_within
from bigfs.core.units import format_seconds
from bigfs.runtime.interrupt import check_interrupt

logger = logging.getLogger("bigfs")


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
