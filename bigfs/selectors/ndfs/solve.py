"""The regressions of NDFS: three solvers for ``(X'X + beta Delta)^-1 X'F``.

They are a Cholesky factorization of the d x d Gram matrix; a factorization of the n x n kernel
matrix if there are fewer rows than features (Woodbury); and, if neither fits into memory, conjugate
gradients, where each step is a pass over X. The client solves the systems.
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

# Tolerance of conjugate gradients, as a share of the norm of the right-hand side, and the maximum
# number of passes of a solve.
CG_TOL = 1e-9
CG_PASSES = 500
# Products of features and F below this share of their norms are treated as rounding errors: F is
# constant.
_ROUNDING = 1e-9

Solve = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Weights:
    """The penalty in units of the data as they are read."""

    beta: float
    delta: float  # initial Delta, as a multiple of the identity
    unit: float  # number that X would have to be divided by for the given settings to apply

    @classmethod
    def of(
        cls, parameters: NDFSParameters, count: int, squares: np.ndarray, xtf: np.ndarray
    ) -> Weights:
        """Return the weights for data of ``count`` rows.

        X with ``beta s`` and ``Delta = s I`` has the same solution as X/s with beta and
        ``Delta = I``. If every row is repeated r times, ``beta sqrt(r)`` and ``sqrt(r) I`` give the
        same solution as beta and I for a single copy.

        Parameters
        ----------
        parameters : NDFSParameters
        count : int
            Number of rows.
        squares : ndarray of shape (n_features,)
            Sums of squares of the centered features.
        xtf : ndarray of shape (n_features, n_clusters)
            ``X'F`` of the centered features and the start.
        """
        scale = float(np.sqrt(squares.sum() / count)) or 1.0
        unit = scale if parameters.unit == "rms" else 1.0
        if parameters.beta is not None:
            return cls(parameters.beta * unit, unit, unit)
        # For larger penalties B is zero.
        largest = 2.0 * float(np.sqrt(np.einsum("ij,ij->i", xtf, xtf).max(initial=0.0)))
        if largest <= _ROUNDING * np.sqrt(squares.max(initial=0.0)):
            largest = 1.0
        return cls(parameters.sparsity * largest, scale * np.sqrt(count), unit)


@dataclass
class RegressionSolver:
    """Solver of both linear systems of an iteration."""

    squares: np.ndarray  # of shape (n_features,), float64: diagonal of ``X'X``
    constant: np.ndarray  # of shape (n_features,), bool: features that are constant
    weights: Weights
    # Of shape (n_features,), float64, or None: the mean subtracted from the features as they are
    # read. With a mean there is an intercept, that is, X and F are centered in both systems. None:
    # the paper's regression, which has no intercept.
    mean: np.ndarray | None
    count: int  # number of rows
    solve: Solve  # function of Delta and ``X'F``; may reuse the last factor or solution

    def first(self, xtf: np.ndarray) -> np.ndarray:
        """Return the solution with the initial Delta."""
        return self.solve(np.full(len(xtf), self.weights.delta), xtf)

    def advance(
        self, delta: np.ndarray, xtf: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return B, the Delta computed from it, and the solution with the new Delta."""
        B = self.solve(delta, xtf)
        after = row_weights(B, self.epsilon)
        return B, after, self.solve(after, xtf)

    def centered(self, xtf: np.ndarray) -> np.ndarray:
        """Return ``X'F`` as in the systems, from ``X'F`` and the column sums of F of a pass.

        It is centered if there is an intercept.
        """
        if self.mean is None:
            return xtf[:-1]
        return np.asarray(xtf[:-1] - np.multiply.outer(self.mean, xtf[-1]))

    def with_intercept(self, coef: np.ndarray, xtf: np.ndarray) -> np.ndarray:
        """Return coefficients with the intercept as last row; zeros if there is no intercept."""
        intercept = np.zeros(coef.shape[1])
        if self.mean is not None:
            intercept = xtf[-1] / self.count - np.einsum("i,ij->j", self.mean, coef)
        return np.vstack([coef, intercept])

    def explained_by_intercept(self, xtf: np.ndarray) -> float:
        """Return the part of ``|F|^2`` that is due to the means of F's columns.

        It is 0 if there is no intercept.
        """
        return 0.0 if self.mean is None else float(xtf[-1] @ xtf[-1]) / self.count

    def is_blind(self, xtf: np.ndarray, ftf: np.ndarray) -> bool:
        """Return True if all products of features and F are zero up to rounding."""
        common = np.linalg.norm(self.centered(xtf), axis=1)
        return bool((common <= _ROUNDING * np.sqrt(self.squares * np.trace(ftf))).all())

    @property
    def epsilon(self) -> float:
        """The smoothing of the row norms: the square of a millionth of the scale of B."""
        return 1e-12 / max(float(self.squares.mean()) or 1.0, np.finfo(np.float64).tiny)


def has_intercept(parameters: NDFSParameters) -> bool:
    """Return True if features and F are centered in the regressions."""
    return parameters.unit == "rms"


def by_gram(
    passes: FactorPasses, parameters: NDFSParameters
) -> tuple[RegressionSolver, np.ndarray]:
    """Return the solver by Cholesky factorization of ``X'X + beta Delta``.

    Returns
    -------
    regression : RegressionSolver
    xtf : ndarray of shape (n_features + 1, n_clusters), float64
        ``X'F`` of the start, with the column sums of F as last row, from the pass for ``X'X``.
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
    """Return the solver with the n x n matrix, and ``X'F`` of the start as in `by_gram`.

    All rows are read into this process, block by block. With ``seeks_zeros``, they are kept in CSR
    form if they are mostly zeros.
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
    """Return the solver by conjugate gradients, and ``X'F`` of the start as in `by_gram`.

    Each product with ``X'X`` is a pass over X.
    """
    blocks = passes.blocks
    about, xtf = _start(passes, parameters)
    squares, beta, mean = about["squares"], about["weights"].beta, about["mean"]
    offset = np.zeros(blocks.n_features) if mean is None else mean
    guess: list[np.ndarray] = []

    def apply_gram(V: np.ndarray) -> np.ndarray:
        # The last row subtracts the means from the rows' products, like an intercept.
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
    """Return the fields of a `RegressionSolver` that describe X, and ``X'F`` of the start.

    The last row of ``X'F`` has the column sums of F.
    """
    moments, offset = passes.blocks.moments(), passes.blocks.offset
    if offset is not None:  # sums are those of the stored entries, so the means must be as well
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
    """Return the contribution of a block to ``X'(X V + v)``, with v the last row of V.

    The last row of the result has the column sums of ``X V + v``.
    """
    right = V.load()
    total = np.zeros(right.shape)
    for _, rows in row_parts(X):
        product = rows @ right[:-1] + right[-1]
        total[:-1] += rows.T @ product
        total[-1] += product.sum(axis=0)
    return total
