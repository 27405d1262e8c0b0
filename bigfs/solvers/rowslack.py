"""The program of M3FS for two clusters with a slack for every row: an interior-point method.

    min  1/2 sum_k v_k^2 / sigma_k + u' S u + C / n sum_i xi_i
    s.t. z_i (x_i'v + b) + xi_i >= 1,  xi >= 0,  sum sigma = m,  0 <= sigma <= 1,  |mean'u| <= l

with u = (v, b), or v alone. Its value is that of the program with all planes (2^n of them), so few
rows need no planes. As in `interior`, t and sigma are eliminated feature by feature; the rows are,
too, and a step costs the product of all rows by themselves, weighted, and one factor of D x D.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from bigfs.core.errors import ConvergenceError
from bigfs.solvers import secondorder as soc
from bigfs.solvers.msupport import half_squared_dual, half_squared_norm

_MAX_ITERATIONS = 80
_TO_BOUNDARY = 0.99
# Where all rows are of one cluster the least objective is zero: gap and residuals are relative to
# at least this share of what V = 0 costs.
_LEAST = 1e-6
_NOTHING = 1e-300


@dataclass(frozen=True)
class RowSolution:
    """A solution: V with its intercept, and what it costs."""

    V: np.ndarray  # of shape (D, 1), float64
    objective: float
    loss: float  # mean of xi
    gap: float  # relative distance between the objective and that of the multipliers
    n_iter: int


@dataclass(frozen=True)
class _SignedRows:
    """The data of the program: rows times their signs, those of the balance behind them."""

    A: np.ndarray  # of shape (R, D)
    g: np.ndarray  # of shape (R,)
    S: np.ndarray  # of shape (D, D), doubled
    n: int  # rows of data
    n_features: int
    C: float
    m: int


@dataclass(frozen=True)
class _RowPoint:
    """``pairs`` as in `interior`.

    ``bounded`` holds the rows' values w, xi of rows of data and 1 - sigma, and their multipliers.
    """

    pairs: np.ndarray
    bounded: np.ndarray
    b: np.ndarray  # the intercept, or nothing
    eta: float

    @property
    def u(self) -> np.ndarray:
        """V and the intercept, one below the other."""
        return np.concatenate([soc.split(self.pairs[0])[2][:, 0], self.b])

    @property
    def mu(self) -> float:
        """Mean product of what is complementary."""
        return _mean_product(self.pairs, self.bounded)


def _mean_product(pairs: np.ndarray, bounded: np.ndarray) -> float:
    total = float(np.vdot(pairs[0], pairs[1]) + np.vdot(bounded[0], bounded[1]))
    return total / (2 * pairs.shape[2] + bounded.shape[1])


@np.errstate(divide="ignore", invalid="ignore")  # as in `interior`
def solve_with_row_slacks(
    X: np.ndarray,
    z: np.ndarray,
    mean: np.ndarray,
    balance: float,
    smooth: np.ndarray | None,
    C: float,
    n_selected: int,
    *,
    tol: float = 1e-5,
) -> RowSolution:
    """Solve the program.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_features), float64
    z : ndarray of shape (n_rows,)
        Clusters, 0 and 1.
    mean : ndarray of shape (D,)
        Column means of X, and 1 where there is an intercept.
    balance : float
        l; infinity for none.
    smooth : ndarray of shape (D, D) or None
        S, positive semidefinite.
    C : float
    n_selected : int
        m, below the number of features.
    tol : float, default=1e-5
        Of the complementarity, relative to the objective, and of the residuals.

    Returns
    -------
    solution : RowSolution

    Raises
    ------
    ConvergenceError
        If the method stops before it.
    """
    problem = _problem_of(X, z, mean, balance, smooth, C, n_selected)
    point = _begin(problem)
    for n_iter in range(1, _MAX_ITERATIONS + 1):
        residuals, error = _row_residuals(problem, point)
        if error <= tol:
            solution = _solution(problem, point, n_iter)
            error = solution.gap
            if error <= 10 * tol:
                return solution
            break
        if not np.isfinite(error):
            break
        try:
            system = _RowSystem(problem, point, residuals)
        except np.linalg.LinAlgError:
            break
        mu = point.mu
        predicted = system.step(None, 0.0)
        a = min(1.0, system.longest(predicted))
        share = system.mu_after(predicted, a) / mu
        step = system.step(predicted, mu * min(1.0, share) ** 3)
        point = system.moved(step, min(1.0, _TO_BOUNDARY * system.longest(step)))
    raise ConvergenceError(
        f"The program of M3FS on {len(X):,} rows stopped at an error of {error:.1e} "
        f"(wanted {tol:g}). Scale the features, or lower C."
    )


def _problem_of(
    X: np.ndarray,
    z: np.ndarray,
    mean: np.ndarray,
    balance: float,
    smooth: np.ndarray | None,
    C: float,
    m: int,
) -> _SignedRows:
    (n, d), D = X.shape, len(mean)
    bounded = 2 * bool(np.isfinite(balance))
    A, g = np.ones((n + bounded, D)), np.ones(n + bounded)
    A[:n, :d] = X
    A[:n] *= np.where(z == 1, 1.0, -1.0)[:, None]
    if bounded:
        A[n], A[n + 1], g[n:] = mean, -mean, -balance
    S = np.zeros((D, D)) if smooth is None else 2 * smooth
    return _SignedRows(A, g, S, n, d, C / n, m)


def _begin(problem: _SignedRows) -> _RowPoint:
    """Begin at V = 0 with everything well inside."""
    n, d = problem.n, problem.n_features
    share, R = problem.m / d, len(problem.g)
    x = np.full(R, problem.C / 2)
    w = np.maximum(1.0, -problem.g)
    slope = float(np.abs((x @ problem.A)[:d]).max())
    # At V = 0 the objective is n C: the norm's share of a better one is not above it.
    level = max(min(slope**2, n * problem.C / problem.m), 1e-6)
    cone = soc.join(np.full(d, 2 * share * level), np.full(d, share), np.zeros((d, 1)))
    dual = soc.join_dual(np.full(d, 0.5), np.full(d, level), np.zeros((d, 1)))
    left = np.full(d, 1 - share)
    values = np.concatenate([w, np.ones(n), left])
    multipliers = np.concatenate([x, np.full(n, problem.C / 2), share * level / left])
    b = np.zeros(problem.A.shape[1] - d)
    return _RowPoint(np.stack([cone, dual]), np.stack([values, multipliers]), b, 0.0)


@dataclass(frozen=True)
class _RowResiduals:
    """Negative residuals of the optimality conditions."""

    u: np.ndarray
    sigma: np.ndarray
    w: np.ndarray
    y: np.ndarray
    m: float


def _row_residuals(problem: _SignedRows, point: _RowPoint) -> tuple[_RowResiduals, float]:
    """Return them, and the largest of them relative to the sizes of their terms."""
    R, n, d = len(problem.g), problem.n, problem.n_features
    t, sigma, _ = soc.split(point.pairs[0])
    _, s_sigma, s_v = soc.split_dual(point.pairs[1])
    (w, xi, _), (x, y, high) = (np.split(part, (R, R + n)) for part in point.bounded)
    u = point.u
    curved, pull = problem.S @ u, x @ problem.A
    r_u = pull - curved
    r_u[:d] += s_v[:, 0]
    r_w = problem.g + w - problem.A @ u
    r_w[:n] -= xi
    r_y = problem.C - x[:n] - y
    r_sigma = s_sigma - high + point.eta
    r_m = problem.m - float(sigma.sum())
    objective = 0.5 * float(t.sum()) + 0.5 * float(u @ curved) + problem.C * float(xi.sum())
    count, least = 2 * d + point.bounded.shape[1], _LEAST * n * problem.C
    error = max(
        point.mu * count / max(objective, least),
        _largest(r_u) / max(_largest(pull), least * _largest(problem.A), _NOTHING),
        _largest(r_w) / _largest(problem.g),
        _largest(r_y) / problem.C,
        _largest(r_sigma) / max(_largest(s_sigma), least / problem.m),
        abs(r_m) / problem.m,
    )
    return _RowResiduals(r_u, r_sigma, r_w, r_y, r_m), error


def _largest(values: np.ndarray) -> float:
    return float(np.abs(values).max())


def _solution(problem: _SignedRows, point: _RowPoint, n_iter: int) -> RowSolution:
    """Return V, with the least objective that weights and slacks can make of it."""
    u, n, d = point.u, problem.n, problem.n_features
    loss = float(np.maximum(0.0, 1.0 - problem.A[:n] @ u).mean())
    objective = half_squared_norm(np.abs(u[:d]), problem.m) + 0.5 * float(u @ problem.S @ u)
    objective += n * problem.C * loss
    # Residuals are relative to the largest column: the multipliers' own bound counts for all.
    x, curved = point.bounded[1, : len(problem.g)], problem.S @ u
    slopes = np.abs((x @ problem.A - curved)[:d])
    lower = float(x @ problem.g) - 0.5 * float(u @ curved) - half_squared_dual(slopes, problem.m)
    gap = max(0.0, objective - lower) / max(objective, _LEAST * n * problem.C)
    return RowSolution(u[:, None], objective, loss, gap, n_iter)


@dataclass(frozen=True)
class _RowStep:
    """A change of a point; that of the cones' pairs is scaled."""

    cone: np.ndarray
    scaled: np.ndarray
    bounded: np.ndarray
    b: np.ndarray
    eta: float


