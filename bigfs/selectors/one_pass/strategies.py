"""Scores from one pass: over the edges of the graph, for variances, or for the Gram matrix.

The client runs Q-alpha on the Gram matrix, or on the rows themselves if there are few. Q-alpha
finds feature weights that maximize the sum of the squared leading eigenvalues.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np

from bigfs.blocks.rowblocks import RowBlocks, gram_step, moments_step
from bigfs.config import Selection
from bigfs.core.cost import Shape, StageCost, Step, product_seconds
from bigfs.core.seeds import rng
from bigfs.graph.edges import column_groups, edge_moments, edges_cost
from bigfs.runtime.progress import track
from bigfs.selectors.method import Strategy
from bigfs.stages.scores import FeatureScores, rank
from bigfs.stages.stage import Inputs
from bigfs.stages.sums import read_moments, store_moments
from bigfs.store.scratch import Scratch

# Measured: the eigenvectors of an iteration take as long as a product with this many columns.
_COLUMNS = 600
# Eigenvalues of the Gram matrix below this share of the largest are rounding errors.
_RANK_TOL = 1e-12
# From this number of features on, the leading eigenvector is computed by Lanczos iterations that
# start from the previous one.
DENSE_FEATURES = 400
# Number of Lanczos vectors if products are expensive; few suffice, as the start is near the
# solution.
_FEW_VECTORS = 8
# Matrices of n_features^2 in memory at once: the Gram matrix, the coordinates, and the workspace
# of an eigendecomposition.
N_MATRICES = 5
# Matrices of n_samples x n_features in memory at once: the rows, the coordinates, two temporaries.
N_ROW_MATRICES = 4
# Variances with a smaller relative difference differ only by float32 rounding.
_SAME_VARIANCE = 1e-5
_SAME_NOTE = (
    "All features have the same variance up to rounding, as after preprocess 'standardize', so the "
    "ranking is meaningless. Use preprocess 'none' or another method."
)
# Returns the largest eigenvalue of G and its eigenvector, given the features' coordinates in Q and
# the previous eigenvector.
_Leading: TypeAlias = Callable[[np.ndarray, np.ndarray], tuple[float, np.ndarray]]


def choose_weights(shape: Shape, selection: Selection) -> FeatureWeights:
    """Return the strategy: on n_features^2 matrices, or on the rows if these are fewer."""
    few_rows = shape.n_samples < shape.n_features and shape.n_features >= DENSE_FEATURES
    return (WeightsOfFewRows if few_rows else FeatureWeights)(shape, selection)


class FeatureWeights(Strategy):
    """One pass for the Gram matrix; the client iterates on matrices of n_features^2."""

    of_rows: ClassVar[bool] = False  # True if the iteration works on the rows, not the Gram matrix

    def cost(self) -> StageCost:
        """Return the cost of the pass and of the client's matrices."""
        d = self.shape.n_features
        what = f"{N_MATRICES} matrices of {d:,} x {d:,} features"
        needed = 8 * N_MATRICES * d**2
        iteration = Step(what, needed, by_client=True, seconds=self._seconds(d))
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
            given = self._normalized(matrix, norms)
            with track("q_alpha", parameters.max_iter, "iterations") as progress:
                result = q_alpha(
                    given,
                    n_clusters,
                    of_rows=self.of_rows,
                    max_iter=parameters.max_iter,
                    tol=parameters.tol,
                    on_iteration=lambda value: progress.advance(1, f"objective {value:.6g}"),
                )
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
        """Return the processor time of the iterations on matrices of the given order."""
        return self.parameters.max_iter * product_seconds(order, order, _COLUMNS)

    def _matrix(self, blocks: RowBlocks) -> tuple[np.ndarray, np.ndarray]:
        """Return the matrix for the iteration, and the norms of the centered features."""
        gram = blocks.gram().gram
        return gram, np.sqrt(gram.diagonal())

    def _normalized(self, gram: np.ndarray, norms: np.ndarray) -> np.ndarray:
        """Return the matrix of the features that vary, scaled to norm one."""
        varies = np.flatnonzero(norms > 0)
        if len(varies) < len(norms):
            gram = gram[np.ix_(varies, varies)]
        gram /= norms[varies]
        gram /= norms[varies][:, None]
        return gram


