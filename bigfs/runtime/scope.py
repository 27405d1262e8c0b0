"""Choice of where tasks run: the scheduler in scope, or this thread if it does a task already."""

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
# Clients of the process that this one was forked from: their threads are not here.
_of_parent: WeakSet[Any] = WeakSet()
# Dask's settings that may hold a pool of threads of the user's own.
_POOLS = ("pool", "scheduler")


def _forget_parent() -> None:
    """Leave Dask's pools and clients to the process that this one was forked from."""
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
    """Run what this thread does within the block in this thread: it is inside a task already."""
    with set_within(_inline, True), silenced():
        yield


def dask_get() -> Any:
    """Return the ``get`` function with which Dask runs a graph here; threads if none is set.

    A ``distributed.Client`` that failed to connect may leave ``scheduler: dask.distributed`` in
    Dask's configuration, or itself as the default client. Both count as no client, and so does
    the client of the process that this one was forked from.

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
            "The Dask client in scope is asynchronous, and its event loop would wait for this "
            "call: make it in another thread (await asyncio.to_thread(selector.fit, X)), or within "
            "dask.config.set(scheduler='threads')."
        ) from None
    if get is None or not _is_connected(_client_of(get)):
        return dask.threaded.get
    return get


def in_task() -> bool:
    """Say whether this thread does a task of Dask, whose place no task of ours could take.

    A task that has seceded (``worker_client``) has given its place to others. A thread that a task
    has started finds its worker's own client.
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
    """Return the client whose method this is, or None."""
    owner = getattr(get, "__self__", None)
    return owner if hasattr(owner, "submit") and hasattr(owner, "scheduler_info") else None


def _is_connected(client: Any) -> bool:
    """Say whether a client is of this process and has, or had, a scheduler."""
    if client in _of_parent:
        return False
    return getattr(client, "status", None) != "connecting" or bool(client._scheduler_identity)


def active_client() -> Any:
    """Return the ``distributed.Client`` in scope, or None."""
    return _client_of(dask_get())


def crosses_processes() -> bool:
    """Say whether tasks run outside this process, where its arrays cannot be seen."""
    if active_client() is not None:
        return True
    import dask.multiprocessing

    return dask_get() is dask.multiprocessing.get


def worker_slots() -> tuple[int, int]:
    """Return worker processes of the active scheduler, and the tasks each may run at once."""
    import dask

    client = active_client()
    if client is not None:
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        return max(1, len(workers)), max((int(w["nthreads"]) for w in workers), default=1)
    n_threads = dask.config.get("num_workers", None) or os.cpu_count() or 1
    return (int(n_threads), 1) if crosses_processes() else (1, int(n_threads))
