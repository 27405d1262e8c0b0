"""Watching the cluster, so that a run does not wait forever for one that is gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from bigfs.core.errors import ClusterError
from bigfs.runtime.execute import active_client

LOST_SECONDS = 60.0
_ANSWER_SECONDS = 10.0


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
    return _WorkerWatch(client, ours, patience)


class _WorkerWatch:
    """Raises ClusterError when the cluster has been without workers for too long."""

    def __init__(self, client: Any, ours: Any, patience_seconds: float) -> None:
        self._client, self._ours, self._patience = client, ours, patience_seconds
        self._well = time.monotonic()

    def __call__(self) -> None:
        trouble = self._trouble()
        if trouble is None:
            self._well = time.monotonic()
        elif time.monotonic() - self._well > self._patience:
            raise ClusterError(
                f"{trouble} for {self._patience:.0f} s. Finished stages are kept: run again when "
                "the cluster is up."
            )

    def _trouble(self) -> str | None:
        """Say what is wrong with the cluster now, or None."""
        scheduler = self._client.scheduler

        async def ask() -> Any:
            return await asyncio.wait_for(scheduler.identity(n_workers=-1), _ANSWER_SECONDS)

        try:
            answer = self._client.sync(ask)
        except Exception:  # whatever it is, the scheduler has not answered
            return "The scheduler has not answered"
        if self._ours is not None and len(answer["workers"]) < len(self._ours.worker_spec):
            # Dask starts a worker that died again, once: not one that dies while it starts.
            self._ours.scale(len(self._ours.worker_spec))
        if answer["workers"]:
            return None
        return f"The scheduler at {answer['address']} has had no worker"
