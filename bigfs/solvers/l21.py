"""Reweighted ridge regression for an l2,1-norm: three solvers for ``(X'X + beta Delta)^-1 X'F``.

All three solve in the coordinates ``Delta^1/2 B``, where the matrix is ``Delta^-1/2 X'X Delta^-1/2
+ beta I``. Its condition number stays that of the data over beta, however large the weights of
vanishing rows of B become.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bigfs.core.errors import ConvergenceError
from bigfs.solvers.sparserows import SparseRows

# Conjugate gradients on the n x n system: tolerance of the residual, relative to the right side,
# and maximum number of products.
_DUAL_TOL = 1e-13
_DUAL_PRODUCTS = 60


def row_weights(B: np.ndarray, epsilon: float) -> np.ndarray:
    """Return the diagonal of Delta, ``1 / (2 sqrt(|b_j|^2 + epsilon))``, shape (n_features,)."""
    return 0.5 / np.sqrt(np.einsum("ij,ij->i", B, B) + epsilon)


def smoothed_l21(B: np.ndarray, epsilon: float) -> float:
    """Return the sum of ``sqrt(|b_j|^2 + epsilon)`` over the rows of B."""
    return float(np.sqrt(np.einsum("ij,ij->i", B, B) + epsilon).sum())


def _factor(matrix: np.ndarray) -> Any:
    """Return the Cholesky factor, computed in place.

    A ridge far below the scale of the data can be lost to rounding. In this case the rounding
    error, times the smallest power of 10 that makes the matrix positive definite, is added to its
    diagonal.
    """
    from scipy.linalg import LinAlgError, cho_factor

    diagonal = matrix.diagonal().copy()
    rounding = np.finfo(np.float64).eps * float(diagonal.sum())
    added = 0.0
    while True:
        try:
            # LAPACK overwrites only the lower triangle (the upper one of the transpose): after a
            # failure the matrix is restored from the other triangle.
            return cho_factor(matrix.T, lower=False, overwrite_a=True, check_finite=False)
        except LinAlgError:
            upper = np.triu(matrix, 1)
            matrix[...] = upper + upper.T
            added = 10 * added if added else rounding
            np.fill_diagonal(matrix, diagonal + added)


class GramSolver:
    """Solver based on a Cholesky factorization of ``G = X'X``; the last factor is cached.

    Parameters
    ----------
    gram : ndarray of shape (n_features, n_features), float64
        ``X'X``, with both triangles.
    beta : float
    """

    def __init__(self, gram: np.ndarray, beta: float) -> None:
        self._gram, self._beta = gram, beta
        self._delta: np.ndarray | None = None
        self._held: tuple[np.ndarray, Any] | None = None

    def solve(self, delta: np.ndarray, xtf: np.ndarray) -> np.ndarray:
        """Return ``(G + beta Delta)^-1 X'F``, shape (n_features, n_columns).

        Parameters
        ----------
        delta : ndarray of shape (n_features,), float64
            Diagonal of Delta, positive.
        xtf : ndarray of shape (n_features, n_columns), float64
        """
        from scipy.linalg import cho_solve

        if self._delta is None or not np.array_equal(delta, self._delta):
            root = 1 / np.sqrt(delta)
            self._held = None  # free the memory for the next factor
            scaled = self._gram * root
            scaled *= root[:, None]
            scaled.flat[:: len(root) + 1] += self._beta
            self._held, self._delta = (root, _factor(scaled)), delta.copy()
        assert self._held is not None
        root, factor = self._held
        solution = cho_solve(factor, xtf * root[:, None], overwrite_b=True, check_finite=False)
        return np.asarray(solution * root[:, None])


def gram_solver_bytes(n_features: int, n_columns: int) -> int:
    """Return the bytes of `GramSolver`: ``X'X``, its factor, and two copies if a factor fails."""
    return 32 * n_features**2 + 32 * n_features * n_columns


