"""Memory limits of tasks, and the measured memory of a process."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from contextlib import suppress
from pathlib import Path

from bigfs.core.errors import MemoryLimitError
from bigfs.core.units import GIB, MIB, format_bytes

DEFAULT_MEMORY_LIMIT = "4 GiB"
SMALLEST_LIMIT_BYTES = 768 * MIB
LIMIT_STEP_BYTES = 256 * MIB
# Dask spills at 0.7 of a worker's limit; bigfs stays below that.
USABLE_FRACTION = 0.65
# Dask pauses a worker above this share of its limit.
PAUSED_FRACTION = 0.8
# Dask terminates a worker at this share; predicted peaks, which are upper bounds, must not exceed
# it.
ENDED_FRACTION = 0.95
# Part of the usable memory that is reserved for the process: all imports, and an additional part if
# pynndescent has been compiled. The same on all machines, since partitions depend on these values.
BASELINE_BYTES = 370 * MIB
COMPILED_BYTES = 220 * MIB
# Measured with pynndescent 0.7, numba 0.68, scikit-learn 1.9: such a process takes 640 to 740 MiB.
# The part beyond the reserved bytes comes out of the other 0.35 of the limit.
_COMPILED_BASELINE = 760 * MIB
# Measured: memory that the kernels of chebyshev add to a process that has loaded pynndescent.
KERNEL_BYTES = 100 * MIB
# Buffers of libraries and leftovers of earlier tasks, for any task.
BUFFER_BYTES = 28 * MIB
# Arrays of at least the first size are returned to the system when they are freed, and so is free
# memory at the top of a heap beyond the second size. The names are those of malloc.h.
_LARGE_ARRAY_BYTES, _M_MMAP_THRESHOLD = MIB, -3
_KEPT_BYTES, _M_TRIM_THRESHOLD = 4 * MIB, -1
# For the nanny process that supervises a worker, and its resource tracker: 71 MiB measured.
NANNY_BYTES = 256 * MIB
# Largest size of file-backed pages of this process before any stage so far.
_largest_mapped = 0


def baseline_bytes(compiled: bool = False) -> int:
    """Return the largest resident size of a process before its task, in bytes.

    Parameters
    ----------
    compiled : bool, default=False
        Whether pynndescent has run in the process.
    """
    return _COMPILED_BASELINE if compiled else BASELINE_BYTES


def _left_out(compiled: bool) -> int:
    return BASELINE_BYTES + (COMPILED_BYTES if compiled else 0)


def task_budget(memory_limit: int, *, compiled: bool = False) -> int:
    """Return the bytes one task may use beyond the worker's baseline.

    Parameters
    ----------
    memory_limit : int
        Resident size promised for one worker process, in bytes.
    compiled : bool, default=False
        Whether the task runs pynndescent.

    Raises
    ------
    MemoryLimitError
        If the limit is below 768 MiB, which leaves no room beside a worker's imports.
    """
    if memory_limit < SMALLEST_LIMIT_BYTES:
        raise MemoryLimitError(
            f"memory_limit must be at least {format_bytes(SMALLEST_LIMIT_BYTES)}, since a worker "
            f"uses {format_bytes(BASELINE_BYTES)} after its imports. "
            f"Got {format_bytes(memory_limit)}."
        )
    return int(USABLE_FRACTION * memory_limit) - _left_out(compiled)


def budget_after_search(memory_limit: int) -> int:
    """Return the bytes that a task of the eigensolver may use after pynndescent has run.

    For small workers this is less than `task_budget`. The smallest workers, which Dask would pause
    after pynndescent, get `task_budget`, since no task can run there.
    """
    budget, before = task_budget(memory_limit), baseline_bytes(compiled=True) + KERNEL_BYTES
    if before > PAUSED_FRACTION * memory_limit:
        return budget
    return min(budget, int(ENDED_FRACTION * memory_limit) - before - BUFFER_BYTES)


def job_bytes(memory_limit: int) -> int:
    """Return the memory that a batch job or a container with one worker must request, in bytes."""
    return memory_limit + NANNY_BYTES


def limit_for(needed_bytes: int, *, compiled: bool = False) -> int:
    """Return the smallest ``memory_limit`` (a multiple of 256 MiB) whose budget is sufficient."""
    limit = (needed_bytes + _left_out(compiled)) / USABLE_FRACTION
    step = LIMIT_STEP_BYTES
    return max(SMALLEST_LIMIT_BYTES, int(-(-limit // step)) * step)


def format_limit(limit: int) -> str:
    """Return a limit that is a multiple of 256 MiB as exact text, such as ``"2.25 GiB"``."""
    return f"{limit / GIB:.10g} GiB"


def check_fits(stage: str, needed_bytes: int, memory_limit: int, what: str) -> None:
    """Raise MemoryLimitError if a task of a stage does not fit the limit.

    Raises
    ------
    MemoryLimitError
        The message names the stage, the bytes needed, the limit and a sufficient limit.
    """
    budget = task_budget(memory_limit)
    if needed_bytes > budget:
        raise MemoryLimitError(
            f"Stage '{stage}' needs {format_bytes(needed_bytes)} for {what}; a memory_limit of "
            f"{format_bytes(memory_limit)} leaves {format_bytes(budget)} for one task. "
            f"Set memory_limit to '{format_limit(limit_for(needed_bytes))}' or more."
        )


def warmed_bytes(modules: tuple[str, ...]) -> int:
    """Import the modules that tasks need, and return the resident size of this process in bytes.

    A module's function ``warm_up`` is called if it has one. File-backed pages (libraries) count
    with their largest size so far: the kernel may reclaim pages that were not used for a while, and
    the next stage loads them again, so that its peak would exceed the prediction.
    """
    global _largest_mapped
    for name in modules:
        module = importlib.import_module(name)
        if hasattr(module, "warm_up"):
            module.warm_up()
    mapped = _status_bytes("RssFile") or 0
    _largest_mapped = max(_largest_mapped, mapped)
    return (_status_bytes("VmRSS") or 0) - mapped + _largest_mapped


def return_large_arrays() -> None:
    """Make the C library return large freed arrays to the system at once (glibc only).

    By default its threshold grows up to 32 MiB when large arrays are freed, and then blocks of the
    data accumulate in the heaps of the threads: one pass took 270 MiB instead of 150. Smaller
    arrays stay with the process, up to `_KEPT_BYTES` for each of its heaps. With the settings of
    Dask's nanny, which also returns arrays between 128 KiB and 1 MiB, a fifth of the processor time
    was spent on page faults.
    """
    if not sys.platform.startswith("linux"):
        return
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _LARGE_ARRAY_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def reset_peak() -> None:
    """Reset the high-water mark of this process's resident size (no-op except on Linux)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """Return the high-water mark of this process's resident size, in bytes."""
    peak = _status_bytes("VmHWM")
    if peak is not None:
        return peak
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if os.uname().sysname == "Darwin" else peak * 1024)


def machine_bytes() -> int:
    """Return the memory of this machine in bytes, or the limit of the container, job or unit."""
    from distributed.system import MEMORY_LIMIT

    return min(
        [int(MEMORY_LIMIT), *_group_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))]
    )


def _group_limits(groups: Path, root: Path) -> list[int]:
    """Return the memory limits of the control groups of this process, and of their ancestors."""
    limits = []
    lines = groups.read_text().splitlines() if groups.exists() else []
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if controllers and "memory" not in controllers.split(","):
            continue
        file = "memory.limit_in_bytes" if controllers else "memory.max"
        folder = root / ("memory" if controllers else "") / path.lstrip("/")
        for place in (folder, *folder.parents):
            with suppress(OSError, ValueError):  # "max" is no limit
                limits.append(int((place / file).read_text()))
    return limits


def _status_bytes(name: str) -> int | None:
    """Return an entry of /proc/self/status in bytes; None if it is not available (not Linux)."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return None
