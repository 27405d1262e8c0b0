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
    """All unknowns, or a change of them.

    ``cone`` (P + 2, d) holds t, sigma and v in the cone's own coordinates and ``dual`` what is
    complementary to them; w are the rows' values, x, y and high the multipliers of the rows, of
    xi >= 0 and of sigma <= 1, eta that of the sum of sigma.
    """

    cone: np.ndarray
    dual: np.ndarray
    f: np.ndarray
    xi: float
    w: np.ndarray
    x: np.ndarray
    y: float
    high: np.ndarray
    eta: float

    def moved(self, step: _Point, a: float) -> _Point:
        """Return the point ``self + a step``."""
        return _Point(
            self.cone + a * step.cone,
            self.dual + a * step.dual,
            self.f + a * step.f,
            self.xi + a * step.xi,
            self.w + a * step.w,
            self.x + a * step.x,
            self.y + a * step.y,
            self.high + a * step.high,
            self.eta + a * step.eta,
        )


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
    mu: float


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
        predictor = system.solve(residuals, None, 0.0)
        a = min(1.0, _longest(point, predictor))
        target = residuals.mu * min(1.0, (_mu(point.moved(predictor, a)) / residuals.mu)) ** 3
        step = system.solve(residuals, predictor, target)
        a = _longest(point, step)
        if a < 1 and problem.N.shape[2] > 1:
            # A second correction costs little beside the factors of many clusters.
            again = system.solve(residuals, step, target)
            further = _longest(point, again)
            if further > a:
                step, a = again, further
        point = point.moved(step, min(1.0, _TO_BOUNDARY * a))
        del system  # before the matrices of the next one are made
    return InteriorPoint(_unknowns(problem, best), best.x, n_iter, best_error, near)


def _unknowns(problem: _InteriorProblem, point: _Point) -> np.ndarray:
    """Return V with its intercepts."""
    V = soc.split(point.cone)[2]
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
    return _InteriorProblem(
        N, N[:R], split, wide, F, rows.bounds, e, S, coupling, curvature, C, m, intercepts
    )


def _first(problem: _InteriorProblem) -> _Point:
    """Begin at V = 0 with everything well inside."""
    (R, d, P), C = problem.A.shape, problem.C
    share = problem.m / d
    xi = float(max(1.0, np.abs(problem.g).max()))
    w = np.maximum(1.0, problem.e * xi - problem.g)
    x = np.full(R, C / (R + 1))
    zero = np.zeros((d, P))
    # t s_t = sigma s_sigma, which is centered: s_t is 1/2 at every point.
    slope = float(np.sqrt(np.square(problem.pull(x)).sum(axis=1).max()))
    # At V = 0 the objective is C xi: the norm's share of a better one is not above it.
    level = max(min(slope**2, C * xi / problem.m), 1e-6)
    cone = soc.join(np.full(d, 2 * share * level), np.full(d, share), zero)
    dual = soc.join_dual(np.full(d, 0.5), np.full(d, level), zero)
    high = np.full(d, share * level / (1 - share))
    return _Point(cone, dual, np.zeros(problem.F.shape[1]), xi, w, x, C / (R + 1), high, 0.0)


def _widened(problem: _InteriorProblem, point: _Point) -> _Point:
    """Return a point with the features that it lacks, each with a weight of nearly zero.

    Their slopes are those of the point, and their pairs have its mean product.
    """
    k, d = point.cone.shape[1], problem.A.shape[1]
    V = np.zeros(problem.A.shape[1:])
    V[:k] = soc.split(point.cone)[2]
    slopes = problem.curvature_terms(V, point.f)[0][k:]
    slopes -= np.tensordot(point.x, problem.A[:, k:], 1)
    mu, half = _mu(point), np.square(slopes).sum(axis=1) / 2
    # A weight is mu over what its multiplier exceeds half the squared slope by.
    excess = np.maximum(np.maximum(_EXCESS * half, mu * d / problem.m), -point.eta - half)
    dual = soc.join_dual(np.full(d - k, 0.5), half + excess, slopes)
    cone = mu * soc.inverse(dual)
    high = mu / (1 - soc.second(cone))
    return replace(
        point,
        cone=np.hstack([point.cone, cone]),
        dual=np.hstack([point.dual, dual]),
        high=np.append(point.high, high),
    )


def _mu(point: _Point) -> float:
    sigma = soc.second(point.cone)
    total = float((point.cone * point.dual).sum() + point.w @ point.x + (1 - sigma) @ point.high)
    return (total + point.xi * point.y) / (2 * len(sigma) + len(point.w) + len(sigma) + 1)


def _residuals(problem: _InteriorProblem, point: _Point) -> _Residuals:
    t, sigma, V = soc.split(point.cone)
    s_t, s_sigma, s_v = soc.split_dual(point.dual)
    by_v, by_f = problem.curvature_terms(V, point.f)
    pull = problem.pull(point.x)
    r_v = pull + s_v - by_v
    r_sigma = s_sigma - point.high + point.eta
    r_f = problem.F.T @ point.x - by_f
    r_xi = point.y + float(problem.e @ point.x) - problem.C
    reached = problem.reached(V) + problem.F @ point.f + problem.e * point.xi
    r_w = problem.g + point.w - reached
    r_m = problem.m - float(sigma.sum())
    mu = _mu(point)
    size = 1e-12 + abs(0.5 * float(t.sum()) + problem.C * point.xi)
    lever = 1e-12 + float(np.abs(problem.F).max(initial=0.0))
    error = max(
        mu * (3 * len(sigma) + len(point.w) + 1) / size,
        float(np.abs(r_v).max()) / (1e-12 + float(np.abs(pull).max())),
        float(np.abs(r_f).max(initial=0.0)) / (problem.C * lever),
        abs(r_xi) / problem.C,
        float(np.abs(r_w).max()) / (1e-12 + float(np.abs(problem.g).max())),
        abs(r_m) / problem.m,
        float(np.abs(r_sigma).max()) / (1e-12 + float(s_sigma.max())),
    )
    return _Residuals(r_v, r_sigma, r_f, r_xi, r_w, r_m, error, mu)


