"""Two ways to the lasso paths of MCFS: the whole Gram matrix, or columns of screened features."""

from __future__ import annotations

import logging
from abc import abstractmethod
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from bigfs.blocks import RowBlocks
from bigfs.blocks.rowblocks import gram_bytes, gram_step
from bigfs.config import Selection
from bigfs.core.cost import Shape, StageCost, Step, loop_seconds
from bigfs.core.memory import task_budget
from bigfs.core.units import MIB
from bigfs.graph.representation import gram_is_kept
from bigfs.runtime.execute import run_tasks
from bigfs.selectors.mcfs import MAX_STOPS
from bigfs.selectors.mcfs.regression import (
    ForwardOnColumns,
    ForwardOnGram,
    ForwardOnRows,
    Regression,
    about_eigenvectors,
    add_rows,
    n_targets_of,
)
from bigfs.selectors.mcfs.tasks import SparseVector, lars_task
from bigfs.selectors.mcfs.wide import columns_bytes, wide_paths, wide_steps
from bigfs.spectral.embedding import SpectralEmbedding
from bigfs.stages.scores import FeatureScores, rank
from bigfs.stages.stage import Inputs
from bigfs.store.scratch import Scratch

logger = logging.getLogger("bigfs")


def choose(shape: Shape, selection: Selection) -> Regression:
    """Return the strategy that fits: all Gram columns where a worker can fold them."""
    n_targets, budget = n_targets_of(selection), task_budget(selection.memory_limit)
    # Of sparse data a Gram matrix would be dense, however few columns are needed.
    fits = shape.n_entries is None and gram_bytes(shape, n_targets) <= budget
    if selection.parameters.regression == "lasso":
        return (FullGram if fits else ScreenedColumns)(shape, selection)
    if fits:
        return ForwardOnGram(shape, selection)
    few_entries = shape.n_entries is not None and 4 * ForwardOnRows.needed_bytes(shape) <= budget
    on_rows = few_entries and selection.parameters.fit_intercept
    return (ForwardOnRows if on_rows else ForwardOnColumns)(shape, selection)


class Paths(Regression):
    """The sparse regression of each eigenvector on all features, by itself.

    Notes
    -----
    Solves eq. (3) in Gram form and scores by eq. (4), ``max_k |a_kj|``. A path to fewer features
    is the beginning of this one, so every path also gives the selections of 1, 2, ... features.
    """

    @abstractmethod
    def _paths(
        self, blocks: RowBlocks, spectral: SpectralEmbedding, kept: Scratch | None
    ) -> tuple[list[SparseVector], list[list[SparseVector]], np.ndarray, dict[str, Any]]:
        """Return the ends of the paths, their stops, what is constant, and further details."""

    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return the scores; details are the attributes of `MCFS`."""
        if self.n_selected > MAX_STOPS:
            logger.warning(
                f"MCFS: a lasso path to {self.n_selected:,} features takes minutes to hours, with "
                "the cube of their number. Set regression to 'omp', which ranks as many in seconds."
            )
        add_rows(inputs)
        return self.score(inputs.blocks, inputs.spectral, out)

    def score(
        self, blocks: RowBlocks, spectral: SpectralEmbedding, kept: Scratch | None = None
    ) -> FeatureScores:
        """Return the scores of opened data with these eigenvectors."""
        n_features = self.shape.n_features
        last, stops, constant, details = self._paths(blocks, spectral, kept)
        scale = self.parameters.coef_scale
        return FeatureScores.from_scores(
            _scores(last, scale, self.shape),
            constant=constant,
            supports=_supports(stops, scale, self.shape, constant),
            coef=_as_rows(last, n_features),
            n_active=np.array([len(indices) for indices, _, _ in last]),
            explained=np.array([explained for _, _, explained in last]),
            **about_eigenvectors(spectral),
            **details,
        )


class FullGram(Paths):
    """One pass gives ``X'X`` and ``X'Y``; the paths run in parallel and no longer depend on n."""

    @property
    def leaves_products(self) -> bool:
        """True if X'X is small."""
        return gram_is_kept(self.shape.n_features)

    def cost(self) -> StageCost:
        """Return the cost of the pass, and of a path in each task."""
        K, d = self.n_targets, self.shape.n_features
        needed = 16 * d**2 + 16 * MIB
        seconds = loop_seconds(K, d, self.n_selected, self.n_selected)
        what = f"a path on the Gram matrix of {d:,} features"
        paths = Step(what, needed, K, 0, 2 * K, seconds=seconds)
        return StageCost((gram_step(self.shape, K, "the regressions' Gram matrix"), paths))

    def _paths(
        self, blocks: RowBlocks, spectral: SpectralEmbedding, kept: Scratch | None
    ) -> tuple[list[SparseVector], list[list[SparseVector]], np.ndarray, dict[str, Any]]:
        matrix, xty, constant, _ = self._gram(blocks, spectral, kept)
        scratch = blocks.scratch
        shared = (
            scratch.put(scratch.unique("gram"), matrix),
            scratch.put(scratch.unique("xty"), xty / spectral.norms),
        )
        targets = range(len(spectral.eigenvalues))
        paths = run_tasks(
            lars_task, targets, *shared, self.n_selected, label="paths", unit="eigenvectors"
        )
        scratch.remove(*shared)
        return [path[0] for path in paths], [path[1] for path in paths], constant, {}


