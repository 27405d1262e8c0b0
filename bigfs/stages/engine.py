"""Stages run in order, each unless its result is there; stores say where results are kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from bigfs.blocks import RowBlocks
from bigfs.stages.graph import WEIGHTS
from bigfs.stages.stage import Inputs, Stage, Strategy
from bigfs.store.location import Location
from bigfs.store.rundir import stage_key
from bigfs.store.scratch import Scratch


class StageStore(ABC):
    """Where finished stages are kept."""

    def name(self, stage: Stage, key: str) -> str:
        """Return the name that a stage's result is stored under."""
        return stage.name

    def strategy(self, stage: Stage, inputs: Inputs) -> Strategy:
        """Return how a stage is done: as it was planned, where there is a plan."""
        return stage.choose(inputs.blocks.layout)

    @abstractmethod
    def path(self, name: str) -> Location:
        """Return where a finished stage is."""

    @abstractmethod
    def has(self, name: str, key: str) -> bool:
        """Say whether the result with this key is there."""

    @abstractmethod
    def do(self, name: str, key: str, stage: Stage, inputs: Inputs) -> None:
        """Do a stage and commit its result under the name."""


class TemporaryStages(StageStore):
    """Stages in a folder of their own, for one fit.

    Parameters
    ----------
    scratch : Scratch
    """

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch

    def path(self, name: str) -> Location:
        """Return where a finished stage is."""
        return self._scratch.path / f"{name}.zarr"

    def has(self, name: str, key: str) -> bool:
        """Say whether the result is there: never before it is asked for."""
        return False

    def do(self, name: str, key: str, stage: Stage, inputs: Inputs) -> None:
        """Do a stage in its folder."""
        self.strategy(stage, inputs).run(inputs, self._scratch.child(f"{name}.zarr"))


class Engine:
    """Runs stages on the same data.

    Parameters
    ----------
    store : StageStore
    blocks : RowBlocks
        The data as the stages see them.
    data_key : str, default=""
        Of the content of the data.

    Attributes
    ----------
    used : set of str
        Names of the results that were asked for.
    """

    def __init__(self, store: StageStore, blocks: RowBlocks, data_key: str = "") -> None:
        self.store, self.blocks = store, blocks
        self._data_key = data_key
        self._neighbors: dict[str, Location] = {}
        self.used: set[str] = set()

    def run(self, stages: Iterable[Stage]) -> dict[str, Location]:
        """Run stages in order, each unless it is there; return where they are by plain name."""
        inputs = Inputs(self.blocks)
        key = self._data_key
        for stage in stages:
            alike = _neighbors_key(stage, key) if stage.name == "graph" else None
            inputs.neighbors = self._neighbors.get(alike) if alike else None
            key = stage.key(key)
            name = self.store.name(stage, key)
            if not self.store.has(name, key):
                self.store.do(name, key, stage, inputs)
            path = inputs.finished[stage.name] = self.store.path(name)
            if alike:
                self._neighbors.setdefault(alike, path)
            self.used.add(name)
        return inputs.finished


def _neighbors_key(stage: Stage, before: str) -> str:
    """Return the key of a graph stage's neighbors: that without the edges' weights."""
    settings = {name: value for name, value in stage.settings.items() if name not in WEIGHTS}
    return stage_key(stage.name, stage.version, settings, before)
