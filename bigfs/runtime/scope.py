"""Choice of where tasks run: the scheduler in scope, or this thread if it is inside a task."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from multiprocessing.pool import ThreadPool
from typing import Any
from weakref import WeakSet

from bigfs.core.errors import InputError
from bigfs.core.threads import set_within
from bigfs.runtime.progress import silenced

_inline: ContextVar[bool] = ContextVar("bigfs_inline", default=False)
# Clients inherited from the parent of a forked process, whose threads do not exist here.
_of_parent: WeakSet[Any] = WeakSet()
# Dask's settings that may hold the user's own thread pool.
_POOLS = ("pool", "scheduler")


def _forget_parent() -> None:
    """Discard Dask's thread pools and clients that a forked process inherited from its parent."""
    if "dask" not in sys.modules:
        return
    import dask
    from dask import threaded

    threaded.default_pool, threaded.pools_lock = None, threading.Lock()
    threaded.pools.clear()
    for name in _POOLS:
        if isinstance(dask.config.get(name, None), (ThreadPoolExecutor, ThreadPool)):
            dask.config.set({name: None})
    if "distributed" in sys.modules:
        from distributed import Client

        _of_parent.update(Client._instances)


os.register_at_fork(after_in_child=_forget_parent)


@contextmanager
def inline() -> Iterator[None]:
    """Run tasks of the block in this thread, without progress: it is inside a task already."""
    with set_within(_inline, True), silenced():
        yield


def dask_get() -> Any:
    """Return the ``get`` function that Dask uses for a graph here; the threaded one if none is set.

    A ``distributed.Client`` that failed to connect may leave ``scheduler: dask.distributed`` in
    Dask's configuration, or itself as the default client. Both are ignored, and so is a client
    inherited from the parent of a forked process.

    Raises
    ------
    InputError
        If the client in scope is asynchronous and this is the thread that it runs in.
    """
    import dask.base
    import dask.threaded

    if in_task():
        return dask.get
    if dask.config.get("scheduler", None) == "dask.distributed":
        from distributed import Client

        try:
            Client.current()
        except ValueError:
            return dask.threaded.get
    try:
        get = dask.base.get_scheduler()
    except RuntimeError as error:
        if "asynchronous" not in str(error):
            raise
        raise InputError(
            "The Dask client in scope is asynchronous, and this call would block its event loop: "
            "make it in another thread (await asyncio.to_thread(selector.fit, X)), or within "
            "dask.config.set(scheduler='threads')."
        ) from None
    if get is None or not _is_connected(_client_of(get)):
        return dask.threaded.get
    return get


def in_task() -> bool:
    """Return True if this thread runs a Dask task, so that waiting for other tasks could deadlock.

    False for a task that has seceded (``worker_client``), since its slot is free for others. True
    also for a thread that a task has started, which finds the client of its worker.
    """
    if _inline.get():
        return True
    import dask

    for name in _POOLS:
        pool = dask.config.get(name, None)
        if threading.current_thread() in getattr(pool, "_threads", getattr(pool, "_pool", ())):
            return True
    if "distributed" not in sys.modules:
        return False
    from distributed import Client, get_worker
    from distributed.threadpoolexecutor import thread_state

    if not getattr(thread_state, "proceed", True):
        return False
    with suppress(ValueError):
        get_worker()
        return True
    with suppress(ValueError):
        return bool(Client.current().id.startswith("Client-worker-"))
    return False


def _client_of(get: Any) -> Any:
    """Return the client that a ``get`` method is bound to, or None."""
    owner = getattr(get, "__self__", None)
    return owner if hasattr(owner, "submit") and hasattr(owner, "scheduler_info") else None


def _is_connected(client: Any) -> bool:
    """Return True if a client belongs to this process and is, or was, connected to a scheduler."""
    if client in _of_parent:
        return False
    return getattr(client, "status", None) != "connecting" or bool(client._scheduler_identity)


def active_client() -> Any:
    """Return the ``distributed.Client`` in scope, or None."""
    return _client_of(dask_get())


def crosses_processes() -> bool:
    """Return True if tasks run in other processes, which cannot see arrays of this one."""
    if active_client() is not None:
        return True
    import dask.multiprocessing

    return dask_get() is dask.multiprocessing.get


def worker_slots() -> tuple[int, int]:
    """Return the number of worker processes, and of the tasks that each may run at once."""
    import dask

    client = active_client()
    if client is not None:
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        return max(1, len(workers)), max((int(w["nthreads"]) for w in workers), default=1)
    n_threads = dask.config.get("num_workers", None) or os.cpu_count() or 1
    return (int(n_threads), 1) if crosses_processes() else (1, int(n_threads))
