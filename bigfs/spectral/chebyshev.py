"""Block Chebyshev-filtered subspace iteration: many eigenpairs from products of W with a block.

Each round applies a Chebyshev polynomial of S to a block of vectors, which damps the unwanted
part of the spectrum and lets the wanted part grow, and then solves the small eigenproblem in the
span (Rayleigh-Ritz). The filter runs in float32, the small problem in float64. Nothing is
orthogonalized against a growing basis, so two blocks are all the memory it takes.

The iterate is kept as ``z = D^-1/2 u``: with it, ``S u`` is ``P z`` with ``P = D^-1 W``.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigfs.core.seeds import rng
from bigfs.spectral.eigsh import is_small, solve_dense
from bigfs.spectral.kernels import RowKernel
from bigfs.spectral.problem import GROUP, Eigenpairs, Problem, not_converged, tiles

logger = logging.getLogger("bigfs")

# Blocks are a whole number of vector registers wide.
_LANES = 8
# float32 carries residuals down to a tenth of this, after filters of degree 1000; below it the
# iterate goes on in float64.
_FLOAT32_TOL = 5e-5
# Shares of the tolerance that wanted vectors must reach, and at which they are locked.
_SOLVED = 0.5
_LOCKED = 0.3
_FIRST_DEGREE = 16
_LARGEST_DEGREE = 1000
_MAX_ROUNDS = 60
# The least distance of the cut from a wanted eigenvalue, as a share of 1 - mu.
_CLEARANCE = 0.05
# Largest growth within one filter, as an exponent: more drowns small parts in rounding.
_LARGEST_GROWTH = {np.dtype(np.float32): 17.0, np.dtype(np.float64): 34.0}
# Steps of the Lanczos process that bounds the spectrum from below.
_BOUND_STEPS = 12


def solve_chebyshev(
    W: Any, n_components: int, *, tol: float, random_state: int, n_threads: int = 1
) -> Eigenpairs:
    """Return the smallest eigenpairs of ``L y = lambda D y`` beyond the trivial one.

    Parameters
    ----------
    W : scipy sparse matrix of shape (n_samples, n_samples)
        Symmetric affinity with zero diagonal and positive degrees.
    n_components : int
        Number of pairs, at most n_samples - 1.
    tol : float
        Largest residual accepted.
    random_state : int
        Seed of the start block.
    n_threads : int, default=1
        Threads of the products; the result is the same bits for any number.

    Returns
    -------
    pairs : Eigenpairs

    Raises
    ------
    InputError
        If a degree is not positive or ``n_components`` is too large.
    ConvergenceError
        If a residual stays above ``tol``.

    Notes
    -----
    Follows [1]_, with converged vectors locked, and degree and cut chosen before every round
    from the Ritz values and residuals of the one before. Rows are reordered (reverse
    Cuthill-McKee) so that neighbors are near each other in memory. Small problems are solved
    densely. Below a tolerance of 5e-5 the last rounds run in float64.

    References
    ----------
    .. [1] Y. Zhou, Y. Saad, M. L. Tiago, J. R. Chelikowsky, "Self-consistent-field calculations
       using Chebyshev-filtered subspace iteration", J. Comput. Phys. 219, 2006,
       doi:10.1016/j.jcp.2006.03.017.
    """
    problem = Problem.check(W, n_components, tol)
    if not problem.n_missing:
        return problem.finish(np.zeros(0), np.zeros((problem.n_samples, 0)))
    width = block_width(problem.n_missing)
    if is_small(problem) or 4 * width > problem.n_samples - problem.null.n_components:
        return solve_dense(problem)
    return problem.finish(*_Iteration(problem, width, random_state, n_threads).run())


def block_width(n_missing: int) -> int:
    """Return the vectors of a block: those wanted and guards that speed up the last of them."""
    return -(-(n_missing + max(4, n_missing // 4)) // _LANES) * _LANES


def block_bytes(n_samples: int, n_missing: int, tol: float) -> int:
    """Return the bytes of the solver's arrays beyond W and its reordered copy."""
    itemsize = 4 if tol >= _FLOAT32_TOL else 8
    # Z and PZ, or Z and the result; while the type changes, both of PZ and one of Z.
    width = block_width(n_missing)
    blocks = max((2 * itemsize + (4 if itemsize == 8 else 0)) * width, (8 + itemsize) * width)
    return int(n_samples * (blocks + 8 * 8))


