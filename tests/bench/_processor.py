"""The processor time that a benchmark's processes have used."""

from __future__ import annotations

import psutil


def processor_seconds() -> float:
    """Return what this process and those that it started have used so far."""
    here = psutil.Process()
    times = [process.cpu_times() for process in (here, *here.children(recursive=True))]
    return sum(time.user + time.system for time in times)
