"""Primal-dual interior-point method for the cone program of maximum margin feature selection.

    min  1/2 sum_k |v_k|^2 / sigma_k + sum_p v_p' S v_p + C xi
    s.t. <A_r, V> + F_r f + e_r xi >= g_r,  xi >= 0,  sum sigma = m,  0 <= sigma <= 1

Let ``u = A'x - 2 S V``, with x the multipliers of the rows: at the solution ``v_k = sigma_k u_k``.
V and u are separate unknowns, so that nothing is divided by a weight that is nearly zero, and the
optimality conditions are polynomials of degree two::

    V = sigma u,   low = eta + high - 1/2 |u|^2,   F'x = 0,   e'x + y = C,   the constraints,
    w x = 0,   xi y = 0,   sigma low = 0,   (1 - sigma) high = 0,

where w is the values of the rows minus g, eta the multiplier of the sum of sigma, and low and high
are the multipliers of the bounds of sigma. An iteration solves the linearized conditions, with the
same target for all products, twice: the second time with the second-order terms estimated from the
first step (Mehrotra's corrector). u and sigma are eliminated feature by feature and V by `Inverse`,
which leaves a small system for x, f, eta and xi.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg.lapack import dgetrf, dgetrs, dpotrf, dpotri, dpotrs

_MAX_ITERATIONS = 100
_TO_BOUNDARY = 0.99
# Number of iterations without a better point before the corrector is abandoned, and the share of
# the mean product that is the target of the steps from then on.
_STALLED, _CENTER = 4, 0.3
# Added to the diagonal of the unknowns f: the program may not determine some combinations of them.
_OPEN = 1e-10
# An objective below this share of that of V = 0 is considered zero.
ZERO = 1e-15


@dataclass(frozen=True)
class InteriorPoint:
    """Result of the interior-point method."""

    V: np.ndarray  # of shape (D, P), float64
    x: np.ndarray  # of shape (n_rows,), float64: multipliers of the rows, nonnegative
    n_iter: int


class _Unknowns(NamedTuple):
    """A point, or a step.

    ``values`` is the concatenation of w, xi, sigma and 1 - sigma, ``multipliers`` that of x, y, low
    and high. If every sigma is fixed at 1, they end with xi and y.
    """

    V: np.ndarray  # of shape (d, P)
    u: np.ndarray  # of shape (d, P)
    values: np.ndarray
    multipliers: np.ndarray
    f: np.ndarray  # the intercepts and the f of the program
    eta: float

    def plus(self, step: _Unknowns, a: float) -> _Unknowns:
        """Return the point after the fraction ``a`` of a step."""
        pairs: Iterable[tuple[Any, Any]] = zip(self, step, strict=True)
        return _Unknowns(*(mine + a * change for mine, change in pairs))

    def longest(self, step: _Unknowns) -> float:
        """Return the fraction of a step at which the first value or multiplier becomes zero."""
        worst = min(np.min(step[i] / self[i]) for i in (2, 3))
        return -1.0 / float(worst) if worst < 0 else np.inf


@dataclass(frozen=True)
class _Residuals:
    """Residuals of the conditions at a point, named by the unknown that each one determines."""

    u: np.ndarray
    V: np.ndarray
    low: np.ndarray
    w: np.ndarray
    f: np.ndarray
    y: float
    m: float


class _Conditions:
    """Data of the program; the intercepts are part of the unknowns f."""

    def __init__(self, rows: Any, smooth: np.ndarray | None, C: float, m: int, d: int) -> None:
        self.R, D, P = rows.A.shape
        self.g, self.C, self.m, self.d = rows.bounds, C, m, d
        self.shape, self.fixed = (d, P), m >= d  # fixed: every sigma is 1
        self.full = self.flat = rows.A.reshape(self.R, -1)[:, : d * P]
        if self.fixed and smooth is None and self.R < d * P:
            # Then only inner products of the rows matter: rows of length R that have the same inner
            # products replace them.
            values, vectors = np.linalg.eigh(self.full @ self.full.T)
            self.flat, self.d = vectors * np.sqrt(np.maximum(values, 0.0)), self.R
        self.e = (np.arange(self.R) < rows.n_planes).astype(np.float64)
        self.n_intercepts = P * (D - d)
        self.F = np.hstack([rows.A[:, d:].reshape(self.R, self.n_intercepts), rows.free])
        # Second derivatives of the quadratic term with respect to V, to V and the intercepts, and
        # to the intercepts.
        n_free = self.F.shape[1]
        self.S = None if smooth is None else 2 * smooth[:d, :d]
        self.coupling, self.curvature = np.zeros((n_free, self.flat.shape[1])), np.zeros(n_free)
        if smooth is not None and D > d:
            coupling = self.coupling.reshape(n_free, d, P)
            coupling[np.arange(P), :, np.arange(P)] = 2 * smooth[:d, d]
            self.curvature[:P] = 2 * smooth[d, d]
        self._reduced: tuple[np.ndarray, Inverse] | None = None

    def reduced(
        self, u: np.ndarray, sigma: np.ndarray, a: np.ndarray, c: np.ndarray
    ) -> tuple[np.ndarray, Inverse]:
        """Return the rows of the system for V and the inverse of H; cached if sigma is fixed."""
        if self._reduced is None or not self.fixed:
            N = np.concatenate([self.flat, -self.coupling, -c.reshape(1, -1)])
            inverse = Inverse(self.S, sigma, a, u, N.reshape(len(N), *u.shape))
            self._reduced = N, inverse
        return self._reduced

    def split(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the parts of values or multipliers that belong to sigma and to 1 - sigma."""
        return values[self.R + 1 : self.R + 1 + self.d], values[self.R + 1 + self.d :]

    def slopes(self, V: np.ndarray, x: np.ndarray, f: np.ndarray) -> np.ndarray:
        """Return ``A'x - 2 S V``, including the terms of the intercepts."""
        slopes = (x @ self.flat).reshape(V.shape)
        if self.S is not None:
            slopes -= self.S @ V
            slopes -= (f @ self.coupling).reshape(V.shape)
        return slopes

    def residuals(self, p: _Unknowns) -> tuple[_Residuals, float]:
        """Return the residuals at a point, and the largest relative violation of a condition."""
        R, x, squares = self.R, p.multipliers[: self.R], np.vecdot(p.u, p.u) / 2
        sigma, lacks_low, lacks_m = np.ones(self.d), np.zeros(self.d), 0.0
        if not self.fixed:
            (sigma, _), (low, high) = self.split(p.values), self.split(p.multipliers)
            lacks_low, lacks_m = p.eta + high - squares - low, self.m - float(sigma.sum())
        reached = self.flat @ p.V.ravel() + self.F @ p.f + self.e * p.values[R]
        pull = x @ self.F - self.curvature * p.f
        pull -= self.coupling @ p.V.ravel()
        r = _Residuals(
            self.slopes(p.V, x, p.f) - p.u,
            sigma[:, None] * p.u - p.V,
            lacks_low,
            self.g - reached + p.values[:R],
            pull,
            self.C - float(self.e @ x + p.multipliers[R]),
            lacks_m,
        )
        objective = 0.5 * float(np.vdot(p.V, p.u)) + self.C * float(p.values[R])
        if abs(objective) <= ZERO * self.C * _largest(self.g):
            return r, 0.0  # the minimum: multipliers then tend to zero, and f to infinity
        # Violations are measured by their possible effect on the objective, and relative to the
        # size of the violated quantity.
        worth = (p.values @ p.multipliers, x @ np.abs(r.w), np.abs(p.f) @ np.abs(r.f))
        steepest = 1e-300 + float(squares.max())
        shares = (
            *(float(value) / objective for value in worth),
            _largest(r.u) / np.sqrt(steepest),
            _largest(r.V) / np.sqrt(steepest),
            _largest(r.low) / steepest,
            _largest(r.w) / (1e-12 + _largest(self.g)),
            _largest(r.f) / (1e-300 + float(x.sum()) * (1e-12 + _largest(self.F))),
            abs(r.y) / self.C,
            abs(r.m) / self.m,
        )
        return r, max(shares) if np.isfinite(shares).all() else np.inf


