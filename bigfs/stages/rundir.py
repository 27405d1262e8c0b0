"""Stages in a run directory: logged, with measured memory, and committed atomically."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from bigfs.core.cost import StagePlan
from bigfs.core.errors import BigfsError, MemoryLimitError
from bigfs.core.memory import (
    baseline_bytes,
    peak_bytes,
    reset_peak,
    return_large_arrays,
    warmed_bytes,
)
from bigfs.core.units import format_bytes
from bigfs.runtime.execute import at_most_at_once
from bigfs.runtime.progress import in_stage
from bigfs.runtime.scope import active_client
from bigfs.runtime.workers import check_workers, on_every_process
from bigfs.stages.engine import StageStore
from bigfs.stages.stage import Inputs, Stage
from bigfs.store.location import Location, copy_tree, remove_tree
from bigfs.store.records import FILES, STAMP
from bigfs.store.rundir import RunDirectory
from bigfs.store.scratch import Scratch, read_attributes

logger = logging.getLogger("bigfs")
# Fields that `RunDirectory.commit` adds to the record of a stage.
_COMMITTED = {"key", "attempt", "committed", "folder", "stored"}


class RunStages(StageStore):
    """The stages of an open run directory.

    Parameters
    ----------
    directory : RunDirectory
    memory_limit : int
        Memory promised for a worker, in bytes.
    shared : bool, default=False
        True if several results of one stage are kept side by side, each under its key.
    former : RunDirectory or None, default=None
        A finished run on the same data, whose stages are reused if their keys are the same.
    committed : callable or None, default=None
        Called whenever a stage has been committed.

    Attributes
    ----------
    taken_over : list of str
        Names of the stages that were reused from ``former``.
    """

    def __init__(
        self,
        directory: RunDirectory,
        memory_limit: int,
        *,
        shared: bool = False,
        former: RunDirectory | None = None,
        committed: Callable[[], None] | None = None,
    ) -> None:
        self.directory = directory
        self._memory_limit, self._shared, self._former = memory_limit, shared, former
        self._committed = committed
        self.taken_over: list[str] = []

    def name(self, stage: Stage, key: str) -> str:
        """Return the stage's own name, with its key if results are kept side by side."""
        return super().name(stage, key) if self._shared else stage.name

    def path(self, name: str) -> Location:
        """Return the location of a finished stage."""
        return self.directory.stage_path(name)

    def has(self, name: str, key: str) -> bool:
        """Return True if the result exists and its files are intact; reuse a former one if not."""
        if self.directory.finished(name, key) is None:
            if not take_over(self.directory, self._former, name, key):
                return False
            self.taken_over.append(name)
            return True
        fields = {"event": "kept", "stage": name}
        logger.info("stage %s: finished by an earlier run, kept", name, extra={"fields": fields})
        return True

    @contextmanager
    def writing(
        self, name: str, key: str, stage: Stage, inputs: Inputs, planned: StagePlan | None
    ) -> Iterator[Scratch]:
        """Yield the attempt's folder for the stage; measure it, and commit it with its record."""
        directory, blocks = self.directory, inputs.blocks
        why = directory.why_stale(name, key, stage.version, stage.settings)
        logger.info("stage %s: %s", name, why, extra={"fields": {"event": "begin", "stage": name}})
        check_workers(directory.attempt_path)
        footprint = Footprint(planned, self._memory_limit)
        before = 0 if blocks is None else blocks.passes
        scratch = directory.stage_scratch(name)
        inputs.checkpoint = directory.checkpoint_path(name, key)
        with footprint.tasks_at_once(), in_stage(name):
            yield scratch
        passes = 0 if blocks is None else blocks.passes - before
        about = read_attributes(scratch.path)
        record = footprint.record()
        record["notes"] = about.get("notes", [])
        record |= {"passes": passes, "bytes_read": passes * blocks.nbytes if passes else 0}
        record |= {"version": stage.version, "settings": stage.settings}
        if planned is not None:
            strategy = getattr(planned.strategy, "strategy", planned.strategy)
            record["strategy"] = type(strategy).__name__
        directory.commit(name, key, record)
        if self._committed is not None:
            self._committed()

    def record_at(self, path: Location) -> dict[str, Any]:
        """Return the manifest's record of the stage that is stored at a path."""
        stages: dict[str, dict[str, Any]] = self.directory.manifest["stages"]
        return next(record for name, record in stages.items() if self.path(name) == path)

    def forget_others(self, names: set[str]) -> None:
        """Drop finished stages that are not among the names."""
        for name in set(self.directory.manifest["stages"]) - names:
            self.directory.drop(name)


