"""Cone program of maximum margin feature selection; its size does not depend on n.

    min  1/2 sum_k |v_k|^2 / sigma_k + C xi + sum_p v_p' S v_p
    s.t. <A_j, V> + xi >= g_j for every plane j,  xi >= 0,
         sum sigma = m,  0 <= sigma <= 1,  the balance of the clusters,

with V of shape (D, P), a column for each cluster (a single one for two clusters), and v_k its rows.
If D is n_features + 1, the last row is the intercept, which has no sigma.

Minimized over sigma, the first term is half the squared m-support norm of V. Only few features are
active: the program is solved on a subset of them, and the lower bound that follows from the
multipliers determines which of the others must be added. A solution carries its own certificate,
the gap between its objective and that bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bigfs.core.errors import ConvergenceError
from bigfs.solvers.interior import ZERO, interior_point

# Size of the first active set: this multiple of m, and at least this number.
_FIRST_TIMES = 2
_FIRST_LEAST = 96
# With a warm start, features with slopes above this share of the threshold are included, too: they
# cover the features of the next program, so that it need not be solved twice.
_LIKELY = 0.97
# Features whose slopes exceed this share of the threshold are added together: others rarely follow.
_ALMOST = 0.99
_MAX_ROUNDS = 30
# Lower bound of the balance: with 0 the constraints would have no interior. Margins are 1.
_LEAST_BALANCE = 1e-6
# A norm below this share of the largest counts as zero.
_NOTHING = 1e-60


@dataclass(frozen=True)
class Constraints:
    """Rows ``<A_j, V> + F_j f + e_j xi >= g_j``; e_j is 1 for the planes, which come first."""

    A: np.ndarray  # of shape (n_rows, D, P), float64
    # Of shape (n_rows, n_free), float64: the F_j; f is unbounded and not in the objective.
    free: np.ndarray
    bounds: np.ndarray  # of shape (n_rows,), float64: the g_j
    n_planes: int


@dataclass(frozen=True)
class ConeProgram:
    """Data of the program; their sizes do not depend on the number of rows of X."""

    planes: np.ndarray  # of shape (n_planes, D, P), float64: the A_j
    bounds: np.ndarray  # of shape (n_planes,), float64: the g_j
    mean: np.ndarray  # of shape (D,), float64: column means of X (and 1 for the intercept)
    # Upper bound of ``|mean' v|`` (two clusters), or of the difference between two columns'
    # ``mean' v_p``; infinity for no bound.
    balance: float
    # S, of shape (D, D), float64, positive semidefinite, or None: smoothness times the mean
    # quadratic form of the graph.
    smooth: np.ndarray | None
    C: float
    n_selected: int  # m
    n_features: int

    @cached_property
    def rows(self) -> Constraints:
        """The constraints of the planes and of the balance."""
        n_planes, _, P = self.planes.shape
        if not np.isfinite(self.balance):
            return Constraints(self.planes, np.zeros((n_planes, 0)), self.bounds, n_planes)
        # f <= mean'v_p <= f + balance for every p bounds the differences of all pairs; with one
        # column there is no f, and the bounds are -balance and balance.
        up = self.mean[None, :, None] * np.eye(P)[:, None, :]
        free = np.zeros((n_planes + 2 * P, int(P > 1)))
        limits = np.full(2 * P, -max(self.balance, _LEAST_BALANCE))
        free[n_planes : n_planes + P], free[n_planes + P :] = -1.0, 1.0
        limits[:P] *= P == 1
        A, bounds = np.concatenate([self.planes, up, -up]), np.append(self.bounds, limits)
        return Constraints(A, free, bounds, n_planes)

    def on(self, columns: np.ndarray) -> tuple[Constraints, np.ndarray | None]:
        """Return the constraints and S restricted to the given rows of V."""
        rows, smooth = self.rows, self.smooth
        if len(columns) < self.planes.shape[1]:
            rows = Constraints(rows.A[:, columns], rows.free, rows.bounds, rows.n_planes)
            smooth = None if smooth is None else smooth[np.ix_(columns, columns)]
        return rows, smooth

    def certify(self, V: np.ndarray, x: np.ndarray) -> tuple[float, float, float, np.ndarray]:
        """Return the objective at V, a lower bound from multipliers x, xi and the feature slopes.

        The quadratic term is bounded below by its tangent at V, so that only the conjugate of the
        norm is needed: ``g'x - v'Sv - (half the sum of the m largest squared slopes)``.
        """
        rows, m, d = self.rows, self.n_selected, self.n_features
        quadratic, flat = 0.0, rows.A.reshape(len(rows.A), -1)
        residual = (x @ flat).reshape(V.shape)[:d]
        if self.smooth is not None:
            used = np.flatnonzero(V.any(axis=1))  # few rows; S is symmetric
            product = self.smooth[used].T @ V[used]
            quadratic = float(np.vdot(V, product))
            residual -= 2 * product[:d]
        slopes = np.linalg.norm(residual, axis=1)
        short = self.bounds - flat[: rows.n_planes] @ V.ravel()
        slack = max(0.0, float(short.max()))
        norms = np.linalg.norm(V[:d], axis=1)
        upper = half_squared_norm(norms, m) + quadratic + self.C * slack
        lower = float(rows.bounds @ x) - quadratic - half_squared_dual(slopes, m)
        return upper, lower, slack, slopes


@dataclass(frozen=True)
class ConeSolution:
    """A solution of the cone program."""

    V: np.ndarray  # of shape (D, P), float64
    sigma: np.ndarray  # of shape (n_features,), float64: in [0, 1], with sum m
    slack: float  # xi
    objective: float
    gap: float  # relative distance between the objective and a lower bound of it
    multipliers: np.ndarray  # of shape (n_planes,), float64: zero for inactive planes
    n_iter: int  # number of steps of the interior-point method
    # Of shape (n_features,), float64: slope of every feature as a share of the threshold for a
    # nonzero weight; below 1 the weight is zero.
    slopes: np.ndarray


# Overflow is ignored because it shows up as a gap that does not close.
@np.errstate(over="ignore", invalid="ignore")
def solve_cone(
    program: ConeProgram, *, start: np.ndarray | None = None, tol: float = 1e-5
) -> ConeSolution:
    """Solve the program on a growing active set of features.

    Parameters
    ----------
    program : ConeProgram
    start : ndarray of shape (n_features,) or None, default=None
        Slopes of a nearby solution: the first active set contains the features that it uses, or
        nearly uses.
    tol : float, default=1e-5
        Relative gap between the objective and a lower bound at which to stop.

    Raises
    ------
    ConvergenceError
        If the gap does not close.
    """
    m, d, (n_planes, D, P) = program.n_selected, program.n_features, program.planes.shape
    x = np.zeros(len(program.rows.bounds))
    x[:n_planes] = program.C / n_planes
    slopes = program.certify(np.zeros((D, P)), x)[3]
    if start is not None:
        slopes = np.where(start > _LIKELY, np.inf, slopes)
    first = max(_FIRST_TIMES * m, _FIRST_LEAST, int(np.isinf(slopes).sum()))
    active = np.sort(np.argsort(-slopes, kind="stable")[:first])
    n_iter, gap = 0, np.inf
    for _ in range(_MAX_ROUNDS):
        columns = np.append(active, np.arange(d, D))
        rows, smooth = program.on(columns)
        point = interior_point(rows, smooth, program.C, m, len(active), tol=tol / 10)
        V = np.zeros((D, P))
        V[columns] = point.V
        n_iter += point.n_iter
        upper, lower, slack, slopes = program.certify(V, point.x)
        # The minimum is zero if the intercepts alone satisfy all planes.
        is_zero = upper <= ZERO * program.C * program.bounds.max()
        gap = 0.0 if is_zero else (upper - lower) / upper
        enter = _missing(slopes, active, m, 1.0)
        if gap <= tol or not len(enter):
            break
        # Also add features that nearly enter: others rarely follow.
        enter = _missing(slopes, active, m, _ALMOST)[: max(m, len(active) // 2)]
        active = np.sort(np.append(active, enter))
    if not gap <= 10 * tol:
        raise ConvergenceError(
            f"The cone program stopped at a relative gap of {gap:.1e} (wanted {tol:g}). "
            "Scale the features, or lower C."
        )
    sigma = weights_of(np.linalg.norm(V[:d], axis=1), m)
    shares = slopes / max(_level(slopes, m), _NOTHING)
    return ConeSolution(V, sigma, slack, upper, max(0.0, gap), point.x[:n_planes], n_iter, shares)


def _missing(slopes: np.ndarray, active: np.ndarray, m: int, share: float) -> np.ndarray:
    """Return the features outside the active set that the solution needs, steepest first.

    The m-th largest slope within the active set is the threshold: it is the slope of features with
    a weight strictly between 0 and 1. Outside features are needed if their slope exceeds ``share``
    times this threshold.
    """
    outside = np.setdiff1d(np.arange(len(slopes)), active)
    enter = outside[slopes[outside] > share * _level(slopes[active], m)]
    return enter[np.argsort(-slopes[enter], kind="stable")]


def _level(slopes: np.ndarray, m: int) -> float:
    """Return the m-th largest slope."""
    place = max(0, len(slopes) - m)
    return float(np.partition(slopes, place)[place])


def weights_of(norms: np.ndarray, m: int) -> np.ndarray:
    """Return the sigma that minimizes ``sum norms^2 / sigma`` over the capped simplex.

    Parameters
    ----------
    norms : ndarray of shape (n_features,), float64
        Nonnegative norms of the rows of V.
    m : int
        Sum of sigma; no entry exceeds 1.

    Returns
    -------
    sigma : ndarray of shape (n_features,), float64
        ``min(1, norms / tau)``. If at most m features have a nonzero norm, these get 1 and the
        rest of m is divided equally among the others.
    """
    d = len(norms)
    sigma = np.ones(d)
    if m >= d:
        return sigma
    positive = norms > _NOTHING * norms.max()
    n_positive = int(positive.sum())
    if n_positive <= m:
        sigma[~positive] = (m - n_positive) / (d - n_positive)
        return sigma
    ordered = -np.sort(-norms)
    rest = np.cumsum(ordered[::-1])[::-1]
    # With the h largest at 1, tau is rest[h] / (m - h). Take the first h for which no remaining
    # norm exceeds tau.
    h = int(np.argmax(ordered[:m] * (m - np.arange(m)) <= rest[:m] * (1 + 1e-12)))
    return np.minimum(1.0, norms * ((m - h) / rest[h]))


def half_squared_norm(norms: np.ndarray, m: int) -> float:
    """Return half the squared m-support norm of a vector of row norms."""
    sigma = weights_of(norms, m)
    used = sigma > 0
    return 0.5 * float((norms[used] ** 2 / sigma[used]).sum())


def half_squared_dual(norms: np.ndarray, m: int) -> float:
    """Return half the sum of the m largest squares: the conjugate of `half_squared_norm`."""
    squares = norms**2
    return 0.5 * float(np.sort(squares)[::-1][:m].sum())