def _longest(point: _Point, step: _Point) -> float:
    """Return how far the step may go before a pair leaves its cone, at most 1 / 0.99."""
    sigma, change = soc.second(point.cone), soc.second(step.cone)
    values = np.concatenate([point.w, point.x, [point.xi, point.y], 1 - sigma, point.high])
    steps = np.concatenate([step.w, step.x, [step.xi, step.y], -change, step.high])
    falling = steps < 0
    longest = 1.0 / _TO_BOUNDARY
    if falling.any():
        longest = min(longest, float((values[falling] / -steps[falling]).min()))
    pairs = np.hstack([point.cone, point.dual]), np.hstack([step.cone, step.dual])
    return min(longest, soc.longest(*pairs))


class _System:
    """The linear system of a step at one point, factorized."""

    def __init__(self, problem: _InteriorProblem, point: _Point) -> None:
        self.problem, self.point = problem, point
        self.sigma = soc.second(point.cone)
        self.scaling = soc.Scaling.of(point.cone, point.dual)
        eta2, q_t, q_s, q_v = self.scaling.rotated()
        # The rows of t of every cone's matrix, and what eliminating t leaves for sigma and v.
        self.h_tt, self.h_ts = 2 * q_t**2 / eta2, (2 * q_t * q_s - 1) / eta2
        self.h_tv = (2 * q_t / eta2)[:, None] * q_v
        self.a = (4 * q_t * q_s - 1) / (2 * q_t**2 * eta2) + point.high / (1 - self.sigma)
        self.b = q_v / (q_t * eta2)[:, None]
        self.c = -self.b / self.a[:, None]
        U = self.b / np.sqrt(self.a)[:, None]
        problem.N[-1], problem.wide[-1:] = self.c, self.c.T  # none is wide of two clusters
        self.inverse = inverse_of(problem.S, 2 / eta2, U, problem.N, problem.split, problem.wide)
        self.factor = dgetrf(self._small())[:2]

    def _small(self) -> np.ndarray:
        """Return the matrix for dx, df, d eta, d xi; the rows of f have their sign turned."""
        problem, point = self.problem, self.point
        R, n_free = problem.F.shape
        small = np.zeros((R + n_free + 2, R + n_free + 2))
        small[:-1, :-1] = self.inverse.products
        small[np.arange(R), np.arange(R)] += point.w / point.x
        small[:R, R : R + n_free] += problem.F
        small[R : R + n_free, :R] += problem.F.T
        tail = np.arange(R, R + n_free)
        small[tail, tail] -= problem.curvature + 1e-13 * problem.C
        small[-2, -2] += float((1 / self.a).sum())
        small[:R, -1], small[-1, :R] = problem.e, -problem.e
        small[-1, -1] = point.y / point.xi
        return small

    def solve(self, residuals: _Residuals, predictor: _Point | None, target: float) -> _Point:
        """Return the step that leaves no residuals and products of ``target``."""
        point, sigma = self.point, self.sigma
        wx, xy = target - point.w * point.x, target - point.xi * point.y
        below = 1 - sigma
        high_left = target - below * point.high
        pair = None
        if predictor is not None:
            pair = (predictor.cone, predictor.dual)
            wx, xy = wx - predictor.w * predictor.x, xy - predictor.xi * predictor.y
            high_left = high_left + soc.second(predictor.cone) * predictor.high
        # ds = push - H dx for the cones; of its rows, that of t is ds_t = 0.
        push = self.scaling.push(pair, target)
        p_t, p_s, p_v = soc.split_dual(push)
        t_left = p_t / self.h_tt
        right_v = residuals.v + p_v - self.h_tv * t_left[:, None]
        right_s = residuals.sigma + p_s - self.h_ts * t_left - high_left / below
        right_v += self.c * right_s[:, None]
        begun, reduced = self.inverse.begin(right_v)
        R = len(point.w)
        right = np.concatenate(
            [
                residuals.w + wx / point.x,
                -residuals.f,
                [residuals.m],
                [residuals.xi + xy / point.xi],
            ]
        )
        right[:-1] -= reduced
        right[-2] -= float((right_s / self.a).sum())
        solution = dgetrs(*self.factor, right)[0]
        dV = self.inverse.finish(begun, solution[:-1])
        dx, df, d_eta, d_xi = solution[:R], solution[R:-2], float(solution[-2]), float(solution[-1])
        d_sigma = (right_s + d_eta - np.vecdot(self.b, dV)) / self.a
        dt = p_t - self.h_ts * d_sigma - np.vecdot(self.h_tv, dV)
        d_cone = soc.join(dt / self.h_tt, d_sigma, dV)
        return _Point(
            d_cone,
            push - self.scaling.apply(d_cone),
            df,
            d_xi,
            (wx - point.w * dx) / point.x,
            dx,
            (xy - point.y * d_xi) / point.xi,
            (high_left + point.high * d_sigma) / below,
            d_eta,
        )
