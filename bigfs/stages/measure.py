"""Memory of a stage's processes: before it, predicted, and measured peak."""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager
from typing import Any

from bigfs.core.cost import StagePlan
from bigfs.core.errors import MemoryLimitError
from bigfs.core.memory import (
    baseline_bytes,
    peak_bytes,
    reset_peak,
    return_large_arrays,
    warmed_bytes,
)
from bigfs.core.units import format_bytes
from bigfs.runtime import on_every_process
from bigfs.runtime.execute import at_most_at_once
from bigfs.runtime.scope import active_client

# What the stages' tasks import on workers, besides pynndescent.
TASK_MODULES = (
    "zarr",
    "scipy.linalg",
    "scipy.sparse.linalg",
    "scipy.sparse.csgraph",
    "bigfs.graph.build",
    "bigfs.spectral.chebyshev",
    "bigfs.selectors.mcfs.tasks",
    "bigfs.selectors.ndfs.passes",
)


def _warmed(modules: tuple[str, ...]) -> tuple[int, bool]:
    """Import what tasks will; return this process's size, and whether it has pynndescent."""
    size = warmed_bytes(modules)
    return_large_arrays()
    reset_peak()
    return size, "pynndescent" in sys.modules


class Footprint:
    """Measures one stage, from its making to `record`.

    Parameters
    ----------
    planned : StagePlan or None, default=None
        What the plan says of the stage.
    memory_limit : int or None, default=None
        Promised for a worker, in bytes.

    Attributes
    ----------
    baseline_bytes : int
        The largest process before the stage, with all that its tasks import.
    predicted_peak_bytes : int or None

    Raises
    ------
    MemoryLimitError
        If a worker is so large already that the stage would not stay within the limit.
    """

    def __init__(self, planned: StagePlan | None = None, memory_limit: int | None = None) -> None:
        more = planned.cost.loads if planned is not None and planned.cost is not None else ()
        sizes = on_every_process(_warmed, (*TASK_MODULES, *more))
        self._began = time.perf_counter()
        self._planned = planned
        self.baseline_bytes = max(size for size, _ in sizes.values())
        self.predicted_peak_bytes: int | None = None
        if planned is None or planned.cost is None:
            return
        for worker, (size, loaded) in sizes.items():
            base = size
            if planned.cost.compiles and not loaded:
                base = max(size, baseline_bytes(compiled=True))
            peak = base + planned.used_bytes
            if memory_limit is not None and peak > memory_limit and active_client() is not None:
                raise MemoryLimitError(
                    f"Worker {worker} is {format_bytes(size)} before stage '{planned.name}', which "
                    f"needs {format_bytes(planned.used_bytes)} more; memory_limit is "
                    f"{format_bytes(memory_limit)}. Restart the worker, or set memory_limit to "
                    f"'{format_bytes(peak)}' or more."
                )
            self.predicted_peak_bytes = max(self.predicted_peak_bytes or 0, peak)

    def tasks_at_once(self) -> AbstractContextManager[None]:
        """Have every process run no more tasks at once than the plan says fit."""
        planned = self._planned
        known = planned is not None and planned.cost is not None
        return at_most_at_once(planned.tasks_at_once if planned and known else None)

    def record(self, told_peak: int | None = None) -> dict[str, Any]:
        """Return seconds and sizes, for the manifest.

        Parameters
        ----------
        told_peak : int or None, default=None
            That of this process, where it reads and others do the tasks.
        """
        measured = max(on_every_process(peak_bytes).values())
        return {
            "seconds": round(time.perf_counter() - self._began, 3),
            "baseline_bytes": self.baseline_bytes,
            "predicted_peak_bytes": self.predicted_peak_bytes,
            "measured_peak_bytes": max(measured, told_peak or 0),
        }
