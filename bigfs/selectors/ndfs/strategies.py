"""Three ways through NDFS, by how ``(X'X + beta Delta)^-1 X'F`` is solved in every iteration."""

from __future__ import annotations

import logging
from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.blocks.csr_kernels import kernel_bytes
from bigfs.blocks.preprocess import needs_moments
from bigfs.blocks.rowblocks import gram_step, moments_step
from bigfs.config import Selection
from bigfs.core.cost import (
    Shape,
    StageCost,
    Step,
    loop_seconds,
    pass_over,
    product_seconds,
    read_seconds,
)
from bigfs.core.errors import InputError
from bigfs.core.memory import task_budget
from bigfs.core.units import MIB, format_bytes
from bigfs.graph import AffinityMatrix
from bigfs.runtime.progress import silenced, track
from bigfs.runtime.scope import worker_slots
from bigfs.selectors.method import Strategy
from bigfs.selectors.ndfs import solve
from bigfs.selectors.ndfs.iteration import finish, iterate
from bigfs.selectors.ndfs.passes import (
    FactorPasses,
    block_bytes,
    graph_steps,
    product_bytes,
    squared_sums,
)
from bigfs.selectors.ndfs.solve import CG_PASSES, RegressionSolver
from bigfs.selectors.ndfs.start import (
    check_init,
    spectral_labels,
    start_steps,
    store_given,
    store_indicators,
)
from bigfs.selectors.scoring import start_of
from bigfs.solvers.l21 import conjugate_gradients_bytes, gram_solver_bytes, kernel_solver_bytes
from bigfs.solvers.sparserows import LOADS
from bigfs.spectral.choice import largest_count
from bigfs.stages.scores import FeatureScores
from bigfs.stages.stage import Inputs
from bigfs.store.scratch import ArrayRef, Scratch

logger = logging.getLogger("bigfs")

# Rows that are converted to float64 at a time, and their products.
_TILE_BYTES = 16 * MIB
# Measured: products with rows that are mostly zeros in the two solves of an iteration.
_DUAL_STEPS = 40


def choose(shape: Shape, selection: Selection) -> NDFSStrategy:
    """Return the fastest strategy that fits; conjugate gradients if no other does.

    Of CSR blocks no Gram matrix is made, and no array of all rows.

    Raises
    ------
    InputError
        If there is no intercept to take up what a preprocessing adds to sparse data.
    """
    if shape.n_entries is not None:
        if needs_moments(selection.preprocess) and not solve.has_intercept(selection.parameters):
            raise InputError(
                f"ndfs.unit 'none' has no intercept, and preprocess '{selection.preprocess}' would "
                "fill the zeros of sparse data in. Set ndfs.unit to 'rms', or preprocess to 'none'."
            )
        return ConjugateGradients(shape, selection)
    budget = task_budget(selection.memory_limit)
    is_wide = shape.n_samples < shape.n_features
    for kind in (Woodbury, Cholesky) if is_wide else (Cholesky,):
        strategy = kind(shape, selection)
        cost = strategy.cost()
        if max(cost.task_bytes, cost.client_bytes) <= budget:
            return strategy
    return ConjugateGradients(shape, selection)


