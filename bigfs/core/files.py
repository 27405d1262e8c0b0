"""Safe reading of small files: devices, pipes and files that are too large are refused."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

# Records are far smaller: a manifest names stages, not chunks.
SMALL_BYTES = 16 * 2**20


def read_small(path: Path, most_bytes: int = SMALL_BYTES) -> str:
    """Return the text of a file that should be small.

    Raises
    ------
    ValueError
        If it is not a text file, no file, or larger than ``most_bytes``.
    OSError
        If it cannot be read.
    """
    content = read_head(path, most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f"it has more than {most_bytes:,} bytes")
    return content.decode()


def read_head(path: Path, count: int) -> bytes:
    """Return the first bytes of a file; a ValueError if it is a device, a pipe or a folder."""
    # A device would never end, and a pipe would wait for ever.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is not a regular file")
        return file.read(count)


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text; a ValueError if it is none, or is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
