"""Block Chebyshev-filtered subspace iteration: many eigenpairs from products of W with a block.

Each round applies a Chebyshev polynomial of S to a block of vectors, which damps the unwanted part
of the spectrum and amplifies the wanted part, and then solves the small eigenproblem in the span
(Rayleigh-Ritz). The filter runs in float32, the small problem in float64. There is no
orthogonalization against a growing basis, and the filter processes a few columns at a time.

This module makes the decisions: cut, degree, converged vectors, termination. The computations on
the vectors are in `bigfs.spectral.block`. The iterate is stored as ``z = D^-1/2 u``, for which
``S u`` becomes ``P z`` with ``P = D^-1 W``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bigfs.runtime.progress import say_where
from bigfs.spectral.block import Steps, StoredBlock
from bigfs.spectral.problem import GROUP, GUARDS, Goal

# The width of a block is a multiple of the width of a vector register.
_LANES = 8
# float32 reaches residuals of a tenth of this after filters of degree 1000; if residuals below this
# are needed, the iteration continues in float64.
FLOAT32_RESIDUAL = 5e-5
# Shares of the accepted residual that wanted vectors must reach, and at which they are done.
_SOLVED = 0.5
_DONE = 0.3
_FIRST_DEGREE = 16
# For a block near the wanted vectors, most of the error is in eigenvalues far beyond the guards:
# the first cut is at this multiple of the last guard's eigenvalue, which damps the error at a low
# degree and spares the guards.
_NEAR_CUT = 4.0
# After this many rounds columns with a random start have become near vectors too.
_ROUNDS_OF_A_START = 2
_LARGEST_DEGREE = 1000
_MAX_ROUNDS = 60
# The bulk of the spectrum begins behind a gap of this share of an eigenvalue, if the pairs that
# follow it are at most this share of it apart on average.
_GAP, _SPACING = 0.5, 0.03
# Rounds granted to pairs of the bulk while all others have converged: behind such a gap, and else.
_PATIENCE_BEHIND_GAP, _PATIENCE = 3, 20
# Lower bound on the distance of the cut from a wanted eigenvalue, relative to 1 - mu.
_CLEARANCE = 0.05
# Upper bound on the exponent of growth within one filter: more drowns small parts in rounding.
_LARGEST_GROWTH = {"float32": 17.0, "float64": 34.0}
# Number of Lanczos steps that bound the spectrum from below.
BOUND_STEPS = 12


def block_width(n_missing: int) -> int:
    """Return the number of vectors of a block: those wanted, and guards that speed up the last."""
    return -(-(n_missing + max(4, n_missing // 4)) // _LANES) * _LANES


@dataclass(frozen=True)
class Window:
    """The interval that the filter damps: from a lower bound of the spectrum of S to the cut."""

    low: float
    cut: float

    @property
    def half(self) -> float:
        """Half the width of the interval."""
        return (self.cut - self.low) / 2

    @property
    def center(self) -> float:
        """Center of the interval."""
        return (self.cut + self.low) / 2

    def rate(self, mu: float) -> float:
        """Return the exponent by which one more degree amplifies the component at mu."""
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


# Fields of the record of an iteration, and of its goal.
_COUNTED = ("degree", "n_done", "n_waited", "n_given_up", "is_cut", "is_done")
_COUNTED_BY_GOAL = ("n_products", "n_iterations", "edge")


class Iteration:
    """The rounds of filter and Rayleigh-Ritz on a block, until convergence.

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
        # Number of leading columns that start near the wanted vectors and their guards.
        self._n_near = block.n_near if block.n_near > goal.n_missing else 0
        # True if the last eigenvalue has more vectors than the block.
        self.is_cut = self.is_done = False
        # Eigenvalues of L, ascending, and their residuals.
        self.eigenvalues = self.residuals = np.zeros(0)
        # Rounds in which only pairs of the bulk were pending, and how many of these were given up.
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
            If the residual of a pair outside the bulk exceeds the accepted one.

        Notes
        -----
        A pair of the bulk, where eigenvalues are close together, would need hundreds of rounds, and
        any vector from the span of its neighbors serves as well: pairs of the bulk that are still
        pending after some rounds are left unconverged.
        """
        goal = self.goal
        while goal.n_iterations < _MAX_ROUNDS and not self.is_done:
            self._round()
            needed = self._needed()
            residuals = self.residuals[:needed]
            pending = residuals > self._target()[:needed]
            say_where(
                f"round {goal.n_iterations}, {needed - pending.sum()} of {goal.n_missing} "
                f"eigenvectors done, largest residual {residuals.max(initial=0.0):.1e}"
            )
            if not pending.any():
                if not self._is_coarse():
                    self.is_cut = bool(needed >= self._n_known())
                    self.is_done = True
                    self.block.commit(self._state(), is_last=True)
                    return
                self.block.dtype = "float64"
            self._plan(max(needed, 1))
            # The leading vectors that are done may be skipped by the filter.
            pending = self.residuals > _DONE * self.accepted
            pending[goal.n_missing - 1 :] = True
            self.n_done = 0 if self._is_coarse() else int(pending.argmax())
        # Out of rounds: the caller decides from the residuals in float64.

    def run_roughly(self, n_rounds: int) -> None:
        """Do some rounds without a test of convergence; the wanted vectors come first."""
        for _ in range(n_rounds):
            self._round()
            self._plan(self.goal.n_missing)

    def _round(self) -> None:
        """Filter the block, and rotate it to Ritz vectors."""
        self.block.commit(self._state())
        self.goal.n_iterations += 1
        self._ritz(self.window.recurrence(self.degree), self.n_done)

    def _ritz(self, steps: Steps, n_done: int) -> None:
        """Rotate the filtered block to Ritz vectors, and compute their residuals."""
        self.eigenvalues, self.residuals, n_products = self.block.ritz(steps, n_done)
        self.goal.n_products += n_products
        self.goal.edge = float(self.eigenvalues[-1])
        # The largest accepted residuals.
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
        """Return the number of columns near a vector: initially those that started near one."""
        is_new = self._n_near and self.goal.n_iterations < _ROUNDS_OF_A_START
        return self._n_near if is_new else self.block.width

    def _is_coarse(self) -> bool:
        """Return True if the block is still float32 but the accepted residuals need float64."""
        least = self.accepted[: self.goal.n_missing].min()
        return self.block.dtype == "float32" and least < FLOAT32_RESIDUAL

    def _target(self) -> np.ndarray:
        """Return the residuals to reach with the current dtype."""
        target = _SOLVED * self.accepted
        return np.maximum(target, FLOAT32_RESIDUAL) if self._is_coarse() else target

    def _needed(self) -> int:
        """Return the number of vectors that must converge, including the last one's whole group.

        Pairs of the bulk that are given up after waiting are not counted.
        """
        wanted, eigenvalues = self.goal.n_missing, self.eigenvalues
        if self.n_given_up:
            return wanted - self.n_given_up
        last = eigenvalues[wanted - 1]
        needed = int((eigenvalues <= last + GROUP * self.accepted[wanted - 1]).sum())
        pending = np.flatnonzero(self.residuals[:wanted] > self._target()[:wanted])
        in_bulk = self.goal.in_bulk(eigenvalues, self.residuals)
        self.n_waited = (
            self.n_waited + 1 if len(pending) and in_bulk[pending[0] : wanted].all() else 0
        )
        if not self.n_waited:
            return needed
        first, before = int(pending[0]), count_before_bulk(eigenvalues[:wanted], self.goal.edge)
        patience = _PATIENCE if before is None or before > first else _PATIENCE_BEHIND_GAP
        if self.n_waited >= patience:
            self.n_given_up, needed = wanted - first, first
        return needed

    def _plan(self, needed: int) -> None:
        """Set the next cut to the last guard, and the degree to a sufficient estimate."""
        low, guard = self.window.low, self.eigenvalues[self._n_known() - 1]
        # If the guards belong to the last wanted eigenvalue, the cut must still be beyond it.
        beyond = max(guard, (1 + _CLEARANCE) * self.eigenvalues[needed - 1])
        self.window = Window(low, max(1.0 - float(beyond), low + 0.1))
        self.degree = self._degree(needed, 3 * self.degree)

    def _degree(self, needed: int, most: int) -> int:
        """Return an estimate of the degree that suffices with this window."""
        excess = self.residuals[:needed] / np.maximum(_DONE * self.accepted[:needed], 1e-300)
        rates = np.array([self.window.rate(1.0 - value) for value in self.eigenvalues[:needed]])
        degree = (np.log(2.0 * np.maximum(excess, 1.0)) / np.maximum(rates, 1e-9)).max()
        growth = self.window.rate(1.0) - rates[-1]
        limit = _LARGEST_GROWTH[self.block.dtype] / max(growth, 1e-9)
        return int(np.clip(np.ceil(degree), 8, min(limit, most, _LARGEST_DEGREE)))


def count_before_bulk(eigenvalues: np.ndarray, edge: float, n_beyond: int = GUARDS) -> int | None:
    """Return the number of pairs before the bulk of the spectrum; None if all, or without a gap.

    Parameters
    ----------
    eigenvalues : ndarray of shape (n_components,)
        Ascending, without the trivial one.
    edge : float
        The largest computed eigenvalue, beyond them.
    n_beyond : int, default=2
        Lower bound on the number of eigenvalues after the last one, up to the edge.

    Notes
    -----
    The bulk begins at an eigenvalue that is at least twice the one before it, if those that follow,
    up to the edge, are at most 3 % of it apart on average.
    """
    before = np.concatenate([[0.0], eigenvalues[:-1]])
    followers = np.arange(len(eigenvalues), 0, -1) + n_beyond - 1
    is_dense = edge <= (1.0 + _SPACING * followers) * eigenvalues
    begins = (before <= (1.0 - _GAP) * eigenvalues) & is_dense
    return int(begins.argmax()) if begins.any() else None


def _bounds(alpha: np.ndarray, beta: np.ndarray) -> tuple[float, float]:
    """Return a lower bound of the spectrum of S, and a first cut near its upper end.

    They come from a few Lanczos steps. From the least Ritz value the residual is subtracted twice,
    that is double the safeguard of Zhou and Li 2011: the last eigenvectors of a graph are often
    concentrated on a few rows, of which a few steps from a random vector see little, and the filter
    amplifies the spectrum below the bound.
    """
    from scipy.linalg import eigh_tridiagonal

    values, vectors = eigh_tridiagonal(alpha, beta[:-1])
    return max(-1.0, values[0] - 2 * beta[-1] * abs(vectors[-1, 0])), float(values[-3])
