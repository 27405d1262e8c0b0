"""A primal-dual interior-point method for the cone program, with its structure used.

    min  1/2 sum_k t_k + sum_p v_p' S v_p + C xi
    s.t. t_k sigma_k >= |v_k|^2,  sum sigma = m,  sigma <= 1,
         <A_j, V> + F_j f + e_j xi >= g_j,  xi >= 0.

Nesterov-Todd scaling of the cones. t and sigma are eliminated feature by feature: what is left
for V is ``K x I - U U'`` with K the same n_features x n_features matrix for every cluster and U a
column for every feature, so a step costs two factorizations of that size, whatever the number of
clusters; rows, intercepts and f make up a small system at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg.lapack import dgetrf, dgetrs

from bigfs.solvers import secondorder as soc
from bigfs.solvers.hessian import inverse_of

_MAX_ITERATIONS = 60
_TO_BOUNDARY = 0.99
# The residual of a point that is near the solution.
_NEAR = 0.1
_AGAIN = 0.01  # where features have entered
# Multipliers of weights that enter exceed what keeps them at zero by at least this share.
_EXCESS = 0.01


@dataclass(frozen=True)
class InteriorPoint:
    """Result of the method."""

    V: np.ndarray  # of shape (D, P), float64
    x: np.ndarray  # of shape (n_rows,), float64: multipliers of the rows, not negative
    n_iter: int
    residual: float  # largest relative violation of the optimality conditions
    near: _Point | None = None  # the first one near the solution


@dataclass
class _Point:
    """All unknowns.

    ``pairs`` (2, P + 2, d) holds t, sigma and v in the cone's own coordinates and what is
    complementary to them; ``bounded`` (2, R + 1 + d) the rows' values w, xi and 1 - sigma, and
    their multipliers x, y and high. eta is the multiplier of the sum of sigma.
    """

    pairs: np.ndarray
    bounded: np.ndarray
    f: np.ndarray
    eta: float

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.bounded.shape[1] - 1 - self.pairs.shape[2])

    @property
    def x(self) -> np.ndarray:
        """Multipliers of the rows."""
        return np.asarray(self.bounded[1, : self.n_rows])

    @property
    def xi(self) -> float:
        """The slack of the planes."""
        return float(self.bounded[0, self.n_rows])

    @property
    def mu(self) -> float:
        """Mean product of what is complementary."""
        return _mean_product(self.pairs, self.bounded)


@dataclass(frozen=True)
class _NewtonStep:
    """A change of them; that of the cones' pairs is scaled."""

    cone: np.ndarray  # of shape (P + 2, d): the first of the pairs, not scaled
    scaled: np.ndarray
    bounded: np.ndarray
    f: np.ndarray
    eta: float


def _mean_product(pairs: np.ndarray, bounded: np.ndarray) -> float:
    total = float(np.vdot(pairs[0], pairs[1]) + bounded[0] @ bounded[1])
    return total / (2 * pairs.shape[2] + bounded.shape[1])


@dataclass(frozen=True)
class _Residuals:
    """Negative residuals of the optimality conditions."""

    v: np.ndarray
    sigma: np.ndarray
    f: np.ndarray
    xi: float
    w: np.ndarray
    m: float
    error: float


