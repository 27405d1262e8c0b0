"""Three ways through NDFS, by how ``(X'X + beta Delta)^-1 X'F`` is solved in every iteration."""

from __future__ import annotations

import logging
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.blocks.csr_kernels import kernel_bytes, mostly_zeros
from bigfs.blocks.kernels import column_means
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
from bigfs.selectors.ndfs.iteration import IterationState, finish, iterate
from bigfs.selectors.ndfs.kernels import with_sums
from bigfs.selectors.ndfs.passes import (
    ResidentPasses,
    StreamedPasses,
    block_bytes,
    graph_steps,
    product_bytes,
    resident_bytes,
    squared_sums,
    uncentered,
)
from bigfs.selectors.ndfs.solve import CG_PASSES, RegressionSolver
from bigfs.selectors.ndfs.start import (
    FirstF,
    check_init,
    spectral_labels,
    start_in_memory,
    start_steps,
    start_stored,
)
from bigfs.selectors.scoring import start_of
from bigfs.solvers.l21 import conjugate_gradients_bytes, gram_solver_bytes, kernel_solver_bytes
from bigfs.solvers.sparserows import LOADS
from bigfs.spectral.choice import largest_count
from bigfs.stages.scores import FeatureScores
from bigfs.stages.stage import Inputs
from bigfs.store.location import Location
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
    # Small data stay in this process: X in float64 is at most a third of a task. So do those of
    # several blocks where every solve would be one task that reads them all.
    is_small = 24 * shape.n_samples * shape.n_features <= budget
    is_wide = shape.n_samples < shape.n_features
    for kind in (Woodbury, Cholesky) if is_wide else (Cholesky,):
        stays = is_small and (shape.n_blocks == 1 or kind is Woodbury)
        for resident in (True, False) if stays else (False,):
            strategy = kind(shape, selection, resident)
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
    def _streamed_regression(self, passes: StreamedPasses) -> tuple[RegressionSolver, np.ndarray]:
        """Return the regressions and ``X'F`` of the start."""

    def cost(self) -> StageCost:
        """Return the cost of the start, the iterations and their regressions."""
        shape, c, n = self.shape, self.n_clusters, self.shape.n_samples
        on_x, *beside = graph_steps(shape, self.n_entries, c, self.parameters.max_iter)
        on_x = replace(on_x, seconds=read_seconds(shape) + self._iteration_seconds())
        return StageCost(
            (*self._start_steps(), *self._solve_steps(), on_x, *beside),
            self._scratch_bytes() + 5 * 8 * n * c,
            self._stored_bytes(),
            keeps_bytes=shape.nbytes + 12 * self.n_entries + 16 * n * (c + 2),
            loads=LOADS,
            at_most=True,
        )

    def _start_steps(self) -> tuple[Step, ...]:
        """Return the steps of the start; none where it is given."""
        is_given = not self.parameters.takes_eigenvectors
        return () if is_given else start_steps(self.shape, self.n_clusters)

    def _iteration_seconds(self) -> float:
        """Return the processor time of an iteration: products with F and the graph, and a solve."""
        (n, d), c = (self.shape.n_samples, self.shape.n_features), self.n_clusters
        of_rows = product_seconds(2, self.shape.n_values, c) + loop_seconds(self.n_entries, c)
        if n < d and self.shape.n_entries is not None:
            return of_rows + loop_seconds(_DUAL_STEPS, 2 * self.shape.n_entries, c)
        return of_rows + product_seconds(min(n, d), min(n, d), max(n, d) if n < d else d / 3)

    def _stored_bytes(self) -> int:
        """Return the bytes of the labels and of B."""
        return 4 * self.shape.n_samples + 8 * self.shape.n_features * self.n_clusters

    def _scratch_bytes(self) -> int:
        """Return the bytes of the result, and of the rows and labels that a start is made of."""
        start = self.shape.n_samples * (8 * self.n_clusters + 4)
        return self._stored_bytes() + (start if self.parameters.takes_eigenvectors else 0)

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
        blocks, parameters = inputs.blocks, self.parameters
        n_clusters, _ = inputs.n_clusters(parameters.n_clusters)
        start = self._start(inputs, n_clusters)
        before = blocks.passes
        labels = out.create("labels", (blocks.n_samples,), np.int32, blocks.rows)
        if inputs.checkpoint is None:
            folder = blocks.scratch.child(out.unique("iterates"))
        else:
            folder = Scratch(inputs.checkpoint)
        result = self._scores(inputs, start, labels, folder)
        if inputs.checkpoint is None:
            folder.close()
        result.details["n_passes"] = blocks.passes - before
        result.details["n_clusters"] = n_clusters
        if parameters.takes_eigenvectors:
            result.details["spectrum"] = inputs.spectral.spectrum
        return result

    def _start(self, inputs: Inputs, n_clusters: int) -> FirstF:
        """Return F in memory where it was given, else stored labels and their counts."""
        blocks, selection = inputs.blocks, self.selection
        if not self.parameters.takes_eigenvectors:
            given = start_of(selection, blocks.n_samples, blocks.source.dropped)
            return check_init(given, blocks.n_samples, n_clusters)
        scratch = blocks.scratch.child(blocks.scratch.unique("start"))
        return spectral_labels(inputs.spectral, blocks, n_clusters, selection.random_state, scratch)

    def _scores(
        self, inputs: Inputs, start: FirstF, labels: ArrayRef, folder: Scratch
    ) -> FeatureScores:
        """Run the iteration with tasks, whose iterates are in the folder."""
        blocks, W = inputs.blocks, inputs.affinity
        stored = start_stored(start, blocks, folder)
        passes = StreamedPasses(
            blocks, W, stored, folder, *self._kept_bytes(blocks, W, stored.shape[1])
        )
        regression, xtf = self._streamed_regression(passes)
        ftf = squared_sums(stored, blocks.bounds)
        max_iter = self.parameters.max_iter
        with track("ndfs", max_iter, "iterations") as progress, silenced():
            last = iterate(passes, regression, xtf, ftf, self.parameters, _file(inputs), progress)
        return self._result(last, passes, regression, labels)

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

    def _result(
        self,
        last: IterationState,
        passes: ResidentPasses | StreamedPasses,
        regression: RegressionSolver,
        labels: ArrayRef,
    ) -> FeatureScores:
        """Write the labels and return the scores with the record of the run."""
        details: dict[str, Any] = finish(last, passes, labels)
        details |= {"labels": labels, "solver": self.solver}
        details |= {"beta": regression.weights.beta, "unit": regression.weights.unit}
        # The row of a constant feature is an intercept: it tells no rows apart.
        scores = np.where(regression.constant, 0.0, np.linalg.norm(last.B, axis=1))
        if regression.is_blind(last.xtf, last.ftf):
            scores[:] = 0.0
        return FeatureScores.from_scores(scores, constant=regression.constant, **details)

    @property
    def _xtf_steps(self) -> tuple[Step, ...]:
        """The passes for the diagonal of ``X'X`` and for ``X'F`` of the start."""
        sums = product_bytes(self.shape, self.n_clusters) + _TILE_BYTES + kernel_bytes(self.shape)
        return moments_step(self.shape), pass_over(self.shape, "X'F of a block", sums)


