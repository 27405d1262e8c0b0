"""Strategies of M3FS and maximum margin clustering: a search on all rows, or on a sample."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.blocks.rowblocks import gather_rows, gather_steps, moments_step
from bigfs.config import Selection
from bigfs.config.sections import GraphConfig, SpectralConfig
from bigfs.core.cost import Shape, StageCost, Step, pass_over, product_seconds
from bigfs.core.memory import task_budget
from bigfs.core.seeds import rng
from bigfs.core.units import MIB
from bigfs.graph.affinity import default_sigma
from bigfs.runtime.scope import worker_slots
from bigfs.selectors.m3fs import MAX_CLUSTERS, M3FSParameters, MarginParameters, starts
from bigfs.selectors.m3fs.form import (
    check_full,
    full_form,
    full_steps,
    smooth_form,
    smooth_steps,
    uncentered_form,
)
from bigfs.selectors.m3fs.rounds import (
    Rounds,
    Settings,
    Trajectory,
    label_rows,
    run_starts,
    uncentered,
)
from bigfs.selectors.method import Strategy
from bigfs.selectors.scoring import checked_labels, stages_of_selection, start_of
from bigfs.spectral.choice import largest_count
from bigfs.stages.engine import Engine, TemporaryStages
from bigfs.stages.scores import FeatureScores
from bigfs.stages.stage import Inputs
from bigfs.store.scratch import ArrayRef, Scratch, block_rows

logger = logging.getLogger("bigfs")

# Number of planes that a task may hold at once, for the memory plan; each takes a byte per row.
_PLANES = 200
# Number of planes per start that processes cache between rounds; others are read again.
_KEPT_PLANES = 64
# A cluster with fewer rows than this share of the mean cluster size is considered empty.
_TINY = 0.1
# Decimals of the weights: the gap of the solver supports no more, and after rounding, equal columns
# have equal weights.
_DECIMALS = 6


def choose(shape: Shape, selection: Selection) -> MarginSearch | SampledRows:
    """Return the strategy: on a sample if one is requested, otherwise on all rows.

    Raises
    ------
    InputError
        If the complete graph is requested with other than heat weights.
    MemoryLimitError
        If the complete graph is requested and there are too many rows.
    """
    parameters = selection.parameters
    if parameters.sample_size is not None:
        return SampledRows(shape, selection)
    if parameters.graph == "full" and parameters.smoothness:
        check_full(shape.n_samples, selection.used_graph.weight)
    return MarginSearch(shape, selection, parameters, selection.n_features_to_select)


def round_bytes(shape: Shape, n_columns: int) -> int:
    """Return the bytes of a task in a pass: a block with its planes."""
    # A block and its copy while it is read, decision values, planes and their weights.
    per_row = 2 * shape.n_features * shape.itemsize + 32 * n_columns + _PLANES
    return shape.rows * per_row + 48 * 10**6


def program_bytes(n_rows_of_v: int, n_columns: int, smooth: bool) -> int:
    """Return the bytes of a cone program: dozens of planes, and the matrices of the smoothness.

    If all features are active there are five such matrices: the given one, its double, and three
    of a solver step, or only one of a step if V has one column. If few features are active, the
    given matrix dominates.
    """
    planes = 8 * 64 * n_rows_of_v * n_columns
    matrices = 3 if n_columns == 1 else 5
    return 4 * planes + (8 * matrices * n_rows_of_v**2 if smooth else 0) + 16 * MIB


# Measured: products of the size of V per round, for planes and cone program together.
_PRODUCTS = 200


@dataclass(frozen=True)
class MarginSearch(Strategy):
    """Search for large-margin clusters on all rows: runs several starts and chooses one."""

    # Not always the section of the method: maximum margin clustering derives these from its own.
    margin: M3FSParameters
    n_selected: int  # m, the sum of sigma

    @property
    def _size(self) -> tuple[int, int]:
        """D and P of V; upper bounds if the number of clusters is "auto"."""
        n_clusters = largest_count(self.margin.n_clusters)
        n_rows_of_v = self.shape.n_features + self.margin.fit_intercept
        return n_rows_of_v, 1 if n_clusters == 2 else n_clusters

    @property
    def _most_run(self) -> int:
        """Upper bound of the number of starts to run: all, if "auto" may find two clusters."""
        n_rows_of_v, n_columns = self._size
        size = n_rows_of_v, 1 if isinstance(self.margin.n_clusters, str) else n_columns
        return starts.starts_to_run(starts.most_starts(self.margin), size, self.margin.criterion)

    def cost(self) -> StageCost:
        """Return the cost of the starts, of at most ``max_iter`` rounds each, and of the choice."""
        shape, parameters = self.shape, self.margin
        n, n_starts, n_run = shape.n_samples, starts.most_starts(parameters), self._most_run
        steps = [moments_step(shape), *starts.start_steps(shape, parameters)]
        if parameters.smoothness and parameters.graph == "full":
            steps += full_steps(shape)
        elif parameters.smoothness:
            steps += smooth_steps(shape, self.selection.used_graph.n_neighbors)
        steps = [replace(step, before_kept=True) for step in steps]
        steps += self._round_steps(n_run)
        if n_run < n_starts:
            steps += starts.choice_steps(shape, n_starts)
        if parameters.criterion == "likelihood":
            steps += starts.choice_steps(shape, n_run)
        steps.append(Step("the labels of a block", 16 * shape.rows * n_starts, shape.n_blocks))
        # Clusters and planes of many rounds, stored as bits if there are two clusters.
        kept_of_rows = 60 * n * largest_count(parameters.n_clusters)
        stored = n * (4 + n_run)
        scratch = stored + n * 6 * n_starts + kept_of_rows
        return StageCost(tuple(steps), scratch, stored, self._kept_bytes, at_most=True)

    @property
    def _kept_bytes(self) -> int:
        """Bytes of X and of planes that processes cache between rounds, if there is room."""
        return self.shape.nbytes + _KEPT_PLANES * self.shape.n_samples * self._most_run

    def _round_steps(self, n_run: int) -> tuple[Step, ...]:
        """Return the steps of the rounds, and of the pass that writes the final labels."""
        shape, rounds = self.shape, self.margin.max_iter + 1
        program = program_bytes(*self._size, self.margin.smoothness > 0)
        block = round_bytes(shape, self._size[1])
        written = pass_over(shape, "a block and its labels", 16 * shape.rows * n_run)
        n_rows_of_v, n_columns = self._size
        seconds = product_seconds(shape.n_samples, n_rows_of_v, n_columns)
        seconds += product_seconds(_PRODUCTS, n_rows_of_v, n_rows_of_v, n_columns)
        what = f"a cone program of {n_rows_of_v:,} x {n_columns} unknowns"
        # The first pass comes before the first program.
        solved = Step(what, program, n_run, 0, 2 * n_run, rounds - 1)
        what, requests = f"a block of {shape.rows:,} rows with its planes", 3 * shape.n_chunks
        seconds *= n_run  # reading is not counted: processes cache their rows
        drawn = Step(what, block, shape.n_blocks, 1, requests, rounds, seconds=seconds)
        return solved, drawn, written

    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return sigma of the chosen start; details are the attributes of `M3FS`."""
        blocks, checkpoint, parameters = inputs.blocks, inputs.checkpoint, self.margin
        n, before = blocks.n_samples, blocks.passes
        n_clusters, eigengap = inputs.n_clusters(parameters.n_clusters)
        n_columns = 1 if n_clusters == 2 else n_clusters
        # The parameters are sent to tasks, and init may be a large array of labels.
        of_rounds = parameters.model_copy(update={"init": None})
        settings = Settings(of_rounds, n_columns, self.n_selected, blocks.n_features)
        folder = Scratch(checkpoint) if checkpoint else blocks.scratch.child(out.unique("rounds"))
        means = blocks.moments().mean.astype(blocks.dtype)
        center = folder.put(folder.unique("center"), means)
        smooth = self._smoothness(inputs, settings, center)
        names, labels = self._starts(inputs, settings, n_clusters, folder)
        clusters = out.create("start_labels", (n, len(names)), np.uint8, blocks.rows)
        rounds = self._rounds(blocks, settings, labels, center, smooth, folder)
        states = run_starts(blocks, rounds, checkpoint / "state.npz" if checkpoint else None)
        points = np.array([uncentered(state.V, means) for state in states])
        hinges = label_rows(blocks, points, clusters)
        likelihoods = None
        if parameters.criterion == "likelihood":
            likelihoods = starts.likelihoods(blocks, clusters, self.selection.random_state)
        chosen = _chosen_start(states, parameters.C, likelihoods)
        final = out.create("labels", (n,), np.int32, blocks.rows)
        starts.write_starts(blocks, clusters, [chosen], final)
        of_starts = [
            {
                "start": name,
                "loss": hinge / n,
                "likelihood": None if likelihoods is None else float(likelihoods[state.number]),
                "sizes": [int(size) for size in state.sizes],
                **_common_details(state),
            }
            for state, name, hinge in zip(states, names, hinges, strict=True)
        ]
        if not checkpoint:
            folder.close()
        return FeatureScores.from_scores(
            np.round(states[chosen].sigma, _DECIMALS),
            constant=blocks.moments().constant,
            **_details_of(states[chosen], points[chosen], settings, smooth, hinges[chosen] / n),
            starts=of_starts,
            chosen_start=names[chosen],
            labels=final,
            start_labels=clusters,
            sigma=self._width(inputs),
            n_passes=blocks.passes - before,
            **eigengap,
        )

    def _starts(
        self, inputs: Inputs, settings: Settings, n_clusters: int, folder: Scratch
    ) -> tuple[list[str], ArrayRef]:
        """Return the names and the labels of the starts that are run to convergence."""
        blocks, parameters, seed = inputs.blocks, self.margin, self.selection.random_state
        start = start_of(
            self.selection, blocks.n_samples, blocks.source.dropped, blocks.source.row_dimensions
        )
        spectral = inputs.spectral if isinstance(start, str) and start != "kmeans" else None
        names, labels = starts.start_labels(
            blocks, n_clusters, start, parameters.n_init, seed, spectral, folder
        )
        size = settings.n_rows_of_v, settings.n_columns
        n_run = starts.starts_to_run(len(names), size, parameters.criterion)
        if n_run < len(names):
            kept = starts.likeliest(starts.likelihoods(blocks, labels, seed), n_run)
            labels = starts.kept_starts(blocks, labels, kept, folder)
            names = [names[number] for number in kept]
        return names, labels

    def _rounds(
        self,
        blocks: RowBlocks,
        settings: Settings,
        labels: ArrayRef,
        center: ArrayRef,
        smooth: np.ndarray | None,
        folder: Scratch,
    ) -> Rounds:
        """Return the data that the tasks of all rounds share, stored where they can read it."""
        mean, has_intercept = blocks.moments().mean, settings.parameters.fit_intercept
        mean = np.append(mean - center.load(), 1.0) if has_intercept else mean
        _, n_threads = worker_slots()
        budget = task_budget(self.selection.memory_limit)
        budget -= n_threads * round_bytes(self.shape, settings.n_columns)
        budget = min(budget, self._kept_bytes)
        keeps = f"m3fs-{uuid.uuid4().hex[:8]}", max(0, budget)
        means = folder.put(folder.unique("mean"), mean)
        form = None if smooth is None else folder.put(folder.unique("smooth"), smooth)
        subtracted = center if has_intercept else None
        return Rounds(settings, labels, str(folder.path), subtracted, means, form, keeps)

    def _width(self, inputs: Inputs) -> float | None:
        """Return the width shared by all heat weights; None if there is none."""
        if "graph" not in inputs.finished:
            return None
        given = inputs.affinity.sigma_
        if given is None and self.margin.graph == "full" and self.margin.smoothness:
            return default_sigma(inputs.graph)
        return given

    def _smoothness(
        self, inputs: Inputs, settings: Settings, center: ArrayRef
    ) -> np.ndarray | None:
        """Return smoothness times the quadratic form of the graph; None if smoothness is 0."""
        if settings.parameters.smoothness == 0:
            return None
        if self.margin.graph == "full":
            width = self._width(inputs)
            assert width is not None
            form = full_form(inputs.blocks, width, center)
        else:
            form = smooth_form(inputs.blocks, inputs.affinity, center)
        if not settings.parameters.fit_intercept:
            form = uncentered_form(form, center.load())
        D = settings.n_rows_of_v
        return np.ascontiguousarray(settings.parameters.smoothness * form[:D, :D])