@dataclass(frozen=True)
class _InteriorProblem:
    """The data of the program, intercepts counted with the free unknowns."""

    N: np.ndarray  # (R + n_free + 1, d, P): the rows, intercepts' couplings, a place for sigma's
    A: np.ndarray  # (R, d, P), the rows in it: features only
    split: tuple[np.ndarray, np.ndarray, np.ndarray]  # rows of N of many clusters, of one, of which
    wide: np.ndarray  # (n, P, d): those of many clusters, features last
    F: np.ndarray  # (R, n_free)
    g: np.ndarray
    e: np.ndarray
    S: np.ndarray | None  # (d, d), doubled
    coupling: np.ndarray  # (d,), the intercept's column of the doubled S
    curvature: np.ndarray  # (n_free,), second derivatives of the free unknowns
    C: float
    m: int
    n_intercepts: int
    sizes: tuple[float, float]  # largest of F and of g
    small: np.ndarray  # (R + n_free + 2,) twice: what no step changes of the system at the end

    def pull(self, x: np.ndarray) -> np.ndarray:
        """Return the sum of ``x_r A_r``."""
        return np.asarray(x @ self.A.reshape(len(x), -1)).reshape(self.A.shape[1:])

    def reached(self, V: np.ndarray) -> np.ndarray:
        """Return ``<A_r, V>`` of all rows."""
        return np.asarray(self.A.reshape(len(self.A), -1) @ V.ravel())

    def curvature_terms(self, V: np.ndarray, f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the derivative of the quadratic term by V and by f."""
        by_v, by_f = np.zeros_like(V), self.curvature * f
        if self.S is not None:
            by_v = self.S @ V
            if self.n_intercepts:
                by_v += np.outer(self.coupling, f[: self.n_intercepts])
                by_f[: self.n_intercepts] += self.coupling @ V
        return by_v, by_f


# A pair on the edge of its cone, as where C is tiny, ends the method at the best point before.
@np.errstate(divide="ignore", invalid="ignore")
def interior_point(
    rows: Any,
    smooth: np.ndarray | None,
    C: float,
    m: int,
    n_features: int,
    *,
    tol: float = 1e-6,
    begin: _Point | None = None,
    enough: Callable[[np.ndarray, np.ndarray], bool] | None = None,
) -> InteriorPoint:
    """Solve the cone program on all of its features.

    Parameters
    ----------
    rows : Constraints
    smooth : ndarray of shape (D, D) or None
    C : float
    m : int
        Below the number of features.
    n_features : int
    tol : float, default=1e-6
        Of the complementarity, relative to the objective, and of the residuals.
    begin : optional
        A point near the solution on fewer features, the first ones.
    enough : callable or None, default=None
        Asked once, of V and x of the first point near the solution, whether that will do: if so
        it is returned.

    Returns
    -------
    solution : InteriorPoint
        The best point met, whether or not it reached the tolerance.
    """
    problem = _problem(rows, smooth, C, m, n_features)
    point = _first(problem) if begin is None else _widened(problem, begin)
    best, best_error, n_iter, near = point, np.inf, 0, None
    close = _NEAR if begin is None else _AGAIN
    while n_iter < _MAX_ITERATIONS:
        n_iter += 1
        residuals = _residuals(problem, point)
        if not np.isfinite(residuals.error):
            break
        if residuals.error < best_error:
            best, best_error = point, residuals.error
        if residuals.error <= tol:
            break
        if near is None and residuals.error <= close:
            near = point
            if enough is not None and enough(_unknowns(problem, point), point.x):
                best, best_error = point, residuals.error
                break
        try:
            system = _System(problem, point)
        except np.linalg.LinAlgError:
            break
        mu = point.mu
        predictor = system.solve(residuals, None, 0.0)
        a = min(1.0, system.longest(predictor))
        target = mu * min(1.0, system.mu_after(predictor, a) / mu) ** 3
        step = system.solve(residuals, predictor, target)
        a = system.longest(step)
        if a < 1 and problem.N.shape[2] > 1:
            # A second correction costs little beside the factors of many clusters.
            again = system.solve(residuals, step, target)
            further = system.longest(again)
            if further > a:
                step, a = again, further
        point = system.moved(step, min(1.0, _TO_BOUNDARY * a))
        del system  # before the matrices of the next one are made
    return InteriorPoint(_unknowns(problem, best), best.x, n_iter, best_error, near)


def _unknowns(problem: _InteriorProblem, point: _Point) -> np.ndarray:
    """Return V with its intercepts."""
    V = soc.split(point.pairs[0])[2]
    return np.vstack([V, point.f[: problem.n_intercepts]]) if problem.n_intercepts else V


def _problem(rows: Any, smooth: np.ndarray | None, C: float, m: int, d: int) -> _InteriorProblem:
    """Split the intercepts off; the caller's units are kept."""
    R, D, P = rows.A.shape
    intercepts = P if D > d else 0
    e = np.zeros(R)
    e[: rows.n_planes] = 1.0
    F, curvature, coupling, S = (
        rows.free,
        np.zeros(rows.free.shape[1] + intercepts),
        np.zeros(d),
        None,
    )
    if intercepts:
        F = np.column_stack([rows.A[:, d, :], rows.free])
    if smooth is not None:
        S = 2 * smooth[:d, :d]
        if intercepts:
            coupling = 2 * smooth[:d, d]
            curvature[:P] = 2 * smooth[d, d]
    N = np.zeros((R + F.shape[1] + 1, d, P))
    N[:R] = rows.A[:, :d, :]
    for p in range(intercepts):
        N[R + p, :, p] = -coupling
    # Rows of the balance are of one cluster each: one column of theirs is not zero.
    used = np.asarray(N.any(axis=1))
    used[-1] = True
    narrow = used.sum(axis=1) <= 1
    split = np.flatnonzero(~narrow), np.flatnonzero(narrow), used[narrow].argmax(axis=1)
    wide = np.ascontiguousarray(N[split[0]].transpose(0, 2, 1))
    sizes = float(np.abs(F).max(initial=0.0)), float(np.abs(rows.bounds).max())
    small = _fixed_part(F, e, curvature + 1e-13 * C)
    return _InteriorProblem(
        N, N[:R], split, wide, F, rows.bounds, e, S, coupling, curvature, C, m, intercepts,
        sizes, small,
    )  # fmt: skip


def _fixed_part(F: np.ndarray, e: np.ndarray, curvature: np.ndarray) -> np.ndarray:
    """Return what no step changes of the matrix for dx, df, d eta and d xi, df's rows negated."""
    R, n_free = F.shape
    small = np.zeros((R + n_free + 2, R + n_free + 2))
    small[:R, R : R + n_free] = F
    small[R : R + n_free, :R] = F.T
    small[R:-2, R:-2] = np.diag(-curvature)
    small[:R, -1], small[-1, :R] = e, -e
    return small


def _first(problem: _InteriorProblem) -> _Point:
    """Begin at V = 0 with everything well inside."""
    (R, d, P), C = problem.A.shape, problem.C
    share = problem.m / d
    xi = max(1.0, problem.sizes[1])
    w = np.maximum(1.0, problem.e * xi - problem.g)
    x = np.full(R, C / (R + 1))
    zero = np.zeros((d, P))
    # t s_t = sigma s_sigma, which is centered: s_t is 1/2 at every point.
    slope = float(np.sqrt(np.square(problem.pull(x)).sum(axis=1).max()))
    # At V = 0 the objective is C xi: the norm's share of a better one is not above it.
    level = max(min(slope**2, C * xi / problem.m), 1e-6)
    cone = soc.join(np.full(d, 2 * share * level), np.full(d, share), zero)
    dual = soc.join_dual(np.full(d, 0.5), np.full(d, level), zero)
    left = np.full(d, 1 - share)
    bounded = np.stack([np.r_[w, xi, left], np.r_[x, C / (R + 1), share * level / left]])
    return _Point(np.stack([cone, dual]), bounded, np.zeros(problem.F.shape[1]), 0.0)


def _widened(problem: _InteriorProblem, point: _Point) -> _Point:
    """Return a point with the features that it lacks, each with a weight of nearly zero.

    Their slopes are those of the point, and their pairs have its mean product.
    """
    k, d = point.pairs.shape[2], problem.A.shape[1]
    V = np.zeros(problem.A.shape[1:])
    V[:k] = soc.split(point.pairs[0])[2]
    slopes = problem.curvature_terms(V, point.f)[0][k:]
    slopes -= np.tensordot(point.x, problem.A[:, k:], 1)
    mu, half = point.mu, np.square(slopes).sum(axis=1) / 2
    # A weight is mu over what its multiplier exceeds half the squared slope by.
    excess = np.maximum(np.maximum(_EXCESS * half, mu * d / problem.m), -point.eta - half)
    dual = soc.join_dual(np.full(d - k, 0.5), half + excess, slopes)
    cone = mu * soc.inverse(dual)
    left = 1 - soc.second(cone)
    return replace(
        point,
        pairs=np.concatenate([point.pairs, np.stack([cone, dual])], axis=2),
        bounded=np.hstack([point.bounded, np.stack([left, mu / left])]),
    )


def _residuals(problem: _InteriorProblem, point: _Point) -> _Residuals:
    t, sigma, V = soc.split(point.pairs[0])
    _, s_sigma, s_v = soc.split_dual(point.pairs[1])
    R, x = point.n_rows, point.x
    by_v, by_f = problem.curvature_terms(V, point.f)
    pull = problem.pull(x)
    r_v = pull + s_v - by_v
    r_sigma = s_sigma - point.bounded[1, R + 1 :] + point.eta
    r_f = x @ problem.F - by_f
    r_xi = float(point.bounded[1, R] + problem.e @ x) - problem.C
    reached = problem.reached(V) + problem.F @ point.f + problem.e * point.xi
    r_w = problem.g + point.bounded[0, :R] - reached
    r_m = problem.m - float(sigma.sum())
    size = 1e-12 + abs(0.5 * float(t.sum()) + problem.C * point.xi)
    lever, bound = problem.sizes
    error = max(
        point.mu * (3 * len(sigma) + R + 1) / size,
        _largest(r_v) / (1e-12 + _largest(pull)),
        _largest(r_f) / (problem.C * (1e-12 + lever)) if len(r_f) else 0.0,
        abs(r_xi) / problem.C,
        _largest(r_w) / (1e-12 + bound),
        abs(r_m) / problem.m,
        _largest(r_sigma) / (1e-12 + float(s_sigma.max())),
    )
    return _Residuals(r_v, r_sigma, r_f, r_xi, r_w, r_m, error)


def _largest(values: np.ndarray) -> float:
    return float(np.abs(values).max())


class _System:
    """The linear system of a step at one point, factorized."""

    def __init__(self, problem: _InteriorProblem, point: _Point) -> None:
        self.problem, self.point = problem, point
        self.products = point.bounded[0] * point.bounded[1]
        self.scaling = soc.Scaling(point.pairs)
        eta2, q_t, q_s, q_v = self.scaling.rotated()
        # The rows of t of every cone's matrix, and what eliminating t leaves for sigma and v.
        self.h_tt, self.h_ts = 2 * q_t**2 / eta2, (2 * q_t * q_s - 1) / eta2
        self.h_tv = (2 * q_t / eta2)[:, None] * q_v
        left, high = point.bounded[:, point.n_rows + 1 :]
        self.a = (4 * q_t * q_s - 1) / (2 * q_t**2 * eta2) + high / left
        self.b = q_v / (q_t * eta2)[:, None]
        self.c = -self.b / self.a[:, None]
        U = self.b / np.sqrt(self.a)[:, None]
        problem.N[-1], problem.wide[-1:] = self.c, self.c.T  # none is wide of two clusters
        self.inverse = inverse_of(problem.S, 2 / eta2, U, problem.N, problem.split, problem.wide)
        self.factor = dgetrf(self._small())[:2]

    def _small(self) -> np.ndarray:
        """Return the matrix for dx, df, d eta, d xi; the rows of f have their sign turned."""
        R, small = self.point.n_rows, self.problem.small.copy()
        small[:-1, :-1] += self.inverse.products
        ratios = self.point.bounded[0, :R] / self.point.bounded[1, :R]
        small.flat[: R * (len(small) + 1) : len(small) + 1] += ratios
        small[-2, -2] += float((1 / self.a).sum())
        small[-1, -1] = self.point.bounded[1, R] / self.point.xi
        return small

    def solve(
        self, residuals: _Residuals, predicted: _NewtonStep | None, target: float
    ) -> _NewtonStep:
        """Return the step that leaves no residuals and products of ``target``."""
        R, (values, multipliers) = self.point.n_rows, self.point.bounded
        left = target - self.products
        # Changes of the cones' pairs, scaled, add up to aim: ds = push - H dx.
        aim, push = -self.scaling.middle, -self.point.pairs[1]
        if predicted is not None:
            left -= predicted.bounded[0] * predicted.bounded[1]
            aim = self.scaling.push(predicted.scaled, target)
            push = self.scaling.half(aim)
        p_t, p_s, p_v = soc.split_dual(push)  # ds_t = 0
        t_left = p_t / self.h_tt
        right_v = residuals.v + p_v - self.h_tv * t_left[:, None]
        right_s = residuals.sigma + p_s - self.h_ts * t_left - left[R + 1 :] / values[R + 1 :]
        right_v += self.c * right_s[:, None]
        begun, reduced = self.inverse.begin(right_v)
        right = np.empty(len(reduced) + 1)
        right[:R] = residuals.w + left[:R] / multipliers[:R]
        right[R:-2] = -residuals.f
        right[-2] = residuals.m - float((right_s / self.a).sum())
        right[-1] = residuals.xi + left[R] / values[R]
        right[:-1] -= reduced
        solution = dgetrs(*self.factor, right)[0]
        dV = self.inverse.finish(begun, solution[:-1])
        d_eta = float(solution[-2])
        d_sigma = (right_s + d_eta - np.vecdot(self.b, dV)) / self.a
        dt = p_t - self.h_ts * d_sigma - np.vecdot(self.h_tv, dV)
        d_cone = soc.join(dt / self.h_tt, d_sigma, dV)
        scaled = np.empty((2, *d_cone.shape))
        scaled[0] = self.scaling.half(d_cone)
        np.subtract(aim, scaled[0], out=scaled[1])
        bounded = np.empty_like(self.point.bounded)
        bounded[1, :R] = solution[:R]
        bounded[0, :R] = (left[:R] - values[:R] * bounded[1, :R]) / multipliers[:R]
        bounded[0, R], bounded[0, R + 1 :] = solution[-1], -d_sigma
        bounded[1, R:] = (left[R:] - multipliers[R:] * bounded[0, R:]) / values[R:]
        return _NewtonStep(d_cone, scaled, bounded, solution[R:-2], d_eta)

    def longest(self, step: _NewtonStep) -> float:
        """Return how far the step may go before a pair leaves its cone, at most 1 / 0.99."""
        worst = float((step.bounded / self.point.bounded).min())
        to_bound = -1.0 / worst if worst < 0 else np.inf
        return min(1.0 / _TO_BOUNDARY, to_bound, self.scaling.longest(step.scaled))

    def mu_after(self, step: _NewtonStep, a: float) -> float:
        """Return what a share of the step makes of mu."""
        pairs = self.scaling.middle + a * step.scaled
        return _mean_product(pairs, self.point.bounded + a * step.bounded)

    def moved(self, step: _NewtonStep, a: float) -> _Point:
        """Return the point a share of the step away."""
        point, change = self.point, np.stack([step.cone, self.scaling.half(step.scaled[1])])
        return _Point(
            point.pairs + a * change,
            point.bounded + a * step.bounded,
            point.f + a * step.f,
            point.eta + a * step.eta,
        )
