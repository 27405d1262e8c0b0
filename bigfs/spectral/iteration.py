"""Block Chebyshev-filtered subspace iteration: many eigenpairs from products of W with a block.

Each round applies a Chebyshev polynomial of S to a block of vectors, which damps the unwanted
part of the spectrum and lets the wanted part grow, and then solves the small eigenproblem in the
span (Rayleigh-Ritz). The filter runs in float32, the small problem in float64. Nothing is
orthogonalized against a growing basis, and the filter takes a few columns at a time.

This module decides: cut, degree, which vectors are done, when it ends. What is computed on the
vectors is the business of `bigfs.spectral.block`. The iterate is kept as ``z = D^-1/2 u``: with
it, ``S u`` is ``P z`` with ``P = D^-1 W``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bigfs.runtime.progress import say_where
from bigfs.spectral.block import Steps, StoredBlock
from bigfs.spectral.problem import GROUP, GUARDS, Goal

# Blocks are a whole number of vector registers wide.
_LANES = 8
# float32 carries residuals down to a tenth of this, after filters of degree 1000; below it the
# iterate goes on in float64.
FLOAT32_RESIDUAL = 5e-5
# Shares of what is accepted that wanted vectors must reach, and at which they are done.
_SOLVED = 0.5
_DONE = 0.3
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
_LARGEST_GROWTH = {"float32": 17.0, "float64": 34.0}
# Steps of the Lanczos process that bounds the spectrum from below.
BOUND_STEPS = 12


def block_width(n_missing: int) -> int:
    """Return the vectors of a block: those wanted and guards that speed up the last of them."""
    return -(-(n_missing + max(4, n_missing // 4)) // _LANES) * _LANES


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


# What a record has of an iteration and of its goal.
_COUNTED = ("degree", "n_done", "n_waited", "n_given_up", "is_cut", "is_done")
_COUNTED_BY_GOAL = ("n_products", "n_iterations", "edge")


class Iteration:
    """The rounds of filter and Rayleigh-Ritz on a block, until all is found.

    Parameters
    ----------
    goal : Goal
        Counts iterations and products.
    block : StoredBlock
        At the end the wanted vectors are the first columns of its last Ritz vectors.
    """

    def __init__(self, goal: Goal, block: StoredBlock) -> None:
        self.goal, self.block = goal, block
        self.degree, self.n_done = _FIRST_DEGREE, 0
        # Leading columns of the block that begin near the wanted vectors and their guards.
        self._n_near = block.n_near if block.n_near > goal.n_missing else 0
        # Whether there are more vectors of the last eigenvalue than the block has.
        self.is_cut = self.is_done = False
        # Eigenvalues of L, ascending, and their residuals.
        self.eigenvalues = self.residuals = np.zeros(0)
        # Rounds in which only pairs of the bulk were late, and how many of these are given up.
        self.n_waited = self.n_given_up = 0
        if block.record.state is not None:
            state = block.record.state["iteration"]
            self.window = Window(*state["window"])
            for name in _COUNTED:
                setattr(self, name, state[name])
            for name in _COUNTED_BY_GOAL:
                setattr(goal, name, state[name])
            self.eigenvalues, self.residuals = map(np.array, state["measured"])
            return
        low, high = _bounds(*block.lanczos(BOUND_STEPS))
        goal.n_products += BOUND_STEPS
        self.window = Window(low, max(high, low + 0.1))
        if self._n_near:
            self._ritz([], 0)
            beyond = _NEAR_CUT * self.eigenvalues[self._n_near - 1]
            self.window = Window(low, max(1 - beyond, low + 0.1))
            self.degree = self._degree(goal.n_missing, _LARGEST_DEGREE)

    def run(self) -> None:
        """Find the wanted vectors.

        Raises
        ------
        ConvergenceError
            If the residual of a pair that is not of the bulk stays above what is accepted.

        Notes
        -----
        A pair of the bulk, where eigenvalues crowd, would take hundreds of rounds, and any
        vector of its neighborhood serves as well: what is late there after some rounds stays as
        it is.
        """
        goal = self.goal
        while goal.n_iterations < _MAX_ROUNDS and not self.is_done:
            self._round()
            needed = self._needed()
            residuals = self.residuals[:needed]
            late = residuals > self._target()[:needed]
            say_where(
                f"round {goal.n_iterations}, {needed - late.sum()} of {goal.n_missing} "
                f"eigenvectors done, largest residual {residuals.max(initial=0.0):.1e}"
            )
            if not late.any():
                if not self._is_coarse():
                    self.is_cut = bool(needed >= self._n_known())
                    self.is_done = True
                    self.block.commit(self._state(), is_last=True)
                    return
                self.block.dtype = "float64"
            self._plan(max(needed, 1))
            # The leading vectors that are done may be left out by the filter.
            late = self.residuals > _DONE * self.accepted
            late[goal.n_missing - 1 :] = True
            self.n_done = 0 if self._is_coarse() else int(late.argmax())
        # The residuals in float64 decide whether that is enough.

    def run_roughly(self, n_rounds: int) -> None:
        """Do some rounds; the vectors that are wanted come first."""
        for _ in range(n_rounds):
            self._round()
            self._plan(self.goal.n_missing)

    def _round(self) -> None:
        """Filter the block, and turn it to Ritz vectors."""
        self.block.commit(self._state())
        self.goal.n_iterations += 1
        self._ritz(self.window.recurrence(self.degree), self.n_done)

    def _ritz(self, steps: Steps, n_done: int) -> None:
        """Turn the filtered block to Ritz vectors, and measure these."""
        self.eigenvalues, self.residuals, n_products = self.block.ritz(steps, n_done)
        self.goal.n_products += n_products
        self.goal.edge = float(self.eigenvalues[-1])
        # Residuals that would be small enough.
        self.accepted = self.goal.accepted(self.eigenvalues)

    def _state(self) -> dict[str, Any]:
        """Return the state between two rounds, as JSON values."""
        return {
            "window": [self.window.low, self.window.cut],
            **{name: getattr(self, name) for name in _COUNTED},
            "measured": [self.eigenvalues.tolist(), self.residuals.tolist()],
            **{name: getattr(self.goal, name) for name in _COUNTED_BY_GOAL},
        }

    def _n_known(self) -> int:
        """Return the columns that are near a vector each: at first those that began near."""
        is_new = self._n_near and self.goal.n_iterations < _ROUNDS_OF_A_START
        return self._n_near if is_new else self.block.width

    def _is_coarse(self) -> bool:
        """Say whether float32 still runs although what is accepted will need float64."""
        least = self.accepted[: self.goal.n_missing].min()
        return self.block.dtype == "float32" and least < FLOAT32_RESIDUAL

    def _target(self) -> np.ndarray:
        """Return the residuals to reach with the present type."""
        target = _SOLVED * self.accepted
        return np.maximum(target, FLOAT32_RESIDUAL) if self._is_coarse() else target

    def _needed(self) -> int:
        """Return how many vectors must converge: to the end of the last one's group.

        Without those of the bulk that have been waited for in vain.
        """
        wanted, eigenvalues = self.goal.n_missing, self.eigenvalues
        if self.n_given_up:
            return wanted - self.n_given_up
        last = eigenvalues[wanted - 1]
        needed = int((eigenvalues <= last + GROUP * self.accepted[wanted - 1]).sum())
        late = np.flatnonzero(self.residuals[:wanted] > self._target()[:wanted])
        in_bulk = self.goal.in_bulk(eigenvalues, self.residuals)
        self.n_waited = self.n_waited + 1 if len(late) and in_bulk[late[0] : wanted].all() else 0
        if not self.n_waited:
            return needed
        first, before = int(late[0]), count_before_bulk(eigenvalues[:wanted], self.goal.edge)
        patience = _PATIENCE if before is None or before > first else _PATIENCE_BEHIND_GAP
        if self.n_waited >= patience:
            self.n_given_up, needed = wanted - first, first
        return needed

    def _plan(self, needed: int) -> None:
        """Set the next cut to the last guard, and the degree to what should be enough."""
        low, guard = self.window.low, self.eigenvalues[self._n_known() - 1]
        # Where the guards are copies of the last wanted vector, the cut must still be beyond it.
        beyond = max(guard, (1 + _CLEARANCE) * self.eigenvalues[needed - 1])
        self.window = Window(low, max(1.0 - float(beyond), low + 0.1))
        self.degree = self._degree(needed, 3 * self.degree)

    def _degree(self, needed: int, most: int) -> int:
        """Return the degree that should be enough with this window."""
        excess = self.residuals[:needed] / np.maximum(_DONE * self.accepted[:needed], 1e-300)
        rates = np.array([self.window.rate(1.0 - value) for value in self.eigenvalues[:needed]])
        degree = (np.log(2.0 * np.maximum(excess, 1.0)) / np.maximum(rates, 1e-9)).max()
        growth = self.window.rate(1.0) - rates[-1]
        limit = _LARGEST_GROWTH[self.block.dtype] / max(growth, 1e-9)
        return int(np.clip(np.ceil(degree), 8, min(limit, most, _LARGEST_DEGREE)))


def count_before_bulk(eigenvalues: np.ndarray, edge: float, n_beyond: int = GUARDS) -> int | None:
    """Return how many of the pairs come before the bulk of the spectrum; None: all, or no gap.

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
    It begins where an eigenvalue is at least twice the one before it, and those that follow, up to
    the edge, are at most 3 % of it apart in the mean.
    """
    before = np.concatenate([[0.0], eigenvalues[:-1]])
    followers = np.arange(len(eigenvalues), 0, -1) + n_beyond - 1
    crowded = edge <= (1.0 + _SPACING * followers) * eigenvalues
    begins = (before <= (1.0 - _GAP) * eigenvalues) & crowded
    return int(begins.argmax()) if begins.any() else None


def _bounds(alpha: np.ndarray, beta: np.ndarray) -> tuple[float, float]:
    """Return a lower bound of the spectrum of S, and a first cut near its upper end.

    From a few Lanczos steps with the safeguard of Zhou and Li 2011, twice over: the residual is
    subtracted. The last vectors of a graph are often those of a few rows, of which some steps from
    a random vector see little; the filter lets what is below the bound grow.
    """
    from scipy.linalg import eigh_tridiagonal

    values, vectors = eigh_tridiagonal(alpha, beta[:-1])
    return max(-1.0, values[0] - 2 * beta[-1] * abs(vectors[-1, 0])), float(values[-3])
