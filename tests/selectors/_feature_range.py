"""A method in one file, as a newcomer would write it: features of largest range."""

from __future__ import annotations

from pydantic import Field

from bigfs.blocks.rowblocks import moments_step
from bigfs.config import Selection
from bigfs.config.fields import PositiveFloat, Section
from bigfs.core.cost import Shape, StageCost
from bigfs.selectors.base import MethodSelector
from bigfs.selectors.method import Method, Strategy
from bigfs.stages.scores import FeatureScores
from bigfs.stages.stage import Inputs
from bigfs.store.scratch import Scratch


class FeatureRangeParameters(Section):
    """Largest minus smallest value."""

    power: PositiveFloat = Field(1.0, description="What the range is raised to.")


METHOD = Method("feature_range", "FeatureRange", __name__, FeatureRangeParameters)


def choose(shape: Shape, selection: Selection) -> Ranges:
    """Return the only strategy."""
    return Ranges(shape, selection)


class Ranges(Strategy):
    """The range of every feature, from one pass."""

    def cost(self) -> StageCost:
        """Return the cost of the pass."""
        return StageCost((moments_step(self.shape),))

    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return the ranges."""
        moments = inputs.blocks.moments()
        ranges = (moments.maximum - moments.minimum) ** self.parameters.power
        return FeatureScores.from_scores(ranges, constant=moments.constant)


class FeatureRange(MethodSelector):
    """Keep the features of largest range.

    Parameters
    ----------
    power : float, default=1.0
        What the range is raised to.
    """

    power: float = 1.0
