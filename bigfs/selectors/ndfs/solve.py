"""The regressions of NDFS: where ``(X'X + beta Delta)^-1 X'F`` is solved, and how.

By Cholesky on the d x d Gram matrix; on the n x n kernel matrix where rows are fewer (Woodbury);
by conjugate gradients, each step a pass over X, where neither fits a worker. With a cluster the
matrices stay on workers. No scikit-learn here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bigfs.blocks.csr_kernels import csr_moments
from bigfs.blocks.rowblocks import BlockReader
from bigfs.runtime.execute import map_reduce, run_tasks
from bigfs.runtime.scope import crosses_processes
from bigfs.selectors.ndfs import NDFSParameters
from bigfs.selectors.ndfs.kernels import with_sums
from bigfs.selectors.ndfs.passes import ResidentPasses, StreamedPasses, uncentered
from bigfs.solvers.l21 import GramSolver, KernelSolver, conjugate_gradients, row_weights
from bigfs.solvers.sparserows import SparseRows
from bigfs.store.chunking import block_bounds
from bigfs.store.scratch import ArrayRef, Scratch

# Share of the right side's norm that conjugate gradients may leave, and their passes a solve.
CG_TOL = 1e-9
CG_PASSES = 500
# Products of features and F below this share of their norms are rounding: F is constant.
_ROUNDING = 1e-9

Solve = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Weights:
    """The penalty in units of the data as they are read."""

    beta: float
    delta: float  # what Delta starts as, times the identity
    unit: float  # what X would have to be divided by for the given settings to hold

    @classmethod
    def of(
        cls, parameters: NDFSParameters, count: int, squares: np.ndarray, xtf: np.ndarray
    ) -> Weights:
        """Return the weights for data of ``count`` rows.

        Instead of X/s, beta and Delta = I, X has the same solution with ``beta s`` and
        ``Delta = s I``; r copies of every row that of one with ``beta sqrt(r)`` and
        ``sqrt(r) I``.

        Parameters
        ----------
        parameters : NDFSParameters
        count : int
            Rows.
        squares : ndarray of shape (n_features,)
            Sums of squares of the centered features.
        xtf : ndarray of shape (n_features, n_clusters)
            ``X'F`` of the centered features and the start.
        """
        scale = float(np.sqrt(squares.sum() / count)) or 1.0
        unit = scale if parameters.unit == "rms" else 1.0
        if parameters.beta is not None:
            return cls(parameters.beta * unit, unit, unit)
        # Above it B is zero.
        largest = 2.0 * float(np.sqrt(np.einsum("ij,ij->i", xtf, xtf).max(initial=0.0)))
        if largest <= _ROUNDING * np.sqrt(squares.max(initial=0.0)):
            largest = 1.0
        return cls(parameters.sparsity * largest, scale * np.sqrt(count), unit)


@dataclass
class RegressionSolver(ABC):
    """Solves both systems of an iteration."""

    squares: np.ndarray  # of shape (n_features,), float64: diagonal of ``X'X``
    constant: np.ndarray  # of shape (n_features,), bool: features that tell no rows apart
    weights: Weights
    # Of shape (n_features,), float64, or None: what centers the features as they are read: then
    # there is an intercept, X and F are centered in both systems. None: the paper's regression,
    # which has none.
    mean: np.ndarray | None
    count: int  # rows

    def first(self, xtf: np.ndarray) -> np.ndarray:
        """Return the solution with the Delta of the start."""
        return self._solutions(np.full(len(xtf), self.weights.delta), xtf, both=False)[0]

    def advance(
        self, delta: np.ndarray, xtf: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return B, the Delta that follows from it, and the solution with that."""
        B, coef = self._solutions(delta, xtf, both=True)
        return B, row_weights(B, self.epsilon), coef

    @abstractmethod
    def _solutions(self, delta: np.ndarray, xtf: np.ndarray, both: bool) -> list[np.ndarray]:
        """Return B, and with ``both`` also the solution under the weights that B gives."""

    def centered(self, xtf: np.ndarray) -> np.ndarray:
        """Return the ``X'F`` of the systems from that of a pass with the sums of F."""
        if self.mean is None:
            return xtf[:-1]
        return np.asarray(xtf[:-1] - np.multiply.outer(self.mean, xtf[-1]))

    def with_intercept(self, coef: np.ndarray, xtf: np.ndarray) -> np.ndarray:
        """Return coefficients with the intercept, or zeros, as their last row."""
        intercept = np.zeros(coef.shape[1])
        # A matrix that was stored comes back in the other order of memory, in which products round
        # otherwise; so they do in several threads.
        coef = np.ascontiguousarray(coef)
        if self.mean is not None:
            intercept = xtf[-1] / self.count - np.einsum("i,ij->j", self.mean, coef)
        return np.vstack([coef, intercept])

    def explained_by_intercept(self, xtf: np.ndarray) -> float:
        """Return the part of ``|F|^2`` that the means of F's columns hold."""
        return 0.0 if self.mean is None else float(xtf[-1] @ xtf[-1]) / self.count

    def is_blind(self, xtf: np.ndarray, ftf: np.ndarray) -> bool:
        """Return whether features and F have nothing in common but rounding."""
        common = np.linalg.norm(self.centered(xtf), axis=1)
        return bool((common <= _ROUNDING * np.sqrt(self.squares * np.trace(ftf))).all())

    @property
    def epsilon(self) -> float:
        """The smoothing of the norm's rows: a millionth of the scale of B, squared."""
        return 1e-12 / max(float(self.squares.mean()), np.finfo(np.float64).tiny)


