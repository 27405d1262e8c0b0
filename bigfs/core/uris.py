"""Addresses as text: lists of sources, ``SOURCE::NAME`` for a part of one, Dask schedulers."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bigfs.core.errors import InputError

# The label of a row that says which of several sources it is of.
SOURCE = "source"
# What a run calls data, or labels, that it was handed as an object begins with this.
OBJECT = "object:"
_FORM = re.compile(
    r"((tcp|tls|ucx|wss?)://)?(\[[0-9a-fA-F:.%]+\]|[^\s:/\[\]]+):(\d+)/?|inproc://.+"
)


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
