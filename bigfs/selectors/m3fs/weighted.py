"""Planes as weights of rows, for few rows with every sigma at 1: their products are all it takes.

Without smoothness the cone program is one of the products of planes (`solvers.rowqp`). A plane
with weights W_j, +1 for a row's cluster and -1 for its rival, is ``X' W_j / n``, and a product of
two is ``sum_p W_jp' X X' W_kp / n^2``. New clusters move few rows, which changes the products by
what these rows have in common with all: planes of n_features x n_clusters are never made, and
with fewer rows than features neither is V before the end: decision values are sums of the same
products.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bigfs.core.units import MIB
from bigfs.selectors.m3fs.kernels import (
    PlaneSums,
    clusters_of,
    decisions,
    plane_sums,
    plane_weights,
    rivals,
)
from bigfs.selectors.m3fs.state import Settings, Trajectory
from bigfs.solvers.cone import solve_cone
from bigfs.solvers.msupport import ConeSolution
from bigfs.solvers.rowqp import row_multipliers

# Of the programs: relative gap.
TOLERANCE = 1e-5
# More rows have larger products than planes are.
_MOST_ROWS = 4096
# What the weights of rows that move together take.
_MOVED_BYTES = 4 * MIB


def is_weighted(n_rows: int, settings: Settings, smooth: np.ndarray | None) -> bool:
    """Say whether the products of rows are the smaller way, and all it takes."""
    every = smooth is None and settings.n_selected >= settings.n_features
    size = settings.n_rows_of_v, settings.n_columns
    return every and settings.planes_outside and weighted_bytes(n_rows, *size) > 0


def weighted_bytes(n_rows: int, n_rows_of_v: int, n_columns: int) -> int:
    """Return the bytes of products of rows, and of rows that move; 0 where planes are smaller."""
    small = n_rows <= min(_MOST_ROWS, n_rows_of_v * n_columns // 2)
    return 8 * n_rows**2 + 8 * _MOVED_BYTES if small else 0


class WeightedPlanes:
    """The planes of one start in the paper's nesting, which changes clusters in every round.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_features), float64
    z : ndarray of shape (n_rows,), uint8
        The clusters of the start.
    settings : Settings
    mean : ndarray of shape (D,)
    """

    def __init__(self, X: np.ndarray, z: np.ndarray, settings: Settings, mean: np.ndarray) -> None:
        self._X, self._z, self._settings, self._mean = X, z.copy(), settings, mean
        n, P = len(X), settings.n_columns
        self._center = mean[: settings.n_features]
        self._shared = X @ X.T
        self._shared /= n**2
        # What a row's weight adds to the product of a plane with the mean, and to the intercepts.
        self._across = np.column_stack([X @ self._center, np.ones(n)]) / n
        self._planes, self._drawn = np.empty((0, n), dtype=np.uint8), np.empty(0, dtype=np.uint8)
        # Decision values of the last solution, and V as parts: weights of the rows and of the mean,
        # and intercepts; or V itself.
        self._values = np.zeros((n, P))
        self._parts: tuple[np.ndarray, ...] = (self._values, np.zeros(P), np.zeros((0, P)))
        self._V: np.ndarray | None = None
        self._products, self._sums = np.empty((0, 0)), np.empty((0, P, 2))

    def solve(self, state: Trajectory) -> ConeSolution:
        """Return the solution of the cone program of the next round."""
        settings, J, n = self._settings, len(self._planes), len(self._z)
        d, P = settings.n_features, settings.n_columns
        products, free, bounds = self._rows_of_program(state.bounds)
        x, f, n_iter, _ = row_multipliers(products, free, bounds, J, settings.C, tol=TOLERANCE / 10)
        reached = products @ x
        slack = max(0.0, float((bounds - reached - free @ f)[:J].max()))
        half = 0.5 * float(x @ reached)
        upper, lower = half + settings.C * slack, float(bounds @ x) - half
        gap = (upper - lower) / max(abs(upper), 1e-12)
        if gap > 10 * TOLERANCE:
            planes = plane_sums(self._X, list(self._planes), self._z, P, settings.fit_intercept)[0]
            program = state.program(settings, self._mean, None)
            solution = solve_cone(replace(program, planes=planes / n), tol=TOLERANCE)
            self._V, self._values = solution.V, decisions(self._X, solution.V)
            return solution
        plane, at, column, sign = self._entries()
        weights = np.bincount(at * P + column, x[plane] * sign, minlength=n * P).reshape(n, P)
        of_mean = x[J : J + P] - x[J + P :] if len(x) > J else np.zeros(P)
        intercepts = f[:P].reshape(-1, P) if settings.fit_intercept else np.empty((0, P))
        self._V, self._parts = None, (weights / n, of_mean, intercepts)
        if n < d:
            self._values = n * (self._shared @ weights)
            self._values += np.outer(n * self._across[:, 0], of_mean)
            self._values += intercepts.sum(axis=0)
        else:
            # Products of few rows by many take two thirds of the time of their transposes.
            self._V = self.rule()
            self._values = (self._V[:d].T @ self._X.T).T + intercepts.sum(axis=0)
        ones = np.ones(d)
        return ConeSolution(
            state.V, ones, slack, upper, max(0.0, gap), x[:J], n_iter, "active", ones
        )

    def rule(self) -> np.ndarray:
        """Return V of the last solution."""
        if self._V is not None:
            return self._V
        weights, of_mean, intercepts = self._parts
        V = (weights.T @ self._X).T + np.outer(self._center, of_mean)
        return np.vstack([V, intercepts])

    def step(self, state: Trajectory) -> PlaneSums:
        """Do a pass: take over the clusters of V, but for the first one; draw a plane."""
        F = self._values
        now, before = clusters_of(F), self._counts()
        moved = np.flatnonzero(now != self._z)
        if state.n_rounds:
            self._move(now, moved)
        self._drawn, short = rivals(F, self._z)
        return PlaneSums(
            float(short.sum()),
            int(np.count_nonzero(self._drawn)),
            np.empty((0, 0)),
            np.empty((len(before), 0, 0)),
            self._counts() - before,
            len(moved),
            np.bincount(now, minlength=max(2, F.shape[1])),
        )

    def keep(self, state: Trajectory) -> None:
        """Add the plane that was drawn last if the start took it."""
        J, P = len(self._planes), self._settings.n_columns
        if len(state.ids) == J:
            return
        weights = plane_weights(self._drawn, self._z, P)[0]
        along = self._shared @ weights.T
        plane, at, column, sign = self._entries()
        products = np.empty((J + 1, J + 1))
        products[:J, :J] = self._products
        across = np.bincount(plane, along[at, column] * sign, minlength=J)
        products[:J, J] = products[J, :J] = across
        products[J, J] = float(np.vdot(weights, along.T))
        self._products = products
        self._sums = np.concatenate([self._sums, (weights @ self._across)[None]])
        self._planes = np.concatenate([self._planes, self._drawn[None]])

    def _rows_of_program(self, bounds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return products, free unknowns and bounds of all rows, those of the balance last."""
        settings, P = self._settings, self._settings.n_columns
        intercepts = self._sums[:, :, 1] if settings.fit_intercept else self._sums[:, :0, 1]
        if not np.isfinite(settings.balance):
            return self._products, intercepts, bounds
        ones, J = np.eye(P), len(self._planes)
        up, square = self._sums[:, :, 0], ones * float(self._center @ self._center)
        across = np.hstack([up, -up])
        own = np.block([[square, -square], [-square, square]])
        products = np.block([[self._products, across], [across.T, own]])
        # f <= mean'v_p <= f + balance for every cluster p; of one column both are bounds.
        bounded = P > 1
        free = np.zeros((J + 2 * P, intercepts.shape[1] + bounded))
        if settings.fit_intercept:
            free[:, :P] = np.concatenate([intercepts, ones, -ones])
        if bounded:
            free[J : J + P, -1], free[J + P :, -1] = -1.0, 1.0
        limits = np.full(2 * P, -settings.balance)
        limits[:P] *= not bounded
        return products, free, np.concatenate([bounds, limits])

    def _asking(self, part: Any = slice(None)) -> np.ndarray:
        """Say of which rows each plane asks something: (n_planes, n_part)."""
        planes = self._planes[:, part]
        if self._settings.n_columns == 1:
            return np.asarray(planes > 0)
        return np.asarray((planes > 0) & (planes != self._z[part] + 1))

    def _counts(self) -> np.ndarray:
        return np.asarray(self._asking().sum(axis=1))

    def _entries(
        self, part: Any = slice(None)
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return the weights that are not zero: their planes, rows, columns and signs."""
        plane, at = np.nonzero(self._asking(part))
        own = self._z[part][at].astype(np.int64)
        if self._settings.n_columns == 1:
            return plane, at, np.zeros_like(own), np.where(own == 1, 1.0, -1.0)
        rival = self._planes[:, part][plane, at].astype(np.int64) - 1
        signs = np.repeat([1.0, -1.0], len(at))
        return np.tile(plane, 2), np.tile(at, 2), np.concatenate([own, rival]), signs

    def _weights(self, part: np.ndarray) -> np.ndarray:
        """Return the weights of some rows, (n_planes, P, n_part)."""
        weights = np.zeros((len(self._planes), self._settings.n_columns, len(part)))
        plane, at, column, sign = self._entries(part)
        weights[plane, column, at] = sign
        return weights

    def _move(self, now: np.ndarray, moved: np.ndarray) -> None:
        """Take over clusters: the products change by what rows that move share with all."""
        from scipy.sparse import coo_array

        J, P, n = len(self._planes), self._settings.n_columns, len(self._z)
        step = max(1, _MOVED_BYTES // (8 * (J * P + n)))
        for begin in range(0, len(moved), step):
            part = moved[begin : begin + step]
            plane, at, column, sign = self._entries()
            held = coo_array((sign, (plane * P + column, at)), shape=(J * P, n))
            shared, before = self._shared[:, part], self._weights(part)
            self._z[part] = now[part]
            change = self._weights(part) - before
            # Half of what the change shares with itself, so that adding the transpose is all.
            common = held @ shared + change.reshape(J * P, -1) @ (shared[part] / 2)
            products = change.reshape(J, -1) @ common.reshape(J, -1).T
            self._products += products + products.T
            self._sums += (change.reshape(J * P, -1) @ self._across[part]).reshape(J, P, 2)
