"""Connecting to Dask, and checks of all its processes before any work."""

from __future__ import annotations

from bigfs.runtime.connection import (
    connect,
    local_cluster,
    reporting_performance,
    scheduler_address,
)
from bigfs.runtime.preflight import (
    check_workers,
    package_versions,
    preflight,
)
from bigfs.runtime.workers import on_every_process, worker_limits

__all__ = [
    "check_workers",
    "connect",
    "local_cluster",
    "on_every_process",
    "package_versions",
    "preflight",
    "reporting_performance",
    "scheduler_address",
    "worker_limits",
]
