"""The ways of M3FS: all rows in one task, all rows streamed for all starts, or a sample of them."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.blocks.rowblocks import moments_step
from bigfs.config import Selection
from bigfs.core.cost import Shape, StageCost, Step
from bigfs.core.memory import task_budget
from bigfs.core.units import MIB
from bigfs.graph.affinity import default_sigma
from bigfs.runtime.execute import worker_slots
from bigfs.selectors.m3fs import M3FSParameters
from bigfs.selectors.m3fs.choice import choice_steps, likeliest, likelihoods, starts_to_run
from bigfs.selectors.m3fs.form import check_full, full_form, full_steps, smooth_form, smooth_steps
from bigfs.selectors.m3fs.passes import PlanePasses, round_bytes
from bigfs.selectors.m3fs.planes import (
    program_bytes,
    resident_bytes,
    run_resident,
    run_streamed,
)
from bigfs.selectors.m3fs.result import about_start, chosen_start, details_of, write_labels
from bigfs.selectors.m3fs.sample import SampledRows
from bigfs.selectors.m3fs.starts import kept_starts, most_starts, start_labels, start_steps
from bigfs.selectors.m3fs.state import Settings, Trajectory
from bigfs.selectors.method import Strategy
from bigfs.selectors.stages import start_of
from bigfs.spectral.choice import largest_count
from bigfs.stages.scores import FeatureScores
from bigfs.stages.stage import Inputs
from bigfs.store.location import Location
from bigfs.store.scratch import ArrayRef, Scratch

# Up to so many bytes in float64 all rows of wide data go to every start.
_FEW_BYTES = 256 * MIB

# The ends of all starts, and the sums of their losses.
_Ended = tuple[list[Trajectory], list[float]]


class _Starts(NamedTuple):
    """Data of all starts; settings, column means and quadratic form are those of each."""

    blocks: RowBlocks
    labels: ArrayRef
    clusters: ArrayRef
    problem: tuple[Settings, np.ndarray, np.ndarray | None]
    folder: Location
    checkpoint: Location | None


def choose(shape: Shape, selection: Selection) -> MarginSearch | SampledRows:
    """Return the strategy: on a sample where one is asked for, else on all rows.

    Raises
    ------
    InputError
        If the complete graph is asked for with other weights than it has.
    MemoryLimitError
        If it is asked for and there are too many rows.
    """
    parameters = selection.parameters
    if parameters.sample_size is not None:
        return SampledRows(shape, selection)
    return search_of_all_rows(shape, selection, parameters, selection.n_features_to_select)


def search_of_all_rows(
    shape: Shape, selection: Selection, parameters: M3FSParameters, n_selected: int
) -> MarginSearch:
    """Return the strategy for all rows: in one task each start if they are one block."""
    if parameters.graph == "full" and parameters.smoothness:
        assert selection.graph is not None
        check_full(shape.n_samples, selection.graph.weight)
    resident = ResidentRows(shape, selection, parameters, n_selected)
    if shape.n_blocks == 1 or resident.is_small():
        return resident
    return StreamedRows(shape, selection, parameters, n_selected)


@dataclass(frozen=True)
class MarginSearch(Strategy):
    """Clusters of large margin on all rows: several starts to their ends, and a choice of one."""

    # Not always the section of the method: it may be another one that is made of this.
    margin: M3FSParameters
    n_selected: int  # m, the sum of sigma

    @property
    def _n_columns(self) -> int:
        """P, the columns of V; the most that "auto" makes it."""
        n_clusters = largest_count(self.margin.n_clusters)
        return 1 if n_clusters == 2 else n_clusters

    @property
    def _program_size(self) -> tuple[int, int, bool]:
        """D and P of V, and whether the cone programs have a quadratic form."""
        n_rows_of_v = self.shape.n_features + self.margin.fit_intercept
        return n_rows_of_v, self._n_columns, self.margin.smoothness > 0

    @property
    def _most_run(self) -> int:
        """The most starts that are run to their ends: all, where "auto" may find two clusters."""
        n_columns = 1 if isinstance(self.margin.n_clusters, str) else self._n_columns
        size = self._program_size[0], n_columns
        return starts_to_run(most_starts(self.margin), size, self.margin.criterion)

    @abstractmethod
    def _round_steps(self) -> tuple[Step, ...]:
        """Return the steps from the starts to their ends."""

    @abstractmethod
    def _run_starts(self, starts: _Starts) -> _Ended:
        """Run all starts to their ends, and write where these put every row."""

    @abstractmethod
    def _space(self) -> tuple[int, int]:
        """Return bytes of scratch for what rounds keep of rows, and of X kept in memory."""

    def cost(self) -> StageCost:
        """Return the cost of the starts, of at most ``max_iter`` rounds of each, of the choice."""
        shape, parameters = self.shape, self.margin
        n, n_starts, n_run = shape.n_samples, most_starts(parameters), self._most_run
        steps = [moments_step(shape), *start_steps(shape, parameters)]
        if parameters.smoothness and parameters.graph == "full":
            steps += full_steps(shape)
        elif parameters.smoothness:
            assert self.selection.graph is not None
            steps += smooth_steps(shape, self.selection.graph.n_neighbors)
        steps += self._round_steps()
        if n_run < n_starts:
            steps += choice_steps(shape, n_starts)
        if parameters.criterion == "likelihood":
            steps += choice_steps(shape, n_run)
        steps.append(Step("the labels of a block", 16 * shape.rows * n_starts, shape.n_blocks))
        kept_of_rows, kept_of_x = self._space()
        stored = n * (4 + n_run)
        scratch = stored + n * 6 * n_starts + kept_of_rows
        return StageCost(tuple(steps), scratch, stored, kept_of_x, at_most=True)

    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return sigma of the chosen start; details are the attributes of `M3FS`."""
        blocks, checkpoint, parameters = inputs.blocks, inputs.checkpoint, self.margin
        n, before = blocks.n_samples, blocks.passes
        n_clusters, eigengap = inputs.n_clusters(parameters.n_clusters)
        settings = Settings.of(parameters, n_clusters, self.n_selected, blocks.n_features)
        folder = Scratch(checkpoint) if checkpoint else blocks.scratch.child(out.unique("rounds"))
        mean, smooth = _mean(blocks, settings), self._smoothness(inputs, settings)
        start = start_of(self.selection, n, blocks.source.dropped)
        seed = self.selection.random_state
        spectral = inputs.spectral if isinstance(start, str) and start != "kmeans" else None
        names, labels = start_labels(
            blocks, n_clusters, start, parameters.n_init, seed, spectral, folder
        )
        size = settings.n_rows_of_v, settings.n_columns
        n_run = starts_to_run(len(names), size, parameters.criterion)
        if n_run < len(names):
            kept = likeliest(likelihoods(blocks, labels, seed), n_run)
            labels = kept_starts(blocks, labels, kept, folder)
            names = [names[number] for number in kept]
        clusters = out.create("start_labels", (n, len(names)), np.uint8, blocks.rows)
        problem = (settings, mean, smooth)
        states, hinges = self._run_starts(
            _Starts(blocks, labels, clusters, problem, folder.path, checkpoint)
        )
        likely = None
        if parameters.criterion == "likelihood":
            likely = likelihoods(blocks, clusters, seed)
        chosen = chosen_start(states, likely)
        final = out.create("labels", (n,), np.int32, blocks.rows)
        write_labels(blocks, clusters, chosen, final)
        starts = [
            about_start(state, name, hinge / n, None if likely is None else float(likely[i]))
            for i, (state, name, hinge) in enumerate(zip(states, names, hinges, strict=True))
        ]
        if not checkpoint:
            folder.close()
        return FeatureScores.from_scores(
            states[chosen].sigma,
            constant=blocks.moments().constant,
            **details_of(states[chosen], settings, smooth, hinges[chosen] / n),
            starts=starts,
            chosen_start=names[chosen],
            labels=final,
            start_labels=clusters,
            sigma=self._width(inputs),
            n_passes=blocks.passes - before,
            **eigengap,
        )

    def _width(self, inputs: Inputs) -> float | None:
        """Return the one width of all heat weights; None where every edge has its own."""
        if "graph" not in inputs.finished:
            return None
        given = inputs.affinity.sigma_
        if given is None and self.margin.graph == "full" and self.margin.smoothness:
            return default_sigma(inputs.graph)
        return given

    def _smoothness(self, inputs: Inputs, settings: Settings) -> np.ndarray | None:
        """Return smoothness times the quadratic form of the graph, or None."""
        if settings.smoothness == 0:
            return None
        if self.margin.graph == "full":
            width = self._width(inputs)
            assert width is not None
            form = full_form(inputs.blocks, width)
        else:
            form = smooth_form(inputs.blocks, inputs.affinity)
        D = settings.n_rows_of_v
        return np.ascontiguousarray(settings.smoothness * form[:D, :D])


