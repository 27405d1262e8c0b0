"""Spectral scores from a pass over the edges of the graph; variances and random rankings."""

from __future__ import annotations

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.blocks.rowblocks import moments_step
from bigfs.core.cost import StageCost
from bigfs.core.seeds import rng
from bigfs.graph import AffinityMatrix
from bigfs.graph.edges import column_groups, edge_moments, edges_cost
from bigfs.selectors.method import Strategy
from bigfs.stages.scores import FeatureScores, rank
from bigfs.stages.stage import Inputs
from bigfs.stages.sums import read_moments, store_moments
from bigfs.store.scratch import Scratch


class EdgeScores(Strategy):
    """The ranking functions of SPEC, from sums over edges; no eigenvector is computed."""

    @property
    def ranking(self) -> str:
        """One of "phi1", "phi2", "phi3", see `SPEC`; the Laplacian score is "phi2"."""
        return getattr(self.parameters, "ranking", "phi2")

    @property
    def n_groups(self) -> int:
        """Groups of columns that sparse data are read in."""
        n_neighbors = self.selection.used_graph.n_neighbors
        return column_groups(self.shape, n_neighbors, self.selection.memory_limit)

    def cost(self) -> StageCost:
        """Return the cost of the pass."""
        return edges_cost(self.shape, self.selection.used_graph.n_neighbors, self.n_groups)

    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return the scores, larger is better (``phi1`` and ``phi2`` negated)."""
        return self.score(inputs.blocks, inputs.affinity)

    def score(self, blocks: RowBlocks, W: AffinityMatrix) -> FeatureScores:
        """Return the scores of opened data with this graph."""
        sums = edge_moments(blocks, W, self.n_groups)
        varies = sums.spread > 0
        smooth, spread = sums.smoothness[varies], sums.spread[varies]
        total = spread + sums.weight * sums.mean[varies] ** 2  # f'Df
        score = np.zeros(self.shape.n_features)
        if self.ranking == "phi1":
            score[varies] = -smooth / total
        elif self.ranking == "phi2":
            score[varies] = -smooth / spread
        else:
            score[varies] = (2 * spread - smooth) / total
        return FeatureScores.from_scores(score, constant=~varies)


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