@dataclass
class OwnSolver(RegressionSolver):
    """Solves in this process, whose solver keeps the last factor."""

    solve: Solve

    def _solutions(self, delta: np.ndarray, xtf: np.ndarray, both: bool) -> list[np.ndarray]:
        return _solutions(self.solve, delta, xtf, self.epsilon if both else None)


@dataclass
class TaskSolver(RegressionSolver):
    """Solves in one task on a worker, which reads the matrices and does not keep them."""

    scratch: Scratch
    make_task: Callable[[], _GramTask | _KernelTask]

    def _solutions(self, delta: np.ndarray, xtf: np.ndarray, both: bool) -> list[np.ndarray]:
        put, unique = self.scratch.put, self.scratch.unique
        small = put(unique("delta"), delta), put(unique("xtf"), xtf)
        epsilon = self.epsilon if both else None
        tasks = [self.make_task()]
        [solutions] = run_tasks(_solve_task, tasks, *small, epsilon, label="ndfs solve")
        self.scratch.remove(*small)
        return solutions


def _solutions(
    solve: Solve, delta: np.ndarray, xtf: np.ndarray, epsilon: float | None
) -> list[np.ndarray]:
    """Return B; with the smoothing also the solution under the weights that B gives."""
    B = solve(delta, xtf)
    return [B] if epsilon is None else [B, solve(row_weights(B, epsilon), xtf)]


def has_intercept(parameters: NDFSParameters) -> bool:
    """Return whether features and F are centered in the regressions."""
    return parameters.unit == "rms"


def resident_by_gram(
    passes: ResidentPasses, parameters: NDFSParameters, gram: np.ndarray
) -> RegressionSolver:
    """Solve by Cholesky for a matrix that is in this process."""
    weights = _resident_weights(passes, parameters)
    return _resident(passes, parameters, GramSolver(gram, weights.beta).solve, weights)


def resident_by_kernel(passes: ResidentPasses, parameters: NDFSParameters) -> RegressionSolver:
    """Solve on the n x n matrix for a matrix that is in this process."""
    weights = _resident_weights(passes, parameters)
    X = passes.X
    if hasattr(X, "indptr"):
        X = SparseRows(X, None if passes.mean is None else np.zeros(X.shape[0], dtype=np.intp))
    kernel = KernelSolver(X, weights.beta)

    def solve(delta: np.ndarray, _: np.ndarray) -> np.ndarray:
        return kernel.solve(delta, passes.F * passes.scale)

    return _resident(passes, parameters, solve, weights)


def _resident(
    passes: ResidentPasses, parameters: NDFSParameters, solve: Solve, weights: Weights
) -> RegressionSolver:
    mean = passes.mean
    if mean is None and has_intercept(parameters):  # the rows are centered already
        mean = np.zeros(passes.X.shape[1])
    return OwnSolver(*_columns(passes), weights, mean, passes.X.shape[0], solve)


def _resident_weights(passes: ResidentPasses, parameters: NDFSParameters) -> Weights:
    X, F = passes.X, passes.F
    if hasattr(X, "indptr"):
        moments = csr_moments(X)
        products = X.T @ F - np.multiply.outer(moments.mean, F.sum(axis=0))
        return Weights.of(parameters, moments.count, moments.squares, products)
    centered = X if has_intercept(parameters) else X - X.mean(axis=0)
    squares = np.einsum("ij,ij->j", centered, centered)
    return Weights.of(parameters, len(centered), squares, centered.T @ F)