class ResidentRows(MarginSearch):
    """All rows in each task, one for each start, that reads them once."""

    def is_small(self) -> bool:
        """Say whether wide rows of several blocks fit one task: they are too few to stream."""
        shape = self.shape
        few = shape.n_samples < shape.n_features
        small = few and 8 * shape.n_samples * shape.n_features <= _FEW_BYTES
        return small and self._needed() <= task_budget(self.selection.memory_limit)

    def _needed(self) -> int:
        shape = replace(self.shape, block_rows=self.shape.n_samples)
        return resident_bytes(shape, *self._program_size)

    def _round_steps(self) -> tuple[Step, ...]:
        shape, n_starts = self.shape, self._most_run
        what = f"all {shape.n_samples:,} rows with their planes and a cone program"
        return (Step(what, self._needed(), n_starts, n_starts, n_starts * shape.n_chunks),)

    def _run_starts(self, starts: _Starts) -> _Ended:
        return run_resident(
            starts.blocks, starts.labels, starts.clusters, *starts.problem, starts.folder
        )

    def _space(self) -> tuple[int, int]:
        return 0, 0


class StreamedRows(MarginSearch):
    """All starts in lock-step: their cone programs side by side, then one pass for all."""

    def _round_steps(self) -> tuple[Step, ...]:
        shape, max_iter = self.shape, self.margin.max_iter
        n_starts, size = self._most_run, self._program_size
        what = f"a cone program of {size[0]:,} x {size[1]} unknowns"
        block = f"a block of {shape.rows:,} rows with its planes"
        needed = round_bytes(shape, self._n_columns)
        return (
            Step(what, program_bytes(*size), n_starts, 0, 2 * n_starts, max_iter),
            # The first pass has no program yet, and the last one writes the clusters.
            Step(block, needed, shape.n_blocks, 1, 3 * shape.n_chunks, max_iter + 2),
        )

    def _run_starts(self, starts: _Starts) -> _Ended:
        n_columns, (_, n_threads) = starts.problem[0].n_columns, worker_slots()
        at_once = n_threads * round_bytes(self.shape, n_columns)
        keep_bytes = max(0, task_budget(self.selection.memory_limit) - at_once)
        passes = PlanePasses(
            starts.blocks, starts.labels, starts.folder, n_columns == 1, keep_bytes
        )
        file = starts.checkpoint / "state.npz" if starts.checkpoint else None
        try:
            return run_streamed(passes, starts.clusters, *starts.problem, file)
        finally:
            passes.close()

    def _space(self) -> tuple[int, int]:
        # Clusters and planes of many rounds, in bits where there are two clusters.
        n_clusters = largest_count(self.margin.n_clusters)
        return 60 * self.shape.n_samples * n_clusters, self.shape.nbytes


def _mean(blocks: RowBlocks, settings: Settings) -> np.ndarray:
    """Return the column means of [X 1]."""
    mean = blocks.moments().mean
    return np.append(mean, 1.0) if settings.fit_intercept else mean
