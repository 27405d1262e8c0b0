"""Arrays that a worker process keeps between passes, such as blocks of X; imports no scikit-learn.

What does not fit is read again. Either way the values are the same bits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any

from bigfs.runtime.scope import active_client


class WorkerMemory:
    """Arrays kept under a byte budget, those of one run at a time."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._loading: dict[Hashable, threading.Lock] = {}
        self._kept: dict[Hashable, Any] = {}
        self._run: str | None = None
        self._used = 0

    def get(self, run: str, key: Hashable, load: Callable[[], Any], budget: int) -> Any:
        """Return the array of a key, loaded once if it fits the budget; do not write into it.

        Parameters
        ----------
        run : str
            Name of the run; what another one left is dropped.
        key : hashable
        load : callable
            Reads the array, or another object that knows its size in ``nbytes``.
        budget : int
            Bytes this process may keep for the run.
        """
        with self._lock:
            if self._run != run:
                self.clear(self._run)
                self._run = run
            mine = self._loading.setdefault(key, threading.Lock())
        with mine:
            with self._lock:
                if self._run == run and key in self._kept:
                    return self._kept[key]
            values = load()
            with self._lock:
                if self._run == run and self._used + values.nbytes <= budget:
                    self._kept[key] = values
                    self._used += values.nbytes
        return values

    def drop(self, run: str, stem: str, besides: Hashable) -> None:
        """Forget the arrays whose key begins with a stem, besides one."""
        with self._lock:
            if self._run != run:
                return
            for key in [k for k in self._kept if isinstance(k, tuple) and k[0] == stem]:
                if key != besides:
                    self._used -= self._kept.pop(key).nbytes

    def clear(self, run: str | None) -> None:
        """Forget all arrays of a run."""
        with self._lock:
            if self._run == run:
                self._kept.clear()
                self._loading.clear()
                self._run, self._used = None, 0


memory = WorkerMemory()


def forget(run: str) -> None:
    """Forget what this process and the workers keep of a run."""
    client = active_client()
    if client is not None:
        client.run(_forget_here, run)
    _forget_here(run)


def _forget_here(run: str) -> None:
    memory.clear(run)
