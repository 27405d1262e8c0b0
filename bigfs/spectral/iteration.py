"""Block Chebyshev-filtered subspace iteration: many eigenpairs from products of W with a block.

Each round applies a Chebyshev polynomial of S to a block of vectors, which damps the unwanted
part of the spectrum and lets the wanted part grow, and then solves the small eigenproblem in the
span (Rayleigh-Ritz). The filter runs in float32, the small problem in float64. Nothing is
orthogonalized against a growing basis, and the filter takes a few columns at a time, so one block
and a part of another are all the memory it takes.

This module decides: cut, degree, what is locked, when it ends. Where the block lives is the
business of a `Block`: in this process (`bigfs.spectral.chebyshev`) or as row blocks in storage
(`bigfs.spectral.distributed`). The iterate is kept as ``z = D^-1/2 u``: with it, ``S u`` is
``P z`` with ``P = D^-1 W``.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from bigfs.runtime.progress import say_where
from bigfs.spectral.eigsh import DENSE_ROWS
from bigfs.spectral.problem import GROUP, GUARDS, Goal

logger = logging.getLogger("bigfs")

# Blocks are a whole number of vector registers wide, panels of them at most a cache line.
_LANES = 8
_PANEL = 16
# float32 carries residuals down to a tenth of this, after filters of degree 1000; below it the
# iterate goes on in float64.
FLOAT32_TOL = 5e-5
# Shares of the tolerance that wanted vectors must reach, and at which they are locked.
_SOLVED = 0.5
_LOCKED = 0.3
_FIRST_DEGREE = 16
# Near the wanted vectors, what is wrong is mostly of eigenvalues far beyond the guards: the first
# cut is at so many times the last guard's, which damps it at a low degree and spares the guards.
_NEAR_CUT = 4.0
# After so many rounds columns that began anywhere are near vectors too.
_ROUNDS_OF_A_START = 2
_LARGEST_DEGREE = 1000
_MAX_ROUNDS = 60
# A gap of this share of an eigenvalue before it, and pairs that follow at this share of it each,
# set the bulk of the spectrum apart.
_GAP, _SPACING = 0.5, 0.03
# Rounds that pairs of the bulk get while nothing else is late: behind such a gap, and elsewhere.
_PATIENCE_BEHIND_GAP, _PATIENCE = 3, 20
# The least distance of the cut from a wanted eigenvalue, as a share of 1 - mu.
_CLEARANCE = 0.05
# Largest growth within one filter, as an exponent: more drowns small parts in rounding.
_LARGEST_GROWTH = {np.dtype(np.float32): 17.0, np.dtype(np.float64): 34.0}
# Steps of the Lanczos process that bounds the spectrum from below.
BOUND_STEPS = 12


def is_small(goal: Goal) -> bool:
    """Say whether a dense solver is better: few rows, or a block would be much of the space."""
    rest = goal.n_samples - goal.n_connected
    return goal.n_samples <= DENSE_ROWS or 4 * block_width(goal.n_missing) > rest


def block_width(n_missing: int) -> int:
    """Return the vectors of a block: those wanted and guards that speed up the last of them."""
    return -(-(n_missing + max(4, n_missing // 4)) // _LANES) * _LANES


def panel_widths(n_missing: int) -> list[int]:
    """Return the columns of each panel of a block."""
    return list(split_width(block_width(n_missing)))


def split_width(width: int) -> tuple[int, ...]:
    """Return the columns of the panels of so many vectors."""
    return tuple(min(_PANEL, width - start) for start in range(0, width, _PANEL))


def block_bytes(n_samples: int, n_missing: int, tol: float) -> int:
    """Return the bytes of the solver's arrays beyond W and its reordered copy."""
    itemsize, width = 4 if tol >= FLOAT32_TOL else 8, block_width(n_missing)
    # Panels, one of them twice; at the end panels and the result.
    blocks = max(itemsize * (width + _PANEL), itemsize * width + 8 * n_missing, 16 * n_missing)
    return int(n_samples * (blocks + 6 * 8))


