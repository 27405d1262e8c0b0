"""Calls to every process of the cluster, all with a time limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

from bigfs.core.context import set_within
from bigfs.core.errors import ClusterError
from bigfs.core.memory import machine_bytes
from bigfs.runtime.interrupt import check_interrupt
from bigfs.runtime.scope import active_client

WAIT_SECONDS = 60.0
ANSWER_SECONDS = 60.0
_patience: ContextVar[float] = ContextVar("bigfs_patience", default=WAIT_SECONDS)
LOST_SECONDS = 60.0
_ANSWER_SECONDS = 10.0


def patience(seconds: float | None) -> AbstractContextManager[None]:
    """Set how long the block waits for workers (None: a minute)."""
    return set_within(_patience, WAIT_SECONDS if seconds is None else seconds)


def workers_of(client: Any) -> dict[str, dict[str, Any]]:
    """Return the scheduler's record of each of its workers, by address.

    Raises
    ------
    ClusterError
        If Dask has given up the connection to the scheduler.
    """
    known = client.scheduler_info(n_workers=-1)
    if "workers" not in known and client.status == "closed":
        raise ClusterError(
            "The connection to the scheduler was lost. Finished stages are kept: run again when it "
            "answers."
        )
    workers: dict[str, dict[str, Any]] = known.get("workers", {})
    return workers


def wait_for_workers(client: Any) -> None:
    """Return as soon as the cluster has a worker.

    Raises
    ------
    ClusterError
        If it has none for a minute, or for what `patience` says.
    """
    seconds = _patience.get()
    deadline = time.monotonic() + seconds
    while not workers_of(client):
        if time.monotonic() > deadline:
            address = client.scheduler.address
            raise ClusterError(
                f"The scheduler at {address} has had no worker for {seconds:.0f} s. Start one "
                f"with 'dask worker {address}', or see why the batch system starts none, then "
                "run again."
            )
        if client.status != "running":
            raise ClusterError(
                "The scheduler stopped before any worker connected. Start it, then run again."
            )
        time.sleep(0.2)


def ask_workers(
    client: Any, fn: Callable[..., Any], *args: Any, workers: Sequence[str] | None = None
) -> dict[str, Any]:
    """Return by worker what a function returns there, or the exception it ended with.

    Workers that leave while they are asked are left out.

    Raises
    ------
    ClusterError
        If a worker that is still there does not answer within a minute.
    """

    async def ask() -> Any:
        question = client.run(fn, *args, workers=workers, on_error="return")
        return await asyncio.wait_for(question, ANSWER_SECONDS)

    answers = bounded(client, ask, "Not all workers answer")
    present = workers_of(client)
    return {worker: answer for worker, answer in answers.items() if worker in present}


def bounded(client: Any, ask: Callable[[], Any], what: str) -> Any:
    """Run a coroutine in the client's loop; raise ClusterError if the cluster does not answer."""
    try:
        return client.sync(ask)
    except TimeoutError as error:
        raise ClusterError(
            f"{what} within {ANSWER_SECONDS:.0f} s. Restart what hangs, then run again."
        ) from error
    except OSError as error:
        raise ClusterError(
            f"{what} ({type(error).__name__}: {error}). Check that the cluster is up, then run "
            "again."
        ) from error


def on_every_process(fn: Callable[..., Any], *args: Any) -> dict[str, Any]:
    """Run a function in every worker process, or in this one if there are none.

    Raises
    ------
    ClusterError
        If the cluster has no worker, or one that does not answer.
    """
    client = active_client()
    if client is None:
        return {"this process": fn(*args)}
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        wait_for_workers(client)
        answers = ask_workers(client, fn, *args)
        if answers and not any(_is_dying(answer) for answer in answers.values()):
            break
        if time.monotonic() > deadline:
            break
        # A worker died a moment ago, or all of them; others take their place.
        check_interrupt()
        time.sleep(0.5)
    for worker, answer in answers.items():
        if isinstance(answer, OSError):
            raise ClusterError(
                f"Worker {worker} does not answer ({type(answer).__name__}: {answer}). Restart "
                "it, then run again."
            )
        if isinstance(answer, BaseException):
            raise answer
    if not answers:
        raise ClusterError("All workers disconnected. Run again when the cluster has workers.")
    return answers


def _is_dying(answer: Any) -> bool:
    """Say whether a worker closed the connection instead of answering."""
    from distributed.comm import CommClosedError

    return isinstance(answer, (CommClosedError, ConnectionError))


def worker_limits() -> dict[str, int]:
    """Return the bytes that each worker process may have, by its address.

    A worker without a limit of its own has what its machine or its container has. Without a
    cluster it is this process.
    """
    client = active_client()
    if client is None:
        return {"this process": machine_bytes()}
    limits = {worker: int(w["memory_limit"] or 0) for worker, w in workers_of(client).items()}
    unlimited = [worker for worker, limit in limits.items() if not limit]
    if unlimited:
        machine_limits = ask_workers(client, machine_bytes, workers=unlimited)
        limits.update({w: n for w, n in machine_limits.items() if isinstance(n, int)})
    return {worker: limit for worker, limit in limits.items() if limit}


def watch_cluster(cluster: Any = None) -> Callable[[], None] | None:
    """Return a check to call every few seconds while the active cluster works, or None without one.

    Parameters
    ----------
    cluster : ClusterConfig or None, default=None
        It may be without any worker for as long as it may take to start, a minute at least.
    """
    client = active_client()
    if client is None:
        return None
    ours = client.cluster if cluster is not None and cluster.kind == "local" else None
    patience = max(LOST_SECONDS, getattr(cluster, "wait_seconds", None) or 0.0)
    well = time.monotonic()

    def check() -> None:
        """Raise ClusterError when the cluster has been without workers for too long."""
        nonlocal well
        trouble = _trouble(client, ours)
        if trouble is None:
            well = time.monotonic()
        elif time.monotonic() - well > patience:
            raise ClusterError(
                f"{trouble} for {patience:.0f} s. Finished stages are kept: run again when the "
                "cluster is up."
            )

    return check


def _trouble(client: Any, ours: Any) -> str | None:
    """Say what is wrong with a cluster now, or None; ``ours`` is one that this process started."""

    async def ask() -> Any:
        return await asyncio.wait_for(client.scheduler.identity(n_workers=-1), _ANSWER_SECONDS)

    try:
        answer = client.sync(ask)
    except Exception:  # whatever it is, the scheduler has not answered
        return "The scheduler has not answered"
    if ours is not None and len(answer["workers"]) < len(ours.worker_spec):
        # Dask starts a worker that died again, once: not one that dies while it starts.
        ours.scale(len(ours.worker_spec))
    return None if answer["workers"] else f"The scheduler at {answer['address']} has had no worker"