def _file(inputs: Inputs) -> Location | None:
    """Return where the state of the iteration is kept, if it is."""
    return None if inputs.checkpoint is None else inputs.checkpoint / "state.npz"


@dataclass(frozen=True)
class DirectStrategy(NDFSStrategy):
    """The strategies that factor a matrix; small data need not leave this process."""

    # Whether X (of one block), its graph and F stay in this process: X is read once.
    resident: bool = False

    def _in_memory(self, rows: np.ndarray) -> tuple[Any, np.ndarray | None]:
        """Return all rows in float64, centered where there is an intercept."""
        X = np.array(rows, dtype=np.float64)
        if solve.has_intercept(self.parameters):
            X -= column_means(X)
        return X, None

    @abstractmethod
    def _resident_regression(self, passes: ResidentPasses, blocks: RowBlocks) -> RegressionSolver:
        """Return the regressions on data in this process."""

    def cost(self) -> StageCost:
        """Return the cost of the start, the iterations and their regressions."""
        if not self.resident:
            return super().cost()
        shape = self.shape
        needed = resident_bytes(shape, self.n_entries, self.n_clusters, self._solver_bytes())
        what = (
            f"X in float64 ({shape.n_samples:,} x {shape.n_features:,}), its products and the "
            "graph in one process"
        )
        seconds = self.parameters.max_iter * self._iteration_seconds()
        iterations = Step(what, needed, 1, 1, shape.n_chunks, by_client=True, seconds=seconds)
        start = self._start_steps()
        return StageCost(
            (*start, iterations),
            self._scratch_bytes(),
            self._stored_bytes(),
            loads=LOADS,
            at_most=bool(start),
        )

    def _scores(
        self, inputs: Inputs, start: FirstF, labels: ArrayRef, folder: Scratch
    ) -> FeatureScores:
        """Run in this process where X is resident, else with tasks."""
        if not self.resident:
            return super()._scores(inputs, start, labels, folder)
        blocks, W, F = inputs.blocks, inputs.affinity, start_in_memory(start)
        X, mean = self._in_memory(blocks.start_pass().read(0, blocks.n_samples))
        passes = ResidentPasses(X, W.load(), W.degrees.load(), F, mean)
        regression = self._resident_regression(passes, blocks)
        xtf = with_sums(X.T @ F, F.sum(axis=0))
        with track("ndfs", self.parameters.max_iter, "iterations") as progress:
            last = iterate(
                passes, regression, xtf, F.T @ F, self.parameters, _file(inputs), progress
            )
        return self._result(last, passes, regression, labels)