def take_over(directory: RunDirectory, former: RunDirectory | None, name: str, key: str) -> bool:
    """Commit a copy of a stage of another run if it has the same key and is not damaged.

    On the same disk its files are hard links, which need no space. A stage that ``--fresh`` reruns
    is not copied. Return True if the stage was copied.
    """
    record = None if former is None else former.manifest["stages"].get(name)
    if former is None or record is None or record["key"] != key:
        return False
    if "stale" in directory.manifest["stages"].get(name, {}):
        return False
    target = directory.stage_target(name)
    try:
        former.check_unchanged(name)
        copy_linked(former.stage_path(name), target)
    except (BigfsError, OSError) as error:
        logger.warning("stage %s of %s is not reused: %s", name, former.path.name, error)
        remove_tree(target)
        return False
    record = {field: value for field, value in record.items() if field not in _COMMITTED}
    directory.commit(name, key, record, checks_itself=name == "data")
    return True


def copy_linked(source: Location, target: Location) -> None:
    """Copy a finished stage without its records; on the same disk, chunks become hard links.

    This is safe since chunks are replaced as files, never modified in place.
    """
    if isinstance(source, Path) and isinstance(target, Path):
        ignore = shutil.ignore_patterns(STAMP, FILES)
        shutil.copytree(source, target, copy_function=_link, ignore=ignore)
        return
    copy_tree(source, target)
    with suppress(BigfsError, OSError):
        (target / FILES).unlink()


def _link(old: str, new: str) -> None:
    """Create a hard link; make a copy of metadata, or if linking is not possible."""
    try:
        if Path(old).suffix == ".json":
            raise OSError
        os.link(old, new)
    except OSError:
        shutil.copy2(old, new)


# Modules that the stages' tasks import on workers, besides pynndescent.
TASK_MODULES = (
    "zarr",
    "scipy.linalg",
    "scipy.sparse.linalg",
    "scipy.sparse.csgraph",
    "bigfs.graph.build",
    "bigfs.spectral.chebyshev",
    "bigfs.selectors.mcfs.wide",
    "bigfs.selectors.ndfs.passes",
)


def _warmed(modules: tuple[str, ...]) -> tuple[int, bool]:
    """Import the modules of the tasks; return this process's size, and if it has pynndescent."""
    size = warmed_bytes(modules)
    return_large_arrays()
    reset_peak()
    return size, "pynndescent" in sys.modules


class Footprint:
    """Measurement of one stage, from construction to `record`.

    Parameters
    ----------
    planned : StagePlan or None, default=None
        Plan of the stage.
    memory_limit : int or None, default=None
        Memory promised for a worker, in bytes.

    Attributes
    ----------
    baseline_bytes : int
        Size of the largest process before the stage, including all modules that its tasks import.
    predicted_peak_bytes : int or None

    Raises
    ------
    MemoryLimitError
        If a worker is already so large that the stage would exceed the limit.
    """

    def __init__(self, planned: StagePlan | None = None, memory_limit: int | None = None) -> None:
        cost = None if planned is None else planned.cost
        sizes = on_every_process(_warmed, (*TASK_MODULES, *(() if cost is None else cost.loads)))
        self._began = time.perf_counter()
        self._at_once: int | None = None
        self.baseline_bytes = max(size for size, _ in sizes.values())
        self.predicted_peak_bytes: int | None = None
        if planned is None or cost is None:
            return
        self._at_once = planned.tasks_at_once
        for worker, (size, loaded) in sizes.items():
            larger = baseline_bytes(compiled=True) if cost.compiles and not loaded else 0
            peak = max(size, larger) + planned.used_bytes
            if memory_limit is not None and peak > memory_limit and active_client() is not None:
                raise MemoryLimitError(
                    f"Worker {worker} uses {format_bytes(size)} before stage '{planned.name}', "
                    f"which needs {format_bytes(planned.used_bytes)} more; memory_limit is "
                    f"{format_bytes(memory_limit)}. Restart the worker, or set memory_limit to "
                    f"'{format_bytes(peak)}' or more."
                )
            self.predicted_peak_bytes = max(self.predicted_peak_bytes or 0, peak)

    def tasks_at_once(self) -> AbstractContextManager[None]:
        """Limit the tasks that every process runs at once to the number that the plan allows."""
        return at_most_at_once(self._at_once)

    def record(self, reported_peak: int | None = None) -> dict[str, Any]:
        """Return seconds and sizes for the manifest.

        Parameters
        ----------
        reported_peak : int or None, default=None
            Peak of this process, if it reads the input while others run the tasks.
        """
        measured = max(on_every_process(peak_bytes).values())
        return {
            "seconds": round(time.perf_counter() - self._began, 3),
            "baseline_bytes": self.baseline_bytes,
            "predicted_peak_bytes": self.predicted_peak_bytes,
            "measured_peak_bytes": max(measured, reported_peak or 0),
        }