@dataclass(frozen=True)
class _Window:
    """What the filter damps: from a lower bound of the spectrum of S to the cut."""

    low: float
    cut: float

    @property
    def half(self) -> float:
        return (self.cut - self.low) / 2

    @property
    def center(self) -> float:
        return (self.cut + self.low) / 2

    def rate(self, mu: float) -> float:
        """Return the exponent by which one more degree lets the part at mu grow."""
        return float(np.arccosh(max((mu - self.center) / self.half, 1.0)))


class _Iteration:
    """The block between two rounds: active vectors Z, their products PZ, and the locked ones."""

    def __init__(self, problem: Problem, width: int, random_state: int, n_threads: int) -> None:
        from scipy.sparse.csgraph import reverse_cuthill_mckee

        self.problem, self.n_threads = problem, n_threads
        random = rng(random_state, "spectral")
        low, high = _bounds(problem, random)
        self.window = _Window(low, max(high, low + 0.1))
        self.order = reverse_cuthill_mckee(problem.W, symmetric_mode=True)
        self.W = _reordered(problem.W, self.order)
        self.degrees = problem.root[self.order] ** 2
        self.labels = problem.null.labels[self.order]
        shape = (problem.n_samples, width)
        self.Z = random.standard_normal(shape, dtype=np.float32)
        self.Z /= np.sqrt(self.degrees, dtype=np.float32)[:, None]
        self.PZ = np.empty_like(self.Z)
        self.locked = self.Z[:, :0].copy()
        self.locked_mu = np.zeros(0)

    def run(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the wanted eigenvalues of S and their unit vectors, in the graph's own order."""
        with RowKernel(self.W, self.degrees, self.n_threads) as kernel:
            mu = self._iterate(kernel)
        # Both hold the reordered W, which the vectors take the place of.
        del kernel, self.W, self.PZ
        return mu, self._vectors(len(mu))

    def _iterate(self, kernel: RowKernel) -> np.ndarray:
        """Run rounds until every wanted residual is below the goal; return the eigenvalues."""
        problem, degree = self.problem, _FIRST_DEGREE
        self._multiply(kernel)
        for _ in range(_MAX_ROUNDS):
            problem.n_iterations += 1
            self._filter(kernel, degree)
            self._project()
            self._multiply(kernel)
            mu, residuals = self._rayleigh_ritz()
            needed = self._needed(mu)
            if residuals[:needed].max() <= self._goal():
                if not self._is_coarse():
                    if needed == len(mu):
                        self._say_that_the_cut_is_inside_a_group(mu[-1])
                    return np.concatenate([self.locked_mu, mu[:needed]])
                self.Z = self.Z.astype(np.float64)
                self.PZ, self.locked = np.empty_like(self.Z), self.locked.astype(np.float64)
                self._multiply(kernel)
                mu, residuals = self._rayleigh_ritz()
            degree = self._plan(mu, residuals, needed, degree)
            self._lock(kernel, mu, residuals)
        raise not_converged(residuals[:needed], problem.tol)

    def _say_that_the_cut_is_inside_a_group(self, mu: float) -> None:
        logger.warning(
            "Eigenvalue %.6g of the graph has more than %d vectors: those returned depend on the "
            "solver's start. Ask for fewer eigenvectors, or look for copies in the data.",
            1.0 - mu, self.locked.shape[1] + self.Z.shape[1] - self.problem.n_missing,
        )  # fmt: skip

    def _is_coarse(self) -> bool:
        """Say whether float32 still runs although the tolerance will need float64."""
        return self.Z.dtype == np.float32 and self.problem.tol < _FLOAT32_TOL

    def _goal(self) -> float:
        """Return the residual to reach with the present type."""
        return _FLOAT32_TOL if self._is_coarse() else _SOLVED * self.problem.tol

    def _needed(self, mu: np.ndarray) -> int:
        """Return how many active vectors must converge: to the end of the last one's group."""
        last = mu[self.problem.n_missing - len(self.locked_mu) - 1]
        return int((mu >= last - GROUP * self.problem.tol).sum())

    def _plan(self, mu: np.ndarray, residuals: np.ndarray, needed: int, before: int) -> int:
        """Set the next cut to the last guard and return the degree that should be enough."""
        low = self.window.low
        # Where the guards are copies of the last wanted vector, the cut must still be below it.
        cut = min(float(mu[-1]), float(mu[needed - 1]) - _CLEARANCE * (1.0 - mu[needed - 1]))
        window = _Window(low, max(cut, low + 0.1))
        slow, fast = window.rate(mu[needed - 1]), window.rate(1.0)
        excess = residuals[:needed].max() / (_LOCKED * self.problem.tol)
        degree = np.log(2.0 * max(excess, 1.0)) / max(slow, 1e-9)
        limit = _LARGEST_GROWTH[self.Z.dtype] / max(fast - slow, 1e-9)
        self.window = window
        return int(np.clip(np.ceil(degree), 8, min(limit, 3 * before, _LARGEST_DEGREE)))

    def _lock(self, kernel: RowKernel, mu: np.ndarray, residuals: np.ndarray) -> None:
        """Take the leading vectors that are done out of the block, whole registers at a time."""
        if self._is_coarse():
            return
        late = residuals > _LOCKED * self.problem.tol
        # The last one wanted stays: what counts as needed follows from it.
        most = self.problem.n_missing - len(self.locked_mu) - 1
        done = min(int(late.argmax()) if late.any() else len(mu), most)
        done -= done % _LANES
        if done:
            # One product more is cheaper than a third block in memory.
            del self.PZ
            self.locked = np.hstack([self.locked, self.Z[:, :done]])
            self.locked_mu = np.concatenate([self.locked_mu, mu[:done]])
            self.Z = np.ascontiguousarray(self.Z[:, done:])
            self.PZ = np.empty_like(self.Z)
            self._multiply(kernel)

    def _multiply(self, kernel: RowKernel) -> None:
        """Compute ``PZ <- P Z``."""
        kernel.step(self.Z, self.PZ, 1.0, 0.0, 0.0)
        self.problem.n_products += self.Z.shape[1]

    def _filter(self, kernel: RowKernel, degree: int) -> None:
        """Replace Z by the Chebyshev polynomial of P, scaled to 1 at the eigenvalue 1, times Z."""
        half, center = self.window.half, self.window.center
        first = sigma = half / (1.0 - center)
        old, new = self.Z, self.PZ
        for start, stop in tiles(len(new)):
            part = new[start:stop]
            part -= part.dtype.type(center) * old[start:stop]
            part *= part.dtype.type(sigma / half)
        for _ in range(degree - 1):
            following = 1.0 / (2.0 / first - sigma)
            scale = 2.0 * following / half
            kernel.step(new, old, scale, -scale * center, -sigma * following)
            old, new, sigma = new, old, following
        self.problem.n_products += (degree - 1) * new.shape[1]
        self.Z, self.PZ = new, old

    def _project(self) -> None:
        """Remove the null space and the locked vectors from Z."""
        volumes = self.problem.null.volumes
        means = np.zeros((len(volumes), self.Z.shape[1]))
        shares = np.zeros((self.locked.shape[1], self.Z.shape[1]))
        for start, stop in tiles(len(self.Z)):
            z = self.Z[start:stop].astype(np.float64)
            means += self._members(start, stop) @ z
            z *= self.degrees[start:stop, None]
            shares += self.locked[start:stop].T.astype(np.float64) @ z
        means /= volumes[:, None]
        for start, stop in tiles(len(self.Z)):
            part = means[self.labels[start:stop]]
            part += self.locked[start:stop].astype(np.float64) @ shares
            self.Z[start:stop] -= part

    def _members(self, start: int, stop: int) -> Any:
        """Return the degrees as an (n_components, rows) matrix: a column per row of the graph."""
        from scipy.sparse import csc_array

        rows = np.arange(stop - start + 1)
        shape = (self.problem.null.n_components, stop - start)
        return csc_array((self.degrees[start:stop], self.labels[start:stop], rows), shape=shape)

    def _rayleigh_ritz(self) -> tuple[np.ndarray, np.ndarray]:
        """Turn Z and PZ to Ritz vectors; return their values, descending, and residuals."""
        from scipy.linalg import eigh

        width = self.Z.shape[1]
        overlap, energy = np.zeros((width, width)), np.zeros((width, width))
        for start, stop in tiles(len(self.Z)):
            z = self.Z[start:stop].astype(np.float64)
            weighted = self.degrees[start:stop, None] * z
            overlap += z.T @ weighted
            energy += weighted.T @ self.PZ[start:stop].astype(np.float64)
        basis = _whitening(overlap)
        mu, turn = eigh(basis.T @ (energy + energy.T) @ basis / 2)
        mu, turn = mu[::-1], basis @ turn[:, ::-1]
        squares = np.zeros(width)
        for start, stop in tiles(len(self.Z)):
            z = self.Z[start:stop].astype(np.float64) @ turn
            product = self.PZ[start:stop].astype(np.float64) @ turn
            self.Z[start:stop], self.PZ[start:stop] = z, product
            product -= mu * z
            product *= product
            squares += self.degrees[start:stop] @ product
        return mu, np.sqrt(squares)

    def _vectors(self, count: int) -> np.ndarray:
        """Return the unit vectors ``u = D^1/2 z`` in the graph's own order, float64."""
        vectors = np.empty((self.problem.n_samples, count))
        root, active = np.sqrt(self.degrees), count - self.locked.shape[1]
        for start, stop in tiles(len(vectors)):
            rows = np.hstack([self.locked[start:stop], self.Z[start:stop, :active]])
            vectors[self.order[start:stop]] = rows.astype(np.float64) * root[start:stop, None]
        del self.Z, self.locked
        return self._orthonormal(vectors)

    def _orthonormal(self, vectors: np.ndarray) -> np.ndarray:
        """Make vectors that are orthonormal in float32 so in float64, in place."""
        null = self.problem.null
        overlap = np.zeros((vectors.shape[1],) * 2)
        for column in vectors.T:
            column -= null.project(column)
        for start, stop in tiles(len(vectors)):
            overlap += vectors[start:stop].T @ vectors[start:stop]
        turn = np.linalg.inv(np.linalg.cholesky(overlap)).T
        for start, stop in tiles(len(vectors)):
            vectors[start:stop] = vectors[start:stop] @ turn
        return vectors


def _whitening(overlap: np.ndarray) -> np.ndarray:
    """Return a matrix B with ``B' overlap B = 1``; directions lost to rounding stay small."""
    from scipy.linalg import eigh

    scale = 1.0 / np.sqrt(np.diag(overlap))
    values, vectors = eigh(overlap * np.multiply.outer(scale, scale))
    return scale[:, None] * vectors / np.sqrt(np.maximum(values, 1e-14 * values[-1]))


def _reordered(W: Any, order: np.ndarray) -> Any:
    """Return W with rows and columns in the given order, float32; columns are not sorted."""
    place = np.empty_like(order)
    place[order] = np.arange(len(order), dtype=order.dtype)
    data = W.data.astype(np.float32)
    turned = type(W)((data, W.indices, W.indptr), shape=W.shape)[order]
    turned.indices = place[turned.indices]
    return turned


def _bounds(problem: Problem, random: np.random.Generator) -> tuple[float, float]:
    """Return a lower bound of the spectrum of S, and a first cut near its upper end.

    A few Lanczos steps with the safeguard of Zhou and Li 2011: the residual is subtracted.
    """
    from scipy.linalg import eigh_tridiagonal

    W, root = problem.W, problem.root
    alpha, beta = np.zeros(_BOUND_STEPS), np.zeros(_BOUND_STEPS)
    last, v = np.zeros_like(root), random.standard_normal(len(root))
    v /= np.linalg.norm(v)
    for j in range(_BOUND_STEPS):
        following = (W @ (v / root)) / root - (beta[j - 1] * last if j else 0.0)
        alpha[j] = following @ v
        following -= alpha[j] * v
        beta[j] = np.linalg.norm(following)
        last, v = v, following / beta[j]
    problem.n_products += _BOUND_STEPS
    values, vectors = eigh_tridiagonal(alpha, beta[:-1])
    return max(-1.0, values[0] - beta[-1] * abs(vectors[-1, 0])), float(values[-3])
