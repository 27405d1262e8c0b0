"""Exit codes of errors, and signals as interrupts."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import click

from bigfs.core.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_INTERRUPTED, BigfsError
from bigfs.runtime.terminal import drain_lines, relay_lines, reporting, say

EXIT_BUG = 1
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AGAIN_SECONDS = 0.05
_heard: list[int] = []  # of these signals, those that this process got
# The state that an interrupted command leaves.
_KEPT = dict.fromkeys(
    ("run", "compare"), "finished stages are kept, run the same command to continue"
)


@contextmanager
def interrupts() -> Iterator[None]:
    """Treat a batch system's SIGTERM, and SIGHUP of a terminal that is closed, as Ctrl-C.

    A second signal does not wait for the cleanup. What nohup has SIGHUP ignored for stays so. An
    interrupt that comes while Python runs a destructor or a callback of a weak reference is ignored
    there: it is sent again.
    """
    received: list[int] = []
    show_ignored = sys.unraisablehook

    def interrupt(signum: int, frame: FrameType | None) -> None:
        if received:
            os._exit(EXIT_INTERRUPTED)
        received.append(signum)
        _heard.append(signum)
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
    """Run a command line; return its exit code, with one line on stderr for what went wrong."""
    try:
        # Commands return nothing or their code; click returns the code of --help and --version.
        return cli.main(args=arguments, prog_name="bigfs", standalone_mode=False) or EXIT_DONE
    except (KeyboardInterrupt, click.Abort):
        command = (arguments or sys.argv[1:])[0]
        _tell(f"interrupted; {_KEPT.get(command, 'no result was written')}", EXIT_INTERRUPTED)
        return EXIT_INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return EXIT_BAD_INPUT
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        where = context.command_path if context else "bigfs"
        message = " ".join(error.format_message().split())
        takes = context.command.params if isinstance(error, click.NoSuchOption) and context else ()
        if any("--set" in parameter.opts for parameter in takes):
            message += " A setting of the file is changed by --set KEY=VALUE."
        _tell(f"error: {message} See '{where} --help'.", EXIT_BAD_INPUT)
        return EXIT_BAD_INPUT
    except BigfsError as error:
        if os.environ.get("BIGFS_TRACEBACK") == "1":
            traceback.print_exc()
        _tell("\n".join([f"error: {error}", *getattr(error, "__notes__", [])]), error.exit_code)
        return error.exit_code
    except Exception:
        traceback.print_exc()
        _tell("error: this should not happen; please report it with the lines above", EXIT_BUG)
        return EXIT_BUG


def as_program(main: Callable[[], None]) -> None:
    """Run ``main()``, which ends with SystemExit; an interrupt ends the process at once."""
    relay_lines(sys.argv)
    try:
        main()
    except SystemExit as end:
        if end.code != EXIT_INTERRUPTED and not _heard:
            raise
        # All is cleaned up. Leaving in the ordinary way would wait for the threads' tasks, and
        # a compiled kernel can take minutes.
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        drain_lines()
        os._exit(end.code if isinstance(end.code, int) else EXIT_INTERRUPTED)


def _tell(text: str, code: int) -> None:
    """Write a line on stderr, as text or JSON."""
    event = "interrupted" if code == EXIT_INTERRUPTED else "error"
    say(text, logging.ERROR, event=event, exit_code=code)


@contextmanager
def messages(quiet: bool) -> Iterator[None]:
    """Show progress and messages; click would put an empty line after an interrupt."""
    with reporting(quiet):
        try:
            yield
        except KeyboardInterrupt:
            raise click.Abort from None
