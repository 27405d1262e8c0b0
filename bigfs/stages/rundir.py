"""Stages in a run directory: logged, measured, and committed as a whole."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bigfs.core.cost import StagePlan
from bigfs.runtime import check_workers
from bigfs.runtime.progress import in_stage
from bigfs.stages.engine import StageStore
from bigfs.stages.measure import Footprint
from bigfs.stages.stage import Inputs, Stage
from bigfs.store.location import Location
from bigfs.store.rundir import RunDirectory
from bigfs.store.scratch import Scratch, read_attributes

logger = logging.getLogger("bigfs")


class RunStages(StageStore):
    """The stages of an open run directory.

    Parameters
    ----------
    directory : RunDirectory
    memory_limit : int
        Promised for a worker, in bytes.
    shared : bool, default=False
        Whether several results of one stage are kept side by side, each under its key.
    """

    def __init__(self, directory: RunDirectory, memory_limit: int, *, shared: bool = False) -> None:
        self.directory = directory
        self._memory_limit, self._shared = memory_limit, shared

    def name(self, stage: Stage, key: str) -> str:
        """Return the stage's own name, and its key where results are kept side by side."""
        return super().name(stage, key) if self._shared else stage.name

    def path(self, name: str) -> Location:
        """Return where a finished stage is."""
        return self.directory.stage_path(name)

    def has(self, name: str, key: str) -> bool:
        """Say whether the result is there, all its files whole."""
        if self.directory.finished(name, key) is None:
            return False
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
        record = footprint.record(about.get("measured_peak_bytes"))
        record["notes"] = about.get("notes", [])
        record |= {"passes": passes, "bytes_read": passes * blocks.nbytes if passes else 0}
        record |= {"version": stage.version, "settings": stage.settings}
        if planned is not None:
            strategy = getattr(planned.strategy, "strategy", planned.strategy)
            record["strategy"] = type(strategy).__name__
        directory.commit(name, key, record)

    def record_at(self, path: Location) -> dict[str, Any]:
        """Return the manifest's record of the stage that is stored at a path."""
        stages: dict[str, dict[str, Any]] = self.directory.manifest["stages"]
        return next(record for name, record in stages.items() if self.path(name) == path)

    def forget_others(self, names: set[str]) -> None:
        """Drop finished stages that are not among the names."""
        for name in set(self.directory.manifest["stages"]) - names:
            self.directory.drop(name)
