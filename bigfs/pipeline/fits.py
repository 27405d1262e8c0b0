"""Several methods on the same data: every stage that two of them share runs once.

A stage is stored under its name and the key of all it depends on, so that equal ones are the
same; methods that differ in the weights of the graph's edges still share its neighbors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bigfs.blocks import RowBlocks
from bigfs.config import Config
from bigfs.pipeline.run import run_stage
from bigfs.pipeline.stages import Stage, stages_of
from bigfs.stages.context import Context
from bigfs.store.location import Location
from bigfs.store.rundir import stage_key
from bigfs.store.scratch import Scratch

# Of the edges only; neighbors do not depend on them.
_WEIGHTS = ("weight", "sigma")
# Sizes up to which one fit of MCFS holds the selections of all smaller ones.
_MCFS_SUPPORTS = 500
# Methods that are fitted to a number of features: one fit does not serve another number.
_EACH_SIZE = ("m3fs",)


@dataclass
class _View:
    """A run directory as the stages of one method see it: by their plain names."""

    directory: Any
    names: dict[str, str] = field(default_factory=dict)

    def stage_path(self, name: str) -> Location:
        return self.directory.stage_path(self.names[name])


@dataclass
class SharedFits:
    """Fits methods on the same data, in one directory.

    Attributes
    ----------
    directory : RunDirectory
        Or what stores stages like one.
    data_path : Path or ObjectPath
    data_key : str
        Of the content of the data.
    blocks : RowBlocks
        The data as all methods see them; they share its Gram matrix.
    work : Scratch
    common : Config
        Of any of the methods: what a stage that is of none sees.
    commit : callable or None
        ``commit(context, stage, name)`` runs a stage and stores it. None: as `bigfs run` does.
    used : set of str
        Names of the stages that were asked for.
    """

    directory: Any
    data_path: Location
    data_key: str
    blocks: RowBlocks
    work: Scratch
    common: Config
    commit: Callable[[Context, Stage, str], None] | None = None
    used: set[str] = field(default_factory=set)
    _neighbors: dict[str, Location] = field(default_factory=dict)

    def fit(self, config: Config) -> str:
        """Run the stages of a configuration that are not there; return the result's name."""
        view = _View(self.directory)
        context = Context(config, view, self.data_path, self.work, _blocks=self.blocks)
        key = self.data_key
        for stage in stages_of(config):
            before, key = key, stage_key(stage.name, stage.version, stage.settings, key)
            name = f"{stage.name}-{key}"
            view.names[stage.name] = name
            alike = _neighbors_key(stage, before) if stage.name == "graph" else ""
            context.neighbors = self._neighbors.get(alike)
            self._commit(context, stage, key, name)
            if alike:
                self._neighbors.setdefault(alike, self.directory.stage_path(name))
            self.used.add(name)
        return view.names["result"]

    def run(self, stage: Stage) -> str:
        """Run a stage that follows from the data alone, unless it is there; return its name."""
        context = Context(
            self.common, self.directory, self.data_path, self.work, _blocks=self.blocks
        )
        key = stage_key(stage.name, stage.version, stage.settings, self.data_key)
        name = f"{stage.name}-{key}"
        self._commit(context, stage, key, name)
        self.used.add(name)
        return name

    def _commit(self, context: Context, stage: Stage, key: str, name: str) -> None:
        if self.commit is not None:
            self.commit(context, stage, name)
        else:
            run_stage(context, self.directory, stage, key, name)


def _neighbors_key(stage: Stage, before: str) -> str:
    """Return the key of a graph stage's neighbors: that without the edges' weights."""
    settings = {name: value for name, value in stage.settings.items() if name not in _WEIGHTS}
    return stage_key(stage.name, stage.version, settings, before)


def fits_for(config: Config, sizes: list[int]) -> list[tuple[int, list[int]]]:
    """Return the numbers of features to fit a method with, and the sizes each fit serves.

    Parameters
    ----------
    config : Config
    sizes : list of int
        Numbers of features to select.
    """
    sizes = sorted(set(sizes))
    if config.method == "mcfs":
        small = [m for m in sizes if m <= _MCFS_SUPPORTS]
        large = [(m, [m]) for m in sizes if m > _MCFS_SUPPORTS]
        return ([(small[-1], small)] if small else []) + large
    if config.method in _EACH_SIZE:
        return [(m, [m]) for m in sizes]
    return [(sizes[-1], sizes)]
