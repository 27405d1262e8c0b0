"""Three strategies of NDFS, which differ in how they solve ``(X'X + beta Delta)^-1 X'F``.

The start is k-means on the spectral embedding, converted to indicators. Its restarts run on a
sample of the rows, in one task; the best of them by inertia is continued on all rows.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.blocks.csr_kernels import kernel_bytes
from bigfs.blocks.kmeans import MAX_ITER, SAMPLE_ROWS, kmeans
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
from bigfs.core.errors import InputError, StorageError
from bigfs.core.memory import task_budget
from bigfs.core.units import MIB, format_bytes
from bigfs.graph import AffinityMatrix
from bigfs.runtime.execute import run_tasks
from bigfs.runtime.progress import Work, silenced, track
from bigfs.runtime.scope import worker_slots
from bigfs.selectors.embedded import View, centers_step, label_views, view_centers
from bigfs.selectors.kept import load_state, save_state
from bigfs.selectors.method import Strategy
from bigfs.selectors.ndfs import NDFSParameters, solve
from bigfs.selectors.ndfs.passes import (
    FactorPasses,
    FactorSums,
    Update,
    block_bytes,
    graph_steps,
    inverse_norms,
    product_bytes,
    squared_sums,
)
from bigfs.selectors.ndfs.solve import CG_PASSES, RegressionSolver
from bigfs.selectors.scoring import checked_labels, described, start_of
from bigfs.solvers.l21 import (
    conjugate_gradients_bytes,
    gram_solver_bytes,
    kernel_solver_bytes,
    smoothed_l21,
)
from bigfs.solvers.sparserows import LOADS
from bigfs.spectral.choice import largest_count
from bigfs.spectral.embedding import SpectralEmbedding
from bigfs.stages.scores import FeatureScores
from bigfs.stages.stage import Inputs
from bigfs.store.location import Location
from bigfs.store.scratch import ArrayRef, Scratch

# Number of iterations between checkpoints; one is also written by the first iteration that ends
# more than this number of seconds after the last checkpoint.
CHECKPOINT_ITERATIONS = 5
CHECKPOINT_SECONDS = 30.0


@dataclass
class IterationState:
    """State of the iteration, except F."""

    done: int  # number of iterations made
    # Of shape (n_features, n_clusters), float64: the weights of eq. (12); before the first
    # iteration, those of the ridge regression.
    B: np.ndarray
    # Of shape (n_features + 1, n_clusters), float64: the solution with the next Delta, and the
    # intercept as last row. They enter ``MF``.
    coef: np.ndarray
    delta: np.ndarray  # of shape (n_features,), float64
    # ``X'F``, with the column sums of F as its last row, and ``F'F``.
    xtf: np.ndarray
    ftf: np.ndarray
    # The three parts of eq. (10) after each iteration. The first part of the last iteration is NaN
    # until the next pass computes it.
    parts: list[tuple[float, float, float]] = field(default_factory=list)
    movement: list[float] = field(default_factory=list)  # ``|F_t - F_t-1|``
    orthogonality: list[float] = field(default_factory=list)  # ``|F'F - I|``

    @property
    def totals(self) -> np.ndarray:
        """The objective after each iteration."""
        return np.array(self.parts).sum(axis=1)


def iterate(
    passes: FactorPasses,
    regression: RegressionSolver,
    xtf: np.ndarray,
    ftf: np.ndarray,
    parameters: NDFSParameters,
    checkpoint: Location | None,
    progress: Work,
) -> IterationState:
    """Run algorithm 1 and return its final state; F is held by ``passes``.

    Parameters
    ----------
    passes : FactorPasses
        Holds the start F, which is replaced by the final one.
    regression : RegressionSolver
    xtf, ftf : ndarray
        ``X'F`` with the column sums of F as last row, and ``F'F``, of the start.
    parameters : NDFSParameters
    checkpoint : Path, ObjectPath or None
        File of the checkpoint: read if it exists, written every few iterations.
    progress : Work
        Progress report, advanced in every iteration and resumed from a checkpoint.
    """
    update = Update(parameters.update, parameters.alpha, parameters.gamma)
    state = _resumed(checkpoint, passes)
    if state is None:
        first = regression.first(regression.centered(xtf))
        delta = np.full(len(first), regression.weights.delta)
        state = IterationState(0, first, regression.with_intercept(first, xtf), delta, xtf, ftf)
    progress.resume(state.done)
    saved = time.monotonic()
    while state.done < parameters.max_iter and not _converged(state, parameters.tol):
        sums = passes.step(state.coef, state.ftf, update)
        _advance(state, sums, passes, regression, parameters)
        # The last known value of the objective is one iteration old.
        known = state.totals[-2:-1]
        progress.advance(1, f"objective {known[0]:.6g}" if len(known) else None)
        late = time.monotonic() - saved > CHECKPOINT_SECONDS
        if checkpoint is not None and (state.done % CHECKPOINT_ITERATIONS == 0 or late):
            save_state(checkpoint, {"iteration": state, "passes": passes.state()})
            saved = time.monotonic()
    return state


def _advance(
    state: IterationState,
    sums: FactorSums,
    passes: FactorPasses,
    regression: RegressionSolver,
    parameters: NDFSParameters,
) -> None:
    """Update the state with the sums of a pass: normalize, solve, and record the objective."""
    if state.parts:
        state.parts[-1] = (sums.smoothness, *state.parts[-1][1:])
    if parameters.update == "printed":
        passes.scale = inverse_norms(sums.ftf.diagonal())
        sums.xtf *= passes.scale
        sums.ftf *= np.multiply.outer(passes.scale, passes.scale)
        sums.overlap *= passes.scale
    squared = np.trace(sums.ftf) + np.trace(state.ftf) - 2 * sums.overlap.sum()
    state.movement.append(float(np.sqrt(max(0.0, squared))))
    state.xtf, state.ftf = sums.xtf, sums.ftf
    before, beta = state.delta, regression.weights.beta
    xtf = regression.centered(state.xtf)
    state.B, state.delta, coef = regression.advance(before, xtf)
    state.coef = regression.with_intercept(coef, state.xtf)
    # |XB - F|^2 without a pass, by X'X B = X'F - beta Delta B.
    residual = (
        np.trace(state.ftf)
        - regression.explained_by_intercept(state.xtf)
        - np.einsum("ij,ij->", state.B, xtf)
        - beta * np.einsum("i,ij,ij->", before, state.B, state.B)
    )
    fit = parameters.alpha * (max(0.0, residual) + beta * smoothed_l21(state.B, regression.epsilon))
    off = float(((state.ftf - np.eye(len(state.ftf))) ** 2).sum())
    state.parts.append((np.nan, float(fit), parameters.gamma / 2 * off))
    state.orthogonality.append(float(np.sqrt(off)))
    state.done += 1


def _converged(state: IterationState, tol: float) -> bool:
    """Return True if the relative change of the objective is at most ``tol``.

    The last known value of the objective is one iteration old.
    """
    if state.done < 3:
        return False
    before, after = state.totals[-3:-1]
    return bool(abs(before - after) <= tol * abs(before))


def finish(state: IterationState, passes: FactorPasses, labels: ArrayRef) -> dict[str, Any]:
    """Complete the objective by a pass over the graph, and return the details of the result."""
    ending = passes.finish(labels)
    state.parts[-1] = (ending.smoothness, *state.parts[-1][1:])
    return {
        "coef": state.B,
        "n_iter": state.done,
        "objective": state.totals,
        "objective_parts": np.array(state.parts),
        "orthogonality": np.array(state.orthogonality),
        "movement": np.array(state.movement),
        "distance_from_start": float(np.sqrt(ending.squared)),
        "n_labels_changed": ending.changed,
    }


def _resumed(path: Location | None, passes: FactorPasses) -> IterationState | None:
    """Return the state of a checkpoint and restore F, or return None if it cannot be read."""
    stored = load_state(path)
    if stored is None:
        return None
    try:
        passes.restore(stored["passes"])
    except StorageError:
        return None
    return IterationState(**stored["iteration"])


RESTARTS = 20


def check_init(init: Any, n_samples: int, n_clusters: int) -> np.ndarray:
    """Return a given start as F, of shape (n_samples, n_clusters), float64.

    Parameters
    ----------
    init : array-like of shape (n_samples,) or (n_samples, n_clusters)
        Labels in [0, n_clusters), which are converted to indicators plus 0.2 with columns of norm
        one; or an F, used as it is.
    n_samples, n_clusters : int

    Raises
    ------
    InputError
        If ``init`` is neither.
    """
    given = np.asarray(init)
    if given.ndim == 1:
        labels = checked_labels(given, n_samples, n_clusters)
        return normalized_indicators(labels, np.bincount(labels, minlength=n_clusters))
    fits = given.shape == (n_samples, n_clusters) and given.dtype.kind in "fiub"
    if not fits or not np.isfinite(given).all() or (given < 0).any():
        raise InputError(
            f"init must be 'spectral', labels of {n_samples} rows or an array F of shape "
            f"({n_samples}, {n_clusters}) with finite, non-negative values. "
            f"Got {described(given)}."
        )
    return given.astype(np.float64)


def normalized_indicators(labels: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return indicators plus 0.2, with columns of norm one over all rows.

    Parameters
    ----------
    labels : ndarray of shape (rows,)
        Labels of the given rows.
    counts : ndarray of shape (n_clusters,)
        Number of rows of each cluster, among all rows.
    """
    F = np.full((len(labels), len(counts)), 0.2)
    F[np.arange(len(labels)), labels] += 1.0
    squares = 1.2**2 * counts + 0.2**2 * (counts.sum() - counts)
    return np.asarray(F / np.sqrt(squares))


