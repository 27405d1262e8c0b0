"""Variances, and random rankings: a pass for the moments, and nothing else is read."""

from __future__ import annotations

import numpy as np

from bigfs.blocks.rowblocks import moments_step
from bigfs.config import Selection
from bigfs.core.cost import Shape, StageCost
from bigfs.core.seeds import rng
from bigfs.selectors.method import Strategy
from bigfs.stages.scores import FeatureScores, rank
from bigfs.stages.stage import Inputs
from bigfs.stages.sums import read_moments, store_moments
from bigfs.store.scratch import Scratch


def choose_max_variance(shape: Shape, selection: Selection) -> Variances:
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


def choose_random_selection(shape: Shape, selection: Selection) -> Draws:
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
        numbers = random_numbers(constant, self.parameters.n_draws, self.selection.random_state)
        draws = np.array([rank(row, constant) for row in numbers])
        return FeatureScores.from_scores(numbers[0], constant=constant, draws=draws)


def random_numbers(constant: np.ndarray, n_draws: int, random_state: int) -> list[np.ndarray]:
    """Return uniform random numbers of the features for every draw, 0 for constant features."""
    seeded = [rng(random_state, "random selection", i) for i in range(n_draws)]
    return [np.where(constant, 0.0, row.random(len(constant))) for row in seeded]