class _RowSystem:
    """The linear system of a step at one point, factorized."""

    def __init__(self, problem: _SignedRows, point: _RowPoint, residuals: _RowResiduals) -> None:
        self._problem, self._point, self._residuals = problem, point, residuals
        R, n, d = len(problem.g), problem.n, problem.n_features
        self._scaling = soc.Scaling(point.pairs)
        eta2, q_t, q_s, q_v = self._scaling.rotated()
        v = q_v[:, 0]
        # The rows of t of every cone's matrix, and what eliminating t leaves for sigma and v.
        self._h_tt, self._h_ts = 2 * q_t**2 / eta2, (2 * q_t * q_s - 1) / eta2
        self._h_tv = 2 * q_t * v / eta2
        values, multipliers = point.bounded
        left, high = point.bounded[:, R + n :]
        self._a = (4 * q_t * q_s - 1) / (2 * q_t**2 * eta2) + high / left
        self._b = v / (q_t * eta2)
        # Of a row: the change of its multiplier by that of its value, its slack eliminated.
        compliance = values[:R] / multipliers[:R]
        compliance[:n] += values[R : R + n] / multipliers[R : R + n]
        self._stiff = 1.0 / compliance
        K = problem.S + (problem.A.T * self._stiff) @ problem.A
        K.flat[: d * len(K) : len(K) + 1] += 2 / eta2 - self._b**2 / self._a
        K.flat[d * (len(K) + 1) :] += 1e-13 * n * problem.C  # of the intercept
        self._factor = cho_factor(K, check_finite=False)
        self._along = np.zeros(len(K))
        self._along[:d] = -self._b / self._a
        self._by_eta = cho_solve(self._factor, self._along, check_finite=False)
        self._of_eta = float((1 / self._a).sum() + self._along @ self._by_eta)

    def step(self, predicted: _RowStep | None, target: float) -> _RowStep:
        """Return the step that leaves no residuals and products of ``target``."""
        problem, residuals = self._problem, self._residuals
        R, n, d = len(problem.g), problem.n, problem.n_features
        values, multipliers = self._point.bounded
        left = target - values * multipliers
        # Changes of the cones' pairs, scaled, add up to aim: ds = push - H dx.
        aim, push = -self._scaling.middle, -self._point.pairs[1]
        if predicted is not None:
            left -= predicted.bounded[0] * predicted.bounded[1]
            aim = self._scaling.push(predicted.scaled, target)
            push = self._scaling.half(aim)
        p_t, p_s, p_v = soc.split_dual(push)
        t_left = p_t / self._h_tt
        right = residuals.u.copy()
        right_s = residuals.sigma + p_s - self._h_ts * t_left - left[R + n :] / values[R + n :]
        right[:d] += p_v[:, 0] - self._h_tv * t_left - self._b / self._a * right_s
        short = residuals.w + left[:R] / multipliers[:R]
        slacks = slice(R, R + n)
        short[:n] -= (left[slacks] - values[slacks] * residuals.y) / multipliers[slacks]
        right += (self._stiff * short) @ problem.A
        du = cho_solve(self._factor, right, check_finite=False)
        wanted = residuals.m - float((right_s / self._a).sum()) - float(self._along @ du)
        d_eta = wanted / self._of_eta
        du += d_eta * self._by_eta
        d_sigma = (right_s + d_eta - self._b * du[:d]) / self._a
        dt = p_t - self._h_ts * d_sigma - self._h_tv * du[:d]
        d_cone = soc.join(dt / self._h_tt, d_sigma, du[:d, None])
        first = self._scaling.half(d_cone)
        bounded = np.empty_like(self._point.bounded)
        bounded[1, :R] = self._stiff * (short - problem.A @ du)
        bounded[0, :R] = (left[:R] - values[:R] * bounded[1, :R]) / multipliers[:R]
        bounded[1, slacks] = residuals.y - bounded[1, :n]
        bounded[0, slacks] = (left[slacks] - values[slacks] * bounded[1, slacks]) / multipliers[
            slacks
        ]
        bounded[0, R + n :] = -d_sigma
        bounded[1, R + n :] = (left[R + n :] + multipliers[R + n :] * d_sigma) / values[R + n :]
        return _RowStep(d_cone, np.stack([first, aim - first]), bounded, du[d:], d_eta)

    def longest(self, step: _RowStep) -> float:
        """Return how far the step may go before a pair leaves its cone, at most 1 / 0.99."""
        worst = float((step.bounded / self._point.bounded).min())
        to_bound = -1.0 / worst if worst < 0 else np.inf
        return min(1.0 / _TO_BOUNDARY, to_bound, self._scaling.longest(step.scaled))

    def mu_after(self, step: _RowStep, a: float) -> float:
        """Return what a share of the step makes of mu."""
        pairs = self._scaling.middle + a * step.scaled
        return _mean_product(pairs, self._point.bounded + a * step.bounded)

    def moved(self, step: _RowStep, a: float) -> _RowPoint:
        """Return the point a share of the step away."""
        point, change = self._point, np.stack([step.cone, self._scaling.half(step.scaled[1])])
        return replace(
            point,
            pairs=point.pairs + a * change,
            bounded=point.bounded + a * step.bounded,
            b=point.b + a * step.b,
            eta=point.eta + a * step.eta,
        )