def spectral_labels(
    spectral: SpectralEmbedding,
    blocks: RowBlocks,
    n_clusters: int,
    random_state: int,
    scratch: Scratch,
) -> tuple[ArrayRef, np.ndarray]:
    """Cluster the rows of an embedding, each scaled to norm one.

    Parameters
    ----------
    spectral : SpectralEmbedding of shape (n_samples, n_components)
    blocks : RowBlocks
        The data, for the bounds of the row blocks.
    n_clusters : int
    random_state : int
    scratch : Scratch
        Folder that the labels are stored in.

    Returns
    -------
    labels : ArrayRef of shape (n_samples,), int32
    counts : ndarray of shape (n_clusters,), int64
        Number of rows of each cluster. If there are fewer distinct rows than clusters, the last
        clusters are empty.
    """
    source, n, bounds = spectral.embedding_ref, blocks.n_samples, blocks.bounds
    view = View("ndfs start", source.shape[1], scaled=True, restarts=RESTARTS)
    label = "ndfs start"
    centers = view_centers([view], source, n_clusters, random_state, scratch, label)
    if n > SAMPLE_ROWS and len(centers[0]) == n_clusters:
        unit = scratch.create("unit.zarr", source.shape, np.float64, blocks.rows)
        run_tasks(_unit_task, bounds, source, unit, view, label=label, unit="blocks")
        rows = RowBlocks.from_any(unit.path, scratch=scratch.child("rows"), rows=blocks.rows)
        clusters = kmeans(rows, n_clusters, init=centers[0])
        return clusters.labels_ref, clusters.counts
    labels = scratch.create("labels", (n,), np.int32, blocks.rows)
    counts = label_views(bounds, [view], source, centers, labels, label)[0]
    return labels, np.pad(counts, (0, n_clusters - len(counts)))