def _columns(passes: ResidentPasses) -> tuple[np.ndarray, np.ndarray]:
    """Return the squared norms of the features, and which of them are constant."""
    if hasattr(passes.X, "indptr"):
        moments = csr_moments(passes.X)
        if passes.mean is not None:
            return moments.squares, moments.constant
        return moments.squares + moments.count * moments.mean**2, moments.constant
    squares = np.einsum("ij,ij->j", passes.X, passes.X)
    return squares, (passes.X == passes.X[0]).all(axis=0)


def streamed_by_gram(
    passes: StreamedPasses, parameters: NDFSParameters
) -> tuple[RegressionSolver, np.ndarray]:
    """Solve by Cholesky for a matrix of many blocks.

    Returns
    -------
    regression : RegressionSolver
    xtf : ndarray of shape (n_features + 1, n_clusters), float64
        ``X'F`` of the start with the sums of its columns, from the pass that gives ``X'X``.
    """
    blocks, n = passes.blocks, passes.blocks.n_samples
    centered = blocks.gram(passes.F)
    constant = centered.gram.diagonal() <= 0
    weights = Weights.of(parameters, n, centered.gram.diagonal(), centered.xty)
    xtf = with_sums(
        centered.xty + n * np.multiply.outer(centered.mean, centered.y_mean), n * centered.y_mean
    )
    mean = centered.mean if has_intercept(parameters) else None
    gram = centered.gram if has_intercept(parameters) else uncentered(centered)
    squares = gram.diagonal().copy()
    if not crosses_processes():
        solve = GramSolver(gram, weights.beta).solve
        return OwnSolver(squares, constant, weights, mean, n, solve), xtf
    stored = blocks.scratch.put(blocks.scratch.unique("gram"), gram)
    tasks = blocks.scratch, lambda: _GramTask(stored, weights.beta)
    return TaskSolver(squares, constant, weights, mean, n, *tasks), xtf


def streamed_by_kernel(
    passes: StreamedPasses, parameters: NDFSParameters
) -> tuple[RegressionSolver, np.ndarray]:
    """Solve on the n x n matrix for a matrix of many blocks; a solve is a pass of one task.

    The last factor of an iteration is the first of the next one, and is stored in between.
    """
    blocks, n = passes.blocks, passes.blocks.n_samples
    factors: list[ArrayRef] = []
    about, xtf = _streamed_start(passes, parameters)
    beta, mean = about["weights"].beta, about["mean"]
    shared = None if mean is None else blocks.scratch.put(blocks.scratch.unique("mean"), mean)

    def task() -> _KernelTask:
        scale = passes.scale.tolist()
        name = blocks.scratch.unique("factor")
        factors.append(blocks.scratch.create(name, (n, n), np.float64, blocks.rows))
        if len(factors) > 2:
            blocks.scratch.remove(factors.pop(0))
        reader, held = blocks.start_pass(), (factors[-1], *factors[:-1])
        return _KernelTask(reader, passes.F, scale, beta, shared, held)

    return TaskSolver(**about, scratch=blocks.scratch, make_task=task), xtf


def streamed_by_cg(
    passes: StreamedPasses, parameters: NDFSParameters
) -> tuple[RegressionSolver, np.ndarray]:
    """Solve by conjugate gradients: each product with ``X'X`` is a pass over X."""
    blocks = passes.blocks
    about, xtf = _streamed_start(passes, parameters)
    squares, beta, mean = about["squares"], about["weights"].beta, about["mean"]
    offset = np.zeros(blocks.n_features) if mean is None else mean
    guess: list[np.ndarray] = []

    def apply_gram(V: np.ndarray) -> np.ndarray:
        # The mean of the rows' products is the last row, as the intercept is of coefficients.
        shared = blocks.scratch.put(
            blocks.scratch.unique("V"), np.vstack([V, -np.einsum("i,ij->j", offset, V)])
        )
        try:
            product = blocks.reduce(_gram_product, np.add, shared, label="ndfs cg")
            return np.asarray(product[:-1] - np.multiply.outer(offset, product[-1]))
        finally:
            blocks.scratch.remove(shared)

    def solve(delta: np.ndarray, xtf: np.ndarray) -> np.ndarray:
        start = guess.pop() if guess else np.zeros_like(xtf)
        solution, _ = conjugate_gradients(
            apply_gram, squares, beta, delta, xtf, start, tol=CG_TOL, max_iter=CG_PASSES
        )
        guess.append(solution)
        return solution

    return OwnSolver(**about, solve=solve), xtf


