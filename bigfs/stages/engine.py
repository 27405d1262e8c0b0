"""Running stages in order, skipping finished ones; stores keep their results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext

from bigfs.blocks import RowBlocks
from bigfs.core.cost import StagePlan
from bigfs.core.memory import check_fits
from bigfs.core.threads import single_thread
from bigfs.runtime.progress import in_stage
from bigfs.stages.stage import Base, Inputs, Stage, StageStrategy
from bigfs.store.location import Location
from bigfs.store.scratch import Scratch


class StageStore(ABC):
    """Storage of finished stages."""

    def name(self, stage: Stage, key: str) -> str:
        """Return the name under which a stage's result is stored."""
        return f"{stage.name}-{key}"

    @abstractmethod
    def path(self, name: str) -> Location:
        """Return the location of a finished stage."""

    @abstractmethod
    def has(self, name: str, key: str) -> bool:
        """Return True if the result with this key exists."""

    @abstractmethod
    @contextmanager
    def writing(
        self, name: str, key: str, stage: Stage, inputs: Inputs, planned: StagePlan | None
    ) -> Iterator[Scratch]:
        """Yield the folder for the result, and commit it if the block ends without an error."""


class TemporaryStages(StageStore):
    """Stages in a folder of their own, for one fit.

    Parameters
    ----------
    scratch : Scratch
    """

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch

    def path(self, name: str) -> Location:
        """Return the location of a finished stage."""
        return self._scratch.path / f"{name}.zarr"

    def has(self, name: str, key: str) -> bool:
        """Return True if the result exists."""
        return self.path(name).exists()

    @contextmanager
    def writing(
        self, name: str, key: str, stage: Stage, inputs: Inputs, planned: StagePlan | None
    ) -> Iterator[Scratch]:
        """Yield the stage's folder."""
        with in_stage(stage.name):
            yield self._scratch.child(f"{name}.zarr")


class Engine:
    """Runs stages on the same data.

    Parameters
    ----------
    store : StageStore
    blocks : RowBlocks or None
        The data as the stages see them; None for stages that open their own.
    data_key : str, default=""
        Key of the content of the data.
    memory_limit : int or None, default=None
        Raise for stages that no plan has accepted and that do not fit a worker of this many bytes.
    base : Base or None, default=None
        A finished run whose stages are updated. Results depend on it, and so do their keys.
    keeps_start : bool, default=False
        True if stages keep what an update of this run starts from.

    Attributes
    ----------
    blocks : RowBlocks or None
    used : set of str
        Names of the requested results.
    """

    def __init__(
        self,
        store: StageStore,
        blocks: RowBlocks | None,
        data_key: str = "",
        *,
        memory_limit: int | None = None,
        base: Base | None = None,
        keeps_start: bool = False,
    ) -> None:
        self.store, self.blocks, self._data_key = store, blocks, data_key
        self._base, self._keeps_start = base, keeps_start
        self._memory_limit = memory_limit
        self._neighbors: dict[str, Location] = {}
        self.used: set[str] = set()

    def run(
        self, stages: Iterable[Stage], plan: Mapping[str, StagePlan] | None = None
    ) -> dict[str, Location]:
        """Run stages in order, skipping those that are finished.

        Parameters
        ----------
        stages : iterable of Stage
        plan : mapping or None, default=None
            Planned strategies by stage name, which are run; a stage without one chooses its
            strategy by the shape of the data.

        Returns
        -------
        finished : dict
            Location of each stage, by its plain name.
        """
        stages = list(stages)
        if self._memory_limit is not None and plan is None:
            self._check_all_fit(stages, self._memory_limit)
        kept = {"base": self._base, "keeps_start": self._keeps_start}
        inputs = Inputs(self.blocks, **kept)  # type: ignore[arg-type]  # None: its stages read none
        before = self._data_key
        for stage in stages:
            shared_key = stage.shared_key(before)
            inputs.neighbors = self._neighbors.get(shared_key) if shared_key else None
            upstream = [self._data_key if stage.beside else before]
            inputs.former = None
            if self._base is not None and stage.name in self._base.stages:
                former_key, inputs.former = self._base.stages[stage.name]
                limits = f"{self._base.least_recall} {self._base.most_residual}"
                upstream.append(f"{former_key} {limits}")
            key = stage.key(*upstream)
            before = before if stage.beside else key
            name = self.store.name(stage, key)
            if not self.store.has(name, key):
                self._do(stage, name, key, inputs, (plan or {}).get(stage.name))
            path = inputs.finished[stage.name] = self.store.path(name)
            if shared_key:
                self._neighbors.setdefault(shared_key, path)
            self.used.add(name)
        return inputs.finished

    def _check_all_fit(self, stages: list[Stage], memory_limit: int) -> None:
        """Raise MemoryLimitError if a task of any stage, or a step of the client, does not fit."""
        steps = [
            (step.task_bytes, stage.name, step.what)
            for stage in stages
            for step in getattr(self._chosen(stage).cost(), "steps", ())
        ]
        if steps:
            needed, name, what = max(steps)
            check_fits(name, needed, memory_limit, what)

    def _blocks_of(self, stage: Stage) -> RowBlocks | None:
        """Return the data in the form that a stage accepts."""
        blocks = self.blocks
        if blocks is None or (blocks.sparse and stage.takes_entries(blocks.layout)):
            return blocks
        return blocks.dense()

    def _chosen(self, stage: Stage) -> StageStrategy:
        """Return the strategy of a stage that is not in a plan."""
        blocks = self._blocks_of(stage)
        return stage.choose(None if blocks is None else blocks.layout)

    def _do(
        self, stage: Stage, name: str, key: str, inputs: Inputs, planned: StagePlan | None
    ) -> None:
        """Run one stage; if the input file has changed meanwhile, the result is not committed."""
        blocks = self._blocks_of(stage)
        if blocks is not None:
            inputs.blocks = blocks
        strategy = planned.strategy if planned is not None else self._chosen(stage)
        with self.store.writing(name, key, stage, inputs, planned) as out:
            numbering = nullcontext() if blocks is None else blocks.source.numbering_rows()
            with single_thread(), numbering:
                strategy.run(inputs, out)
            if blocks is not None:
                blocks.source.check_unchanged()
            if self._base is not None and inputs.former is not None:
                self._base.check(stage.name)  # again: it may have been removed during the run