def _chosen_start(states: list[Trajectory], C: float, likelihoods: np.ndarray | None) -> int:
    """Return the number of the chosen start.

    Among the starts that converged and kept all their clusters (or among all, if there are none),
    it is the one with the highest likelihood, or without likelihoods with the smallest objective.
    """
    acceptable = [s for s in states if s.converged and s.sizes.min() >= _TINY * s.sizes.mean()]

    def order(state: Trajectory) -> tuple[float, float, int]:
        described = (
            0.0 if likelihoods is None else round(float(likelihoods[state.number]), starts.DIGITS)
        )
        # Relative to C, which has the unit of the objective.
        return -described, round(state.objective / C, starts.DIGITS), state.number

    return min(acceptable or states, key=order).number


def _common_details(state: Trajectory) -> dict[str, Any]:
    """Return the details that are reported both for every start and for the chosen one."""
    return {
        "objective": state.objective,
        "slack": state.slack,
        "n_planes": state.n_planes,
        "n_cccp_steps": state.n_steps,
        "n_iter": state.n_rounds,
        "converged": bool(state.converged),
    }


def _details_of(
    state: Trajectory,
    rule: np.ndarray,
    settings: Settings,
    smooth: np.ndarray | None,
    loss: float,
) -> dict[str, Any]:
    """Return the details of the chosen start; ``rule`` is its `uncentered` V."""
    d, V, history = settings.n_features, state.V, np.array(state.history)
    n_empty = int((state.sizes == 0).sum())
    if n_empty:
        logger.warning(
            "%d of %d clusters are empty. Increase C, relax balance, or use another init.",
            n_empty,
            len(state.sizes),
        )
    return {
        **_common_details(state),
        "coef": np.ascontiguousarray(rule[:d]),
        "intercept": rule[d].copy() if len(rule) > d else np.zeros(settings.n_columns),
        "objective_history": history[:, 0],
        "violation_history": history[:, 1],
        "violation": loss - state.slack,
        "smoothness_term": 0.0 if smooth is None else float(np.vdot(V, smooth @ V)),
        "gap": state.gap,
    }


