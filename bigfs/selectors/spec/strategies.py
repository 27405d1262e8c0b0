"""Spectral scores of every feature from one pass over the edges of the graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.config import Selection
from bigfs.core.cost import Shape, StageCost
from bigfs.graph import AffinityMatrix
from bigfs.graph.edges import column_groups, edge_moments, edges_cost
from bigfs.selectors.method import Strategy
from bigfs.stages.scores import FeatureScores
from bigfs.stages.stage import Inputs
from bigfs.store.scratch import Scratch


def choose(shape: Shape, selection: Selection) -> EdgeScores:
    """Return the only strategy: the Laplacian score is the paper's ``phi2``."""
    return EdgeScores(shape, selection, getattr(selection.parameters, "ranking", "phi2"))


@dataclass(frozen=True)
class EdgeScores(Strategy):
    """The ranking functions of SPEC, from sums over edges; no eigenvector is computed."""

    ranking: str  # one of "phi1", "phi2", "phi3": see `SPEC`; "phi2" is the Laplacian score

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
