"""LARS with the lasso modification on a Gram matrix (Efron, Hastie, Johnstone, Tibshirani 2004).

The path of ``min_a |y - X a|^2 / 2 + lambda |a|_1`` as lambda falls, from ``G = X'X`` and
``X'y`` alone. Between two knots the coefficients are linear; at a knot a feature joins the active
set or, when its coefficient reaches zero, leaves it (section 3.1 of the paper: without this step
the path is not the lasso's).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg.blas import dtrsv

# A squared pivot below this share of the feature's own norm: the active features explain it.
_COLLINEAR = 1e-11
# Features whose squared norm is below this share of the largest are constant.
_CONSTANT = 1e-20
# Correlations this close, relative to the largest at the start, are equal.
_TIE = 1e-13


@dataclass(frozen=True)
class LarsPath:
    """The knot at which a path stopped.

    Attributes
    ----------
    coef : ndarray of shape (n_features,), float64
    active : ndarray of shape (n_active,), int64
        Active features in the order they joined, those that left again taken out.
    n_active : int
    n_knots : int
        Knots passed, the start included.
    lambda_ : float
        Largest absolute correlation ``|x_j'(y - X a)|`` at the stop.
    """

    coef: np.ndarray
    active: np.ndarray
    n_active: int
    n_knots: int
    lambda_: float


def lars_path_gram(gram: np.ndarray, xty: np.ndarray, n_nonzero: int) -> LarsPath:
    """Follow the lasso path to the first knot whose active set has ``n_nonzero`` features.

    Parameters
    ----------
    gram : ndarray of shape (n_features, n_features), float64
        ``X'X``, of centered columns if an intercept is wanted. Only rows of features that
        become active are read.
    xty : ndarray of shape (n_features,), float64
        ``X'y``.
    n_nonzero : int
        Size of the active set to stop at, before the next feature joins. The active set is
        counted, not ``coef != 0``: a coefficient that leaves is about 1e-17 at its knot.

    Returns
    -------
    path : LarsPath
        At the stop, or at the end of the path if that comes first (then ``lambda_`` is 0).

    Notes
    -----
    Solves eq. (3) of the MCFS paper in Gram form. A constant feature never joins; one that the
    active features explain exactly is left out for as long as they do; ties go to the lower
    index. Cost: O(n_features) a step for each active feature.
    """
    return _Path(gram, xty, n_nonzero).run()


class _Path:
    """State between two knots."""

    def __init__(self, gram: np.ndarray, xty: np.ndarray, n_nonzero: int) -> None:
        self.gram = gram
        self.correlation = np.array(xty, dtype=np.float64)
        self.target = n_nonzero
        n_features = len(xty)
        norms = np.diag(gram)
        self.coef = np.zeros(n_features)
        self.active: list[int] = []
        self.signs: list[float] = []
        # Lower triangle of the Cholesky factor of the active Gram, grown in place.
        self.factor = np.zeros((min(n_nonzero, n_features) + 1,) * 2, order="F")
        self.usable = norms > _CONSTANT * max(float(norms.max(initial=0.0)), 0.0)
        self.excluded = np.zeros(n_features, dtype=bool)
        self.scale = float(np.abs(self.correlation[self.usable]).max(initial=0.0))
        self.level = self.scale
        self.n_knots = 1

    def run(self) -> LarsPath:
        """Alternate between joining and moving until the active set is full or the path ends."""
        left: int | None = None
        for _ in range(8 * self.target + 64):
            if left is None and not self._join():
                break
            left = self._move()
            self.n_knots += 1
            if self.level <= _TIE * self.scale:
                self.level = 0.0
                break
            # At a knot where one leaves, fewer than the target are active.
            if left is None and len(self.active) >= self.target:
                break
        return LarsPath(
            self.coef,
            np.array(self.active, dtype=np.int64),
            len(self.active),
            self.n_knots,
            self.level,
        )

    def _join(self) -> bool:
        """Let the feature of largest correlation join; say whether there is a way on."""
        while True:
            free = self._free()
            size = np.where(free, np.abs(self.correlation), -1.0)
            best = size.max(initial=-1.0)
            if best <= _TIE * self.scale:
                return bool(self.active) and self.level > _TIE * self.scale
            if self.active and best < self.level - 1e-9 * self.scale:
                return True
            feature = int((size >= best - _TIE * self.scale).argmax())
            if self._grow(feature):
                return True
            self.excluded[feature] = True

    def _free(self) -> np.ndarray:
        free = self.usable & ~self.excluded
        free[self.active] = False
        return free

    def _grow(self, feature: int) -> bool:
        """Add a row to the factor; refuse a feature that the active ones explain."""
        k = len(self.active)
        row = self.gram[feature]
        norm = float(row[feature])
        side = row[self.active]
        if k:
            side = dtrsv(self.factor[:k, :k], side, lower=1)
        pivot = norm - float(side @ side)
        if pivot <= _COLLINEAR * norm:
            return False
        self.factor[k, :k] = side
        self.factor[k, k] = np.sqrt(pivot)
        self.active.append(feature)
        self.signs.append(float(np.sign(self.correlation[feature])) or 1.0)
        return True

    def _move(self) -> int | None:
        """Go to the next knot; return the feature that left there, None if one joins."""
        k = len(self.active)
        factor = self.factor[:k, :k]
        signs = np.array(self.signs)
        direction = dtrsv(factor, dtrsv(factor, signs, lower=1), lower=1, trans=1)
        # As the active correlations fall by t, every feature's falls by t times this.
        slope = direction @ self.gram[self.active]
        step, leaving = self._step(direction, slope)
        self.coef[self.active] += step * direction
        self.correlation -= step * slope
        self.level = max(self.level - step, 0.0)
        # The active correlations are equal by construction: keep rounding from spreading them.
        self.correlation[self.active] = self.level * signs
        if leaving is None:
            return None
        feature = self.active[leaving]
        self.coef[feature] = 0.0
        self._shrink(leaving)
        return feature

    def _step(self, direction: np.ndarray, slope: np.ndarray) -> tuple[float, int | None]:
        """Return the length to the next knot and the position in the active set that leaves."""
        step = self.level
        free = np.flatnonzero(self._free())
        correlation, rate = self.correlation[free], slope[free]
        with np.errstate(divide="ignore", invalid="ignore"):
            for sign in (1.0, -1.0):
                length = (self.level - sign * correlation) / (1.0 - sign * rate)
                ahead = length[(sign * rate < 1.0 - 1e-14) & (length >= 0)]
                step = min(step, float(ahead.min(initial=np.inf)))
            crossing = -self.coef[self.active] / direction
        crossing = np.where(crossing > _TIE * max(step, self.level), crossing, np.inf)
        leaving = int(crossing.argmin())
        if crossing[leaving] < step:
            return float(crossing[leaving]), leaving
        return step, None

    def _shrink(self, position: int) -> None:
        """Remove a row from the factor by Givens rotations."""
        k = len(self.active)
        L = self.factor
        L[position : k - 1, :k] = L[position + 1 : k, :k]
        L[k - 1, :k] = 0.0
        for i in range(position, k - 1):
            a, b = L[i, i], L[i, i + 1]
            r = np.hypot(a, b)
            c, s = a / r, b / r
            left, right = L[i : k - 1, i].copy(), L[i : k - 1, i + 1].copy()
            L[i : k - 1, i] = c * left + s * right
            L[i : k - 1, i + 1] = c * right - s * left
        L[:k, k - 1] = 0.0
        del self.active[position], self.signs[position]
        # What was explained before may not be any more.
        self.excluded[:] = False
