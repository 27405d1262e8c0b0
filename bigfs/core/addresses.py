"""Addresses of Dask schedulers, checked before anything waits for an answer."""

from __future__ import annotations

import re

from bigfs.core.errors import InputError

_FORM = re.compile(
    r"((tcp|tls|ucx|wss?)://)?(\[[0-9a-fA-F:.%]+\]|[^\s:/\[\]]+):(\d+)/?|inproc://.+"
)


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
