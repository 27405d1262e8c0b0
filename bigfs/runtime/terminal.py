"""Output on a terminal (a progress bar that goes away) and elsewhere (plain lines)."""

from __future__ import annotations

import atexit
import json
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
from rich.text import Text

from bigfs.core.errors import StorageError
from bigfs.core.text import printable
from bigfs.runtime.progress import LogReporter, Work, current_stage, reported_by

logger = logging.getLogger("bigfs")


_format = "text"
# The thread that makes JSON of what is written to stderr, and the stderr that it writes to.
_relays: list[tuple[threading.Thread, int]] = []
_DRAIN_SECONDS = 2.0


def choose_format(name: str) -> None:
    """Say whether what is shown on stderr is ``text`` or ``json``, one object a line."""
    global _format
    _format = name


def say(text: str, level: int, **fields: Any) -> None:
    """Show the last word of a command on stderr.

    Parameters
    ----------
    text : str
    level : int
        Of `logging`.
    **fields : object
        What a JSON line says beside the text.
    """
    if _format == "text":
        line = f"bigfs: {printable(text)}"
    else:
        record = logging.LogRecord("bigfs", level, "", 0, text, None, None)
        record.fields = fields
        line = _JsonFormatter().format(record)
    with suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def show(text: str, *, kept: bool = False) -> None:
    """Print what a command found; its reader may be gone (head, less).

    Parameters
    ----------
    text : str
    kept : bool, default=False
        Whether the work of the command is stored: the exit code is that of the work then, and if
        the disk that stdout goes to is full, stderr says so.

    Raises
    ------
    StorageError
        If the text cannot be written, and is all that there is.
    """
    try:
        click.echo(printable(text))
    except OSError as error:
        # Python would try again, and fail again, at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return
        message = f"the output cannot be written: {error.strerror}"
        if not kept:
            raise StorageError(f"{message}.") from None
        say(message, logging.WARNING, event="message")


def relay_lines(arguments: list[str]) -> None:
    """Have stderr of this process and its children hold JSON lines only, if a command asks for it.

    What Python, Dask and worker processes write there passes through a pipe, and becomes the
    message of an object for each line. `drain_lines` ends it, at the latest with the process.
    """
    at = [i for i, word in enumerate(arguments) if word.startswith("--log-format")]
    if not at or "json" not in " ".join(arguments[at[-1] :]).replace("=", " ").split()[1:2]:
        return
    stderr = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    relay = threading.Thread(target=_relay, args=(reading, stderr), daemon=True)
    relay.start()
    _relays.append((relay, stderr))
    atexit.register(drain_lines)


def drain_lines() -> None:
    """Wait for what was written to stderr, and give it back."""
    while _relays:
        relay, stderr = _relays.pop()
        with suppress(OSError):
            sys.stderr.flush()
        os.dup2(stderr, 2)
        relay.join(_DRAIN_SECONDS)  # a child that lives on keeps the pipe open


def _relay(reading: int, stderr: int) -> None:
    """Copy lines; those that are no JSON objects become messages."""
    with os.fdopen(reading, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            text = line.rstrip()
            if not text:
                continue
            if not text.startswith("{"):
                record = logging.LogRecord("stderr", logging.WARNING, "", 0, text, None, None)
                text = _JsonFormatter().format(record)
            with suppress(OSError):
                os.write(stderr, f"{text}\n".encode())


@contextmanager
def reporting(quiet: bool = False) -> Iterator[None]:
    """Show progress and messages on stderr within the block.

    Parameters
    ----------
    quiet : bool, default=False
        Show warnings only.
    """
    console = Console(stderr=True)
    live = console.is_terminal and not quiet and _format == "text"
    plain = _PrintableFormatter("%(asctime)s %(message)s", "%H:%M:%S")
    handler = _ConsoleHandler(console) if live else logging.StreamHandler()
    handler.setFormatter(_JsonFormatter() if _format == "json" else None if live else plain)
    level, propagates = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    logger.propagate = False
    try:
        with reported_by(BarReporter(console) if live else LogReporter()):
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates


class BarReporter(LogReporter):
    """One bar for the work at hand; it leaves a line with its duration.

    Parameters
    ----------
    console : rich.console.Console
        Where to draw.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    def start(self, work: Work) -> None:
        """Show a bar for a piece of work."""
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            _Figures(work),
            console=self._console,
            transient=True,
        )
        self._task = self._progress.add_task(work.title, total=work.total, completed=work.done)
        self._progress.start()

    def change(self, work: Work) -> None:
        """Move the bar."""
        self._progress.update(self._task, completed=work.done)

    def finish(self, work: Work, failed: bool) -> None:
        """Take the bar away and say how long it took."""
        self._progress.stop()
        super().finish(work, failed)


class _Figures(ProgressColumn):
    """Units done, their share, units per second, the time left and where the work stands."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work

    def render(self, task: Any) -> Text:
        return Text(printable(self._work.figures(self._work.seconds)))


class _ConsoleHandler(logging.Handler):
    """Log lines above the bar."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        style = "yellow" if record.levelno >= logging.WARNING else None
        self._console.print(
            printable(self.format(record)), style=style, markup=False, highlight=False
        )


class _PrintableFormatter(logging.Formatter):
    """Messages name features and files, whose names may hold anything."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class _JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, stage, event, message, and what the event counts."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "time": when,
            "level": record.levelname.lower(),
            "stage": current_stage(),
            "event": "message",
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
