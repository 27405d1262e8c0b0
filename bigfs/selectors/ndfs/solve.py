"""The regressions of NDFS: where ``(X'X + beta Delta)^-1 X'F`` is solved, and how.

By Cholesky on the d x d Gram matrix; on the n x n kernel matrix where rows are fewer (Woodbury);
by conjugate gradients, each step a pass over X, where neither fits a worker. With a cluster the
matrices stay on workers. No scikit-learn here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bigfs.blocks.rowblocks import BlockReader, RowBlocks
from bigfs.core.threads import single_thread
from bigfs.runtime.execute import TREE_ARITY, crosses_processes, run_tasks
from bigfs.selectors.ndfs.passes import Resident, Streamed, uncentered
from bigfs.solvers.l21 import GramSolver, KernelSolver, conjugate_gradients, row_weights
from bigfs.store.scratch import ArrayRef, Scratch

# Share of the right side's norm that conjugate gradients may leave, and their passes a solve.
CG_TOL = 1e-9
CG_PASSES = 500

Solve = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass
class Regression:
    """Solves both systems of an iteration.

    Attributes
    ----------
    name : {"cholesky", "woodbury", "cg"}
    squares : ndarray of shape (n_features,), float64
        Diagonal of ``X'X``.
    constant : ndarray of shape (n_features,), bool
        Features that tell no rows apart.
    first : callable
        ``X'F -> (X'X + beta I)^-1 X'F``: Delta starts as the identity.
    advance : callable
        ``(delta, X'F) -> B, delta of B, the solution with that delta``.
    """

    name: str
    squares: np.ndarray
    constant: np.ndarray
    first: Callable[[np.ndarray], np.ndarray]
    advance: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]

    @property
    def epsilon(self) -> float:
        """The smoothing of the norm's rows: a millionth of the scale of B, squared."""
        return smoothing(self.squares)


def smoothing(squares: np.ndarray) -> float:
    """Return the paper's "very small constant", in the units of B's squared rows."""
    return 1e-12 / max(float(squares.mean()), np.finfo(np.float64).tiny)


def choose_solver(
    n_samples: int, n_features: int, itemsize: int, n_blocks: int, budget: int
) -> str:
    """Return how the regressions are solved within the bytes one task may use."""
    kernel = n_samples * n_features * itemsize + 3 * 8 * n_samples**2
    if n_samples < n_features and kernel <= budget:
        return "woodbury"
    # A fold of the Gram pass holds several partial results; a solve holds G and its factor.
    parts = min(n_blocks, TREE_ARITY) + 2
    return "cholesky" if parts * 8 * n_features**2 <= budget else "cg"


def resident_regression(
    passes: Resident, name: str, beta: float, gram: np.ndarray | None = None
) -> Regression:
    """Solve for a matrix that is in this process; a Gram matrix that is there is used."""
    with single_thread():
        squares = np.einsum("ij,ij->j", passes.X, passes.X)
        constant = (passes.X == passes.X[0]).all(axis=0)
    if name == "woodbury":
        kernel = KernelSolver(passes.X, beta)

        def solve(delta: np.ndarray, _: np.ndarray) -> np.ndarray:
            return kernel.solve(delta, passes.F * passes.scale)

        return _local(name, squares, constant, solve)
    gram = passes.gram() if gram is None else gram
    return _local(name, squares, constant, GramSolver(gram, beta).solve)


def _local(name: str, squares: np.ndarray, constant: np.ndarray, solve: Solve) -> Regression:
    """Solve in this process, whose solver keeps the last factor."""
    epsilon = smoothing(squares)

    return Regression(
        name,
        squares,
        constant,
        lambda xtf: solve(np.ones(len(xtf)), xtf),
        lambda delta, xtf: _advance(solve, delta, xtf, epsilon),
    )


def _advance(
    solve: Solve, delta: np.ndarray, xtf: np.ndarray, epsilon: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    B = solve(delta, xtf)
    following = row_weights(B, epsilon)
    return B, following, solve(following, xtf)


def streamed_regression(passes: Streamed, name: str, beta: float) -> tuple[Regression, np.ndarray]:
    """Solve for a matrix of many blocks; also return ``X'F`` of the start, from the same pass."""
    blocks = passes.blocks
    if name == "cholesky":
        centered = blocks.gram(passes.F)
        constant = centered.gram.diagonal() <= 0
        gram, xtf = uncentered(centered)
        squares = gram.diagonal().copy()
        if not crosses_processes():
            solver = GramSolver(gram, beta)

            def solve(delta: np.ndarray, xtf: np.ndarray) -> np.ndarray:
                with single_thread():
                    return solver.solve(delta, xtf)

            return _local(name, squares, constant, solve), xtf
        stored = blocks.scratch.put(blocks.scratch.unique("gram"), gram)
        del gram, centered
        return _remote(name, squares, constant, blocks, _GramTask(stored, beta)), xtf
    moments = blocks.moments()
    squares = moments.squares + moments.count * moments.mean**2
    constant = moments.minimum == moments.maximum
    xtf = blocks.xtv(passes.F)
    if name == "woodbury":
        task = _KernelTask(blocks.reader, passes, beta)
        return _remote(name, squares, constant, blocks, task), xtf
    return _by_passes(blocks, squares, constant, beta), xtf


@dataclass(frozen=True)
class _Small:
    """The small arrays of a solve, stored for the task."""

    delta: ArrayRef
    xtf: ArrayRef
    epsilon: float


@dataclass
class _GramTask:
    """Makes the solver of a task from the stored Gram matrix."""

    gram: ArrayRef
    beta: float

    def freeze(self) -> _GramTask:
        return self

    def solver(self) -> Solve:
        return GramSolver(self.gram.load(), self.beta).solve


@dataclass
class _KernelTask:
    """Says where the whole of X and F are read for the n x n matrix."""

    reader: BlockReader
    passes: Streamed
    beta: float

    def freeze(self) -> _FrozenKernel:
        passes = self.passes
        return _FrozenKernel(self.reader, passes.F, passes.scale.tolist(), self.beta)


@dataclass(frozen=True)
class _FrozenKernel:
    """Makes the solver of a task from X and the current F."""

    reader: BlockReader
    F: ArrayRef
    scale: list[float]
    beta: float

    def solver(self) -> Solve:
        F = self.F.load() * np.array(self.scale)
        kernel = KernelSolver(self.reader.read(0, self.F.shape[0]), self.beta)
        return lambda delta, _: kernel.solve(delta, F)


def _remote(
    name: str,
    squares: np.ndarray,
    constant: np.ndarray,
    blocks: RowBlocks,
    task: _GramTask | _KernelTask,
) -> Regression:
    """Solve in one task on a worker, which reads the matrices and is not kept."""
    epsilon, scratch = smoothing(squares), blocks.scratch

    def run(delta: np.ndarray, xtf: np.ndarray, both: bool) -> list[np.ndarray]:
        small = _store(scratch, delta, xtf, epsilon)
        [found] = run_tasks(_solve_task, [task.freeze()], small, both, label="ndfs solve")
        scratch.remove(small.delta, small.xtf)
        if name == "woodbury":
            blocks.passes += 1
        return found  # type: ignore[no-any-return]

    def advance(delta: np.ndarray, xtf: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        B, coef = run(delta, xtf, True)
        return B, row_weights(B, epsilon), coef

    def first(xtf: np.ndarray) -> np.ndarray:
        return run(np.ones(len(xtf)), xtf, False)[0]

    return Regression(name, squares, constant, first, advance)


def _store(scratch: Scratch, delta: np.ndarray, xtf: np.ndarray, epsilon: float) -> _Small:
    return _Small(
        scratch.put(scratch.unique("delta"), delta),
        scratch.put(scratch.unique("xtf"), xtf),
        epsilon,
    )


def _solve_task(task: _GramTask | _FrozenKernel, small: _Small, both: bool) -> list[np.ndarray]:
    """Return B, and with ``both`` the solution under the weights that B gives."""
    solve, delta, xtf = task.solver(), small.delta.load(), small.xtf.load()
    if not both:
        return [solve(delta, xtf)]
    B, _, coef = _advance(solve, delta, xtf, small.epsilon)
    return [B, coef]


def _by_passes(
    blocks: RowBlocks, squares: np.ndarray, constant: np.ndarray, beta: float
) -> Regression:
    """Solve by conjugate gradients: each product with ``X'X`` is a pass over X."""
    epsilon, scratch = smoothing(squares), blocks.scratch
    guess: list[np.ndarray] = []

    def apply_gram(V: np.ndarray) -> np.ndarray:
        shared = scratch.put(scratch.unique("V"), V)
        try:
            return blocks.reduce(_gram_product, np.add, shared, label="ndfs cg")  # type: ignore[no-any-return]
        finally:
            scratch.remove(shared)

    def solve(delta: np.ndarray, xtf: np.ndarray) -> np.ndarray:
        start = guess.pop() if guess else np.zeros_like(xtf)
        found, _ = conjugate_gradients(
            apply_gram, squares, beta, delta, xtf, start, tol=CG_TOL, max_iter=CG_PASSES
        )
        guess.append(found)
        return found

    return Regression(
        "cg",
        squares,
        constant,
        lambda xtf: solve(np.ones(len(xtf)), xtf),
        lambda delta, xtf: _advance(solve, delta, xtf, epsilon),
    )


def _gram_product(X: np.ndarray, first_row: int, V: ArrayRef) -> np.ndarray:
    """Return a block's share of ``X'(X V)``."""
    from bigfs.blocks.kernels import tile_rows

    right = V.load()
    total = np.zeros(right.shape)
    step = tile_rows(X.shape[1])
    for begin in range(0, len(X), step):
        tile = X[begin : begin + step].astype(np.float64, copy=False)
        total += tile.T @ (tile @ right)
    return total