def _streamed_start(
    passes: StreamedPasses, parameters: NDFSParameters
) -> tuple[dict[str, Any], np.ndarray]:
    """Return what a `RegressionSolver` knows of X, and ``X'F`` with F's sums."""
    moments, offset = passes.blocks.moments(), passes.blocks.offset
    if offset is not None:  # all sums are of the entries, and so is what centers them
        moments = replace(moments, mean=moments.mean - offset)
    xtf = passes.blocks.xtv(passes.F)
    sums = map_reduce(_column_sums, passes.blocks.bounds, np.add, passes.F, label="ndfs start")
    centered = xtf - np.multiply.outer(moments.mean, sums)
    weights = Weights.of(parameters, moments.count, moments.squares, centered)
    mean: np.ndarray | None = moments.mean
    squares = moments.squares
    if not has_intercept(parameters):
        mean, squares = None, squares + moments.count * moments.mean**2
    about = {"squares": squares, "constant": moments.constant, "weights": weights}
    return {**about, "mean": mean, "count": moments.count}, with_sums(xtf, sums)


def _column_sums(bounds: tuple[int, int], F: ArrayRef) -> np.ndarray:
    return np.asarray(F.read(*bounds).sum(axis=0))


@dataclass(frozen=True)
class _GramTask:
    """Makes the solver of a task from the stored Gram matrix."""

    gram: ArrayRef
    beta: float

    def solver(self, delta: np.ndarray) -> Solve:
        return GramSolver(self.gram.load(), self.beta).solve


@dataclass(frozen=True)
class _KernelTask:
    """Makes the solver of a task from X and the current F.

    ``factors`` are where the task's last factor goes, and where that of the task before is.
    """

    reader: BlockReader
    F: ArrayRef
    scale: list[float]
    beta: float
    mean: ArrayRef | None
    factors: tuple[ArrayRef, ...]

    def solver(self, delta: np.ndarray) -> Solve:
        F = self.F.load() * np.array(self.scale)
        mean = None if self.mean is None else self.mean.load()
        kernel = KernelSolver(self._all_rows(), self.beta, mean)
        if len(self.factors) > 1:
            kernel.hold(delta, self.factors[1].load())

        def solve(weights: np.ndarray, _: np.ndarray) -> np.ndarray:
            solution = kernel.solve(weights, F)
            if weights is not delta or len(self.factors) == 1:
                self.factors[0].write(0, kernel.factor)
            return solution

        return solve

    def _all_rows(self) -> np.ndarray:
        """Return X, read block by block: a copy made while reading is one of a block."""
        n_samples, bounds = self.F.shape[0], block_bounds(self.F.shape[0], self.F.chunk_rows)
        X = np.empty((0, 0))
        for start, stop in bounds:
            rows = self.reader.read(start, stop)
            if not X.size:
                X = np.empty((n_samples, rows.shape[1]), rows.dtype)
            X[start:stop] = rows
        return X


def _solve_task(
    task: _GramTask | _KernelTask, delta: ArrayRef, xtf: ArrayRef, epsilon: float | None
) -> list[np.ndarray]:
    weights = delta.load()
    return _solutions(task.solver(weights), weights, xtf.load(), epsilon)


def _gram_product(X: np.ndarray, first_row: int, V: ArrayRef) -> np.ndarray:
    """Return a block's share of ``X'(X V + v)``, v the last row of V, and of the sums of that."""
    from bigfs.blocks.kernels import tile_rows

    right = V.load()
    if hasattr(X, "indptr"):
        entries = X.astype(np.float64)
        product = entries @ right[:-1] + right[-1]
        return with_sums(entries.T @ product, product.sum(axis=0))
    total = np.zeros(right.shape)
    step = tile_rows(X.shape[1])
    for begin in range(0, len(X), step):
        tile = X[begin : begin + step].astype(np.float64, copy=False)
        product = tile @ right[:-1] + right[-1]
        total[:-1] += tile.T @ product
        total[-1] += product.sum(axis=0)
    return total