def start_steps(shape: Shape, n_clusters: int) -> tuple[Step, ...]:
    """Return the steps of `spectral_labels` and of storing F; none of them reads X."""
    n, c = shape.n_samples, n_clusters
    # Rows of norm one, their labels, and F; and k-means on all rows, if the restarts used a sample.
    times = 3 if n <= SAMPLE_ROWS else 2 + MAX_ITER + 1
    by_block = shape.rows * (32 * c + 64) + 16 * MIB
    what = f"{shape.rows:,} rows of the eigenvectors and their clusters"
    labeled = Step(what, by_block, shape.n_blocks, 0, 2 * shape.n_blocks, times)
    return centers_step(n, c, c, 1), labeled


def _unit_task(bounds: tuple[int, int], source: ArrayRef, unit: ArrayRef, view: View) -> None:
    unit.write(bounds[0], view.of(source.read(*bounds)))


def store_indicators(
    labels: ArrayRef, counts: np.ndarray, blocks: RowBlocks, folder: Scratch
) -> ArrayRef:
    """Store the F that represents labels, by row blocks."""
    shape = (blocks.n_samples, len(counts))
    F = folder.create(folder.unique("F"), shape, np.float64, blocks.rows)
    run_tasks(_indicators_task, blocks.bounds, labels, counts.tolist(), F, label="ndfs start")
    return F


def _indicators_task(
    bounds: tuple[int, int], labels: ArrayRef, counts: list[int], F: ArrayRef
) -> None:
    F.write(bounds[0], normalized_indicators(labels.read(*bounds), np.array(counts)))


logger = logging.getLogger("bigfs")

