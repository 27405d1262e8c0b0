"""Process-level parts of the command line: output, exit codes of errors, signals as interrupts.

On a terminal a transient progress bar is shown, elsewhere plain lines.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from types import FrameType
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
from rich.text import Text

from bigfs.core.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_INTERRUPTED, BigfsError, StorageError
from bigfs.core.text import printable
from bigfs.runtime.progress import LogReporter, Work, current_stage, reported_by

logger = logging.getLogger("bigfs")
EXIT_BUG = 1
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AGAIN_SECONDS = 0.05
_received: list[int] = []  # the signals of `_SIGNALS` that this process has received
# Message on the state that an interrupted command leaves behind.
_KEPT = dict.fromkeys(
    ("run", "compare"), "finished stages are kept, run the same command to continue"
)
_format = "text"
# The thread that converts lines written to stderr to JSON, and a duplicate of the original stderr.
_relays: list[tuple[threading.Thread, int]] = []
_DRAIN_SECONDS = 2.0


def choose_format(name: str) -> None:
    """Set the format of messages on stderr: ``text``, or ``json`` with one object per line."""
    global _format
    _format = name


def say(text: str, level: int, **fields: Any) -> None:
    """Show the final message of a command on stderr.

    Parameters
    ----------
    text : str
    level : int
        A level of `logging`.
    **fields : object
        Additional fields of a JSON line.
    """
    line = f"bigfs: {printable(text)}" if _format == "text" else _json_line(text, level, fields)
    with suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def show(text: str, *, kept: bool = False) -> None:
    """Print the output of a command; a closed pipe (head, less) is ignored.

    Parameters
    ----------
    text : str
    kept : bool, default=False
        Whether the work of the command is stored as well. A failed write (such as to a full disk)
        is then only a warning on stderr and does not change the exit code.

    Raises
    ------
    StorageError
        If the text cannot be written and is stored nowhere else.
    """
    try:
        click.echo(printable(text))
    except OSError as error:
        # Otherwise Python would flush stdout again at its exit, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return
        message = f"the output cannot be written: {error.strerror}"
        if not kept:
            raise StorageError(f"{message}.") from None
        say(message, logging.WARNING, event="message")


def relay_lines(arguments: list[str]) -> None:
    """Restrict stderr of this process and its children to JSON lines, if a command requests it.

    Lines that Python, Dask and worker processes write to stderr pass through a pipe, and each
    becomes the message of a JSON object. `drain_lines` ends this, at the latest at process exit.
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
    """Write out the remaining lines, and restore the original stderr."""
    while _relays:
        relay, stderr = _relays.pop()
        with suppress(OSError):
            sys.stderr.flush()
        os.dup2(stderr, 2)
        relay.join(_DRAIN_SECONDS)  # with a timeout, since a surviving child keeps the pipe open


