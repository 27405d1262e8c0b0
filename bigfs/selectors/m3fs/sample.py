"""Learning on a sample of the rows: its own stages, then a label for every row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.blocks.sample import gather_rows, gather_steps
from bigfs.config import Selection
from bigfs.config.sections import GraphConfig, SpectralConfig
from bigfs.core.cost import Shape, StageCost, Step, pass_over
from bigfs.core.seeds import rng
from bigfs.core.units import MIB
from bigfs.selectors.m3fs import MAX_CLUSTERS
from bigfs.selectors.m3fs.kernels import clusters_of, decisions
from bigfs.selectors.m3fs.passes import read_arrays, write_arrays
from bigfs.selectors.m3fs.starts import given_labels
from bigfs.selectors.method import Strategy
from bigfs.selectors.stages import stages_of_selection, start_of
from bigfs.spectral.choice import largest_count
from bigfs.stages.engine import Engine, TemporaryStages
from bigfs.stages.scores import FeatureScores
from bigfs.stages.stage import Inputs
from bigfs.store.chunking import block_rows
from bigfs.store.scratch import ArrayRef, Scratch


class SampledRows(Strategy):
    """The stages of the method on rows drawn at random; the rule labels all rows in one pass.

    The method is M3FS or maximum margin clustering, with a ``sample_size``.
    """

    def cost(self) -> StageCost:
        """Return the cost of the draw, of the sample's stages and of the labels."""
        n, sample = self.shape.n_samples, self._shape_of_sample()
        costs = [stage.choose(sample).cost() for stage in stages_of_selection(self._selection())]
        known = [cost for cost in costs if cost is not None]
        steps = [step for cost in known for step in cost.steps]
        scratch, size = sum(cost.scratch_bytes for cost in known), sample.n_samples
        if size < n:
            drawn = Step(f"{size:,} row numbers", 16 * n, by_client=True)
            steps = [*gather_steps(self.shape, size), drawn, *_off_x(steps)]
            scratch += 2 * sample.nbytes
        columns = largest_count(self.parameters.n_clusters)
        needed = 8 * self.shape.rows * (columns + 2) + 16 * MIB
        steps.append(pass_over(self.shape, "a block and its labels", needed))
        # What the result stage of the sample stores is the labels under every start.
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
        """Return the scores; details as those of the method on all rows."""
        blocks, before = inputs.blocks, inputs.blocks.passes
        n, size = blocks.n_samples, self.parameters.sample_size
        scratch = blocks.scratch.child(blocks.scratch.unique("sample"))
        ids, rows = np.arange(n), blocks
        if size < n:
            draw = rng(self.selection.random_state, "m3fs rows").choice(n, size, replace=False)
            ids = np.sort(draw)
            sample = gather_rows(blocks, ids, "m3fs sample")
            rows = RowBlocks.from_any(sample.path, scratch=scratch)
        stages = stages_of_selection(self._selection(ids, blocks.source.dropped))
        finished = Engine(TemporaryStages(scratch.child("stages")), rows).run(stages)
        result = FeatureScores.open(finished["result"])
        details: dict[str, Any] = {**result.details}
        labels = out.create("labels", (n,), np.int32, blocks.rows)
        label_rows(blocks, details["coef"], details["intercept"], labels)
        details["labels"] = labels
        details["start_labels"] = out.put("start_labels", details["start_labels"].load())
        details["n_passes"] = blocks.passes - before
        scratch.close()
        if rows is not blocks:
            blocks.scratch.remove(sample)
        return replace(result, details=details)

    def _shape_of_sample(self) -> Shape:
        """Return the shape of the sampled rows, which are stored as one chunk."""
        size, shape = self.parameters.sample_size, self.shape
        if size == shape.n_samples:
            return shape
        rows = block_rows(shape.n_features, shape.itemsize, size)
        return Shape(size, shape.n_features, shape.itemsize, rows, size)

    def _selection(self, ids: np.ndarray | None = None, dropped: Sequence[int] = ()) -> Selection:
        """Return the selection for the sampled rows; with ``ids``, with their labels to start."""
        selection, parameters = self.selection, self.parameters
        changes: dict[str, Any] = {"sample_size": None}
        graph = selection.graph or GraphConfig()
        n_neighbors = min(graph.n_neighbors, parameters.sample_size - 1)
        if ids is not None:
            start = start_of(selection, self.shape.n_samples, dropped)
            if not isinstance(start, str):
                auto = isinstance(parameters.n_clusters, str)
                largest = MAX_CLUSTERS if auto else parameters.n_clusters
                changes["init"] = given_labels(start, self.shape.n_samples, largest)[ids]
        return selection.with_parameters(**changes).model_copy(
            update={
                "graph": graph.model_copy(update={"n_neighbors": n_neighbors}),
                "spectral": selection.spectral or SpectralConfig(),
            }
        )


def _off_x(steps: Iterable[Step]) -> list[Step]:
    """Return steps that read a sample, not X."""
    return [replace(step, passes=0) for step in steps]


def label_rows(blocks: RowBlocks, coef: np.ndarray, intercept: np.ndarray, out: ArrayRef) -> None:
    """Write the cluster of every row: one pass."""
    folder = blocks.scratch.child(blocks.scratch.unique("model"))
    shared = write_arrays(folder.path / "model.npz", V=np.vstack([coef, intercept]))
    blocks.map_blocks(_label_kernel, shared, out, label="labels")
    folder.close()


def _label_kernel(X: np.ndarray, first_row: int, shared: str, out: ArrayRef) -> None:
    F = decisions(X, read_arrays(shared)["V"])
    out.write(first_row, clusters_of(F).astype(np.int32))
