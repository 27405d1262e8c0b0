"""Stages in a folder that the tasks of a table share."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from bigfs.core.cost import StagePlan
from bigfs.core.paths import plain_name
from bigfs.stages.engine import StageStore
from bigfs.stages.stage import Inputs, Stage
from bigfs.store.location import Location
from bigfs.store.objects import ConflictError, ObjectPath
from bigfs.store.scratch import Scratch


class SharedStages(StageStore):
    """Stages in a folder that tasks share: of two equal results the first is kept.

    Parameters
    ----------
    folder : Path or ObjectPath
    """

    def __init__(self, folder: Location) -> None:
        self._folder = folder

    def path(self, name: str) -> Location:
        """Return where a finished stage is; in a bucket an object says which task was first."""
        if isinstance(self._folder, ObjectPath):
            first = self._folder / f"{name}.first"
            return self._folder / plain_name(first.read_text(), first)
        return self._folder / f"{name}.zarr"

    def has(self, name: str, key: str) -> bool:
        """Say whether one of the tasks has finished the stage."""
        if isinstance(self._folder, ObjectPath):
            return (self._folder / f"{name}.first").is_file()
        return self.path(name).exists()

    @contextmanager
    def writing(
        self, name: str, key: str, stage: Stage, inputs: Inputs, planned: StagePlan | None
    ) -> Iterator[Scratch]:
        """Yield a folder of this task's own, and publish it unless another one was first."""
        attempt = f"{name}-{uuid.uuid4().hex[:12]}"
        if isinstance(self._folder, ObjectPath):
            scratch = Scratch(self._folder / f"{attempt}.zarr")
            yield scratch
            first = self._folder / f"{name}.first"
            try:
                first.write_if(scratch.path.name, None)
            except ConflictError:
                if first.read_text() != scratch.path.name:  # else an answer was lost
                    scratch.close()
            return
        partial, final = self._folder / f"{attempt}.partial", self._folder / f"{name}.zarr"
        scratch = Scratch(partial)
        yield scratch
        try:
            partial.rename(final)
        except OSError:
            if not final.exists():
                raise
            scratch.close()
