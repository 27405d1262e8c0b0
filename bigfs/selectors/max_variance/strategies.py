"""Variances: one pass, whatever the data; or the sums of a former run, and the new rows."""

from __future__ import annotations

from bigfs.blocks.rowblocks import moments_step
from bigfs.config import Selection
from bigfs.core.cost import Shape, StageCost
from bigfs.selectors.method import Strategy
from bigfs.stages.scores import FeatureScores
from bigfs.stages.stage import Inputs
from bigfs.stages.sums import read_moments, store_moments
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
        """Return the variances; of added rows, from the sums of the first ones."""
        former = None if inputs.former is None else read_moments(inputs.former)
        moments = inputs.blocks.moments(former)
        if inputs.keeps_start:
            store_moments(moments, out)
        return FeatureScores.from_scores(moments.variance, constant=moments.constant)