# Memory for the rows that are converted to float64 at a time, and for their products.
_TILE_BYTES = 16 * MIB
# Measured number of products with rows that are mostly zeros, in the two solves of an iteration.
_DUAL_STEPS = 40


def choose(shape: Shape, selection: Selection) -> NDFSStrategy:
    """Return the fastest strategy that fits into memory; conjugate gradients if no other does.

    CSR blocks are always solved by conjugate gradients: neither a Gram matrix nor a dense array of
    all rows is formed.

    Raises
    ------
    InputError
        If there is no intercept to absorb the shift that a preprocessing adds to sparse data.
    """
    if shape.n_entries is not None:
        if needs_moments(selection.preprocess) and not solve.has_intercept(selection.parameters):
            raise InputError(
                f"ndfs.unit 'none' has no intercept, and preprocess '{selection.preprocess}' would "
                "make sparse data dense. Set ndfs.unit to 'rms', or preprocess to 'none'."
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
    An iteration is a pass, and the regressions may need further passes. F (n_samples x n_clusters)
    is stored by row blocks: at most three copies at a time, five with checkpoints.
    """

    solver: ClassVar[str]

    @property
    def n_clusters(self) -> int:
        """Number of columns of F; with "auto", the largest number that it chooses."""
        return largest_count(self.parameters.n_clusters)

    @property
    def n_entries(self) -> int:
        """Upper bound of the number of entries of the affinity matrix, with every edge twice."""
        return 2 * self.shape.n_samples * self.selection.used_graph.n_neighbors

    @abstractmethod
    def _solver_bytes(self) -> int:
        """Return the bytes that the regressions need in the process that solves them."""

    @abstractmethod
    def _solve_steps(self) -> tuple[Step, ...]:
        """Return the cost of the regressions as steps."""

    @abstractmethod
    def _regression(self, passes: FactorPasses) -> tuple[RegressionSolver, np.ndarray]:
        """Return the solver of the regressions, and ``X'F`` of the start."""

    def cost(self) -> StageCost:
        """Return the cost of the start, the iterations and their regressions."""
        shape, c, n = self.shape, self.n_clusters, self.shape.n_samples
        on_x, *beside = graph_steps(shape, self.n_entries, c, self.parameters.max_iter)
        on_x = replace(on_x, seconds=read_seconds(shape) + self._iteration_seconds())
        # `stored` is for the labels and B, `of_start` for the rows and labels of a spectral start;
        # then follow the iterates.
        stored = 4 * n + 8 * shape.n_features * c
        start: tuple[Step, ...] = ()
        of_start = 0
        if self.parameters.takes_eigenvectors:
            start, of_start = start_steps(shape, c), n * (8 * c + 4)
        # If tasks run in the client's process, each needs a block in addition to what the client
        # holds.
        solving = (
            replace(step, task_bytes=step.task_bytes + on_x.task_bytes) if step.by_client else step
            for step in self._solve_steps()
        )
        return StageCost(
            (*start, *solving, on_x, *beside),
            stored + of_start + 5 * 8 * n * c,
            stored,
            keeps_bytes=shape.nbytes + 12 * self.n_entries + 16 * n * (c + 2),
            loads=(*LOADS, "bigfs.spectral.kernels"),
            at_most=True,
        )

    def _iteration_seconds(self) -> float:
        """Return the processor time of an iteration: products with F and the graph, and a solve.

        Reading is not included.
        """
        (n, d), c = (self.shape.n_samples, self.shape.n_features), self.n_clusters
        of_rows = product_seconds(2, self.shape.n_values, c) + loop_seconds(self.n_entries, c)
        if n < d and self.shape.n_entries is not None:
            return of_rows + loop_seconds(_DUAL_STEPS, 2 * self.shape.n_entries, c)
        return of_rows + product_seconds(min(n, d), min(n, d), max(n, d) if n < d else d / 3)

    def run(self, inputs: Inputs, out: Scratch) -> FeatureScores:
        """Return the row norms of B as scores; they are zero for constant features.

        The details are the attributes of `NDFS`; the labels are stored in ``out``. If there is a
        checkpoint, the run continues from it.

        Raises
        ------
        InputError
            If the start does not fit the data.
        ConvergenceError
            If conjugate gradients do not converge.
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
        # The row of a constant feature acts as an intercept: it does not distinguish rows.
        scores = np.where(regression.constant, 0.0, np.linalg.norm(last.B, axis=1))
        if regression.is_blind(last.xtf, last.ftf):
            scores[:] = 0.0
        return FeatureScores.from_scores(scores, constant=regression.constant, **details)

    def _start(self, inputs: Inputs, n_clusters: int, folder: Scratch) -> ArrayRef:
        """Return the initial F: the given start, or indicators of the eigenvectors' clusters."""
        blocks, selection = inputs.blocks, self.selection
        if not self.parameters.takes_eigenvectors:
            given = start_of(
                selection, blocks.n_samples, blocks.source.dropped, blocks.source.row_dimensions
            )
            F = check_init(given, blocks.n_samples, n_clusters)
            return folder.put(folder.unique("F"), F, blocks.rows)
        scratch, seed = blocks.scratch.child(blocks.scratch.unique("start")), selection.random_state
        clusters = spectral_labels(inputs.spectral, blocks, n_clusters, seed, scratch)
        return store_indicators(*clusters, blocks, folder)

    def _kept_bytes(self, blocks: RowBlocks, W: AffinityMatrix, n_clusters: int) -> tuple[int, int]:
        """Return the bytes of X, and of F with the degrees, that a worker process may keep."""
        n_processes, n_threads = worker_slots()
        one_task = block_bytes(blocks.layout, W.nnz, n_clusters)
        free = task_budget(self.selection.memory_limit) - n_threads * one_task
        free -= self._solver_bytes()
        shared = blocks.n_samples * 8 * (n_clusters + 1)
        # While F is loaded, it is in memory twice.
        for_f = shared if 2 * shared <= free else 0
        for_x = max(0, free - 2 * for_f)
        share = min(1.0, for_x * n_processes / blocks.nbytes)
        logger.info(
            "ndfs: %.0f %% of X (%s) stays in worker memory between iterations, the rest is read "
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
    """NDFS with ``X'X`` from one pass, and a Cholesky factor of n_features^2 in every solve."""

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
    """NDFS with the n x n matrix ``X Delta^-1 X'``, for fewer rows than features.

    The client holds X and the matrix.
    """

    solver = "woodbury"

    @property
    def _seeks_zeros(self) -> bool:
        """True if there is enough memory for copies of X, to find out if it is mostly zeros."""
        return 24 * self.shape.n_values <= task_budget(self.selection.memory_limit)

    def _solver_bytes(self) -> int:
        shape = self.shape
        needed = kernel_solver_bytes(shape.n_samples, shape.n_features, self.n_clusters)
        copy = 12 * shape.n_values if self._seeks_zeros else 0
        # While X is read and checked for zeros, no pass runs, so the block that `cost` adds for a
        # pass is subtracted.
        block = block_bytes(shape, self.n_entries, self.n_clusters)
        return shape.nbytes + max(needed, max(shape.read_bytes, copy) - block)

    def _solve_steps(self) -> tuple[Step, ...]:
        shape = self.shape
        what = f"all of X with {shape.n_samples:,} x {shape.n_samples:,} products of its rows"
        needed = self._solver_bytes()
        return (*self._xtf_steps, Step(what, needed, 1, 1, shape.n_chunks, by_client=True))

    def _regression(self, passes: FactorPasses) -> tuple[RegressionSolver, np.ndarray]:
        return solve.by_kernel(passes, self.parameters, seeks_zeros=self._seeks_zeros)


class ConjugateGradients(NDFSStrategy):
    """NDFS with conjugate gradients, where each product with ``X'X`` is a pass.

    It is used if the matrices of the other strategies do not fit into memory, or for CSR blocks.
    """

    solver = "cg"

    def _solver_bytes(self) -> int:
        return conjugate_gradients_bytes(self.shape.n_features, self.n_clusters)

    def _solve_steps(self) -> tuple[Step, ...]:
        d, c = self.shape.n_features, self.n_clusters
        # Two solves in each iteration, and one before the first.
        times = (2 * self.parameters.max_iter + 1) * CG_PASSES
        beside = product_bytes(self.shape, c) + _TILE_BYTES + kernel_bytes(self.shape)
        what = "a product with X'X over a block"
        seconds = product_seconds(2, self.shape.n_values, c)
        return (
            *self._xtf_steps,
            pass_over(self.shape, what, beside, times=times, seconds=seconds),
            Step(f"vectors of {d:,} x {c}", self._solver_bytes(), by_client=True),
        )

    def _regression(self, passes: FactorPasses) -> tuple[RegressionSolver, np.ndarray]:
        return solve.by_cg(passes, self.parameters)