def _largest(values: np.ndarray) -> float:
    return float(np.abs(values).max(initial=0.0))


# Floating-point errors are ignored: if they occur, the method returns the best point so far.
@np.errstate(all="ignore")
def interior_point(
    rows: Any, smooth: np.ndarray | None, C: float, m: int, n_features: int, *, tol: float = 1e-6
) -> InteriorPoint:
    """Solve the cone program on all of its features.

    Parameters
    ----------
    rows : Constraints
    smooth : ndarray of shape (D, D) or None
    C : float
    m : int
        Sum of sigma. If it is at least the number of features, every sigma is 1.
    n_features : int
    tol : float, default=1e-6
        Tolerance of the complementarity, relative to the objective, and of the residuals.

    Returns
    -------
    solution : InteriorPoint
        The best point found, even if it did not reach the tolerance.
    """
    problem = _Conditions(rows, smooth, C, m, n_features)
    point = _first(problem)
    best, best_error, best_at, n_iter = point, np.inf, 0, 0
    is_stalled = False
    while n_iter < _MAX_ITERATIONS:
        n_iter += 1
        r, error = problem.residuals(point)
        if not np.isfinite(error):
            break
        if error < best_error:
            best, best_error, best_at = point, error, n_iter
        if error <= tol:
            break
        try:
            system = _System(problem, point)
        except np.linalg.LinAlgError:
            break
        products = point.values * point.multipliers
        mu = float(products.mean())
        # Predictor: a step towards products of zero. The more it reduces them, the closer the
        # target of the corrector, mu share^3, is to zero.
        first = system.solve(r, -products)
        reached = point.plus(first, min(1.0, point.longest(first)))
        share = min(1.0, float((reached.values * reached.multipliers).mean()) / mu)
        # The corrector may alternate between two points indefinitely. Steps along the central path
        # are then taken instead, which converge, though more slowly.
        is_stalled = is_stalled or n_iter - best_at > _STALLED
        if is_stalled:
            step = system.solve(r, _CENTER * mu - products)
        else:
            # Corrector: adds the second-order terms, which the linearization neglects.
            r = replace(r, low=r.low - np.vecdot(first.u, first.u) / 2)
            if not problem.fixed:
                r = replace(r, V=r.V + problem.split(first.values)[0][:, None] * first.u)
            step = system.solve(r, mu * share**3 - products - first.values * first.multipliers)
        point = point.plus(step, min(1.0, _TO_BOUNDARY * point.longest(step)))
    V, x = best.V, best.multipliers[: problem.R]
    if problem.flat is not problem.full:
        V = (x @ problem.full).reshape(problem.shape)
    if problem.n_intercepts:
        V = np.vstack([V, best.f[: problem.n_intercepts]])
    return InteriorPoint(V, x, n_iter)


