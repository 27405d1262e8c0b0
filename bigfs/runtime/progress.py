"""Progress of long work: stages report here, and whoever runs them decides how to show it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from bigfs.core.units import format_seconds
from bigfs.runtime.interrupt import check_interrupt

logger = logging.getLogger("bigfs")


class Reporter(Protocol):
    """Interface of progress displays: a terminal bar or plain log lines."""

    def start(self, label: str, total: int | None, unit: str) -> None:
        """Begin a piece of work of ``total`` units (None: not known)."""

    def advance(self, count: int) -> None:
        """Add finished units."""

    def finish(self, failed: bool) -> None:
        """End the piece of work."""


class LogReporter:
    """Log lines: one every ten seconds and one at the end, with their figures as ``fields``."""

    interval_seconds = 10.0

    def start(self, label: str, total: int | None, unit: str) -> None:
        """Begin a piece of work."""
        self._label, self._total, self._unit, self._done = label, total, unit, 0
        self._began = self._said = time.monotonic()

    def advance(self, count: int) -> None:
        """Add finished units, and say so every ten seconds."""
        self._done += count
        now = time.monotonic()
        if now - self._said >= self.interval_seconds:
            self._said = now
            seconds = now - self._began
            line = progress_line(self._label, self._done, self._total, self._unit, seconds)
            self._say("progress", line, seconds)

    def finish(self, failed: bool) -> None:
        """End the piece of work with its duration."""
        seconds = time.monotonic() - self._began
        state = "stopped after" if failed else "done,"
        line = f"{self._label}: {state} {self._done} {self._unit} in {format_seconds(seconds)}"
        self._say("stopped" if failed else "done", line, seconds)

    def _say(self, event: str, line: str, seconds: float) -> None:
        rate = self._done / seconds if seconds > 0 else 0.0
        left = (self._total - self._done) / rate if self._total is not None and rate > 0 else None
        fields = {
            "event": event,
            "work": self._label,
            "unit": self._unit,
            "done": self._done,
            "total": self._total,
            "per_second": round(rate, 4),
            "seconds": round(seconds, 3),
            "seconds_left": None if left is None else round(left, 1),
        }
        logger.info("%s", line, extra={"fields": fields})


def progress_line(label: str, done: int, total: int | None, unit: str, seconds: float) -> str:
    """Return ``label: 3/10 blocks, 1.5 blocks/s, 4.7 s left``."""
    rate = done / seconds if seconds > 0 else 0.0
    if total is None:
        return f"{label}: {done} {unit}, {rate:.3g} {unit}/s"
    left = f", {format_seconds((total - done) / rate)} left" if rate > 0 else ""
    return f"{label}: {done}/{total} {unit}, {rate:.3g} {unit}/s{left}"


_reporter: Reporter = LogReporter()


def set_reporter(reporter: Reporter) -> Reporter:
    """Install a reporter for this process and return the one it replaces."""
    global _reporter
    previous, _reporter = _reporter, reporter
    return previous


class _SilentReporter:
    """Shows nothing."""

    def start(self, label: str, total: int | None, unit: str) -> None: ...

    def advance(self, count: int) -> None: ...

    def finish(self, failed: bool) -> None: ...


@dataclass(frozen=True)
class _Interruptible:
    """A reporter that hears of an interrupt whenever something is reported."""

    reporter: Reporter

    def start(self, label: str, total: int | None, unit: str) -> None:
        self.reporter.start(label, total, unit)

    def advance(self, count: int) -> None:
        self.reporter.advance(count)
        check_interrupt()

    def finish(self, failed: bool) -> None:
        self.reporter.finish(failed)


_stage: ContextVar[str | None] = ContextVar("bigfs_stage", default=None)


def current_stage() -> str | None:
    """Return the stage that the caller is a part of, as log lines name it."""
    return _stage.get()


@contextmanager
def in_stage(name: str) -> Iterator[None]:
    """Name the stage that runs within the block."""
    token = _stage.set(name)
    try:
        yield
    finally:
        _stage.reset(token)


# Of each thread: one task's silence is not its neighbors'.
_silent: ContextVar[bool] = ContextVar("bigfs_silent", default=False)


# Of work within work only errors are said: fifty fits would say the same fifty times.
logger.addFilter(lambda record: record.levelno >= logging.ERROR or not _silent.get())


@contextmanager
def silenced() -> Iterator[None]:
    """Report nothing within the block: its work is a part of what is reported already."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


@contextmanager
def track(label: str, total: int | None, unit: str = "blocks") -> Iterator[Reporter]:
    """Report one piece of work; call ``advance`` on what it yields.

    Whatever reports its progress can be interrupted there.
    """
    check_interrupt()
    reporter = _SilentReporter() if _silent.get() else _reporter
    reporter.start(label, total, unit)
    failed = True
    try:
        yield _Interruptible(reporter)
        failed = False
    finally:
        reporter.finish(failed)