class NDFSStrategy(Strategy):
    """Algorithm 1 of NDFS by row blocks; subclasses differ in how they solve the regressions.

    Notes
    -----
    An iteration is a pass, and the regressions may need more. F (n_samples x n_clusters) is
    stored by row blocks: three times at most, five with checkpoints.
    """

    solver: ClassVar[str]

    @property
    def n_clusters(self) -> int:
        """Columns of F; the most that "auto" chooses."""
        return largest_count(self.parameters.n_clusters)

    @property
    def n_entries(self) -> int:
        """The most entries that the affinity matrix has: every edge twice."""
        assert self.selection.graph is not None
        return 2 * self.shape.n_samples * self.selection.graph.n_neighbors

    @abstractmethod
    def _solver_bytes(self) -> int:
        """Return the bytes of the regressions in the process that solves them."""

    @abstractmethod
    def _solve_steps(self) -> tuple[Step, ...]:
        """Return the steps of the regressions."""

    @abstractmethod
    def _regression(self, passes: FactorPasses) -> tuple[RegressionSolver, np.ndarray]:
        """Return the regressions and ``X'F`` of the start."""

    def cost(self) -> StageCost:
        """Return the cost of the start, the iterations and their regressions."""
        shape, c, n = self.shape, self.n_clusters, self.shape.n_samples
        on_x, *beside = graph_steps(shape, self.n_entries, c, self.parameters.max_iter)
        on_x = replace(on_x, seconds=read_seconds(shape) + self._iteration_seconds())
        # The labels and B; rows and labels that a start is made of; the iterates.
        stored = 4 * n + 8 * shape.n_features * c
        start: tuple[Step, ...] = ()
        of_start = 0
        if self.parameters.takes_eigenvectors:
            start, of_start = start_steps(shape, c), n * (8 * c + 4)
        # Where tasks run in the client's process, each reads a block beside what the client holds.
        solving = (
            replace(step, task_bytes=step.task_bytes + on_x.task_bytes) if step.by_client else step
            for step in self._solve_steps()
        )
        return StageCost(
            (*start, *solving, on_x, *beside),
            stored + of_start + 5 * 8 * n * c,
            stored,
            keeps_bytes=shape.nbytes + 12 * self.n_entries + 16 * n * (c + 2),
            loads=LOADS,
            at_most=True,
        )

    def _iteration_seconds(self) -> float:
        """Return the processor time of an iteration: products with F and the graph, and a solve."""
        (n, d), c = (self.shape.n_samples, self.shape.n_features), self.n_clusters
        of_rows = product_seconds(2, self.shape.n_values, c) + loop_seconds(self.n_entries, c)
        if n < d and self.shape.n_entries is not None:
            return of_rows + loop_seconds(_DUAL_STEPS, 2 * self.shape.n_entries, c)
        return of_rows + product_seconds(min(n, d), min(n, d), max(n, d) if n < d else d / 3)

    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return the row norms of B, zero for constant features.

        Details are the attributes of `NDFS`; the labels are stored in ``out``. Where there is a
        checkpoint, the run continues from it.

        Raises
        ------
        InputError
            If the start does not fit the data.
        ConvergenceError
            If conjugate gradients stand still.
        """
        blocks, parameters, max_iter = inputs.blocks, self.parameters, self.parameters.max_iter
        n_clusters, _ = inputs.n_clusters(parameters.n_clusters)
        checkpoint, scratch, before = inputs.checkpoint, blocks.scratch, blocks.passes
        folder = Scratch(checkpoint) if checkpoint else scratch.child(out.unique("iterates"))
        start = self._start(inputs, n_clusters, folder)
        labels = out.create("labels", (blocks.n_samples,), np.int32, blocks.rows)
        W = inputs.affinity
        passes = FactorPasses(blocks, W, start, folder, *self._kept_bytes(blocks, W, n_clusters))
        regression, xtf = self._regression(passes)
        ftf = squared_sums(start, blocks.bounds)
        file = checkpoint / "state.npz" if checkpoint else None
        with track("ndfs", max_iter, "iterations") as progress, silenced():
            last = iterate(passes, regression, xtf, ftf, parameters, file, progress)
        details = {
            **finish(last, passes, labels),
            "labels": labels,
            "solver": self.solver,
            "beta": regression.weights.beta,
            "unit": regression.weights.unit,
            "n_passes": blocks.passes - before,
            "n_clusters": n_clusters,
        }
        if parameters.takes_eigenvectors:
            details["spectrum"] = inputs.spectral.spectrum
        if not checkpoint:
            folder.close()
        # The row of a constant feature is an intercept: it tells no rows apart.
        scores = np.where(regression.constant, 0.0, np.linalg.norm(last.B, axis=1))
        if regression.is_blind(last.xtf, last.ftf):
            scores[:] = 0.0
        return FeatureScores.from_scores(scores, constant=regression.constant, **details)

    def _start(self, inputs: Inputs, n_clusters: int, folder: Scratch) -> ArrayRef:
        """Return the first F: what was given, or indicators of the eigenvectors' clusters."""
        blocks, selection = inputs.blocks, self.selection
        if not self.parameters.takes_eigenvectors:
            given = start_of(selection, blocks.n_samples, blocks.source.dropped)
            return store_given(check_init(given, blocks.n_samples, n_clusters), blocks, folder)
        scratch, seed = blocks.scratch.child(blocks.scratch.unique("start")), selection.random_state
        found = spectral_labels(inputs.spectral, blocks, n_clusters, seed, scratch)
        return store_indicators(*found, blocks, folder)

    def _kept_bytes(self, blocks: RowBlocks, W: AffinityMatrix, n_clusters: int) -> tuple[int, int]:
        """Return the bytes of X, and of F with the degrees, that a worker process keeps."""
        n_processes, n_threads = worker_slots()
        one_task = block_bytes(blocks.layout, W.nnz, n_clusters)
        free = task_budget(self.selection.memory_limit) - n_threads * one_task
        free -= self._solver_bytes()
        shared = blocks.n_samples * 8 * (n_clusters + 1)
        # While it is loaded, F is there twice.
        for_f = shared if 2 * shared <= free else 0
        for_x = max(0, free - 2 * for_f)
        share = min(1.0, for_x * n_processes / blocks.nbytes)
        logger.info(
            "ndfs: %.0f %% of X (%s) stay in worker memory between iterations, the rest is read "
            "again; neighbors' rows of F are read %s",
            100 * share,
            format_bytes(blocks.nbytes),
            "once by each worker" if for_f else "by each block",
        )
        return for_x, for_f

    @property
    def _xtf_steps(self) -> tuple[Step, ...]:
        """The passes for the diagonal of ``X'X`` and for ``X'F`` of the start."""
        sums = product_bytes(self.shape, self.n_clusters) + _TILE_BYTES + kernel_bytes(self.shape)
        return moments_step(self.shape), pass_over(self.shape, "X'F of a block", sums)