def _first(problem: _Conditions) -> _Unknowns:
    """Return an interior start with equal weights, and equal multipliers of the best scale."""
    R, C, share = problem.R, problem.C, min(1.0, problem.m / problem.d)
    size, f = 1e-12 + _largest(problem.g), np.zeros(problem.F.shape[1])
    x = np.full(R, C / (R + 1))
    u = (x @ problem.flat).reshape(problem.d, -1)
    # This a maximizes the lower bound a g'x - a^2 share |u|^2 / 2 given by the multipliers a x.
    gain = max(float(problem.g @ x), 1e-3 * C * size)
    a = min(1.0, gain / (1e-300 + share * float(np.vdot(u, u))))
    x, u = a * x, a * u
    short = problem.g - share * (problem.flat @ u.ravel())
    xi = max(size, float(short.max()))
    values = np.append(np.maximum(0.1 * size, problem.e * xi - short), xi)
    multipliers, eta = np.append(x, max(C - float(problem.e @ x), C / (R + 1))), 0.0
    if not problem.fixed:
        squares = np.vecdot(u, u) / 2
        eta = float(squares.max() + (values * multipliers).mean() / share)
        high = (eta - squares) * share / (1 - share)
        weights = np.full((2, problem.d), [[share], [1 - share]])
        values = np.append(values, weights)
        multipliers = np.concatenate([multipliers, eta - squares + high, high])
    return _Unknowns(share * u, u, values, multipliers, f, eta)


