"""The squared m-support norm, and the cone program on an active set of features.

Minimized over sigma, the first term of the program is half the squared m-support norm of V. Few
features matter: the program is solved on some of them, and the lower bound that follows from the
multipliers says which of the others have to be taken in. The result carries its own certificate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bigfs.core.errors import ConvergenceError
from bigfs.solvers.interior import InteriorPoint, interior_point
from bigfs.solvers.rowqp import row_multipliers

# Features of the first active set: so many times m, and no fewer than that.
_FIRST_TIMES = 2
_FIRST_LEAST = 96
# A warm start's features with slopes above this share of what is needed are in it, too: those of
# the next program are among them, and it need not be solved again.
_LIKELY = 0.97
_MAX_ROUNDS = 30
# Up to this share of a set may enter near the solution; with more the method begins anew.
_FEW_MISSING = 0.3
# Features enter whose slopes are above this share of what is needed: others rarely follow.
_ALMOST = 0.99
# A norm below this share of the largest counts as zero.
_NOTHING = 1e-60


@dataclass(frozen=True)
class Constraints:
    """Rows ``<A_j, V> + F_j f + e_j xi >= g_j``; e_j is 1 for the planes, which come first."""

    A: np.ndarray  # of shape (n_rows, D, P), float64
    # Of shape (n_rows, n_free), float64: the F_j; f is unbounded and costs nothing.
    free: np.ndarray
    bounds: np.ndarray  # of shape (n_rows,), float64
    n_planes: int


@dataclass(frozen=True)
class ConeSolution:
    """A solution of the cone program."""

    V: np.ndarray  # of shape (D, P), float64
    sigma: np.ndarray  # of shape (n_features,), float64: in [0, 1], with sum m
    slack: float  # xi
    objective: float
    gap: float  # relative distance between the objective and a lower bound of it
    multipliers: np.ndarray  # of shape (n_planes,), float64: zero for planes that do not matter
    n_iter: int  # steps of the interior-point method
    solver: str  # one of "clarabel", "active"
    # Of shape (n_features,), float64: of every feature, as a share of what a weight takes: below 1
    # the weight is zero.
    slopes: np.ndarray


def weights_of(norms: np.ndarray, m: int) -> np.ndarray:
    """Return the sigma that minimizes ``sum norms^2 / sigma`` over the capped simplex.

    Parameters
    ----------
    norms : ndarray of shape (n_features,), float64
        Not negative.
    m : int
        Sum of sigma; no entry exceeds 1.

    Returns
    -------
    sigma : ndarray of shape (n_features,), float64
        ``min(1, norms / tau)``; what the features with a norm cannot take goes to the others in
        equal shares.
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
    # With the h largest at 1, tau is rest[h] / (m - h): the first h that leaves none above it.
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
    if m >= len(norms):
        return 0.5 * float(squares.sum())
    return 0.5 * float(np.partition(squares, len(squares) - m)[len(squares) - m :].sum())


def bounds_of(
    rows: Constraints,
    smooth: np.ndarray | None,
    C: float,
    m: int,
    d: int,
    V: np.ndarray,
    x: np.ndarray,
) -> tuple[float, float, float, np.ndarray]:
    """Return the objective at V, a lower bound from multipliers x, xi and every feature's slope.

    The quadratic term is at least its tangent at V, which leaves the conjugate of the norm:
    ``g'x - v'Sv - (half the m largest squared slopes)``.
    """
    quadratic, flat = 0.0, rows.A.reshape(len(rows.A), -1)
    residual = (x @ flat).reshape(V.shape)[:d]
    if smooth is not None:
        # Few features are used, and S is symmetric.
        used = np.flatnonzero(V.any(axis=1))
        few = 2 * len(used) <= len(V)
        product = smooth[used].T @ V[used] if few else smooth @ V
        quadratic = float(np.einsum("dp,dp->", V, product))
        residual -= 2 * product[:d]
    slopes = np.linalg.norm(residual, axis=1)
    short = rows.bounds[: rows.n_planes] - flat[: rows.n_planes] @ V.ravel()
    slack = max(0.0, float(short.max()))
    upper = half_squared_norm(np.linalg.norm(V[:d], axis=1), m) + quadratic + C * slack
    lower = float(rows.bounds @ x) - quadratic - half_squared_dual(slopes, m)
    return upper, lower, slack, slopes