class WeightsOfFewRows(FeatureWeights):
    """Variant for fewer rows than features: the client holds the rows, not n_features^2 values."""

    of_rows = True

    def cost(self) -> StageCost:
        """Return the cost of reading the rows and of the client's matrices."""
        n, d = self.shape.n_samples, self.shape.n_features
        what = f"{N_ROW_MATRICES} matrices of {n:,} x {d:,}: all rows"
        needed = n * d * self.shape.itemsize + 8 * (N_ROW_MATRICES * n * d + 3 * n**2)
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

    def _normalized(self, rows: np.ndarray, norms: np.ndarray) -> np.ndarray:
        varies = norms > 0
        return rows / norms if varies.all() else rows[:, varies] / norms[varies]


class EdgeScores(Strategy):
    """Ranking functions of SPEC, from sums over edges; no eigenvector is computed."""

    @property
    def ranking(self) -> str:
        """The ranking function, "phi1", "phi2" or "phi3"; the Laplacian score is "phi2"."""
        return getattr(self.parameters, "ranking", "phi2")

    @property
    def n_groups(self) -> int:
        """Number of column groups in which sparse data are processed."""
        n_neighbors = self.selection.used_graph.n_neighbors
        return column_groups(self.shape, n_neighbors, self.selection.memory_limit)

    def cost(self) -> StageCost:
        """Return the cost of the pass."""
        return edges_cost(self.shape, self.selection.used_graph.n_neighbors, self.n_groups)

    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return the scores, larger is better (``phi1`` and ``phi2`` negated)."""
        sums = edge_moments(inputs.blocks, inputs.affinity, self.n_groups)
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
    """Variance of every feature, from one pass."""

    def cost(self) -> StageCost:
        """Return the cost of the pass."""
        return StageCost((moments_step(self.shape),))

    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return the variances; after added rows, the stored sums of the former rows are reused."""
        former = None if inputs.former is None else read_moments(inputs.former)
        moments = inputs.blocks.moments(former)
        if inputs.keeps_start:
            store_moments(moments, out)
        scores = FeatureScores.from_scores(moments.variance, constant=moments.constant)
        varying = moments.variance[~moments.constant]
        if len(varying) > 1 and np.ptp(varying) <= _SAME_VARIANCE * varying.max():
            return replace(scores, notes=(_SAME_NOTE,))
        return scores