class _System:
    """Factorized linear system of the linearized conditions at one point."""

    def __init__(self, problem: _Conditions, point: _Unknowns) -> None:
        self.problem, self.point = problem, point
        R, n_free, d = problem.R, len(point.f), problem.d
        if problem.fixed:
            sigma, a = np.ones(d), np.full(d, np.inf)
        else:
            sigma, left = problem.split(point.values)
            low, high = problem.split(point.multipliers)
            a = low / sigma + high / left
        # a_k = low_k / sigma_k + high_k / (1 - sigma_k) is the curvature of the barrier in sigma_k.
        # d sigma = c (dV - r_V) + (q - d eta) * rest, where q is the right side from the products.
        both = a * sigma + np.vecdot(point.u, point.u)
        self.sigma, self.c, self.rest = sigma, point.u / both[:, None], sigma / both
        self.N, self.inverse = problem.reduced(point.u, sigma, a, self.c)
        # The Schur complement in the unknowns x, f, eta and xi, in this order.
        small = np.zeros((R + n_free + 2, R + n_free + 2))
        small[:-1, :-1] = self.inverse.products
        small[:R, R:-2] += problem.F
        small[R:-2, :R] += problem.F.T
        # The row of xi is scaled so that it is not chosen as a pivot: its right side is about C and
        # would swamp the others.
        self.scale = min(1.0, point.values[R] / point.multipliers[R])
        small[:R, -1], small[-1, :R] = problem.e, -self.scale * problem.e
        diagonal = np.einsum("ii->i", small)
        diagonal[:R] += point.values[:R] / point.multipliers[:R]
        lever = 1e-300 + _largest(problem.F) ** 2 / float(diagonal[:R].min())
        diagonal[R:-2] -= problem.curvature + _OPEN * lever
        diagonal[-2] += float(self.rest.sum()) or 1.0
        diagonal[-1] = self.scale * point.multipliers[R] / point.values[R]
        self.factor = dgetrf(small, overwrite_a=True)[:2]

    def solve(self, r: _Residuals, products: np.ndarray) -> _Unknowns:
        """Return the step that removes the residuals and changes the products by ``products``."""
        problem, (_, u, values, multipliers, f, _) = self.problem, self.point
        R, q = problem.R, np.zeros(problem.d)
        if not problem.fixed:
            (at_low, at_high), (_, left) = problem.split(products), problem.split(values)
            q = at_low / self.sigma - at_high / left - r.low
        # Eliminating u and sigma gives H dV = right_V + N'(dx, df, d eta).
        right_V = (r.V - self.c * np.vecdot(u, r.V)[:, None]) / self.sigma[:, None]
        right_V += r.u + self.c * q[:, None]
        right = np.empty(R + len(f) + 2)
        right[:R] = r.w + products[:R] / multipliers[:R]
        right[R:-2] = -r.f
        right[-2] = float(q @ self.rest - np.vdot(self.c, r.V)) - r.m
        right[-1] = self.scale * (products[R] / values[R] - r.y)
        right[:-1] -= self.N @ self.inverse.solve(right_V).ravel()
        solution = dgetrs(*self.factor, right)[0]
        # Back substitution, in the order V, sigma, values, multipliers, u.
        dx, df, d_eta, d_xi = solution[:R], solution[R:-2], float(solution[-2]), solution[-1:]
        dV = self.inverse.solve(right_V + (solution[:-1] @ self.N).reshape(u.shape))
        d_sigma = np.vecdot(self.c, dV - r.V) + (q - d_eta) * self.rest
        dw = (products[:R] - values[:R] * dx) / multipliers[:R]
        d_values = np.concatenate([dw, d_xi, d_sigma, -d_sigma])[: len(values)]
        d_multipliers = (products - multipliers * d_values) / values
        d_multipliers[:R] = dx
        du = problem.slopes(dV, dx, df) + r.u
        return _Unknowns(dV, du, d_values, d_multipliers, df, d_eta)


