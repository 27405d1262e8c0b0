"""Addresses as text, checks of paths before any work, and safe reading of small files.

An address may be a list of sources, ``SOURCE::NAME`` for a part of a source, or that of a Dask
scheduler. Devices, pipes and files that are too large are refused.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bigfs.core.errors import InputError

# File systems do not allow names longer than 255 bytes.
_PLAIN = re.compile(r"\w[\w.+-]{0,254}", re.ASCII)
# Upper bound for records, which are far smaller: a manifest lists stages, not chunks.
SMALL_BYTES = 16 * 2**20
# Name of the row labels that identify which of several sources a row comes from.
SOURCE = "source"
# Prefix of the name under which a run records data or labels that were passed as an object.
OBJECT = "object:"
_FORM = re.compile(
    r"((tcp|tls|ucx|wss?)://)?(\[[0-9a-fA-F:.%]+\]|[^\s:/\[\]]+):(\d+)/?|inproc://.+"
)


def is_plain(value: Any) -> bool:
    """Return True if a value is a plain file name: no separators, no leading dot."""
    return isinstance(value, str) and _PLAIN.fullmatch(value) is not None


def plain_name(value: Any, where: object) -> str:
    """Return a name that was read from a file and will be looked up beside or below it.

    Parameters
    ----------
    value : object
    where : object
        The file, for the message.

    Raises
    ------
    InputError
        If it is not a plain file name, since a path could lead anywhere.
    """
    if not is_plain(value):
        raise InputError(
            f"{where} is damaged: it names {value!r}, which is not the plain name of a file. "
            "Start over with --fresh, or use another run directory."
        )
    return str(value)


def is_there(path: Path, what: str) -> bool:
    """Return True if a path exists, False if it could be created.

    Parameters
    ----------
    path : Path
    what : str
        Description of what the path is for, for the message.

    Raises
    ------
    InputError
        If the path neither exists nor could be created: the name is invalid, one of its parents is
        a file, or this user may not write there.
    """
    try:
        os.stat(path)
        return True
    except FileNotFoundError:
        above = next(parent for parent in path.absolute().parents if parent.exists())
    except NotADirectoryError:
        above = next(parent for parent in path.parents if parent.is_file())
        raise InputError(f"{path}: {above} is a file. Give a folder for {what}.") from None
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise InputError(f"{path}: {reason}. Give another path for {what}.") from None
    check_writable(above, what)
    return False


def check_writable(folder: Path, what: str) -> None:
    """Raise InputError unless this user may create files in an existing folder."""
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(
            f"{folder}: this user has no write permission. Give another folder for {what}."
        )


def read_small(path: Path, most_bytes: int = SMALL_BYTES) -> str:
    """Return the text of a file that should be small.

    Raises
    ------
    ValueError
        If it is not a text file, not a regular file, or larger than ``most_bytes``.
    OSError
        If it cannot be read.
    """
    content = read_head(path, most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f"it has more than {most_bytes:,} bytes")
    return content.decode()


def read_head(path: Path, count: int) -> bytes:
    """Return the first bytes of a file; raise ValueError if it is a device, a pipe or a folder."""
    # Reading a device might never end, and opening a pipe would block.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is not a regular file")
        return file.read(count)


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text; raise ValueError if it is invalid or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


@dataclass(frozen=True, eq=False)
class LabelValues:
    """Labels in memory, and their name in records; configurations hold the name, not the values."""

    name: str
    values: Any


def as_text(uris: Sequence[str | Path]) -> str:
    """Return a list of sources as one JSON text, ``["a.csv", "b.csv"]``."""
    return json.dumps([str(uri) for uri in uris], ensure_ascii=False)


def listed_in(uri: str) -> list[str] | None:
    """Return the entries of a list that is written as one text; None if it is not a list."""
    if not uri.startswith("["):
        return None
    try:
        entries = json.loads(uri)
    except ValueError:
        return None
    return entries if all(isinstance(entry, str) for entry in entries) else None


def column_of(uri: str) -> tuple[str, str]:
    """Split ``SOURCE::NAME`` into source and name; the name is empty if there is none."""
    end = uri.rfind("]") + 1 if listed_in(uri[: uri.rfind("]") + 1]) is not None else 0
    source, _, name = uri[end:].partition("::")
    return uri[:end] + source, name


def within(uri: str, variable: str | None, name: str) -> str:
    """Return ``FILE::NAME``; for a modality of a MuData, ``FILE::MODALITY:NAME``."""
    in_modality = variable and uri.lower().endswith(".h5mu") and ":" not in name
    return f"{uri}::{variable}:{name}" if in_modality else f"{uri}::{name}"


def short_name(uri: str) -> str:
    """Return the name of a source for messages; for a list, the first entry and a count."""
    entries = listed_in(uri)
    if not entries:
        return uri
    return entries[0] if len(entries) == 1 else f"{entries[0]} and {len(entries) - 1:,} more"


def is_scheduler_file(address: str) -> bool:
    """Return True if an address is the path of a file of ``dask scheduler --scheduler-file``."""
    return address.endswith(".json")


def check_address(address: str) -> str:
    """Return the address of a Dask scheduler, or the path of a scheduler file, unchanged.

    Raises
    ------
    InputError
        If it does not have the form of such an address.

    Examples
    --------
    >>> check_address("tcp://127.0.0.1:8786")
    'tcp://127.0.0.1:8786'
    >>> check_address("runs/scheduler.json")
    'runs/scheduler.json'
    """
    if is_scheduler_file(address):
        return address
    match = _FORM.fullmatch(address)
    if match is None or int(match.group(4) or 0) > 65535:
        raise InputError(
            "the address of a Dask scheduler must be its protocol, host and port, such as "
            f"tcp://127.0.0.1:8786, or the .json file that it writes. Got {address!r}."
        )
    return address
