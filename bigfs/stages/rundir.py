"""Stages in a run directory: logged, measured, and committed as a whole."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bigfs.core.cost import StagePlan
from bigfs.core.errors import BigfsError
from bigfs.runtime import check_workers
from bigfs.runtime.progress import in_stage
from bigfs.stages.engine import StageStore
from bigfs.stages.measure import Footprint
from bigfs.stages.stage import Inputs, Stage
from bigfs.store.location import Location, copy_tree, remove_tree
from bigfs.store.rundir import RunDirectory
from bigfs.store.scratch import Scratch, read_attributes
from bigfs.store.stagefiles import FILES, STAMP

logger = logging.getLogger("bigfs")
# What `RunDirectory.commit` adds to the record of a stage.
_COMMITTED = {"key", "attempt", "committed", "folder", "stored"}


class RunStages(StageStore):
    """The stages of an open run directory.

    Parameters
    ----------
    directory : RunDirectory
    memory_limit : int
        Promised for a worker, in bytes.
    shared : bool, default=False
        Whether several results of one stage are kept side by side, each under its key.
    former : RunDirectory or None, default=None
        A finished run on the same data, whose stages are taken over where their keys are the same.
    committed : callable or None, default=None
        Called whenever a stage has been committed.

    Attributes
    ----------
    taken_over : list of str
        Names of the stages that were taken over from ``former``.
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
        """Return the stage's own name, and its key where results are kept side by side."""
        return super().name(stage, key) if self._shared else stage.name

    def path(self, name: str) -> Location:
        """Return where a finished stage is."""
        return self.directory.stage_path(name)

    def has(self, name: str, key: str) -> bool:
        """Say whether the result is there, all its files whole."""
        if self.directory.finished(name, key) is None:
            if self._former is None or not take_over(self.directory, self._former, name, key):
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


def take_over(directory: RunDirectory, former: RunDirectory, name: str, key: str) -> bool:
    """Commit a copy of a stage of another run if it has the same key and is not damaged.

    On one disk its files are links, which take no room. A stage that is done anew by ``--fresh``
    is not taken over.
    """
    record = former.manifest["stages"].get(name)
    if record is None or record["key"] != key:
        return False
    if "stale" in directory.manifest["stages"].get(name, {}):
        return False
    target = directory.stage_target(name)
    try:
        former.check_unchanged(name)
        copy_linked(former.stage_path(name), target)
    except (BigfsError, OSError) as error:
        logger.warning("stage %s of %s is not used again: %s", name, former.path.name, error)
        remove_tree(target)
        return False
    record = {field: value for field, value in record.items() if field not in _COMMITTED}
    directory.commit(name, key, record, checks_itself=name == "data")
    return True


def copy_linked(source: Location, target: Location) -> None:
    """Copy a finished stage without its records; on one disk chunks are links.

    Chunks are replaced as files, and never written again.
    """
    if isinstance(source, Path) and isinstance(target, Path):
        ignore = shutil.ignore_patterns(STAMP, FILES)
        shutil.copytree(source, target, copy_function=_link, ignore=ignore)
        return
    copy_tree(source, target)
    with suppress(BigfsError, OSError):
        (target / FILES).unlink()


def _link(old: str, new: str) -> None:
    """Give a file another name; where that cannot be, and of metadata, make a copy."""
    try:
        if Path(old).suffix == ".json":
            raise OSError
        os.link(old, new)
    except OSError:
        shutil.copy2(old, new)
