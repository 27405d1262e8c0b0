"""The regressions of NDFS: how ``(X'X + beta Delta)^-1 X'F`` is solved.

By Cholesky on the d x d Gram matrix; on the n x n kernel matrix where rows are fewer (Woodbury);
by conjugate gradients, each step a pass over X, where neither fits. The client solves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bigfs.blocks.csr_kernels import mostly_zeros
from bigfs.runtime.execute import map_reduce
from bigfs.selectors.ndfs import NDFSParameters
from bigfs.selectors.ndfs.passes import FactorPasses, row_parts
from bigfs.solvers.l21 import GramSolver, KernelSolver, conjugate_gradients, row_weights
from bigfs.solvers.sparserows import SparseRows
from bigfs.store.scratch import ArrayRef

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
class RegressionSolver:
    """Solves both systems of an iteration."""

    squares: np.ndarray  # of shape (n_features,), float64: diagonal of ``X'X``
    constant: np.ndarray  # of shape (n_features,), bool: features that tell no rows apart
    weights: Weights
    # Of shape (n_features,), float64, or None: what centers the features as they are read: then
    # there is an intercept, X and F are centered in both systems. None: the paper's regression,
    # which has none.
    mean: np.ndarray | None
    count: int  # rows
    solve: Solve  # of Delta and ``X'F``; it keeps the last factor

    def first(self, xtf: np.ndarray) -> np.ndarray:
        """Return the solution with the Delta of the start."""
        return self.solve(np.full(len(xtf), self.weights.delta), xtf)

    def advance(
        self, delta: np.ndarray, xtf: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return B, the Delta that follows from it, and the solution with that."""
        B = self.solve(delta, xtf)
        after = row_weights(B, self.epsilon)
        return B, after, self.solve(after, xtf)

    def centered(self, xtf: np.ndarray) -> np.ndarray:
        """Return the ``X'F`` of the systems from that of a pass with the sums of F."""
        if self.mean is None:
            return xtf[:-1]
        return np.asarray(xtf[:-1] - np.multiply.outer(self.mean, xtf[-1]))

    def with_intercept(self, coef: np.ndarray, xtf: np.ndarray) -> np.ndarray:
        """Return coefficients with the intercept, or zeros, as their last row."""
        intercept = np.zeros(coef.shape[1])
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
        return 1e-12 / max(float(self.squares.mean()) or 1.0, np.finfo(np.float64).tiny)


def has_intercept(parameters: NDFSParameters) -> bool:
    """Return whether features and F are centered in the regressions."""
    return parameters.unit == "rms"


def by_gram(
    passes: FactorPasses, parameters: NDFSParameters
) -> tuple[RegressionSolver, np.ndarray]:
    """Solve by Cholesky.

    Returns
    -------
    regression : RegressionSolver
    xtf : ndarray of shape (n_features + 1, n_clusters), float64
        ``X'F`` of the start with the sums of its columns, from the pass that gives ``X'X``.
    """
    products, n = passes.blocks.gram(passes.F), passes.blocks.n_samples
    squares, mean = products.gram.diagonal().copy(), products.mean
    weights = Weights.of(parameters, n, squares, products.xty)
    xtf = products.xty + n * np.multiply.outer(mean, products.y_mean)
    xtf = np.vstack([xtf, n * products.y_mean])
    constant = squares <= 0
    if has_intercept(parameters):
        solve = GramSolver(products.gram, weights.beta).solve
        return RegressionSolver(squares, constant, weights, mean, n, solve), xtf
    gram = products.uncentered()[0]
    solve, squares = GramSolver(gram, weights.beta).solve, gram.diagonal().copy()
    return RegressionSolver(squares, constant, weights, None, n, solve), xtf


def by_kernel(
    passes: FactorPasses, parameters: NDFSParameters, *, seeks_zeros: bool
) -> tuple[RegressionSolver, np.ndarray]:
    """Solve on the n x n matrix: all rows are read into this process, block by block.

    Where zeros are sought, rows that are mostly zeros are kept as CSR.
    """
    about, xtf = _start(passes, parameters)
    blocks, mean = passes.blocks, about["mean"]
    reader = blocks.start_pass()
    X: Any = np.empty((blocks.n_samples, blocks.n_features), blocks.dtype)
    for start, stop in blocks.bounds:
        X[start:stop] = reader.read(start, stop)
    entries = mostly_zeros(X, centered=mean is not None) if seeks_zeros else None
    if entries is not None:
        groups = None if mean is None else np.zeros(blocks.n_samples, dtype=np.intp)
        X, mean = SparseRows(entries[0], groups), None
    kernel = KernelSolver(X, about["weights"].beta, mean)

    def solve(delta: np.ndarray, _: np.ndarray) -> np.ndarray:
        return kernel.solve(delta, passes.F.load() * passes.scale)

    return RegressionSolver(**about, solve=solve), xtf


def by_cg(passes: FactorPasses, parameters: NDFSParameters) -> tuple[RegressionSolver, np.ndarray]:
    """Solve by conjugate gradients: each product with ``X'X`` is a pass over X."""
    blocks = passes.blocks
    about, xtf = _start(passes, parameters)
    squares, beta, mean = about["squares"], about["weights"].beta, about["mean"]
    offset = np.zeros(blocks.n_features) if mean is None else mean
    guess: list[np.ndarray] = []

    def apply_gram(V: np.ndarray) -> np.ndarray:
        # The mean of the rows' products is the last row, as the intercept is of coefficients.
        right = np.vstack([V, -np.einsum("i,ij->j", offset, V)])
        with blocks.scratch.temporary("right") as folder:
            shared = folder.put("V", right)
            product = blocks.reduce(_gram_product, np.add, shared, label="ndfs cg")
        return np.asarray(product[:-1] - np.multiply.outer(offset, product[-1]))

    def solve(delta: np.ndarray, xtf: np.ndarray) -> np.ndarray:
        start = guess.pop() if guess else np.zeros_like(xtf)
        solution, _ = conjugate_gradients(
            apply_gram, squares, beta, delta, xtf, start, tol=CG_TOL, max_iter=CG_PASSES
        )
        guess.append(solution)
        return solution

    return RegressionSolver(**about, solve=solve), xtf


def _start(passes: FactorPasses, parameters: NDFSParameters) -> tuple[dict[str, Any], np.ndarray]:
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
    return {**about, "mean": mean, "count": moments.count}, np.vstack([xtf, sums])


def _column_sums(bounds: tuple[int, int], F: ArrayRef) -> np.ndarray:
    return np.asarray(F.read(*bounds).sum(axis=0))


def _gram_product(X: Any, first_row: int, V: ArrayRef) -> np.ndarray:
    """Return a block's share of ``X'(X V + v)``, v the last row of V, and of the sums of that."""
    right = V.load()
    total = np.zeros(right.shape)
    for _, rows in row_parts(X):
        product = rows @ right[:-1] + right[-1]
        total[:-1] += rows.T @ product
        total[-1] += product.sum(axis=0)
    return total
