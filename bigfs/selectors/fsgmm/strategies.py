"""Feature saliency by passes of EM, and the ranking that follows from it."""

from __future__ import annotations

import numpy as np

from bigfs.blocks.rowblocks import moments_step
from bigfs.config import Selection
from bigfs.core.cost import Shape, StageCost, Step, loop_seconds, pass_over
from bigfs.core.errors import InputError
from bigfs.selectors.fsgmm.iteration import (
    MixtureState,
    VaryingColumns,
    begin,
    expectation_bytes,
    fit,
    maximization_bytes,
    resumed,
    write_labels,
)
from bigfs.selectors.method import Strategy
from bigfs.solvers.saliency import information
from bigfs.stages.scores import FeatureScores, rank
from bigfs.stages.stage import Inputs
from bigfs.store.scratch import ArrayRef, Scratch

# Measured: steps of a loop for a value and a component.
_LOOPS = 8


def choose(shape: Shape, selection: Selection) -> MixtureFit:
    """Return the only strategy."""
    return MixtureFit(shape, selection)


class MixtureFit(Strategy):
    """A pass over X for every step of EM, and one for the labels."""

    def cost(self) -> StageCost:
        """Return the cost of the moments, of at most ``max_iter`` steps and of the labels."""
        k, d, n = self.parameters.n_clusters, self.shape.n_features, self.shape.n_samples
        what = f"a block of {self.shape.rows:,} rows and {k} components of {d:,} features"
        times = self.parameters.max_iter
        steps = (
            moments_step(self.shape),
            Step(f"{k} rows to start from", 32 * k * d, 1, 0, k),
            pass_over(
                self.shape,
                what,
                expectation_bytes(k, d),
                times=times + 1,
                seconds=loop_seconds(n, d, k, _LOOPS),
            ),  # fmt: skip
            Step(
                f"{k} components of {d:,} features",
                maximization_bytes(k, d),
                times=times,
                by_client=True,
            ),
        )
        return StageCost(steps, 4 * n, 4 * n, at_most=True)

    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return saliencies; constant features get 0 and rank last; see `FSGMM`."""
        blocks, checkpoint = inputs.blocks, inputs.checkpoint
        folder = blocks.scratch.child(blocks.scratch.unique("mixtures"))
        labels = out.create("labels", (blocks.n_samples,), np.int32, blocks.rows)
        moments = blocks.moments()
        kept = np.flatnonzero(moments.maximum > moments.minimum)
        if not len(kept):
            raise InputError(
                f"{blocks.source.uri}: all {blocks.n_features} features are constant. They "
                "cannot distinguish clusters."
            )
        scaling = np.stack([moments.mean[kept], 1 / np.sqrt(moments.variance[kept])])
        columns = VaryingColumns(folder.put("kept", kept), folder.put("scaling", scaling))
        file = Scratch(checkpoint).path / "state.npz" if checkpoint else None
        state = resumed(file)
        if state is None:
            state = begin(blocks, columns, self.parameters.n_clusters, self.selection.random_state)
        state = fit(blocks, columns, state, folder, self.parameters, file)
        write_labels(blocks, columns, state.best, folder, labels)
        folder.close()
        return _ranked(state, kept, blocks.n_features, labels)


def _ranked(
    state: MixtureState, kept: np.ndarray, n_features: int, labels: ArrayRef
) -> FeatureScores:
    """Rank by saliency; equal ones, of which many are 0 or 1, by the information of the feature."""
    best = state.best
    scores, divergence = np.zeros(n_features), np.zeros(n_features)
    constant = np.ones(n_features, dtype=bool)
    constant[kept] = False
    scores[kept[best.live]] = best.saliency
    divergence[kept[best.live]] = information(best)
    details = {
        "n_clusters": len(best.weights),
        "n_iter": len(state.lengths),
        "message_length": state.best_length,
        "message_lengths": np.array(state.lengths),
        "sizes": np.array(state.sizes, dtype=np.int64),
        "information": divergence,
        "weights": best.weights,
        "labels": labels,
    }
    ranking = rank(scores, constant, divergence)
    return FeatureScores(scores, ranking, details)
