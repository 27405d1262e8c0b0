"""Start of the command line, as ``bigfs`` and ``python -m bigfs``."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def _end(signum: int, frame: FrameType | None) -> None:
    """End at once: until the command line is loaded, nothing has been done."""
    os.write(2, b"bigfs: interrupted; nothing was begun\n")
    os._exit(130)


def program() -> None:
    """Run the command line; an interrupt while it loads ends it without a traceback."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    # multiprocessing's tracker removes what an interrupted process held; it need not say so.
    sys.warnoptions.append("ignore:resource_tracker")
    from bigfs import cli

    cli.program()


if __name__ == "__main__":
    program()