class KernelSolver:
    """Solver based on the n x n matrix ``X Delta^-1 X'``, for fewer rows than features.

    It uses Woodbury's identity in a form that is free of cancellation:
    ``(X'X + beta Delta)^-1 X'F = Delta^-1 X'(X Delta^-1 X' + beta I)^-1 F``.

    Parameters
    ----------
    X : ndarray of shape (n_samples, n_features), float32 or float64, or SparseRows
    beta : float
    mean : ndarray of shape (n_features,), float64, or None, default=None
        Mean that is subtracted from the rows if X is an array.
    """

    def __init__(
        self, X: np.ndarray | SparseRows, beta: float, mean: np.ndarray | None = None
    ) -> None:
        self._X, self._beta, self._mean = X, beta, mean
        self._delta: np.ndarray | None = None
        self._factor: Any = None

    def solve(self, delta: np.ndarray, F: np.ndarray) -> np.ndarray:
        """Return ``(X'X + beta Delta)^-1 X'F``, shape (n_features, n_columns).

        Parameters
        ----------
        delta : ndarray of shape (n_features,), float64
        F : ndarray of shape (n_samples, n_columns), float64
        """
        dual = self._iterated(delta, F)
        if dual is None:
            dual = self._factored(delta, F)
        if isinstance(self._X, SparseRows):
            return self._X.transposed_times(dual) / delta[:, None]
        B = np.empty((len(delta), F.shape[1]))
        for part, tile in self._tiles(self._X):
            B[part] = tile.T @ dual
        return B / delta[:, None]

    def _iterated(self, delta: np.ndarray, F: np.ndarray) -> np.ndarray | None:
        """Return ``(X Delta^-1 X' + beta I)^-1 F`` by conjugate gradients, for `SparseRows`.

        Each product costs a hundredth of a factorization. None if too many would be needed, or if
        X is an array.
        """
        rows = self._X
        if not isinstance(rows, SparseRows):
            return None

        def apply_kernel(V: np.ndarray) -> np.ndarray:
            return rows.times(rows.transposed_times(V) / delta[:, None])

        n, zeros = len(F), np.zeros_like(F)
        system = (apply_kernel, np.zeros(n), self._beta, np.ones(n), F, zeros)
        try:
            return conjugate_gradients(*system, tol=_DUAL_TOL, max_iter=_DUAL_PRODUCTS)[0]
        except ConvergenceError:
            return None

    def _factored(self, delta: np.ndarray, F: np.ndarray) -> np.ndarray:
        """Return ``(X Delta^-1 X' + beta I)^-1 F`` by Cholesky."""
        from scipy.linalg import cho_solve

        if self._delta is None or not np.array_equal(delta, self._delta):
            self._factor = None
            self._factor, self._delta = _factor(self._kernel(delta)), delta.copy()
        return np.asarray(cho_solve(self._factor, F, check_finite=False))

    def _kernel(self, delta: np.ndarray) -> np.ndarray:
        """Return ``X Delta^-1 X' + beta I``."""
        n = self._X.shape[0]
        if isinstance(self._X, SparseRows):
            total = self._X.products(1 / delta)
        else:
            total = np.zeros((n, n))
            for part, tile in self._tiles(self._X):
                scaled = tile / np.sqrt(delta[part])
                total += scaled @ scaled.T
        total.flat[:: n + 1] += self._beta
        return total

    def _tiles(self, X: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield slices of features, and their values in float64, in tiles of about 8 MB."""
        step = _tile_features(len(X))
        for at in range(0, X.shape[1], step):
            part = slice(at, at + step)
            tile = X[:, part].astype(np.float64, copy=False)
            yield part, tile if self._mean is None else tile - self._mean[part]


def _tile_features(n_samples: int) -> int:
    """Return the number of features that are converted to float64 at a time."""
    return max(16, 2**20 // n_samples)


def kernel_solver_bytes(n_samples: int, n_features: int, n_columns: int) -> int:
    """Return the bytes that `KernelSolver` needs in addition to X.

    These are the n x n matrix, with two copies if a factor fails; two tiles; the right side and
    the solution.
    """
    tiles = 16 * n_samples * min(n_features, _tile_features(n_samples))
    return 24 * n_samples**2 + tiles + 16 * (n_samples + n_features) * n_columns


def conjugate_gradients(
    apply_gram: Callable[[np.ndarray], np.ndarray],
    diagonal: np.ndarray,
    beta: float,
    delta: np.ndarray,
    xtf: np.ndarray,
    start: np.ndarray,
    *,
    tol: float,
    max_iter: int,
) -> tuple[np.ndarray, int]:
    """Return ``(X'X + beta Delta)^-1 X'F`` and the number of products with X'X that were needed.

    Runs preconditioned conjugate gradients on all columns simultaneously, each with its own step
    sizes, so that one product with ``X'X`` (one pass over X) serves all columns.

    Parameters
    ----------
    apply_gram : callable
        Function ``V -> X'(X V)`` for V of shape (n_features, n_columns).
    diagonal : ndarray of shape (n_features,), float64
        Diagonal of ``X'X``, for the preconditioner.
    beta : float
    delta : ndarray of shape (n_features,), float64
    xtf : ndarray of shape (n_features, n_columns), float64
    start : ndarray of shape (n_features, n_columns), float64
        Initial value of the solution.
    tol : float
        Tolerance of the residual in the scaled coordinates, relative to the norm of the right side.
    max_iter : int
        Maximum number of products with ``X'X``.

    Raises
    ------
    ConvergenceError
        If a residual is above ``tol`` after ``max_iter`` products.
    """
    root = 1 / np.sqrt(delta)[:, None]
    inverse = 1 / (diagonal[:, None] * root**2 + beta)

    def product(V: np.ndarray) -> np.ndarray:
        return root * apply_gram(root * V) + beta * V

    right = root * xtf
    size = np.maximum(np.linalg.norm(right, axis=0), np.finfo(np.float64).tiny)
    solution = start / root
    residual, count = right.copy(), 0
    if solution.any():
        residual -= product(solution)
        count = 1
    z = inverse * residual
    p = z.copy()
    rho = np.einsum("ij,ij->j", residual, z)
    while (worst := float((np.linalg.norm(residual, axis=0) / size).max())) > tol:
        if count >= max_iter:
            raise ConvergenceError(
                f"ndfs: conjugate gradients stopped at a relative residual of {worst:.2g} after "
                f"{count} passes over X; at most {tol:.2g} is accepted. Raise beta or "
                "memory_limit, or scale the data."
            )
        Ap = product(p)
        count += 1
        pAp = np.einsum("ij,ij->j", p, Ap)
        step = np.divide(rho, pAp, out=np.zeros_like(rho), where=pAp > 0)
        solution += step * p
        residual -= step * Ap
        z = inverse * residual
        before, rho = rho, np.einsum("ij,ij->j", residual, z)
        p *= np.divide(rho, before, out=np.zeros_like(rho), where=before > 0)
        p += z
    return root * solution, count


def conjugate_gradients_bytes(n_features: int, n_columns: int) -> int:
    """Return the bytes of `conjugate_gradients`: its vectors, and those of its caller."""
    return 14 * 8 * n_features * n_columns
