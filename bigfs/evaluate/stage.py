"""The evaluation stage, and the list of all stages of a pipeline."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.blocks.rowblocks import gram_step, moments_step
from bigfs.config import Config
from bigfs.config.sections import Auto, EvaluateConfig
from bigfs.core.cost import (
    Shape,
    StageCost,
    Step,
    loop_seconds,
    pass_over,
    product_seconds,
    read_seconds,
)
from bigfs.core.memory import task_budget
from bigfs.core.units import MIB
from bigfs.evaluate import selection
from bigfs.evaluate.protocols import Protocol, are_many
from bigfs.runtime.execute import at_most_at_once
from bigfs.selectors.curves import curves_stage
from bigfs.selectors.registry import METHODS
from bigfs.selectors.scoring import (
    check_settings,
    content_of_labels,
    stages_of_selection,
    start_of,
)
from bigfs.selectors.stability.fits import check_stability, stability_stage
from bigfs.stages.curves import selected_features
from bigfs.stages.stage import Inputs, Stage, unplanned_stage
from bigfs.store.csr import is_large
from bigfs.store.labels import load_labels
from bigfs.store.location import is_remote
from bigfs.store.scratch import Scratch

# For the estimate of processor time: seconds for imports, passes for components and correlations,
# iterations of k-means, and number of clusters if it is not given.
_LOADING_SECONDS, _PASSES, _LLOYD, _CLUSTERS = 1.5, 5, 8, 10


def stages_of(config: Config) -> list[Stage]:
    """Return the stages of a pipeline that follow the data stage, in order."""
    stages, fits, quick = [], None, config.quick
    if not quick:
        stages += stages_of_selection(config, remote=is_remote(config.run))
    if config.stability is not None:
        fits = stability_stage(config, config.stability, quick=quick)
        stages.append(fits)
    if isinstance(config.n_features_to_select, Auto) or config.curves:
        stages.append(curves_stage(config, fits, quick=quick))
    if config.evaluate is not None:
        # The evaluation compares the selection, and all features, with known labels.
        depends = {**config.evaluate.model_dump(), "random_state": config.random_state}
        depends |= content_of_labels(config.evaluate.labels)
        choose = partial(Evaluation, config=config, settings=config.evaluate)
        stages.append(Stage("evaluation", 7, depends, choose, sparse=True))
    return stages


def check_shape(config: Config, n_samples: int | None, n_features: int) -> None:
    """Raise InputError for settings that the shape of the data does not allow.

    Parameters
    ----------
    config : Config
    n_samples : int or None
        None if it is not known yet.
    n_features : int
    """
    check_settings(config, n_samples, n_features)
    if config.stability is not None:
        check_stability(config, config.stability, n_samples, n_features, quick=config.quick)


def check_labels(
    config: Config,
    n_samples: int | None,
    dropped: Sequence[int] = (),
    rows: Mapping[str, int] = MappingProxyType({}),
) -> np.ndarray | None:
    """Return the labels to evaluate by, or None; check these and the labels to start from.

    Parameters
    ----------
    config : Config
    n_samples : int or None
        Expected number of labels. None if it is not known yet.
    dropped : sequence of int, default=()
        Rows that were left out; they are removed from labels that cover all rows.
    rows : mapping of str to int, optional
        Names and sizes of the dimensions of the rows, as in `load_labels`.

    Raises
    ------
    InputError
        If labels cannot be read or do not match the rows.
    """
    start_of(config, n_samples, dropped, rows)
    if config.evaluate is None or config.evaluate.labels is None:
        return None
    # Templates evaluate by the labels of their own data, which other data do not have.
    otherwise = ", or omit the evaluation (--set evaluate=null)"
    labels = config.evaluate.labels
    return load_labels(labels, n_samples, dropped, otherwise, to_judge_by=True, rows=rows)


def judging_stage(
    blocks: RowBlocks,
    selections: Sequence[np.ndarray],
    y: np.ndarray | None,
    protocol: Protocol | None,
    memory_limit: int,
) -> Stage:
    """Return a stage without cost that runs `measure_selections`; equal selections share a key."""
    columns = [None if len(s) == blocks.n_features else s for s in selections]
    judged = [None if s is None else s.tolist() for s in columns]
    settings: dict[str, Any] = {} if protocol is None else dict(vars(protocol))
    if y is not None:
        settings["classes"] = hashlib.sha256(np.ascontiguousarray(y).tobytes()).hexdigest()[:16]
    settings |= {
        "selected": judged if len(judged) > 1 else judged[0],
        "preprocess": blocks.transform.kind,
        "rows": blocks.rows,
    }

    shape = selection.dense_columns(blocks.layout, len(selections[0]))
    n_components = None if protocol is None else protocol.n_components
    needed = selection.draw_bytes(shape, n_components, memory_limit)
    at_once = max(1, task_budget(memory_limit) // needed)

    def measure(inputs: Inputs, out: Scratch) -> None:
        with at_most_at_once(at_once):
            figures = selection.measure_selections(
                inputs.blocks, y, columns, protocol, memory_limit
            )
        out.describe(**figures)

    return unplanned_stage("evaluation", 4, settings, measure, sparse=True)


def judged_blocks(blocks: RowBlocks, method: str) -> RowBlocks:
    """Return the data to evaluate selections on: raw counts for a method are normalized."""
    raw = METHODS[method].raw_counts and blocks.transform.kind == "none"
    source = blocks.source
    if not (raw and source.holds_counts()):
        return blocks
    return blocks.transformed("normalize_log1p")


@dataclass(frozen=True)
class Evaluation:
    """Strategy of the evaluation stage: in memory if rows fit a task, otherwise by blocks."""

    shape: Shape
    config: Config
    settings: EvaluateConfig

    def cost(self) -> StageCost:
        """Return the cost of evaluating the selected, the random and all columns."""
        shape, settings, limit = self.shape, self.settings, self.config.memory_limit
        number, n_components = self.config.n_features_to_select, settings.n_components
        n_selected = number.at_most if isinstance(number, Auto) else number
        columns = selection.dense_columns(shape, min(n_selected, shape.n_features))
        steps = [pass_over(shape, "a block and its selected columns", columns.block_bytes)]
        drawn = selection.chance_columns(shape, columns.n_features)
        if drawn is not None:
            what = "a block and the columns of a random selection"
            # The columns of the selections are extracted from a block and written one by one.
            steps += [moments_step(shape), pass_over(shape, what, 2 * columns.block_bytes)]
            needed = selection.draw_bytes(columns, n_components, limit)
            if needed <= task_budget(limit):
                draws = selection.N_DRAWS
                steps.append(Step("columns of a random selection", needed, draws, 0, draws))
        for features in (columns, shape):
            part, passes = features, int(features is shape)
            if n_components is not None and are_many(part.n_features, n_components):
                of_part, part = selection.component_steps(part, n_components, limit)
                steps, passes = [*steps, *of_part], 0
            elif part.n_entries is not None:
                if is_large(part):
                    continue
                part = selection.dense_columns(part, part.n_features)
            if selection.in_memory_bytes(part) <= task_budget(limit):
                what = f"{part.n_samples:,} rows x {part.n_features:,} features in memory"
                tasks = 1 + settings.n_repetitions + 16 * settings.nearest_neighbor
                needed = selection.in_memory_bytes(part) + selection.JUDGING_BYTES
                steps.append(Step(what, needed, tasks, passes, tasks, 1))
            else:
                what = "blocks and their nearest centers"
                times = 10 * settings.n_repetitions
                # Dask keeps a block until all tasks that read it are done, and reads others
                # meanwhile.
                needed = 128 * MIB + 3 * part.block_bytes
                steps.append(pass_over(part, what, needed, times=times))
                steps.append(gram_step(part, 0, "correlations"))
        # A single estimate for all steps, since the passes of k-means are only upper bounds.
        first, *others = (replace(step, seconds=0.0) for step in steps)
        first = replace(first, seconds=self._seconds(columns, drawn is not None))
        return StageCost(
            (first, *others),
            columns.nbytes + (0 if drawn is None else drawn.nbytes),
            0,
            loads=("bigfs.evaluate.protocols", "scipy.optimize", "sklearn.cluster"),
            at_most=True,
        )

    def _seconds(self, columns: Shape, draws: bool) -> float:
        """Return the estimated seconds of all evaluations and imports."""
        repetitions = self.settings.n_repetitions
        seconds = _LOADING_SECONDS + self._judging_seconds(columns, repetitions)
        seconds += self._judging_seconds(self.shape, repetitions)
        if draws:
            each = -(-repetitions // selection.N_DRAWS)
            seconds += selection.N_DRAWS * self._judging_seconds(columns, each)
        return seconds

    def _judging_seconds(self, part: Shape, repetitions: int) -> float:
        """Return the estimated seconds to evaluate columns: components, k-means, neighbors."""
        settings, n = self.settings, part.n_samples
        width, seconds = part.n_features, read_seconds(part)
        if settings.n_components is not None and are_many(width, settings.n_components):
            width = min(settings.n_components, n)
            seconds += _PASSES * (read_seconds(part) + product_seconds(part.n_values, width))
        clusters = (settings.n_clusters or _CLUSTERS) * settings.n_init
        seconds += loop_seconds(repetitions, _LLOYD, n, width, clusters)
        # Nearest rows are found by products in float32, few of which are recomputed.
        return seconds + settings.nearest_neighbor * product_seconds(n, n, width / 4)

    def run(self, inputs: Inputs, out: Scratch) -> None:
        """Store the scores of the selected columns, of all columns, and of random ones."""
        blocks = judged_blocks(inputs.blocks, self.config.method)
        selected = selected_features(inputs.finished)
        figures = selection.compare_with_all(blocks, selected, self.settings, self.config)
        out.describe(**figures)