class Cholesky(NDFSStrategy):
    """``X'X`` from one pass; a factor of n_features^2 in every solve."""

    solver = "cholesky"

    def _solver_bytes(self) -> int:
        return gram_solver_bytes(self.shape.n_features, self.n_clusters)

    def _solve_steps(self) -> tuple[Step, ...]:
        d = self.shape.n_features
        gram = gram_step(self.shape, self.n_clusters, "the Gram matrix with X'F")
        what = f"a factor of {d:,} x {d:,} features"
        return (
            replace(gram, before_kept=True),
            Step(what, self._solver_bytes(), by_client=True),
        )

    def _regression(self, passes: FactorPasses) -> tuple[RegressionSolver, np.ndarray]:
        return solve.by_gram(passes, self.parameters)


class Woodbury(NDFSStrategy):
    """The n x n matrix ``X Delta^-1 X'``, for fewer rows than features: the client holds them."""

    solver = "woodbury"

    @property
    def _seeks_zeros(self) -> bool:
        """True if there is ample room for copies of X, to find out whether it is mostly zeros."""
        return 24 * self.shape.n_values <= task_budget(self.selection.memory_limit)

    def _solver_bytes(self) -> int:
        shape = self.shape
        needed = kernel_solver_bytes(shape.n_samples, shape.n_features, self.n_clusters)
        copy = 12 * shape.n_values if self._seeks_zeros else 0
        return shape.nbytes + max(needed, shape.read_bytes, copy)

    def _solve_steps(self) -> tuple[Step, ...]:
        shape = self.shape
        what = f"all of X with {shape.n_samples:,} x {shape.n_samples:,} products of its rows"
        needed = self._solver_bytes()
        return (*self._xtf_steps, Step(what, needed, 1, 1, shape.n_chunks, by_client=True))

    def _regression(self, passes: FactorPasses) -> tuple[RegressionSolver, np.ndarray]:
        return solve.by_kernel(passes, self.parameters, seeks_zeros=self._seeks_zeros)


class ConjugateGradients(NDFSStrategy):
    """Products with ``X'X``, each of them a pass, where no matrix of the others fits a worker."""

    solver = "cg"

    def _solver_bytes(self) -> int:
        return conjugate_gradients_bytes(self.shape.n_features, self.n_clusters)

    def _solve_steps(self) -> tuple[Step, ...]:
        d, c = self.shape.n_features, self.n_clusters
        # Two solves in an iteration, and one before the first.
        times = (2 * self.parameters.max_iter + 1) * CG_PASSES
        product = product_bytes(self.shape, c) + _TILE_BYTES + kernel_bytes(self.shape)
        return (
            *self._xtf_steps,
            pass_over(
                self.shape,
                "a product with X'X over a block",
                product,
                times=times,
                seconds=product_seconds(2, self.shape.n_values, c),
            ),  # fmt: skip
            Step(f"vectors of {d:,} x {c}", self._solver_bytes(), by_client=True),
        )

    def _regression(self, passes: FactorPasses) -> tuple[RegressionSolver, np.ndarray]:
        return solve.by_cg(passes, self.parameters)
