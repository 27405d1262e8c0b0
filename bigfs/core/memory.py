"""The memory promise: what one task may use, and how much a process has used."""

from __future__ import annotations

import os
from pathlib import Path

from bigfs.core.errors import MemoryLimitError
from bigfs.core.units import MIB, format_bytes

DEFAULT_MEMORY_LIMIT = "4 GiB"
SMALLEST_LIMIT_BYTES = 768 * MIB
# Dask spills at 0.7 of a worker's limit; bigfs stays below that.
USABLE_FRACTION = 0.65
# Measured: a worker is 370 MiB after the imports (see the design page).
BASELINE_BYTES = 370 * MIB


def task_budget(memory_limit_bytes: int, n_threads: int = 1) -> int:
    """Return the bytes one task may use beyond the worker's baseline.

    Parameters
    ----------
    memory_limit_bytes : int
        Resident size promised for one worker process, in bytes.
    n_threads : int, default=1
        Tasks that the process runs at the same time.

    Raises
    ------
    MemoryLimitError
        If the limit is below 768 MiB, where a worker's imports leave no room.
    """
    if memory_limit_bytes < SMALLEST_LIMIT_BYTES:
        raise MemoryLimitError(
            f"memory_limit must be at least {format_bytes(SMALLEST_LIMIT_BYTES)}, since a worker "
            f"is {format_bytes(BASELINE_BYTES)} after its imports. "
            f"Got {format_bytes(memory_limit_bytes)}."
        )
    return int(USABLE_FRACTION * memory_limit_bytes - BASELINE_BYTES) // n_threads


def limit_for(needed_bytes: int) -> int:
    """Return the smallest ``memory_limit`` (whole 256 MiB) whose budget holds the bytes."""
    limit = (needed_bytes + BASELINE_BYTES) / USABLE_FRACTION
    step = 256 * MIB
    return max(SMALLEST_LIMIT_BYTES, int(-(-limit // step)) * step)


def check_fits(stage: str, needed_bytes: int, memory_limit_bytes: int, what: str) -> None:
    """Raise if a task of a stage does not fit the limit.

    Raises
    ------
    MemoryLimitError
        Names the stage, the need, the limit and the limit that would do.
    """
    budget = task_budget(memory_limit_bytes)
    if needed_bytes > budget:
        raise MemoryLimitError(
            f"Stage '{stage}' needs {format_bytes(needed_bytes)} for {what}; a memory_limit of "
            f"{format_bytes(memory_limit_bytes)} leaves {format_bytes(budget)} to one task. "
            f"Set memory_limit to '{format_bytes(limit_for(needed_bytes))}' or more."
        )


def reset_peak() -> None:
    """Start a new high-water mark for this process (Linux only; elsewhere nothing happens)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass


def peak_bytes() -> int:
    """Return the high-water mark of this process's resident size, in bytes."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if os.uname().sysname == "Darwin" else peak * 1024)