def _relay(reading: int, stderr: int) -> None:
    """Copy lines to stderr; lines that are not JSON objects are wrapped as messages."""
    with os.fdopen(reading, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            text = line.rstrip()
            if not text:
                continue
            if not text.startswith("{"):
                text = _json_line(text, logging.WARNING, {})
            with suppress(OSError):
                os.write(stderr, f"{text}\n".encode())


@contextmanager
def messages(quiet: bool = False) -> Iterator[None]:
    """Show progress and messages on stderr within the block.

    An interrupt is converted to click's Abort here, since click itself would print an empty line.

    Parameters
    ----------
    quiet : bool, default=False
        Show warnings only.
    """
    console = Console(stderr=True)
    live = console.is_terminal and not quiet and _format == "text"
    plain = _PrintableFormatter(None if live else "%(asctime)s %(message)s", "%H:%M:%S")
    handler = _ConsoleHandler(console) if live else logging.StreamHandler()
    handler.setFormatter(_JsonFormatter() if _format == "json" else plain)
    level, propagates = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    logger.propagate = False
    try:
        with reported_by(BarReporter(console) if live else LogReporter()):
            yield
    except KeyboardInterrupt:
        raise click.Abort from None
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates


class BarReporter(LogReporter):
    """A progress bar for the current work, replaced by a line with its duration at the end.

    Parameters
    ----------
    console : rich.console.Console
        Console to draw on.
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
        """Remove the bar and log the duration."""
        self._progress.stop()
        super().finish(work, failed)


class _Figures(ProgressColumn):
    """Column with units done, their share, units per second, the time left and the last note."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work

    def render(self, task: Any) -> Text:
        return Text(printable(self._work.figures(self._work.seconds)))


class _ConsoleHandler(logging.Handler):
    """Handler that prints log lines above the bar."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        style = "yellow" if record.levelno >= logging.WARNING else None
        self._console.print(self.format(record), style=style, markup=False, highlight=False)


class _PrintableFormatter(logging.Formatter):
    """Formatter that escapes control characters, which names of features and files may contain."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class _JsonFormatter(logging.Formatter):
    """Formatter for JSON lines: time, level, stage, event, message, and the event's fields."""

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


def _json_line(text: str, level: int, fields: dict[str, Any]) -> str:
    """Return a text that was not logged as a JSON object in the format of log records."""
    record = logging.LogRecord("bigfs", level, "", 0, text, None, None)
    record.fields = fields
    return _JsonFormatter().format(record)


@contextmanager
def interrupts() -> Iterator[None]:
    """Treat SIGTERM (batch systems) and SIGHUP (closed terminals) like Ctrl-C within the block.

    A second signal ends the process without waiting for the cleanup. SIGHUP stays ignored if it was
    (nohup). Python ignores an interrupt that arrives during a destructor or a weak reference
    callback; it is sent again.
    """
    received: list[int] = []
    show_ignored = sys.unraisablehook

    def interrupt(signum: int, frame: FrameType | None) -> None:
        if received:
            os._exit(EXIT_INTERRUPTED)
        received.append(signum)
        _received.append(signum)
        raise KeyboardInterrupt

    def send_again(ignored: Any) -> None:
        if not (issubclass(ignored.exc_type, KeyboardInterrupt) and received):
            show_ignored(ignored)
            return
        again = threading.Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), received.pop()))
        again.daemon = True
        again.start()

    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    handled = [number for number in _SIGNALS if not (ignored and number == signal.SIGHUP)]
    before = {number: signal.signal(number, interrupt) for number in handled}
    sys.unraisablehook = send_again
    try:
        yield
    finally:
        sys.unraisablehook = show_ignored
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_code(cli: click.Group, arguments: list[str] | None) -> int:
    """Run a command line and return its exit code; an error is reported on stderr."""
    try:
        # Commands return None or an exit code; click returns the code of --help and --version.
        return cli.main(args=arguments, prog_name="bigfs", standalone_mode=False) or EXIT_DONE
    except (KeyboardInterrupt, click.Abort):
        command = (arguments or sys.argv[1:])[0]
        kept = _KEPT.get(command, "no result was written")
        return _tell(f"interrupted; {kept}", EXIT_INTERRUPTED)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return EXIT_BAD_INPUT
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        where = context.command_path if context else "bigfs"
        message = " ".join(error.format_message().split())
        takes = context.command.params if isinstance(error, click.NoSuchOption) and context else ()
        if any("--set" in parameter.opts for parameter in takes):
            message += " Change settings of the file with --set KEY=VALUE."
        return _tell(f"error: {message} See '{where} --help'.", EXIT_BAD_INPUT)
    except BigfsError as error:
        if os.environ.get("BIGFS_TRACEBACK") == "1":
            traceback.print_exc()
        lines = [f"error: {error}", *getattr(error, "__notes__", [])]
        return _tell("\n".join(lines), error.exit_code)
    except Exception:
        traceback.print_exc()
        text = "error: this should not happen; please report it with the lines above"
        return _tell(text, EXIT_BUG)


def as_program(main: Callable[[], None]) -> None:
    """Run ``main()``, which raises SystemExit; after an interrupt, end the process at once."""
    relay_lines(sys.argv)
    try:
        main()
    except SystemExit as end:
        if end.code != EXIT_INTERRUPTED and not _received:
            # During Python's shutdown (some tenths of a second) no signal may change the exit code.
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            raise
        # Everything is cleaned up. A regular exit would wait for tasks in threads, and a compiled
        # kernel can take minutes.
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        drain_lines()
        os._exit(end.code if isinstance(end.code, int) else EXIT_INTERRUPTED)


def _tell(text: str, code: int) -> int:
    """Write a message to stderr, as text or JSON, and return the given exit code."""
    event = "interrupted" if code == EXIT_INTERRUPTED else "error"
    say(text, logging.ERROR, event=event, exit_code=code)
    return code
