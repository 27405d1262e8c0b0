"""Run many small tasks under the active Dask scheduler, with a fixed order of summation.

If no scheduler is set, threads of this process are used; ``dask.config.set(scheduler=...)`` and a
``distributed.Client`` in scope are respected. Tasks get descriptors, never arrays, and partial
results are combined in a tree whose shape depends only on the number of tasks, so that sums are
bitwise identical for any number of workers. Failures of storage and of the cluster become errors
that name the remedy.
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from bigfs.core.errors import BigfsError, ClusterError, InputError, StorageError
from bigfs.core.threads import set_within, single_thread
from bigfs.runtime.interrupt import check_interrupt, task
from bigfs.runtime.progress import Work, track, working_on
from bigfs.runtime.scope import active_client, crosses_processes, dask_get, in_task

TREE_ARITY = 8
MAX_TASKS = 100_000
_POLL_SECONDS = 0.1
_at_once: ContextVar[int | None] = ContextVar("bigfs_at_once", default=None)
# Semaphores of this process by the number of tasks that they admit at the same time.
_slots: dict[int, threading.Semaphore] = {}
_slots_lock = threading.Lock()
_FULL = "Free space there, or put the run directory on a larger disk."
_BROKEN = "Check that file system, or put the run directory on another."
# Remedies by the error number of a file system that is full, over quota, over a limit, read-only or
# broken.
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), _FULL),
    errno.EFBIG: "Raise the limit on the size of a file (ulimit -f).",
    **dict.fromkeys((errno.EROFS, errno.EIO, errno.ESTALE), _BROKEN),
}
_AGAIN = "Finished stages are kept: fix the cause and run again."


def at_most_at_once(count: int | None) -> AbstractContextManager[None]:
    """Limit each process to ``count`` concurrent tasks of the block, however many threads it has.

    None: no limit.
    """
    return set_within(_at_once, count)


def _slot(at_once: int | None) -> AbstractContextManager[Any]:
    """Return the context manager that a task holds while it runs: one of ``at_once`` slots."""
    if at_once is None:
        return nullcontext()
    with _slots_lock:
        return _slots.setdefault(at_once, threading.Semaphore(at_once))


def run_tasks(
    fn: Callable[..., Any],
    items: Sequence[Any],
    *shared: Any,
    label: str,
    unit: str = "tasks",
    notes: bool = False,
) -> list[Any]:
    """Return ``[fn(item, *shared) for item in items]``, run in parallel.

    Parameters
    ----------
    fn : callable
        A module-level function; it runs with BLAS at one thread.
    items : sequence
        One small, picklable descriptor per task.
    *shared : object
        Small descriptors that are passed to every task.
    label, unit : str
        Description and unit in the progress line; with an empty unit, nothing is counted.
    notes : bool, default=False
        Whether the tasks report their state by `bigfs.runtime.progress.say_where`.

    Returns
    -------
    results : list
        In the order of the items; each must be small, since all reach the client.

    Raises
    ------
    ClusterError
        If the cluster lost the work.
    """
    with track(label, len(items), unit) as progress:
        client = active_client() if notes else None
        if client is None:
            return _run(_Job(fn, items, shared, None, progress, label))
        with _receiving_notes(client, progress) as topic:
            return _run(_Job(_call_with_notes, items, (topic, fn, *shared), None, progress, label))


def map_reduce(
    fn: Callable[..., Any],
    items: Sequence[Any],
    combine: Callable[[Any, Any], Any],
    *shared: Any,
    label: str,
) -> Any:
    """Return the results of ``fn(item, *shared)`` combined pairwise in a fixed tree order.

    Parameters
    ----------
    fn, items, shared, label
        As in `run_tasks`. There must be at least one item; each item is a block.
    combine : callable
        Merges two neighboring partial results; it may reuse the first one's memory.

    Returns
    -------
    result : object
        The combined result, the only one that is sent to the client.

    Raises
    ------
    ClusterError
        If the cluster lost the work.
    """
    with track(label, len(items), "blocks") as progress:
        return _run(_Job(fn, items, shared, combine, progress, label))[0]


@contextmanager
def _receiving_notes(client: Any, progress: Work) -> Iterator[str]:
    """Yield a topic; messages of workers under it are shown as the state of the work."""
    topic = f"bigfs-{uuid.uuid4().hex}"

    def receive(event: tuple[float, str]) -> None:
        progress.advance(note=event[1])

    client.subscribe_topic(topic, receive)
    try:
        yield topic
    finally:
        with suppress(Exception):  # the scheduler may be gone
            client.unsubscribe_topic(topic)


def _call_with_notes(item: Any, topic: str, fn: Callable[..., Any], *shared: Any) -> Any:
    """Run one task whose notes on its state are sent to the client."""
    with working_on(_Sender(topic)):
        return fn(item, *shared)


class _Sender:
    """Sender of the messages of `say_where` on a worker, at most one per second."""

    def __init__(self, topic: str) -> None:
        self._topic, self._sent = topic, 0.0

    def advance(self, note: str) -> None:
        """Send a note to the client."""
        from distributed import get_worker

        now = time.monotonic()
        if now - self._sent >= 1:
            self._sent = now
            get_worker().log_event(self._topic, note)


def _call(
    fn: Callable[..., Any], item: Any, shared: tuple[Any, ...], at_once: int | None = None
) -> Any:
    """Run one task with BLAS at one thread, in a slot if ``at_once`` limits the tasks."""
    with _slot(at_once), task(), single_thread():
        return fn(item, *shared)


def _fold(combine: Callable[[Any, Any], Any], parts: list[Any], at_once: int | None = None) -> Any:
    """Combine up to TREE_ARITY neighboring partial results from left to right."""
    with _slot(at_once), single_thread():
        total = parts[0]
        for part in parts[1:]:
            total = combine(total, part)
        return total


class _Tree:
    """Reduction tree that merges groups of TREE_ARITY neighbors as soon as a group is complete."""

    def __init__(self, merge: Callable[[list[Any]], Any]) -> None:
        self._merge = merge
        self._levels: list[list[Any]] = []

    def push(self, node: Any, level: int = 0) -> None:
        if level == len(self._levels):
            self._levels.append([])
        self._levels[level].append(node)
        if len(self._levels[level]) == TREE_ARITY:
            group, self._levels[level] = self._levels[level], []
            self.push(self._merge(group), level + 1)

    def root(self) -> Any:
        carry: list[Any] = []
        for level in self._levels:
            nodes = level + carry
            carry = [self._merge(nodes)] if len(nodes) > 1 else nodes
        return carry[0]


@dataclass(frozen=True)
class _Job:
    """Tasks of one kind, and the function that combines their results (None: a list)."""

    fn: Callable[..., Any]
    items: Sequence[Any]
    shared: tuple[Any, ...]
    combine: Callable[[Any, Any], Any] | None
    progress: Work
    label: str


def _run(job: _Job) -> list[Any]:
    if len(job.items) > MAX_TASKS:
        raise InputError(
            f"{job.label}: {len(job.items)} tasks exceed the limit of {MAX_TASKS} tasks. "
            "Set blocks.rows to a larger number."
        )
    if not job.items:
        return []
    if in_task():
        return _run_inline(job)
    client = active_client()
    if client is None and len(job.items) == 1 and not crosses_processes():
        results = _run_inline(job)  # a Dask graph would cost milliseconds for one task
        job.progress.advance(1)
        return results
    if client is None:
        return _run_local(job)
    with cluster_failures(job.label):
        if job.combine is None:
            return _map_on_cluster(client, job)
        return [_reduce_on_cluster(client, job)]


def _run_inline(job: _Job) -> list[Any]:
    """Run in this thread without a Dask graph; sums use the same tree order as elsewhere."""
    results = (_call(job.fn, item, job.shared) for item in job.items)
    if job.combine is None:
        return list(results)
    tree = _Tree(functools.partial(_fold, job.combine))
    for result in results:
        tree.push(result)
    return [tree.root()]


def _run_local(job: _Job) -> list[Any]:
    """Run one Dask graph of descriptors on threads, on processes or in this thread."""
    from dask.callbacks import Callback
    from dask.core import quote

    # Dask does not search a quoted descriptor for keys and tasks.
    shared, at_once = quote(job.shared), _at_once.get()
    graph: dict[str, Any] = {
        f"task-{i}": (_call, job.fn, quote(item), shared, at_once)
        for i, item in enumerate(job.items)
    }
    keys = leaves = list(graph)
    if job.combine is not None:
        counter = itertools.count()

        def merge(group: list[str]) -> str:
            key = f"fold-{next(counter)}"
            graph[key] = (_fold, job.combine, group, at_once)
            return key

        tree = _Tree(merge)
        for leaf in leaves:
            tree.push(leaf)
        keys = [tree.root()]

    def done(key: Any, *_: Any) -> None:
        if str(key).startswith("task-"):
            job.progress.advance(1)

    with Callback(posttask=done):
        return list(dask_get()(graph, keys))


def _window(client: Any) -> int:
    """Return the number of tasks that may be in flight: two for each thread of the cluster."""
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    return max(2, 2 * sum(int(worker["nthreads"]) for worker in workers))


def _map_on_cluster(client: Any, job: _Job) -> list[Any]:
    from distributed import as_completed

    results: list[Any] = [None] * len(job.items)
    waiting = iter(enumerate(_submissions(client, job)))
    positions: dict[str, int] = {}
    queue = as_completed()
    try:
        for position, future in itertools.islice(waiting, _window(client)):
            positions[future.key] = position
            queue.add(future)
        for future in _completed(queue):
            results[positions.pop(future.key)] = future.result()
            future.release()
            job.progress.advance(1)
            for position, following in itertools.islice(waiting, 1):
                positions[following.key] = position
                queue.add(following)
    except BaseException:
        client.cancel(list(queue.futures), force=True)
        raise
    return results


def _completed(queue: Any) -> Iterator[Any]:
    """Yield futures as they complete; an interrupt takes effect without waiting for the next."""
    while not queue.is_empty():
        while not queue.has_ready():
            check_interrupt()
            with queue.thread_condition:
                queue.thread_condition.wait(_POLL_SECONDS)
        yield next(queue)


def _submissions(client: Any, job: _Job) -> Iterable[Any]:
    """Yield a future for each task, which is submitted when the iterator is advanced."""
    run, at_once = uuid.uuid4().hex[:8], _at_once.get()
    for i, item in enumerate(job.items):
        key = f"{job.label}-{run}-{i}"
        yield client.submit(_call, job.fn, item, job.shared, at_once, key=key, pure=False)


def _reduce_on_cluster(client: Any, job: _Job) -> Any:
    """Submit groups of TREE_ARITY blocks and their folds; keep references to folds only.

    A partial result can be d x d, so the client releases the futures of a group as soon as the fold
    that needs them is submitted. The cluster then never keeps more than the window.
    """
    run, at_once = uuid.uuid4().hex[:8], _at_once.get()
    counter = itertools.count()

    def merge(group: list[Any]) -> Any:
        key = f"fold-{job.label}-{run}-{next(counter)}"
        return client.submit(_fold, job.combine, group, at_once, key=key, pure=False)

    # The first level of the tree is built here, group by group, to bound the tasks in flight.
    tree = _Tree(merge)
    in_flight: deque[tuple[Any, int]] = deque()
    largest = max(2, _window(client) // TREE_ARITY)
    submissions = iter(_submissions(client, job))
    try:
        while group := list(itertools.islice(submissions, TREE_ARITY)):
            size = len(group)
            node = merge(group) if size > 1 else group[0]
            del group
            tree.push(node)
            in_flight.append((node, size))
            if len(in_flight) >= largest:
                _wait_for_oldest(in_flight, job.progress)
        root = tree.root()
        in_flight.append((root, 0))
        while in_flight:
            _wait_for_oldest(in_flight, job.progress)
        result = root.result()
        # Otherwise workers keep the result until the reference cycle of the future is collected.
        root.release()
        return result
    except BaseException:
        client.cancel([node for node, _ in in_flight], force=True)
        raise


def _wait_for_oldest(in_flight: deque[tuple[Any, int]], progress: Work) -> None:
    from distributed import as_completed

    node, size = in_flight[0]
    # `wait` with a timeout is not used: its exceptions keep a reference to the future, and so the
    # result on its worker.
    for _ in _completed(as_completed([node])):
        pass
    if node.status != "finished":
        node.result()
    in_flight.popleft()
    progress.advance(size)


@contextmanager
def storage_failures(place: str) -> Iterator[None]:
    """Convert errors of a full or broken file system within the block to StorageError.

    Parameters
    ----------
    place : str
        Path to name in the message if the error does not name a file.
    """
    try:
        yield
    except BigfsError as error:
        if isinstance(error, StorageError) and " again" not in str(error):
            error.add_note(_AGAIN)
        raise
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0)
        if error.errno is None or remedy is None:
            raise
        where = error.filename or place
        raise StorageError(
            f"Cannot write {where}: {os.strerror(error.errno)}. {remedy} {_AGAIN}"
        ) from error


@contextmanager
def cluster_failures(what: str) -> Iterator[None]:
    """Convert failures of the cluster itself to ClusterError; errors of tasks pass unchanged.

    Parameters
    ----------
    what : str
        The operation in progress, for the message.
    """
    try:
        yield
    except BigfsError:
        raise
    except Exception as error:
        # Without a cluster there are no such errors, and the import takes half a second.
        if "distributed" not in sys.modules:
            raise
        from concurrent.futures import CancelledError as FutureCancelledError

        from distributed import CancelledError, KilledWorker
        from distributed.client import ClosedClientError
        from distributed.comm import CommClosedError

        lost = (CancelledError, ClosedClientError, CommClosedError, FutureCancelledError)
        if isinstance(error, KilledWorker):
            reason = (
                f"{error.allowed_failures + 1} workers in a row died during a task, most often "
                "because they ran out of memory. Finished stages are kept: give the workers more "
                "memory or lower memory_limit, and run again."
            )
        elif isinstance(error, (*lost, TimeoutError)):
            text = " ".join(str(error).split())
            reason = (
                f"the connection to the cluster was lost ({type(error).__name__}: {text}). "
                "Finished stages are kept: run again when the scheduler answers."
            )
        else:
            raise
        raise ClusterError(f"{what}: {reason}") from error
