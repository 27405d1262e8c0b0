"""Entry point of the command line, for ``bigfs`` and ``python -m bigfs``."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def _end(signum: int, frame: FrameType | None) -> None:
    """Exit at once, since nothing has been done before the command line is loaded."""
    os.write(2, b"bigfs: interrupted; nothing was begun\n")
    os._exit(130)


def program() -> None:
    """Run the command line; an interrupt during imports ends it without a traceback."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    # multiprocessing's resource tracker cleans up after an interrupted process, without a warning.
    sys.warnoptions.append("ignore:resource_tracker")
    from bigfs import cli

    cli.program()


if __name__ == "__main__":
    program()