class ScreenedColumns(Paths):
    """Gram columns of screened features: the same paths, certified at every knot."""

    def cost(self) -> StageCost:
        """Return the cost of the passes, of which there is one for each round of screening."""
        steps = wide_steps(self.shape, self.n_targets, self.n_selected, self.selection.memory_limit)
        stored = columns_bytes(self.shape, self.n_targets, self.n_selected)
        return StageCost(steps, stored, at_most=True)

    def _paths(
        self, blocks: RowBlocks, spectral: SpectralEmbedding, kept: Scratch | None
    ) -> tuple[list[SparseVector], list[list[SparseVector]], np.ndarray, dict[str, Any]]:
        paths = wide_paths(
            blocks,
            spectral,
            self.n_selected,
            fit_intercept=self.parameters.fit_intercept,
            memory_limit=self.selection.memory_limit,
        )
        details = {
            "largest_violation": paths.largest_violation,
            "n_screened": paths.n_screened,
        }
        return paths.last, paths.stops, paths.constant, details


def _scores(vectors: list[SparseVector], scale: str, shape: Shape) -> np.ndarray:
    """Return eq. (4) of the coefficient vectors, each scaled."""
    scores = np.zeros(shape.n_features)
    for indices, values, explained in vectors:
        size = np.abs(values)
        weight = _weight(explained, len(indices), shape.n_samples) if scale == "explained" else 1.0
        scores[indices] = np.maximum(scores[indices], weight * size / _norm(size, scale))
    return scores


def _weight(explained: float, n_active: int, n_samples: int) -> float:
    """Return the root of the explained share, adjusted for the features it took.

    What ``n_active`` features of noise would explain is taken off (adjusted R squared);
    a trace is left, so that an eigenvector of which nothing else is left still orders features.
    """
    free = max(n_samples - 1 - n_active, 1)
    adjusted = 1.0 - (1.0 - explained) * (n_samples - 1) / free
    return float(np.sqrt(max(adjusted, 1e-6 * explained)))


def _norm(size: np.ndarray, scale: str) -> float:
    """Return the divisor of a vector of absolute coefficients."""
    if scale == "none" or not size.any():
        return 1.0
    order = {"l1": 1, "l2": 2, "explained": 2, "max": np.inf}[scale]
    return float(np.linalg.norm(size, order))


def _supports(
    stops: list[list[SparseVector]], scale: str, shape: Shape, constant: np.ndarray
) -> np.ndarray:
    """Return the selections of 1, 2, ... features: each path stops where it first has as many."""
    supports = []
    for n_selected, vectors in enumerate(zip(*stops, strict=True), start=1):
        scores = _scores(list(vectors), scale, shape)
        supports.append(np.sort(rank(scores, constant)[:n_selected]))
    return np.concatenate(supports).astype(np.int32)


def _as_rows(vectors: list[SparseVector], n_features: int) -> csr_array:
    """Return sparse vectors as the rows of a matrix."""
    indices = np.concatenate([part for part, _, _ in vectors])
    values = np.concatenate([part for _, part, _ in vectors])
    starts = np.cumsum([0, *(len(part) for part, _, _ in vectors)])
    return csr_array((values, indices, starts), shape=(len(vectors), n_features))
