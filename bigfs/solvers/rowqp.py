"""The cone program where every feature has weight 1 and nothing is smooth: its dual is small.

    min  1/2 |V|^2 + C xi   s.t.  <A_r, V> + F_r f + e_r xi >= g_r,  xi >= 0

has the solution ``V = sum_r x_r A_r``. The multipliers x of the rows solve a quadratic program of
the products ``<A_r, A_s>``, which are made once: a step costs a factorization of as many unknowns
as there are rows.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg.lapack import dgetrf, dgetrs

_MAX_ITERATIONS = 60
_TO_BOUNDARY = 0.99


def row_multipliers(
    products: np.ndarray,
    free: np.ndarray,
    bounds: np.ndarray,
    n_planes: int,
    C: float,
    *,
    tol: float = 1e-6,
) -> tuple[np.ndarray, np.ndarray, int, float]:
    """Solve the program by a primal-dual interior-point method (Mehrotra).

    Parameters
    ----------
    products : ndarray of shape (n_rows, n_rows), float64
        ``<A_r, A_s>``.
    free : ndarray of shape (n_rows, n_free), float64
        The F_r.
    bounds : ndarray of shape (n_rows,), float64
        The g_r.
    n_planes : int
        Rows, the first ones, in which e_r is 1.
    C : float
    tol : float, default=1e-6
        Of the complementarity, relative to the objective, and of the residuals.

    Returns
    -------
    x : ndarray of shape (n_rows,), float64
        Not negative; the best point met, whether or not it reached the tolerance.
    f : ndarray of shape (n_free,), float64
    n_iter : int
    residual : float
        Largest relative violation of the optimality conditions there.
    """
    R, n_free = free.shape
    e = np.zeros(R)
    e[:n_planes] = 1.0
    # The unknowns x, f, xi; w and y are what x and xi are complementary to.
    x, f, y = np.full(R, C / (R + 1)), np.zeros(n_free), C / (R + 1)
    xi = float(max(1.0, np.abs(bounds).max()))
    w = np.maximum(1.0, products @ x + e * xi - bounds)
    best, best_error, n_iter = (x, f), np.inf, 0
    size, lever = 1e-12 + float(np.abs(bounds).max()), 1e-12 + float(np.abs(free).max(initial=0))
    matrix = np.zeros((R + n_free + 1, R + n_free + 1))
    matrix[:R, :R], matrix[:R, R:-1], matrix[R:-1, :R] = products, free, free.T
    matrix[:R, -1], matrix[-1, :R] = e, -e
    while n_iter < _MAX_ITERATIONS:
        n_iter += 1
        gathered = products @ x
        r_w = bounds + w - gathered - free @ f - e * xi
        r_f, r_xi = -free.T @ x, y + float(e @ x) - C
        mu = (float(w @ x) + xi * y) / (R + 1)
        error = max(
            mu * (R + 1) / (1e-12 + abs(0.5 * float(x @ gathered) + C * xi)),
            float(np.abs(r_w).max()) / size,
            float(np.abs(r_f).max(initial=0.0)) / (C * lever),
            abs(r_xi) / C,
        )
        if not np.isfinite(error):
            break
        if error < best_error:
            best, best_error = (x, f), error
        if error <= tol:
            break
        system = matrix.copy()
        system.flat[: R * (len(system) + 1) : len(system) + 1] += w / x
        system[-1, -1] = y / xi
        tail = np.arange(R, R + n_free)
        system[tail, tail] = -1e-13 * C
        factor = dgetrf(system, overwrite_a=True)[:2]
        wx, xy = -w * x, -xi * y
        for predicted in (True, False):
            right = np.concatenate([r_w + wx / x, r_f, [r_xi + xy / xi]])
            solution = dgetrs(*factor, right)[0]
            dx, df, d_xi = solution[:R], solution[R:-1], float(solution[-1])
            dw, dy = (wx - w * dx) / x, (xy - y * d_xi) / xi
            point = np.concatenate([x, w, [xi, y]])
            step = np.concatenate([dx, dw, [d_xi, dy]])
            falling = step < 0
            longest = float((point[falling] / -step[falling]).min(initial=1 / _TO_BOUNDARY))
            if predicted:
                a = min(1.0, longest)
                reached = float((x + a * dx) @ (w + a * dw) + (xi + a * d_xi) * (y + a * dy))
                target = mu * min(1.0, reached / (R + 1) / mu) ** 3
                wx, xy = target - w * x - dw * dx, target - xi * y - d_xi * dy
        a = min(1.0, _TO_BOUNDARY * longest)
        x, w, f = x + a * dx, w + a * dw, f + a * df
        xi, y = xi + a * d_xi, y + a * dy
    return (*best, n_iter, best_error)