class Inverse:
    """Inverse of the matrix H of the system for V.

        H = diag(G_1^-1, ..., G_d^-1) + S x I,   G_k = sigma_k I + u_k u_k' / a_k

    for V of shape (d, P): S is one d x d matrix for all columns, and u_k couples the columns of
    feature k. With ``M = (diag(1 / sigma) + S)^-1`` and U the scaled u,
    ``H^-1 = M + M U (I - U'MU)^-1 U'M`` (Woodbury), which needs two factorizations of d x d
    matrices for any P.

    Parameters
    ----------
    S : ndarray of shape (d, d) or None
        Positive semidefinite matrix; None means zero.
    sigma, a : ndarray of shape (d,), float64
        Positive values; if a is infinite, u has no effect.
    u : ndarray of shape (d, P), float64
    N : ndarray of shape (n_rows, d, P), float64
        Rows of the reduced system.

    Attributes
    ----------
    products : ndarray of shape (n_rows, n_rows), float64
        ``N H^-1 N'``.
    """

    def __init__(
        self, S: np.ndarray | None, sigma: np.ndarray, a: np.ndarray, u: np.ndarray, N: np.ndarray
    ) -> None:
        squares = np.vecdot(u, u)
        self._sigma, self._S, single = sigma, S, S is not None and u.shape[1] == 1
        self._U = u / np.sqrt(sigma * (a * sigma + squares))[:, None]
        if S is None:
            self._inner = 1 / (1 + squares / (a * sigma))
            weighted, along = N * np.sqrt(sigma)[:, None], np.vecdot(N, u)
            weighted = weighted.reshape(len(N), -1)
            self.products = weighted @ weighted.T + (along / a) @ along.T
            return
        if single:  # with one column, u u' is a scalar for each feature
            self._U = np.zeros_like(u)
            self._inner = np.ones(len(u))
            self._factor = _cholesky(_with_diagonal(S.copy(), 1 / (sigma + squares / a)))
        else:
            self._matrix = _inverse(S, 1 / sigma)
            K = -self._U @ self._U.T
            K *= self._matrix
            self._inner = _cholesky(_with_diagonal(K, 1.0))
        # With Z = M N', N H^-1 N' = N Z + (U'Z)'(I - U'MU)^-1 U'Z.
        rows = N.transpose(1, 0, 2).reshape(len(u), -1)
        Z, used = np.zeros_like(rows), rows.any(axis=0)
        Z[:, used] = self._times_m(rows[:, used])
        Z = Z.reshape(len(u), len(N), -1)
        along = (Z @ self._U[:, :, None])[:, :, 0]
        self.products = N.reshape(len(N), -1) @ Z.transpose(0, 2, 1).reshape(-1, len(N))
        self.products += along.T @ self._corrected(along)

    def solve(self, V: np.ndarray) -> np.ndarray:
        """Return ``H^-1 V``."""
        Z = self._times_m(V)
        along = self._corrected(np.vecdot(self._U, Z)[:, None])
        return np.asarray(Z + self._times_m(along * self._U))

    def _times_m(self, V: np.ndarray) -> np.ndarray:
        if self._S is None:
            return self._sigma[:, None] * V
        if self._U.shape[1] == 1:
            return np.asarray(dpotrs(self._factor, V)[0])
        return self._matrix @ V

    def _corrected(self, along: np.ndarray) -> np.ndarray:
        """Return ``(I - U'MU)^-1`` times an array with a row for each feature."""
        if self._inner.ndim == 1:
            return along / self._inner[:, None]
        return np.asarray(dpotrs(self._inner, along)[0])


def _with_diagonal(K: np.ndarray, added: np.ndarray | float) -> np.ndarray:
    """Add a value or a vector to the diagonal of K in place, and return K."""
    K.flat[:: len(K) + 1] += added
    return K


def _inverse(S: np.ndarray, stiff: np.ndarray) -> np.ndarray:
    """Return the inverse of ``diag(stiff) + S``, computed after scaling ``diag(stiff)`` to I."""
    root = 1 / np.sqrt(stiff)
    factor = _cholesky(_with_diagonal(root[:, None] * S * root, 1.0))
    half = dpotri(factor, overwrite_c=True)[0]
    half.T.flat[:: len(stiff) + 1] *= 0.5
    inverse = half + half.T
    inverse *= root[:, None]
    inverse *= root
    return np.asarray(inverse)


def _cholesky(K: np.ndarray) -> np.ndarray:
    """Return the upper Cholesky factor of a symmetric matrix, computed in place.

    LAPACK is called directly: for programs with few features SciPy's checks would take longer than
    the factorization.
    """
    factor, failed = dpotrf(K.T, overwrite_a=True)
    if failed:
        raise np.linalg.LinAlgError("not positive definite")
    return np.asarray(factor)
