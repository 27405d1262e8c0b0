"""LARS with the lasso modification on a Gram matrix (Efron, Hastie, Johnstone, Tibshirani 2004).

Computes the path of ``min_a |y - X a|^2 / 2 + lambda |a|_1`` for decreasing lambda, from
``G = X'X`` and ``X'y`` alone. Between two knots the coefficients are linear; at a knot a feature
joins the active set or, when its coefficient reaches zero, leaves it (section 3.1 of the paper:
without this step the path is not that of the lasso).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg.lapack import dtrtrs

# A feature whose squared pivot is below this share of its squared norm is explained by the active
# features.
_COLLINEAR = 1e-13
# Features whose squared norm is below this share of the largest are constant.
_CONSTANT = 1e-20
# Tolerance for ties of correlations, relative to the largest correlation at the start.
_TIE = 1e-12
# Tolerance for equal rates of change.
_RATE = 1e-12
_BOTH_SIGNS = np.array([[1.0], [-1.0]])


@dataclass(frozen=True)
class LarsPath:
    """A lasso path, with the state at the knot at which it stopped."""

    coef: np.ndarray  # of shape (n_features,), float64
    # Of shape (n_active,), int64: active features in the order in which they joined, without those
    # that left again.
    active: np.ndarray
    n_active: int  # above ``n_nonzero`` only if several features joined at once
    n_knots: int  # number of knots passed, including the start
    lambda_: float  # largest absolute correlation ``|x_j'(y - X a)|`` at the last knot
    # The recorded knots: lambda, active features and their coefficients at every knot from the
    # start, where no feature is active; see ``keep_knots``.
    knots: list[tuple[float, np.ndarray, np.ndarray]]


def lars_path_gram(
    gram: np.ndarray, xty: np.ndarray, n_nonzero: int, *, keep_knots: int = 0
) -> LarsPath:
    """Follow the lasso path to the first knot whose active set has ``n_nonzero`` features.

    Parameters
    ----------
    gram : ndarray of shape (n_features, n_features), float64
        ``X'X``, of centered columns if an intercept is wanted. Only rows of features that
        become active are read.
    xty : ndarray of shape (n_features,), float64
        ``X'y``.
    n_nonzero : int
        Size of the active set at which to stop, before the next feature joins. The active set is
        counted, not ``coef != 0``: the coefficient of a leaving feature is about 1e-17 at its
        knot.
    keep_knots : int, default=0
        Record the path until its active set first has this many features; ``n_nonzero`` records
        the whole path. The path is linear between two knots.

    Returns
    -------
    path : LarsPath
        The path up to the knot with ``n_nonzero`` active features, or to its end if that comes
        first (then ``lambda_`` is 0).

    Notes
    -----
    Solves eq. (3) of the MCFS paper in Gram form. A constant feature never joins; a feature that
    the active features explain exactly is left out as long as they do. Features with equal
    correlation share one knot: which of them join is determined by pivoting on the lowest index
    that violates optimality (Murty 1974), which always terminates. Cost: O(n_features) per step
    and active feature.
    """
    return _Path(gram, xty, n_nonzero, keep_knots).run()


class _Path:
    """State between two knots.

    Only the first ``k`` entries of the arrays that grow with the active set are in use.
    """

    def __init__(self, gram: np.ndarray, xty: np.ndarray, n_nonzero: int, keep_knots: int) -> None:
        # Single rows are read, and the matrix is symmetric: use the view with contiguous rows.
        self.gram = gram.T if gram.flags.f_contiguous else gram
        self.correlation = np.array(xty, dtype=np.float64)
        self.target = n_nonzero
        n_features = len(xty)
        norms = np.diag(gram)
        self.coef = np.zeros(n_features)
        self.k = 0
        room = min(n_nonzero, n_features) + 1
        self.order = np.empty(room, dtype=np.int64)
        self.signs = np.empty(room)
        # Rows of the Gram matrix for the active features: gathering them again at each knot would
        # cost more than all other operations.
        self.rows = np.empty((room, n_features))
        # Lower Cholesky factor of the active Gram matrix, extended in place.
        self.factor = np.zeros((room, room), order="F")
        self.usable = norms > _CONSTANT * max(float(norms.max(initial=0.0)), 0.0)
        self.free = self.usable.copy()
        self.work = np.empty((3, 2, n_features))
        self.scale = float(np.abs(self.correlation[self.usable]).max(initial=0.0))
        self.level = self.scale
        self.n_knots = 1
        self.keep_knots = keep_knots
        self.knots: list[tuple[float, np.ndarray, np.ndarray]] = []
        # Cached direction and slope of the current active set.
        self.known: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def active(self) -> np.ndarray:
        """The active features, in the order in which they joined."""
        return self.order[: self.k]

    def run(self) -> LarsPath:
        """Follow the path: pivot until the active set is optimal at a knot, then move on."""
        self._record()
        # This limit is several times what correlated data need; a path that is cut off here is
        # still optimal at its level.
        for _ in range(64 * self.target + 1024):
            if self.level <= _TIE * self.scale:
                self.level = 0.0
                break
            direction, slope = self._direction()
            pivot = self._pivot(direction, slope)
            if pivot is not None:
                self._flip(pivot)
            elif not self.k:
                break
            else:
                self._move(direction, slope)
                self.n_knots += 1
                self._record()
                # If features left at this knot, fewer than the target may be active.
                if self.k >= self.target:
                    break
        return LarsPath(self.coef, self.active.copy(), self.k, self.n_knots, self.level, self.knots)

    def _record(self) -> None:
        if self.keep_knots:
            active = self.active.copy()
            self.knots.append((self.level, active, self.coef[active]))
            if len(active) >= self.keep_knots:
                self.keep_knots = 0

    def _solved(self, right: np.ndarray, trans: int = 0) -> np.ndarray:
        """Solve with the factor of the active Gram matrix or its transpose, without copying it."""
        return np.asarray(dtrtrs(self.factor[:, : self.k], right, lower=1, trans=trans)[0])

    def _direction(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the rates of change of the active coefficients and of all correlations.

        Rates are per decrease of lambda.
        """
        k = self.k
        if not k:
            return np.zeros(0), np.zeros(len(self.coef))
        if self.known is None:
            direction = self._solved(self._solved(self.signs[:k]), trans=1)
            # When the active correlations decrease by t, that of each feature decreases by t times
            # the second array.
            self.known = direction, direction @ self.rows[:k]
        return self.known

    def _pivot(self, direction: np.ndarray, slope: np.ndarray) -> int | None:
        """Return the lowest feature that must join or leave before the path can continue."""
        tied = np.abs(self.correlation) >= self.level - _TIE * self.scale
        tied &= self.free
        joining = tied.nonzero()[0]
        if len(joining):
            signs = np.sign(self.correlation[joining])
            joining = joining[signs * slope[joining] < 1.0 - _RATE]
        crossing = direction * self.signs[: self.k] < 0
        if crossing.any():
            idle = self.coef[self.active] * self.signs[: self.k] <= 0
            idle &= crossing
            if idle.any():
                joining = np.append(joining, self.active[idle])
        return int(joining.min()) if len(joining) else None

    def _flip(self, feature: int) -> None:
        """Add a feature to the active set, or remove it if it is active."""
        if self.usable[feature] and not self.free[feature]:
            self._shrink(int((self.active == feature).nonzero()[0][0]))
        elif not self._grow(feature):
            self.free[feature] = False

    def _grow(self, feature: int) -> bool:
        """Add a row to the factor; return False if the active features explain the feature."""
        k = self.k
        row = self.gram[feature]
        norm = float(row[feature])
        side = row[self.active]
        if k:
            side = self._solved(side)
        pivot = norm - float(side @ side)
        if pivot <= _COLLINEAR * norm:
            return False
        if k == len(self.factor):
            self.factor = np.asfortranarray(np.pad(self.factor, (0, k)))
            self.order, self.signs = np.pad(self.order, (0, k)), np.pad(self.signs, (0, k))
            self.rows = np.pad(self.rows, ((0, k), (0, 0)))
        self.factor[k, :k] = side
        self.factor[k, k] = np.sqrt(pivot)
        self.order[k] = feature
        self.signs[k] = np.sign(self.correlation[feature])
        self.rows[k] = row
        self.free[feature] = False
        self.k, self.known = k + 1, None
        return True

    def _move(self, direction: np.ndarray, slope: np.ndarray) -> None:
        """Move to the next knot, and remove the features whose coefficients reach zero there."""
        step, leaving = self._step(direction, slope)
        self.coef[self.active] += step * direction
        self.correlation -= step * slope
        self.level = max(self.level - step, 0.0)
        # The active correlations are equal by construction; reset them so that rounding errors do
        # not accumulate.
        self.correlation[self.active] = self.level * self.signs[: self.k]
        for position in leaving[::-1]:
            self.coef[self.order[position]] = 0.0
            self._shrink(int(position))

    def _step(self, direction: np.ndarray, slope: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the step length to the next knot, and the active positions that leave there."""
        rate, gap, length = self.work
        np.multiply(_BOTH_SIGNS, slope, out=rate)
        slower = rate < 1.0 - _RATE
        slower &= self.free
        np.multiply(_BOTH_SIGNS, self.correlation, out=gap)
        np.subtract(self.level, gap, out=gap)
        np.maximum(gap, 0.0, out=gap)
        np.subtract(1.0, rate, out=rate)
        length.fill(np.inf)
        np.divide(gap, rate, out=length, where=slower)
        step = min(self.level, float(length.min()))
        signs = self.signs[: self.k]
        falling = (direction * signs < 0).nonzero()[0]
        size = self.coef[self.order[falling]] * signs[falling]
        falling, size = falling[size > 0], size[size > 0]
        if not len(falling):
            return step, falling
        crossing = size / -(direction[falling] * signs[falling])
        step = min(step, float(crossing.min()))
        return step, falling[crossing <= step * (1.0 + _RATE)]

    def _shrink(self, position: int) -> None:
        """Remove a row from the factor by Givens rotations."""
        k = self.k
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
        # Features that were explained by the active ones may no longer be.
        self.free[:] = self.usable
        for values in (self.order, self.signs, self.rows):
            values[position : k - 1] = values[position + 1 : k]
        self.k, self.known = k - 1, None
        self.free[self.active] = False
