"""Connecting to Dask, and what must hold on every one of its processes before any work."""

from __future__ import annotations

from bigfs.cluster.connect import connect, local_cluster, scheduler_address
from bigfs.cluster.preflight import (
    check_shared_folder,
    check_versions,
    check_workers,
    package_versions,
    preflight,
)
from bigfs.cluster.workers import on_every_process, worker_limits

__all__ = [
    "check_shared_folder",
    "check_versions",
    "check_workers",
    "connect",
    "local_cluster",
    "on_every_process",
    "package_versions",
    "preflight",
    "scheduler_address",
    "worker_limits",
]