def solve_active(
    rows: Constraints,
    smooth: np.ndarray | None,
    C: float,
    m: int,
    n_features: int,
    *,
    start: np.ndarray | None = None,
    tol: float = 1e-5,
) -> ConeSolution:
    """Solve the cone program on a growing set of features.

    Parameters
    ----------
    rows : Constraints
    smooth : ndarray of shape (D, D) or None
    C : float
    m : int
    n_features : int
    start : ndarray of shape (n_features,) or None, default=None
        Slopes of a solution nearby: the features that it takes, or nearly takes, are the first set.
    tol : float, default=1e-5
        Relative gap at which to stop.

    Raises
    ------
    ConvergenceError
        If the gap does not close.
    """
    d, (_, D, P) = n_features, rows.A.shape
    x = np.zeros(len(rows.bounds))
    x[: rows.n_planes] = C / rows.n_planes
    slopes = bounds_of(rows, smooth, C, m, d, np.zeros((D, P)), x)[3]
    if start is not None:
        slopes = np.where(start > _LIKELY, np.inf, slopes)
    first = max(_FIRST_TIMES * m, _FIRST_LEAST, int(np.isinf(slopes).sum()))
    active = np.sort(np.argsort(-slopes, kind="stable")[:first])
    n_iter, gap, near = 0, np.inf, None
    for _ in range(_MAX_ROUNDS):
        began = near is not None
        V, point, bounds = _on_set(rows, smooth, C, m, d, active, near, tol / 10)
        n_iter, (upper, lower, slack, slopes) = n_iter + point.n_iter, bounds
        gap = (upper - lower) / max(abs(upper), 1e-12)
        enter = _missing(slopes, active, m)
        if gap <= tol or not (len(enter) or began):
            break
        # With them those that nearly enter: others rarely follow.
        enter = _missing(slopes, active, m, _ALMOST)[: max(m, len(active) // 2)]
        near = point.near if 0 < len(enter) <= _FEW_MISSING * len(active) else None
        active = np.concatenate([active, enter])
        if near is None:  # else a point near the solution has its features first
            active = np.sort(active)
    if gap > 10 * tol:
        raise ConvergenceError(
            f"The cone program of M3FS stopped at a relative gap of {gap:.1e} (wanted {tol:g}). "
            "Scale the features, or lower C."
        )
    sigma = weights_of(np.linalg.norm(V[:d], axis=1), m)
    multipliers, shares = point.x[: rows.n_planes], slopes / max(_level(slopes, m), _NOTHING)
    return ConeSolution(
        V, sigma, slack, upper, max(0.0, gap), multipliers, n_iter, "active", shares
    )


_Bounds = tuple[float, float, float, np.ndarray]


def _on_set(
    rows: Constraints,
    smooth: np.ndarray | None,
    C: float,
    m: int,
    d: int,
    active: np.ndarray,
    near: Any,
    tol: float,
) -> tuple[np.ndarray, InteriorPoint, _Bounds]:
    """Return V, the solution on some features, and what `bounds_of` says of it.

    Where the set lacks features, which a point near the solution knows, that point is returned.
    ``near`` is one on the first of the features, to begin at.
    """
    D = rows.A.shape[1]
    columns, part, inner = np.concatenate([active, np.arange(d, D)]), rows, smooth
    if len(active) < d or (columns[1:] < columns[:-1]).any():
        part = Constraints(rows.A[:, columns], rows.free, rows.bounds, rows.n_planes)
        inner = None if smooth is None else smooth[np.ix_(columns, columns)]
    asked: list[tuple[np.ndarray, _Bounds]] = []

    def lacks_some(V: np.ndarray, x: np.ndarray) -> bool:
        asked.append((x, bounds_of(rows, smooth, C, m, d, _spread(V, columns, D), x)))
        return len(_missing(asked[0][1][3], active, m)) > 0

    if m >= d and smooth is None:
        point = _with_all(rows, C, d, tol)
        part_V = point.V
    elif m < d:
        enough = lacks_some if len(active) < d else None
        point = interior_point(part, inner, C, m, len(active), tol=tol, begin=near, enough=enough)
        part_V = point.V
    else:
        # Every sigma is 1. A feature of zeros that takes none lets the same method find it.
        point = interior_point(*_with_zero(part, inner, d), C, m, d + 1, tol=tol)
        part_V = np.delete(point.V, d, axis=0)
    V = _spread(part_V, columns, D)
    if asked and asked[0][0] is point.x:
        return V, point, asked[0][1]
    return V, point, bounds_of(rows, smooth, C, m, d, V, point.x)


def _spread(part: np.ndarray, columns: np.ndarray, n_rows: int) -> np.ndarray:
    """Return V whose rows outside of the active ones are zero."""
    V = np.zeros((n_rows, part.shape[1]))
    V[columns] = part
    return V


def _missing(slopes: np.ndarray, active: np.ndarray, m: int, share: float = 1.0) -> np.ndarray:
    """Return the features outside of the active ones that the solution needs, steepest first.

    Inside, the m-th largest slope is where a weight between 0 and 1 stands still: features whose
    slope is above that are needed, or above a share of it.
    """
    inside = np.zeros(len(slopes), dtype=bool)
    inside[active] = True
    outside = np.flatnonzero(~inside)
    level = share * _level(slopes[active], m) if m <= len(active) else -np.inf
    enter = outside[slopes[outside] > level]
    return enter[np.argsort(-slopes[enter], kind="stable")]


def _level(slopes: np.ndarray, m: int) -> float:
    """Return the m-th largest slope."""
    place = max(0, len(slopes) - m)
    return float(np.partition(slopes, place)[place])


def _with_all(rows: Constraints, C: float, d: int, tol: float) -> InteriorPoint:
    """Return the solution where every sigma is 1 and nothing is smooth."""
    flat = rows.A[:, :d].reshape(len(rows.A), -1)
    # Intercepts cost nothing.
    free = np.column_stack([*rows.A[:, d:].transpose(1, 0, 2), rows.free])
    products, n_planes = flat @ flat.T, rows.n_planes
    x, f, n_iter, residual = row_multipliers(products, free, rows.bounds, n_planes, C, tol=tol)
    P, n_intercepts = rows.A.shape[2], free.shape[1] - rows.free.shape[1]
    V = np.vstack([(x @ flat).reshape(d, P), f[:n_intercepts].reshape(-1, P)])
    return InteriorPoint(V, x, n_iter, residual)


def _with_zero(
    rows: Constraints, smooth: np.ndarray | None, d: int
) -> tuple[Constraints, np.ndarray | None]:
    """Return rows and quadratic form with a feature of zeros behind the others."""
    if smooth is not None:
        smooth = np.insert(np.insert(smooth, d, 0.0, axis=0), d, 0.0, axis=1)
    A = np.insert(rows.A, d, 0.0, axis=1)
    return Constraints(A, rows.free, rows.bounds, rows.n_planes), smooth
