"""The regressions of NDFS: where ``(X'X + beta Delta)^-1 X'F`` is solved, and how.

By Cholesky on the d x d Gram matrix; on the n x n kernel matrix where rows are fewer (Woodbury);
by conjugate gradients, each step a pass over X, where neither fits a worker. With a cluster the
matrices stay on workers. No scikit-learn here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from bigfs.blocks.csr_kernels import csr_moments
from bigfs.blocks.rowblocks import BlockReader
from bigfs.core.threads import single_thread
from bigfs.runtime.execute import crosses_processes, map_reduce, run_tasks
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
        """Return the weights for data of so many rows.

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
class RegressionSolver:
    """Solves both systems of an iteration."""

    squares: np.ndarray  # of shape (n_features,), float64: diagonal of ``X'X``
    constant: np.ndarray  # of shape (n_features,), bool: features that tell no rows apart
    # ``X'F -> (X'X + beta Delta)^-1 X'F`` with the Delta of the start.
    first: Callable[[np.ndarray], np.ndarray]
    # ``(delta, X'F) -> B, delta of B, the solution with that delta``.
    advance: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]
    weights: Weights
    # Of shape (n_features,), float64, or None: what centers the features as they are read: then
    # there is an intercept, X and F are centered in both systems. None: the paper's regression,
    # which has none.
    mean: np.ndarray | None
    count: int  # rows

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
        """Say whether no feature has more in common with F than rounding."""
        common = np.linalg.norm(self.centered(xtf), axis=1)
        return bool((common <= _ROUNDING * np.sqrt(self.squares * np.trace(ftf))).all())

    @property
    def epsilon(self) -> float:
        """The smoothing of the norm's rows: a millionth of the scale of B, squared."""
        return smoothing(self.squares)


def smoothing(squares: np.ndarray) -> float:
    """Return the paper's "very small constant", in the units of B's squared rows."""
    return 1e-12 / max(float(squares.mean()), np.finfo(np.float64).tiny)


def has_intercept(parameters: NDFSParameters) -> bool:
    """Say whether features and F are centered in the regressions."""
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
    return _local(*_columns(passes), solve, weights, mean, passes.X.shape[0])


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
    with single_thread():
        squares = np.einsum("ij,ij->j", passes.X, passes.X)
        return squares, (passes.X == passes.X[0]).all(axis=0)


def _local(
    squares: np.ndarray,
    constant: np.ndarray,
    solve: Solve,
    weights: Weights,
    mean: np.ndarray | None,
    count: int,
) -> RegressionSolver:
    """Solve in this process, whose solver keeps the last factor."""
    epsilon = smoothing(squares)

    return RegressionSolver(
        squares,
        constant,
        lambda xtf: solve(np.full(len(xtf), weights.delta), xtf),
        lambda delta, xtf: _advance(solve, delta, xtf, epsilon),
        weights,
        mean,
        count,
    )


def _advance(
    solve: Solve, delta: np.ndarray, xtf: np.ndarray, epsilon: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    B = solve(delta, xtf)
    following = row_weights(B, epsilon)
    return B, following, solve(following, xtf)


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
        solver = GramSolver(gram, weights.beta)

        def solve(delta: np.ndarray, xtf: np.ndarray) -> np.ndarray:
            with single_thread():
                return solver.solve(delta, xtf)

        return _local(squares, constant, solve, weights, mean, n), xtf
    stored = blocks.scratch.put(blocks.scratch.unique("gram"), gram)
    task = _GramTask(stored, weights.beta)
    return _remote(squares, constant, blocks.scratch, lambda: task, weights, mean, n), xtf


def streamed_by_kernel(
    passes: StreamedPasses, parameters: NDFSParameters
) -> tuple[RegressionSolver, np.ndarray]:
    """Solve on the n x n matrix for a matrix of many blocks; a solve is a pass of one task.

    The last factor of an iteration is the first of the next one, and is stored in between.
    """
    blocks = passes.blocks
    factors: list[ArrayRef] = []
    weights, xtf, squares, constant, mean = _streamed_start(passes, parameters)
    shared = None if mean is None else blocks.scratch.put(blocks.scratch.unique("mean"), mean)

    def task() -> _KernelTask:
        scale = passes.scale.tolist()
        name = blocks.scratch.unique("factor")
        factors.append(blocks.scratch.create(name, (n, n), np.float64, blocks.rows))
        if len(factors) > 2:
            blocks.scratch.remove(factors.pop(0))
        reader, held = blocks.start_pass(), (factors[-1], *factors[:-1])
        return _KernelTask(reader, passes.F, scale, weights.beta, shared, held)

    n = blocks.n_samples
    return _remote(squares, constant, blocks.scratch, task, weights, mean, n), xtf


def streamed_by_cg(
    passes: StreamedPasses, parameters: NDFSParameters
) -> tuple[RegressionSolver, np.ndarray]:
    """Solve by conjugate gradients: each product with ``X'X`` is a pass over X."""
    blocks = passes.blocks
    weights, xtf, squares, constant, mean = _streamed_start(passes, parameters)
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
            apply_gram, squares, weights.beta, delta, xtf, start, tol=CG_TOL, max_iter=CG_PASSES
        )
        guess.append(solution)
        return solution

    return _local(squares, constant, solve, weights, mean, blocks.n_samples), xtf


