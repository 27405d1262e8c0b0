"""Records with arrays in one file: checkpoints, and what a pass hands to its tasks."""

from __future__ import annotations

import json
import uuid
import zipfile
from typing import Any

import numpy as np

from bigfs.core.errors import StorageError
from bigfs.runtime.scope import in_task
from bigfs.store.location import Location, as_location, replaced_file
from bigfs.store.pages import open_own

_ARRAY = "array number"


def save_state(place: Location, values: Any, *, sync: bool = True) -> None:
    """Write dicts, lists, records and arrays; `load_state` returns records as dicts.

    The file takes the place of the old one at once; with ``sync`` it outlives a power failure.
    """
    arrays: list[np.ndarray] = []

    def plain(value: Any) -> Any:
        if isinstance(value, np.generic):
            return value.item()
        if not isinstance(value, np.ndarray):
            return vars(value)
        arrays.append(value)
        return {_ARRAY: len(arrays) - 1}

    text = json.dumps(values, default=plain)
    with replaced_file(place, sync=sync, own=True) as file:
        np.savez(file, *arrays, text=np.array(text))


def load_state(place: Location | None) -> Any:
    """Return what `save_state` wrote, or None if there is nothing that can be read."""
    if place is None or not place.exists():
        return None
    try:
        # A file of ours: numpy would leave it open where it is damaged.
        with open_own(place) as file, np.load(file, allow_pickle=False) as stored:
            arrays = [stored[f"arr_{number}"] for number in range(len(stored.files) - 1)]
            text = str(stored["text"])
        return json.loads(text, object_hook=lambda o: arrays[o[_ARRAY]] if _ARRAY in o else o)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, StorageError):
        return None


def hand_over(folder: Location, values: Any) -> Any:
    """Write arrays for tasks to a file of its own, and return its address.

    Tasks that run in this thread, within a task, get the values themselves.
    """
    if in_task():
        return values
    place = folder / f"shared-{uuid.uuid4().hex[:12]}.npz"
    save_state(place, values, sync=False)
    return str(place)


def handed(address: Any) -> Any:
    """Return what `hand_over` wrote.

    Raises
    ------
    StorageError
        If it cannot be read.
    """
    values = load_state(as_location(address)) if isinstance(address, str) else address
    if values is None:
        raise StorageError(f"{address} was removed or is damaged. Run again.")
    return values


def discard(address: Any) -> None:
    """Remove what `hand_over` wrote."""
    if isinstance(address, str):
        as_location(address).unlink()