class Block(Protocol):
    """Vectors z in panels, the first of them locked; all sums are of float64."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the vectors."""

    @property
    def n_locked(self) -> int:
        """Vectors that are locked."""

    @property
    def width(self) -> int:
        """Vectors that are not."""

    def lanczos(self, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the diagonals, of ``steps`` entries each, that some steps from one vector give."""

    def filter(self, window: Window, degree: int) -> None:
        """Replace z by the window's polynomial of P, scaled to 1 at the eigenvalue 1, times z."""

    def project(self) -> None:
        """Remove the null space and the locked vectors."""

    def grams(self) -> tuple[np.ndarray, np.ndarray]:
        """Return ``Z'DZ`` and ``Z'DPZ``."""

    def rotate(self, turn: np.ndarray) -> None:
        """Replace Z by ``Z turn``."""

    def squares(self, mu: np.ndarray) -> np.ndarray:
        """Return the squared residuals ``|Pz - mu z|^2``, weighted with D."""

    def lock(self, count: int) -> int:
        """Lock at most so many leading vectors, whole panels only; return how many."""

    def refine(self) -> None:
        """Go on in float64."""

    def saved(self) -> dict[str, Any] | None:
        """Return the state that an earlier run committed last, if there is one."""

    def commit(self, state: dict[str, Any]) -> None:
        """Keep the vectors and, as JSON values, where the iteration is."""


@dataclass(frozen=True)
class Window:
    """The interval that the filter damps: from a lower bound of the spectrum of S to the cut."""

    low: float
    cut: float

    @property
    def half(self) -> float:
        """Half its width."""
        return (self.cut - self.low) / 2

    @property
    def center(self) -> float:
        """Its center."""
        return (self.cut + self.low) / 2

    def rate(self, mu: float) -> float:
        """Return the exponent by which one more degree lets the part at mu grow."""
        return float(np.arccosh(max((mu - self.center) / self.half, 1.0)))

    def recurrence(self, degree: int) -> list[tuple[float, float, float]]:
        """Return a, b, c of every step ``y_j+1 = a P y_j + b y_j + c y_j-1``."""
        first = sigma = self.half / (1.0 - self.center)
        steps = [(sigma / self.half, -sigma * self.center / self.half, 0.0)]
        for _ in range(degree - 1):
            following = 1.0 / (2.0 / first - sigma)
            scale = 2.0 * following / self.half
            steps.append((scale, -scale * self.center, -sigma * following))
            sigma = following
        return steps


class Iteration:
    """The rounds of filter, projection and Rayleigh-Ritz on a block, until all is found.

    Parameters
    ----------
    goal : Goal
        Counts iterations and products.
    block : Block
        Holds the wanted vectors in its first columns at the end.
    n_near : int, default=0
        Leading columns of the block that begin near the wanted vectors and their guards.
    """

    def __init__(self, goal: Goal, block: Block, n_near: int = 0) -> None:
        self.goal, self.block = goal, block
        self.locked_mu, self.degree = np.zeros(0), _FIRST_DEGREE
        self._near, self._n_near = n_near > goal.n_missing, n_near
        # Rounds in which only pairs of the bulk were late, and how many of these are given up.
        self.n_waited = self.n_given_up = 0
        if (state := block.saved()) is None:
            low, high = _bounds(*block.lanczos(BOUND_STEPS))
            goal.n_products += BOUND_STEPS
            self.window = Window(low, max(high, low + 0.1))
            if self._near:
                block.project()
                mu, residuals = self._rayleigh_ritz()
                self.window = Window(low, max(1 - _NEAR_CUT * (1 - mu[n_near - 1]), low + 0.1))
                self.degree = self._degree(mu, residuals, goal.n_missing, _LARGEST_DEGREE)
            return
        self.window, self.degree = Window(*state["window"]), state["degree"]
        self.locked_mu = np.array(state["locked_mu"])
        self.n_waited, self.n_given_up = state["n_waited"], state["n_given_up"]
        goal.n_products, goal.n_iterations = state["n_products"], state["n_iterations"]

    def run(self) -> np.ndarray:
        """Return the wanted eigenvalues of S, descending.

        Raises
        ------
        ConvergenceError
            If the residual of a pair that is not of the bulk stays above the tolerance.

        Notes
        -----
        A pair of the bulk, where eigenvalues crowd, would take hundreds of rounds, and any
        vector of its neighborhood serves as well: what is late there after some rounds stays as
        it is.
        """
        goal, block = self.goal, self.block
        while goal.n_iterations < _MAX_ROUNDS:
            mu, residuals = self._round()
            needed = self._needed(mu, residuals)
            say_where(f"round {goal.n_iterations}, {self._progress(residuals, needed)}")
            if residuals[:needed].max(initial=0.0) <= self._target():
                was_coarse = self._is_coarse()
                if was_coarse:
                    block.refine()
                    mu, residuals = self._rayleigh_ritz()
                # From a start that is near, float32 may have been enough.
                is_done = self._near and residuals[:needed].max(initial=0.0) <= self._target()
                if not was_coarse or is_done:
                    if needed >= self._n_known(mu):
                        self._say_that_the_cut_is_inside_a_group(mu[:needed])
                    return self._eigenvalues(mu, needed)
            self.degree = self._plan(mu, residuals, max(needed, 1), self.degree)
            self._lock(mu, residuals)
        # The residuals in float64 decide whether that is enough.
        return self._eigenvalues(mu, needed)

    def run_roughly(self, n_rounds: int) -> None:
        """Do some rounds; the vectors that are wanted come first."""
        for _ in range(n_rounds):
            mu, residuals = self._round()
            self.degree = self._plan(mu, residuals, self.goal.n_missing, self.degree)

    def _round(self) -> tuple[np.ndarray, np.ndarray]:
        """Filter the block; return Ritz values, descending, and residuals."""
        goal, block = self.goal, self.block
        block.commit(self._state())
        goal.n_iterations += 1
        block.filter(self.window, self.degree)
        goal.n_products += self.degree * block.width
        block.project()
        mu, residuals = self._rayleigh_ritz()
        goal.edge = 1.0 - float(mu[-1])
        return mu, residuals

    def _progress(self, residuals: np.ndarray, needed: int) -> str:
        """Say how far the eigenvectors are."""
        largest = residuals[:needed].max(initial=0.0)
        return (
            f"{len(self.locked_mu)} of {self.goal.n_missing} eigenvectors done, largest residual "
            f"{largest:.1e}, to reach {self._target():.0e}"
        )

    def _eigenvalues(self, mu: np.ndarray, needed: int) -> np.ndarray:
        """Return the eigenvalues of what was asked for, to the end of its last group."""
        count = max(needed, self.goal.n_missing - len(self.locked_mu))
        return np.concatenate([self.locked_mu, mu[:count]])

    def _state(self) -> dict[str, Any]:
        """Return the state at the beginning of a round, as JSON values."""
        return {
            "window": [self.window.low, self.window.cut],
            "degree": self.degree,
            "locked_mu": self.locked_mu.tolist(),
            "n_waited": self.n_waited,
            "n_given_up": self.n_given_up,
            "n_products": self.goal.n_products,
            "n_iterations": self.goal.n_iterations,
        }

    def _rayleigh_ritz(self) -> tuple[np.ndarray, np.ndarray]:
        """Turn the block to Ritz vectors; return their values, descending, and residuals."""
        from scipy.linalg import eigh

        overlap, energy = self.block.grams()
        basis = _whitening(overlap)
        mu, turn = eigh(basis.T @ (energy + energy.T) @ basis / 2)
        mu, turn = mu[::-1], basis @ turn[:, ::-1]
        self.block.rotate(turn)
        self.goal.n_products += 2 * self.block.width
        return mu, np.sqrt(self.block.squares(mu))

    def _say_that_the_cut_is_inside_a_group(self, mu: np.ndarray) -> None:
        logger.warning(
            "Eigenvalue %.6g of the graph has more than %d vectors: those returned depend on the "
            "solver's start. Ask for fewer eigenvectors, or look for copies in the data.",
            1.0 - mu[-1], self.block.n_locked + self._n_known(mu) - self.goal.n_missing,
        )  # fmt: skip

    def _n_known(self, mu: np.ndarray) -> int:
        """Return the columns that are near a vector each: at first those that began near."""
        is_new = self._near and self.goal.n_iterations < _ROUNDS_OF_A_START
        return self._n_near - len(self.locked_mu) if is_new else len(mu)

    def _is_coarse(self) -> bool:
        """Say whether float32 still runs although the tolerance will need float64."""
        return self.block.dtype == np.float32 and self.goal.tol < FLOAT32_TOL

    def _target(self) -> float:
        """Return the residual to reach with the present type."""
        return FLOAT32_TOL if self._is_coarse() else _SOLVED * self.goal.tol

    def _needed(self, mu: np.ndarray, residuals: np.ndarray) -> int:
        """Return how many active vectors must converge: to the end of the last one's group.

        Without those of the bulk that have been waited for in vain.
        """
        wanted = self.goal.n_missing - len(self.locked_mu)
        if self.n_given_up:
            return wanted - self.n_given_up
        needed = int((mu >= mu[wanted - 1] - GROUP * self.goal.tol).sum())
        late = np.flatnonzero(residuals[:wanted] > self._target())
        in_bulk = self.goal.in_bulk(1.0 - mu, residuals)
        self.n_waited = self.n_waited + 1 if len(late) and in_bulk[late[0] : wanted].all() else 0
        if not self.n_waited or self.n_waited < self._patience(mu, int(late[0])):
            return needed
        self.n_given_up = wanted - int(late[0])
        return int(late[0])

    def _patience(self, mu: np.ndarray, first: int) -> int:
        """Return how many rounds pairs of the bulk get, of which this is the first."""
        count = self.goal.n_missing
        values = 1.0 - np.concatenate([self.locked_mu, mu])[:count]
        begins = bulk_begins(values, self.goal.edge)[: len(self.locked_mu) + first + 1]
        return _PATIENCE_BEHIND_GAP if begins.any() else _PATIENCE

    def _plan(self, mu: np.ndarray, residuals: np.ndarray, needed: int, before: int) -> int:
        """Set the next cut to the last guard and return the degree that should be enough."""
        low = self.window.low
        last = self._n_known(mu)
        # Where the guards are copies of the last wanted vector, the cut must still be below it.
        cut = min(float(mu[last - 1]), float(mu[needed - 1]) - _CLEARANCE * (1.0 - mu[needed - 1]))
        self.window = Window(low, max(cut, low + 0.1))
        return self._degree(mu, residuals, needed, 3 * before)

    def _degree(self, mu: np.ndarray, residuals: np.ndarray, needed: int, most: int) -> int:
        """Return the degree that should be enough with this window."""
        slow, fast = self.window.rate(mu[needed - 1]), self.window.rate(1.0)
        excess = residuals[:needed].max() / (_LOCKED * self.goal.tol)
        degree = np.log(2.0 * max(excess, 1.0)) / max(slow, 1e-9)
        limit = _LARGEST_GROWTH[self.block.dtype] / max(fast - slow, 1e-9)
        return int(np.clip(np.ceil(degree), 8, min(limit, most, _LARGEST_DEGREE)))

    def _lock(self, mu: np.ndarray, residuals: np.ndarray) -> None:
        """Take the leading vectors that are done out of the block."""
        if self._is_coarse():
            return
        late = residuals > _LOCKED * self.goal.tol
        # The last one wanted stays: what counts as needed follows from it.
        most = self.goal.n_missing - len(self.locked_mu) - 1
        done = self.block.lock(min(int(late.argmax()) if late.any() else len(mu), most))
        self.locked_mu = np.concatenate([self.locked_mu, mu[:done]])


def bulk_begins(eigenvalues: np.ndarray, edge: float, n_beyond: int = GUARDS) -> np.ndarray:
    """Say for each eigenvalue whether the bulk of the spectrum may begin with it.

    Parameters
    ----------
    eigenvalues : ndarray of shape (n_components,)
        Ascending, without the trivial one.
    edge : float
        The largest eigenvalue that was looked at beyond them.
    n_beyond : int, default=2
        Least number of eigenvalues from the one behind the last to the edge.

    Notes
    -----
    It does where an eigenvalue is at least twice the one before it, and those that follow, up to
    the edge, are at most 3 % of it apart in the mean.
    """
    before = np.concatenate([[0.0], eigenvalues[:-1]])
    followers = np.arange(len(eigenvalues), 0, -1) + n_beyond - 1
    crowded = edge <= (1.0 + _SPACING * followers) * eigenvalues
    return np.asarray((before <= (1.0 - _GAP) * eigenvalues) & crowded)


def _whitening(overlap: np.ndarray) -> np.ndarray:
    """Return a matrix B with ``B' overlap B = 1``; directions lost to rounding stay small."""
    from scipy.linalg import eigh

    scale = 1.0 / np.sqrt(np.diag(overlap))
    values, vectors = eigh(overlap * np.multiply.outer(scale, scale))
    return scale[:, None] * vectors / np.sqrt(np.maximum(values, 1e-14 * values[-1]))


def _bounds(alpha: np.ndarray, beta: np.ndarray) -> tuple[float, float]:
    """Return a lower bound of the spectrum of S, and a first cut near its upper end.

    From a few Lanczos steps with the safeguard of Zhou and Li 2011, twice over: the residual is
    subtracted. The last vectors of a graph are often those of a few rows, of which some steps from
    a random vector see little; the filter lets what is below the bound grow.
    """
    from scipy.linalg import eigh_tridiagonal

    values, vectors = eigh_tridiagonal(alpha, beta[:-1])
    return max(-1.0, values[0] - 2 * beta[-1] * abs(vectors[-1, 0])), float(values[-3])
