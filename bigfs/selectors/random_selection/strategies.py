"""Random rankings: a pass tells which features are constant, and nothing else is read."""

from __future__ import annotations

import numpy as np

from bigfs.blocks.rowblocks import moments_step
from bigfs.config import Selection
from bigfs.core.cost import Shape, StageCost
from bigfs.core.seeds import rng
from bigfs.selectors.method import Strategy
from bigfs.stages.scores import FeatureScores, rank
from bigfs.stages.stage import Inputs
from bigfs.store.scratch import Scratch


def choose(shape: Shape, selection: Selection) -> Draws:
    """Return the only strategy."""
    return Draws(shape, selection)


class Draws(Strategy):
    """Features in the order of uniform random numbers, constant ones last."""

    def cost(self) -> StageCost:
        """Return the cost of the pass."""
        return StageCost((moments_step(self.shape),))

    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return the numbers of the first draw; details are the attributes of the class."""
        constant = inputs.blocks.moments().constant
        seed, n_draws = self.selection.random_state, self.parameters.n_draws
        seeded = [rng(seed, "random selection", i) for i in range(n_draws)]
        numbers = [np.where(constant, 0.0, row.random(len(constant))) for row in seeded]
        draws = np.array([rank(row, constant) for row in numbers])
        return FeatureScores.from_scores(numbers[0], constant=constant, draws=draws)
