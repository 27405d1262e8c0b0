"""Variances: one pass, whatever the data."""

from __future__ import annotations

from bigfs.blocks.rowblocks import moments_step
from bigfs.config import Selection
from bigfs.core.cost import Shape, StageCost
from bigfs.selectors.method import Strategy
from bigfs.stages.scores import FeatureScores
from bigfs.stages.stage import Inputs
from bigfs.store.scratch import Scratch


def choose(shape: Shape, selection: Selection) -> Variances:
    """Return the only strategy."""
    return Variances(shape, selection)


class Variances(Strategy):
    """The variance of every feature, from one pass."""

    def cost(self) -> StageCost:
        """Return the cost of the pass."""
        return StageCost((moments_step(self.shape),))

    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return the variances."""
        moments = inputs.blocks.moments()
        return FeatureScores.from_scores(moments.variance, constant=moments.constant)
