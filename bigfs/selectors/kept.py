"""Arrays that iterations keep between passes, in files or in the memory of worker processes.

A file is a checkpoint, or passes data to the tasks of a pass. Arrays that do not fit into memory
are read again; the values are bitwise the same in both cases. Imports no scikit-learn.
"""

from __future__ import annotations

import json
import threading
import uuid
import zipfile
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import numpy as np

from bigfs.core.errors import StorageError
from bigfs.core.threads import parsed
from bigfs.runtime.scope import active_client, crosses_processes
from bigfs.store.location import Location, as_location, replaced_file
from bigfs.store.pages import open_own

_ARRAY = "array number"


def save_state(place: Location, values: Any, *, sync: bool = True) -> None:
    """Write a state of dicts, lists, dataclass instances and arrays to a file.

    `load_state` returns dataclass instances as dicts. The new file replaces the old one atomically;
    with ``sync`` it is flushed to disk, so that it survives a power failure.
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
    """Return a state written by `save_state`, or None if there is no readable file."""
    if place is None or not place.exists():
        return None
    try:
        # Opened here, because numpy leaves a damaged file open.
        with open_own(place) as file, np.load(file, allow_pickle=False) as stored:
            get = partial(parsed, stored.__getitem__)
            arrays = [get(f"arr_{number}") for number in range(len(stored.files) - 1)]
            text = str(get("text"))
        return json.loads(text, object_hook=lambda o: arrays[o[_ARRAY]] if _ARRAY in o else o)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, StorageError):
        return None


def hand_over(folder: Location, values: Any) -> Any:
    """Write arrays for tasks to a new file and return its address.

    If tasks run in this process, the values themselves are returned; tasks must not modify them.
    """
    if not crosses_processes():
        return values
    place = folder / f"shared-{uuid.uuid4().hex[:12]}.npz"
    save_state(place, values, sync=False)
    return str(place)


def handed(address: Any) -> Any:
    """Return the values written by `hand_over`.

    Raises
    ------
    StorageError
        If the file cannot be read.
    """
    values = load_state(as_location(address)) if isinstance(address, str) else address
    if values is None:
        raise StorageError(f"{address} was removed or is damaged. Run again.")
    return values


def discard(address: Any) -> None:
    """Remove the file written by `hand_over`, if there is one."""
    if isinstance(address, str):
        as_location(address).unlink()


def nbytes_of(values: Any) -> int:
    """Return the size in bytes of an array, a CSR matrix or a tuple of arrays."""
    if hasattr(values, "indptr"):
        values = values.data, values.indices, values.indptr
    return sum(array.nbytes for array in (values if isinstance(values, tuple) else (values,)))


class WorkerMemory:
    """Cache of arrays with a budget in bytes; it holds the arrays of one run at a time."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._loading: dict[Hashable, threading.Lock] = {}
        self._kept: dict[Hashable, Any] = {}
        self._run: str | None = None
        self._used = 0

    def get(self, run: str, key: Hashable, load: Callable[[], Any], budget: int) -> Any:
        """Return the array of a key; it is cached if it fits into the budget.

        The array must not be modified.

        Parameters
        ----------
        run : str
            Name of the run. Arrays of another run are dropped.
        key : hashable
        load : callable
            Function that returns the array, a CSR matrix, or a tuple of arrays.
        budget : int
            Upper bound of the bytes that this process keeps for the run.
        """
        with self._lock:
            if self._run != run:
                self.clear(self._run)
                self._run = run
            lock = self._loading.setdefault(key, threading.Lock())
        with lock:
            with self._lock:
                if self._run == run and key in self._kept:
                    return self._kept[key]
            values = load()
            with self._lock:
                if self._run == run and self._used + nbytes_of(values) <= budget:
                    self._kept[key] = values
                    self._used += nbytes_of(values)
        return values

    def drop(self, run: str, prefix: str, kept_key: Hashable) -> None:
        """Drop the cached arrays whose key is a tuple that begins with ``prefix``, except one.

        Parameters
        ----------
        run : str
            Name of the run.
        prefix : str
        kept_key : hashable
            Key of the array that stays.
        """
        with self._lock:
            if self._run != run:
                return
            for key in [k for k in self._kept if isinstance(k, tuple) and k[0] == prefix]:
                if key != kept_key:
                    self._used -= nbytes_of(self._kept.pop(key))

    def clear(self, run: str | None) -> None:
        """Drop all cached arrays of a run."""
        with self._lock:
            if self._run == run:
                self._kept.clear()
                self._loading.clear()
                self._run, self._used = None, 0


memory = WorkerMemory()


def forget(run: str) -> None:
    """Drop the arrays of a run that this process and the workers have cached."""
    client = active_client()
    if client is not None:
        client.run(_forget_here, run)
    _forget_here(run)


def _forget_here(run: str) -> None:
    memory.clear(run)