def choose_clustering(shape: Shape, selection: Selection) -> Strategy:
    """Return the strategy of maximum margin clustering, on a sample if one is requested."""
    sampled = selection.parameters.sample_size is not None
    return (SampledRows if sampled else NormsOfRule)(shape, selection)


class NormsOfRule(Strategy):
    """Cluster search of M3FS; the score of a feature is the norm of its coefficients."""

    @property
    def search(self) -> MarginSearch:
        """The search of M3FS with every weight fixed at 1."""
        shared = {name: getattr(self.parameters, name) for name in MarginParameters.model_fields}
        parameters = M3FSParameters(**shared, smoothness=0.0, criterion="objective")
        n_features = self.shape.n_features
        return MarginSearch(self.shape, self.selection, parameters, n_features)

    def cost(self) -> StageCost:
        """Return the cost of the search."""
        return self.search.cost()

    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return the norms; details are the attributes of `MaximumMarginClustering`."""
        result = self.search.run(inputs, out)
        norms = np.linalg.norm(result.details["coef"], axis=1)
        return FeatureScores.from_scores(norms, constant=result.constant, **result.details)


class SampledRows(Strategy):
    """Run all stages of the method on random rows; one pass then labels all rows by the rule.

    The method is M3FS or maximum margin clustering, with a ``sample_size``.
    """

    def cost(self) -> StageCost:
        """Return the cost of drawing the rows, of the sample's stages and of the labels."""
        n, sample = self.shape.n_samples, self._shape_of_sample()
        stages = stages_of_selection(self._selection())
        known = [cost for s in stages if (cost := s.choose(sample).cost()) is not None]
        steps = [step for cost in known for step in cost.steps]
        scratch, size = sum(cost.scratch_bytes for cost in known), sample.n_samples
        if size < n:
            of_sample = [replace(step, passes=0) for step in steps]  # these steps do not read X
            drawn = Step(f"{size:,} row numbers", 16 * n, by_client=True)
            steps = [*gather_steps(self.shape, size), drawn, *of_sample]
            scratch += 2 * sample.nbytes
        columns = largest_count(self.parameters.n_clusters)
        needed = 8 * self.shape.rows * (columns + 2) + 16 * MIB
        steps.append(pass_over(self.shape, "a block and its labels", needed))
        # The result stage of the sample stores the labels of every start.
        stored = 4 * n + known[-1].stored_bytes
        return StageCost(
            tuple(steps),
            scratch + stored,
            stored,
            max(cost.keeps_bytes for cost in known),
            any(cost.compiles for cost in known),
            tuple(dict.fromkeys(name for cost in known for name in cost.loads)),
            at_most=True,
        )

    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return the scores; the details are those of the method on all rows."""
        blocks, before = inputs.blocks, inputs.blocks.passes
        n, size = blocks.n_samples, self.parameters.sample_size
        scratch = blocks.scratch.child(blocks.scratch.unique("sample"))
        ids, rows = np.arange(n), blocks
        if size < n:
            draw = rng(self.selection.random_state, "m3fs rows").choice(n, size, replace=False)
            ids = np.sort(draw)
            sample = gather_rows(blocks, ids, "m3fs sample")
            rows = RowBlocks.from_any(sample.path, scratch=scratch)
        stages = stages_of_selection(self._selection(ids, blocks.source))
        finished = Engine(TemporaryStages(scratch.child("stages")), rows).run(stages)
        result = FeatureScores.open(finished["result"])
        details: dict[str, Any] = {**result.details}
        labels = out.create("labels", (n,), np.int32, blocks.rows)
        label_rows(blocks, np.vstack([details["coef"], details["intercept"]])[None], labels)
        details["labels"] = labels
        details["start_labels"] = out.put("start_labels", details["start_labels"].load())
        details["n_passes"] = blocks.passes - before
        scratch.close()
        if rows is not blocks:
            blocks.scratch.remove(sample)
        return replace(result, details=details)

    def _shape_of_sample(self) -> Shape:
        """Return the shape of the sampled rows, which are stored as a single chunk."""
        size, shape = self.parameters.sample_size, self.shape
        if size == shape.n_samples:
            return shape
        rows = block_rows(shape.n_features, shape.itemsize, size)
        return Shape(size, shape.n_features, shape.itemsize, rows, size)

    def _selection(self, ids: np.ndarray | None = None, source: Any = None) -> Selection:
        """Return the selection for the sampled rows; with ``ids``, including their start labels."""
        selection, parameters = self.selection, self.parameters
        changes: dict[str, Any] = {"sample_size": None}
        graph = selection.graph or GraphConfig()
        n_neighbors = min(graph.n_neighbors, parameters.sample_size - 1)
        if ids is not None:
            places = source.dropped, source.row_dimensions
            start = start_of(selection, self.shape.n_samples, *places)
            if not isinstance(start, str):
                auto = isinstance(parameters.n_clusters, str)
                largest = MAX_CLUSTERS if auto else parameters.n_clusters
                changes["init"] = checked_labels(start, self.shape.n_samples, largest)[ids]
        return selection.with_parameters(**changes).model_copy(
            update={
                "graph": graph.model_copy(update={"n_neighbors": n_neighbors}),
                "spectral": selection.spectral or SpectralConfig(),
            }
        )
