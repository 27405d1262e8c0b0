"""Addresses as text, checks of paths before any work, and safe reading of small files.

An address may be a list of sources, ``SOURCE::NAME`` for a part of one, or a Dask scheduler.

Devices, pipes and files that are too large are refused.
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

# No file system takes longer names.
_PLAIN = re.compile(r"\w[\w.+-]{0,254}", re.ASCII)
# Records are far smaller: a manifest names stages, not chunks.
SMALL_BYTES = 16 * 2**20
# The label of a row that says which of several sources it is of.
SOURCE = "source"
# What a run calls data, or labels, that it was handed as an object begins with this.
OBJECT = "object:"
_FORM = re.compile(
    r"((tcp|tls|ucx|wss?)://)?(\[[0-9a-fA-F:.%]+\]|[^\s:/\[\]]+):(\d+)/?|inproc://.+"
)


def is_plain(value: Any) -> bool:
    """Say whether a value is the plain name of a file: no separators, no leading dot."""
    return isinstance(value, str) and _PLAIN.fullmatch(value) is not None


def plain_name(value: Any, where: object) -> str:
    """Return a name that was read from a file, to be looked up beside or below it.

    Parameters
    ----------
    value : object
    where : object
        The file, for the message.

    Raises
    ------
    InputError
        If it is not the plain name of a file: it could lead anywhere.
    """
    if not is_plain(value):
        raise InputError(
            f"{where} is damaged: it names {value!r}, which is not the plain name of a file. "
            "Start over with --fresh, or use another run directory."
        )
    return str(value)


def is_there(path: Path, what: str) -> bool:
    """Say whether something is at a path.

    Parameters
    ----------
    path : Path
    what : str
        What is to be there, for the message.

    Raises
    ------
    InputError
        If nothing is there and no folder could be made: the name cannot be one, something
        above it is a file, or this user may not write there.
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
    """Raise InputError unless this user may make files in an existing folder."""
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(
            f"{folder}: this user may not write there. Give another folder for {what}."
        )


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


@dataclass(frozen=True, eq=False)
class LabelValues:
    """Labels in memory, and what records call them: their values are in no configuration."""

    name: str
    values: Any


def as_text(uris: Sequence[str | Path]) -> str:
    """Return a list of sources as one text, ``["a.csv", "b.csv"]``."""
    return json.dumps([str(uri) for uri in uris], ensure_ascii=False)


def listed_in(uri: str) -> list[str] | None:
    """Return the entries of a list that is written as one text, None if it is none."""
    if not uri.startswith("["):
        return None
    try:
        entries = json.loads(uri)
    except ValueError:
        return None
    return entries if all(isinstance(entry, str) for entry in entries) else None


def column_of(uri: str) -> tuple[str, str]:
    """Split ``SOURCE::NAME``; the name is empty where there is none."""
    end = uri.rfind("]") + 1 if listed_in(uri[: uri.rfind("]") + 1]) is not None else 0
    source, _, name = uri[end:].partition("::")
    return uri[:end] + source, name


def within(uri: str, variable: str | None, name: str) -> str:
    """Return ``FILE::NAME``; of a modality of a MuData ``FILE::MODALITY:NAME``."""
    in_modality = variable and uri.lower().endswith(".h5mu") and ":" not in name
    return f"{uri}::{variable}:{name}" if in_modality else f"{uri}::{name}"


def short_name(uri: str) -> str:
    """Return the name of a source in messages: of a list the first, and how many more there are."""
    entries = listed_in(uri)
    if not entries:
        return uri
    return entries[0] if len(entries) == 1 else f"{entries[0]} and {len(entries) - 1:,} more"


def is_scheduler_file(address: str) -> bool:
    """Say whether it is the path of the file that ``dask scheduler --scheduler-file`` writes."""
    return address.endswith(".json")


def check_address(address: str) -> str:
    """Return the address of a Dask scheduler, or the path of a scheduler's file, as it is.

    Raises
    ------
    InputError
        If it has not the form of one.

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
            "the address of a Dask scheduler is its protocol, host and port, such as "
            f"tcp://127.0.0.1:8786, or the .json file that it writes. Got {address!r}."
        )
    return address