def _streamed_start(
    passes: StreamedPasses, parameters: NDFSParameters
) -> tuple[Weights, np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    """Return weights, ``X'F`` with F's sums, squared norms, constant features and the mean."""
    moments, offset = passes.blocks.moments(), passes.blocks.offset
    if offset is not None:  # all sums are of the entries, and so is what centers them
        moments = replace(moments, mean=moments.mean - offset)
    xtf = passes.blocks.xtv(passes.F)
    sums = map_reduce(_column_sums, passes.blocks.bounds, np.add, passes.F, label="ndfs start")
    centered = xtf - np.multiply.outer(moments.mean, sums)
    weights = Weights.of(parameters, moments.count, moments.squares, centered)
    products, constant = with_sums(xtf, sums), moments.constant
    if has_intercept(parameters):
        return weights, products, moments.squares, constant, moments.mean
    return weights, products, moments.squares + moments.count * moments.mean**2, constant, None


def _column_sums(bounds: tuple[int, int], F: ArrayRef) -> np.ndarray:
    return np.asarray(F.read(*bounds).sum(axis=0))


@dataclass(frozen=True)
class _Small:
    """The small arrays of a solve, stored for the task."""

    delta: ArrayRef
    xtf: ArrayRef
    epsilon: float


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


def _remote(
    squares: np.ndarray,
    constant: np.ndarray,
    scratch: Scratch,
    make_task: Callable[[], _GramTask | _KernelTask],
    weights: Weights,
    mean: np.ndarray | None,
    count: int,
) -> RegressionSolver:
    """Solve in one task on a worker, which reads the matrices and does not keep them."""
    epsilon = smoothing(squares)

    def run(delta: np.ndarray, xtf: np.ndarray, both: bool) -> list[np.ndarray]:
        small = _store(scratch, delta, xtf, epsilon)
        [solutions] = run_tasks(_solve_task, [make_task()], small, both, label="ndfs solve")
        scratch.remove(small.delta, small.xtf)
        return solutions

    def advance(delta: np.ndarray, xtf: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        B, coef = run(delta, xtf, True)
        return B, row_weights(B, epsilon), coef

    def first(xtf: np.ndarray) -> np.ndarray:
        return run(np.full(len(xtf), weights.delta), xtf, False)[0]

    return RegressionSolver(squares, constant, first, advance, weights, mean, count)


def _store(scratch: Scratch, delta: np.ndarray, xtf: np.ndarray, epsilon: float) -> _Small:
    return _Small(
        scratch.put(scratch.unique("delta"), delta),
        scratch.put(scratch.unique("xtf"), xtf),
        epsilon,
    )


def _solve_task(task: _GramTask | _KernelTask, small: _Small, both: bool) -> list[np.ndarray]:
    """Return B, and with ``both`` the solution under the weights that B gives."""
    delta, xtf = small.delta.load(), small.xtf.load()
    solve = task.solver(delta)
    if not both:
        return [solve(delta, xtf)]
    B, _, coef = _advance(solve, delta, xtf, small.epsilon)
    return [B, coef]


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