class Cholesky(DirectStrategy):
    """``X'X`` from one pass; a factor of n_features^2 in every solve."""

    solver = "cholesky"

    def _solver_bytes(self) -> int:
        return gram_solver_bytes(self.shape.n_features, self.n_clusters)

    def _solve_steps(self) -> tuple[Step, ...]:
        d, needed = self.shape.n_features, self._solver_bytes()
        what = f"a factor of {d:,} x {d:,} features"
        return (
            replace(
                gram_step(self.shape, self.n_clusters, "the Gram matrix with X'F"),
                before_kept=True,
            ),
            # On a cluster in a task, which reads what the client stored; else by the client.
            Step(what, needed, 1, 0, 4, self.parameters.max_iter + 1),
            Step(what, needed, 1, 0, 0, by_client=True),
        )

    def _resident_regression(self, passes: ResidentPasses, blocks: RowBlocks) -> RegressionSolver:
        if not blocks.keeps_gram:
            gram = passes.gram()
        elif solve.has_intercept(self.parameters):
            gram = blocks.gram().gram
        else:
            gram = uncentered(blocks.gram())
        return solve.resident_by_gram(passes, self.parameters, gram)

    def _streamed_regression(self, passes: StreamedPasses) -> tuple[RegressionSolver, np.ndarray]:
        return solve.streamed_by_gram(passes, self.parameters)


class Woodbury(DirectStrategy):
    """The n x n matrix ``X Delta^-1 X'``, for fewer rows than features; a solve reads all of X."""

    solver = "woodbury"

    def _solver_bytes(self) -> int:
        shape = self.shape
        needed = kernel_solver_bytes(shape.n_samples, shape.n_features, self.n_clusters)
        # Resident data are counted already; others are read into one array, block by block.
        return needed if self.resident else shape.nbytes + max(needed, shape.read_bytes)

    def _scratch_bytes(self) -> int:
        # The factors of two solves, where tasks store them.
        return super()._scratch_bytes() + (0 if self.resident else 16 * self.shape.n_samples**2)

    def _solve_steps(self) -> tuple[Step, ...]:
        shape, needed = self.shape, self._solver_bytes()
        what = f"all of X with {shape.n_samples:,} x {shape.n_samples:,} products of its rows"
        times = self.parameters.max_iter + 1
        return (*self._xtf_steps, Step(what, needed, 1, 1, shape.n_chunks, times))

    def _in_memory(self, rows: np.ndarray) -> tuple[Any, np.ndarray | None]:
        """Return all rows in float64; as CSR, with what centers it, where that is faster."""
        has_intercept = solve.has_intercept(self.parameters)
        sparse = mostly_zeros(rows, centered=has_intercept)
        if sparse is None:
            return super()._in_memory(rows)
        return sparse[0], sparse[1] if has_intercept else None

    def _resident_regression(self, passes: ResidentPasses, blocks: RowBlocks) -> RegressionSolver:
        return solve.resident_by_kernel(passes, self.parameters)

    def _streamed_regression(self, passes: StreamedPasses) -> tuple[RegressionSolver, np.ndarray]:
        return solve.streamed_by_kernel(passes, self.parameters)


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

    def _streamed_regression(self, passes: StreamedPasses) -> tuple[RegressionSolver, np.ndarray]:
        return solve.streamed_by_cg(passes, self.parameters)
