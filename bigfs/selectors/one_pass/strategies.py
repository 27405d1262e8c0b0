"""Scores from one pass: over the edges of the graph, for variances, or for the Gram matrix.

On the Gram matrix the client runs Q-alpha; where rows are few, on these.
"""

from __future__ import annotations

import numpy as np

from bigfs.blocks.rowblocks import RowBlocks, gram_step, moments_step
from bigfs.config import Selection
from bigfs.core.cost import Shape, StageCost, Step, product_seconds
from bigfs.core.seeds import rng
from bigfs.graph import AffinityMatrix
from bigfs.graph.edges import column_groups, edge_moments, edges_cost
from bigfs.runtime.progress import track
from bigfs.selectors.method import Strategy
from bigfs.solvers.qalpha import (
    DENSE_FEATURES,
    N_MATRICES,
    N_ROW_MATRICES,
    QAlphaResult,
    q_alpha,
    q_alpha_bytes,
    q_alpha_of_rows_bytes,
)
from bigfs.stages.scores import FeatureScores, rank
from bigfs.stages.stage import Inputs
from bigfs.stages.sums import read_moments, store_moments
from bigfs.store.scratch import Scratch

# Measured: the eigenvectors of an iteration take as long as a product with so many columns.
_COLUMNS = 600


def choose_weights(shape: Shape, selection: Selection) -> FeatureWeights:
    """Return the strategy: on matrices of features, or of rows where these are fewer."""
    few_rows = shape.n_samples < shape.n_features and shape.n_features >= DENSE_FEATURES
    return (WeightsOfFewRows if few_rows else FeatureWeights)(shape, selection)


class FeatureWeights(Strategy):
    """One pass for the Gram matrix; the client iterates on matrices of n_features^2."""

    def cost(self) -> StageCost:
        """Return the cost of the pass and of the client's matrices."""
        d = self.shape.n_features
        what = f"{N_MATRICES} matrices of {d:,} x {d:,} features"
        iteration = Step(what, q_alpha_bytes(d), by_client=True, seconds=self._seconds(d))
        return StageCost((gram_step(self.shape, 0), iteration))

    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return the weight of every feature; details are the attributes of `QAlpha`."""
        parameters = self.parameters
        n_clusters, chosen = inputs.n_clusters(parameters.n_clusters)
        matrix, norms = self._matrix(inputs.blocks)
        varies = np.flatnonzero(norms > 0)
        scores = np.zeros(self.shape.n_features)
        result = QAlphaResult(np.empty(0), np.empty(0), converged=True)
        if len(varies):
            result = self._solved(matrix, norms, n_clusters)
        scores[varies] = result.alpha
        return FeatureScores.from_scores(
            scores,
            constant=norms == 0,
            n_iter=len(result.objective),
            converged=result.converged,
            objective=result.objective,
            **chosen,
        )

    def _seconds(self, order: int) -> float:
        """Return the processor time of the iterations on matrices of an order."""
        return self.parameters.max_iter * product_seconds(order, order, _COLUMNS)

    def _matrix(self, blocks: RowBlocks) -> tuple[np.ndarray, np.ndarray]:
        """Return the matrix of the iteration, and the norms of the centered features."""
        gram = blocks.gram().gram
        return gram, np.sqrt(gram.diagonal())

    def _solved(self, gram: np.ndarray, norms: np.ndarray, n_clusters: int) -> QAlphaResult:
        """Iterate on the features that vary, brought to norm one."""
        varies = np.flatnonzero(norms > 0)
        if len(varies) < len(norms):
            gram = gram[np.ix_(varies, varies)]
        gram /= norms[varies]
        gram /= norms[varies][:, None]
        return self._iterated(gram, n_clusters)

    def _iterated(
        self, given: np.ndarray, n_clusters: int, *, of_rows: bool = False
    ) -> QAlphaResult:
        """Return the solver's result on the data; it reports its progress."""
        most, tol = self.parameters.max_iter, self.parameters.tol
        with track("q_alpha", most, "iterations") as progress:
            return q_alpha(
                given,
                n_clusters,
                of_rows=of_rows,
                max_iter=most,
                tol=tol,
                on_iteration=lambda value: progress.advance(1, f"objective {value:.6g}"),
            )


class WeightsOfFewRows(FeatureWeights):
    """Fewer rows than features: the client holds them, which takes less than n_features^2."""

    def cost(self) -> StageCost:
        """Return the cost of reading the rows and of the client's matrices."""
        n, d = self.shape.n_samples, self.shape.n_features
        what = f"{N_ROW_MATRICES} matrices of {n:,} x {d:,}: all rows"
        needed = n * d * self.shape.itemsize + q_alpha_of_rows_bytes(n, d)
        seconds = self._seconds(n)
        step = Step(what, needed, 1, 1, self.shape.n_chunks, by_client=True, seconds=seconds)
        return StageCost((step,))

    def _matrix(self, blocks: RowBlocks) -> tuple[np.ndarray, np.ndarray]:
        rows = blocks.start_pass().read(0, blocks.n_samples)
        constant = rows.min(axis=0) == rows.max(axis=0)
        rows = rows.astype(np.float64)
        rows -= rows.mean(axis=0)
        rows[:, constant] = 0.0
        return rows, np.linalg.norm(rows, axis=0)

    def _solved(self, rows: np.ndarray, norms: np.ndarray, n_clusters: int) -> QAlphaResult:
        varies = norms > 0
        rows = rows / norms if varies.all() else rows[:, varies] / norms[varies]
        return self._iterated(rows, n_clusters, of_rows=True)


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
        numbers = random_numbers(constant, self.parameters.n_draws, self.selection.random_state)
        draws = np.array([rank(row, constant) for row in numbers])
        return FeatureScores.from_scores(numbers[0], constant=constant, draws=draws)


def random_numbers(constant: np.ndarray, n_draws: int, random_state: int) -> list[np.ndarray]:
    """Return uniform random numbers of the features for every draw, 0 for constant features."""
    seeded = [rng(random_state, "random selection", i) for i in range(n_draws)]
    return [np.where(constant, 0.0, row.random(len(constant))) for row in seeded]