class Draws(Strategy):
    """Features sorted by uniform random numbers, constant ones last."""

    def cost(self) -> StageCost:
        """Return the cost of the pass."""
        return StageCost((moments_step(self.shape),))

    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return the numbers of the first draw; details are those of `RandomSelection`."""
        constant = inputs.blocks.moments().constant
        numbers = random_numbers(constant, self.parameters.n_draws, self.selection.random_state)
        draws = np.array([rank(row, constant) for row in numbers])
        return FeatureScores.from_scores(numbers[0], constant=constant, draws=draws)


def random_numbers(constant: np.ndarray, n_draws: int, random_state: int) -> list[np.ndarray]:
    """Return a uniform random number per draw and feature, 0 for constant features."""
    seeded = [rng(random_state, "random selection", i) for i in range(n_draws)]
    return [np.where(constant, 0.0, row.random(len(constant))) for row in seeded]


@dataclass(frozen=True)
class QAlphaResult:
    """Weights of the features, and the course of the iteration."""

    alpha: np.ndarray  # of shape (n_features,), float64: norm one, with a nonnegative sum
    # Of shape (n_iter,), float64: ``tr(Q'A'A Q)`` at each iteration; in exact arithmetic it never
    # decreases.
    objective: np.ndarray
    converged: bool


def q_alpha(
    given: np.ndarray,
    n_components: int,
    *,
    of_rows: bool = False,
    max_iter: int = 100,
    tol: float = 1e-8,
    on_iteration: Callable[[float], None] | None = None,
) -> QAlphaResult:
    """Maximize ``sum_j lambda_j(A)^2`` over weights of norm one, ``A = sum_i alpha_i m_i m_i'``.

    The sample space is replaced by the span of the features, in coordinates from the eigenvectors
    of their Gram matrix: all inner products are preserved, so the cost does not depend on n.

    Parameters
    ----------
    given : ndarray of shape (n_features, n_features), float64
        Gram matrix ``m_i'm_j`` of features with norm one; overwritten.
    n_components : int
        Number of leading eigenvalues in the sum.
    of_rows : bool, default=False
        If True, ``given`` are the rows, of shape (n_samples, n_features), with columns of norm
        one: for fewer rows than features. The coordinates come from the Gram matrix of the rows,
        and G is used only in products, so that no matrix has n_features^2 entries.
    max_iter : int, default=100
    tol : float, default=1e-8
        Stop when no weight changes by more than this.
    on_iteration : callable or None, default=None
        Called with the objective of each iteration.

    Returns
    -------
    result : QAlphaResult
    """
    coordinates, leading = (_of_rows if of_rows else _of_gram)(given)
    rank, n_features = coordinates.shape
    Q = np.eye(rank, min(n_components, rank))
    alpha = np.full(n_features, 1 / np.sqrt(n_features))
    objective: list[float] = []
    converged = False
    while not converged and len(objective) < max_iter:
        projected = Q.T @ coordinates
        level, leading_vector = leading(projected, alpha)
        if leading_vector.sum() < 0:
            leading_vector = -leading_vector
        objective.append(level)
        if on_iteration is not None:
            on_iteration(level)
        Q = np.linalg.qr(coordinates @ (leading_vector[:, None] * projected.T))[0]
        converged = bool(np.abs(leading_vector - alpha).max() <= tol)
        alpha = leading_vector
    return QAlphaResult(alpha, np.array(objective), converged)


def _of_gram(gram: np.ndarray) -> tuple[np.ndarray, _Leading]:
    """Return the features' coordinates in their span, and a function for the leading pair of G."""
    values, vectors = np.linalg.eigh(gram)
    kept = values > _RANK_TOL * values[-1]
    # Inner products of the columns are the Gram matrix; the axis of largest variance comes first.
    coordinates = (vectors[:, kept] * np.sqrt(values[kept])).T[::-1].copy()

    def leading(projected: np.ndarray, alpha: np.ndarray) -> tuple[float, np.ndarray]:
        return _leading(gram * (projected.T @ projected), alpha)

    return coordinates, leading


def _of_rows(rows: np.ndarray) -> tuple[np.ndarray, _Leading]:
    """Return the same as `_of_gram`, from rows and without a matrix of n_features^2."""
    from scipy.sparse.linalg import LinearOperator

    values, vectors = np.linalg.eigh(rows @ rows.T)
    kept = values > _RANK_TOL * values[-1]
    coordinates = (vectors[:, kept].T @ rows)[::-1].copy()
    size = (rows.shape[1],) * 2

    def leading(projected: np.ndarray, alpha: np.ndarray) -> tuple[float, np.ndarray]:
        def product(v: np.ndarray) -> np.ndarray:
            inner = coordinates @ (projected * v.ravel()).T
            return np.asarray(np.einsum("qd,qd->d", inner.T @ coordinates, projected))

        G = LinearOperator(size, matvec=product, dtype=np.float64)
        return _lanczos(G, alpha, _FEW_VECTORS)

    return coordinates, leading


def _leading(matrix: np.ndarray, start: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the largest eigenvalue of a symmetric matrix and its eigenvector."""
    if len(matrix) < DENSE_FEATURES:
        values, vectors = np.linalg.eigh(matrix)
        return float(values[-1]), vectors[:, -1]
    return _lanczos(matrix, start)


def _lanczos(matrix: Any, start: np.ndarray, ncv: int | None = None) -> tuple[float, np.ndarray]:
    """Return the same as `_leading`, by Lanczos iterations with ``ncv`` vectors."""
    from scipy.sparse.linalg import eigsh

    values, vectors = eigsh(
        matrix, k=1, which="LA", v0=start, tol=1e-13, maxiter=10_000, ncv=ncv, rng=0
    )
    return float(values[0]), vectors[:, 0]
