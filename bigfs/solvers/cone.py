"""The cone program of maximum margin feature selection; its size does not depend on n.

    min  1/2 sum_k |v_k|^2 / sigma_k + C xi + sum_p v_p' S v_p
    s.t. <A_j, V> + xi >= g_j for every plane j,  xi >= 0,
         sum sigma = m,  0 <= sigma <= 1,  the balance of the clusters,

with V of shape (D, P), a column for each cluster (one for two clusters) and v_k its rows. Where D
is n_features + 1 the last row is the intercept, which sigma does not touch.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigfs.core.errors import ConvergenceError, InputError
from bigfs.solvers.msupport import (
    ConeSolution,
    Constraints,
    half_squared_norm,
    solve_active,
    weights_of,
)

logger = logging.getLogger("bigfs")

# Up to so many unknowns in V, Clarabel is the faster one.
_CLARABEL_UNKNOWNS = 64
# Up to so many, most of a step of ours is Python's, whose lock only one thread of a process has:
# several that solve programs take longer than one after another.
_INTERPRETED_UNKNOWNS = 2_048


@dataclass(frozen=True)
class ConeProgram:
    """The program, in sizes that do not depend on the number of rows."""

    planes: np.ndarray  # of shape (n_planes, D, P), float64: the A_j
    bounds: np.ndarray  # of shape (n_planes,), float64: the g_j
    mean: np.ndarray  # of shape (D,), float64: column means of X (and 1 for the intercept)
    # Largest ``|mean' v|`` (two clusters), or difference between two columns' ``mean' v_p``;
    # infinity for none.
    balance: float
    # Of shape (D, D), float64, or None: S, positive semidefinite: smoothness times the mean
    # quadratic form of the graph.
    smooth: np.ndarray | None
    C: float
    n_selected: int  # m
    n_features: int

    def objective(self, V: np.ndarray) -> float:
        """Return the least objective with V, over sigma and xi."""
        norms = np.linalg.norm(V[: self.n_features], axis=1)
        slack = max(0.0, float((self.bounds - np.einsum("jdp,dp->j", self.planes, V)).max()))
        value = half_squared_norm(norms, self.n_selected) + self.C * slack
        if self.smooth is not None:
            value += float(np.einsum("dp,de,ep->", V, self.smooth, V))
        return value

    def constraints(self) -> Constraints:
        """Return planes and balance as rows ``<A, V> + F f + e xi >= g``, f free."""
        n_planes, D, P = self.planes.shape
        if not np.isfinite(self.balance):
            return Constraints(self.planes, np.zeros((n_planes, 0)), self.bounds, n_planes)
        if P == 1:
            rows = np.stack([self.mean[:, None], -self.mean[:, None]])
            free, limits = np.zeros((n_planes + 2, 0)), np.full(2, -self.balance)
        else:
            # f <= mean'v_p <= f + balance for every p is the bound on all pairs.
            up = self.mean[None, :, None] * np.eye(P)[:, None, :]
            rows = np.concatenate([up, -up])
            free = np.concatenate([np.zeros(n_planes), -np.ones(P), np.ones(P)])[:, None]
            limits = np.concatenate([np.zeros(P), np.full(P, -self.balance)])
        return Constraints(
            np.concatenate([self.planes, rows]),
            free,
            np.concatenate([self.bounds, limits]),
            n_planes,
        )


def programs_at_once(n_unknowns: int) -> int | None:
    """Return how many programs of so many unknowns a process is to solve at a time; None: any."""
    return 1 if _CLARABEL_UNKNOWNS < n_unknowns <= _INTERPRETED_UNKNOWNS else None


def solve_cone(
    program: ConeProgram,
    *,
    solver: str = "auto",
    start: np.ndarray | None = None,
    tol: float = 1e-5,
) -> ConeSolution:
    """Solve the program.

    Parameters
    ----------
    program : ConeProgram
    solver : {"auto", "clarabel", "active"}, default="auto"
        A general solver for cone programs; or ours, which works on the features that matter and
        uses the structure of the rest. auto: by size; if ours fails, which is logged, the other.
    start : ndarray of shape (n_features,) or None, default=None
        Slopes of a solution nearby (a warm start of ours).
    tol : float, default=1e-5
        Relative gap between the objective and a lower bound.

    Returns
    -------
    solution : ConeSolution

    Raises
    ------
    ConvergenceError
        If the solver stops without a solution.
    """
    if solver not in ("auto", "clarabel", "active"):
        raise InputError(f"solver must be auto, clarabel or active. Got {solver!r}.")
    _, D, P = program.planes.shape
    if solver == "clarabel" or (solver == "auto" and D * P <= _CLARABEL_UNKNOWNS):
        return _solve_clarabel(program, tol)
    try:
        return solve_active(
            program.constraints(),
            program.smooth,
            program.C,
            program.n_selected,
            program.n_features,
            start=start,
            tol=tol,
        )
    except ConvergenceError as error:
        if solver == "active":
            raise
        logger.warning("%s Clarabel is used instead.", error)
        return _solve_clarabel(program, tol)


def _solve_clarabel(program: ConeProgram, tol: float) -> ConeSolution:
    """Solve with Clarabel; the unknowns are V by columns, t, sigma, xi and f."""
    import clarabel
    from scipy import sparse

    d = program.n_features
    rows = program.constraints()
    _, D, P = program.planes.shape
    n_v, n_free = D * P, rows.free.shape[1]
    at_t, at_sigma, at_xi = n_v, n_v + d, n_v + 2 * d
    n = at_xi + 1 + n_free
    q = np.zeros(n)
    q[at_t:at_sigma] = 0.5
    q[at_xi] = program.C
    quadratic = sparse.csc_matrix((n, n))
    if program.smooth is not None:
        block = sparse.kron(sparse.eye(P), sparse.csc_matrix(2 * program.smooth))
        rest = sparse.csc_matrix((n - n_v, n - n_v))
        quadratic = sparse.triu(sparse.block_diag([block, rest]), format="csc")
    A, b, n_linear = _linear_rows(program, rows, n)
    cones, cone_rows = _second_order(d, D, P, n)
    matrix = sparse.vstack([A, cone_rows], format="csc")
    right = np.concatenate([b, np.zeros(cone_rows.shape[0])])
    kinds = [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(n_linear)]
    kinds += [clarabel.SecondOrderConeT(P + 2)] * cones
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_threads = 1
    settings.tol_gap_rel = settings.tol_gap_abs = settings.tol_feas = min(1e-8, tol)
    solution = clarabel.DefaultSolver(quadratic, q, matrix, right, kinds, settings).solve()
    if str(solution.status) not in ("Solved", "AlmostSolved"):
        raise ConvergenceError(
            f"The cone program of M3FS was not solved ({solution.status}): {d} features, "
            f"{len(program.bounds)} planes, C = {program.C:g}. Scale the features, or lower C."
        )
    x = np.asarray(solution.x)
    V = np.ascontiguousarray(x[:n_v].reshape(P, D).T)
    objective = program.objective(V)
    sigma = weights_of(np.linalg.norm(V[:d], axis=1), program.n_selected)
    slack = max(0.0, float((program.bounds - np.einsum("jdp,dp->j", program.planes, V)).max()))
    multipliers = np.asarray(solution.z)[1 : 1 + len(program.bounds)]
    gap = abs(objective - float(solution.obj_val)) / max(1e-12, abs(objective))
    slopes = (sigma > 1e-6).astype(np.float64)
    return ConeSolution(
        V, sigma, slack, objective, gap, multipliers, int(solution.iterations), "clarabel", slopes
    )


def _linear_rows(program: ConeProgram, rows: Constraints, n: int) -> tuple[Any, np.ndarray, int]:
    """Return the rows of ``sum sigma = m`` and of all inequalities, for ``A x + s = b``."""
    from scipy import sparse

    d = program.n_features
    R, D, P = rows.A.shape
    at_sigma, at_xi = D * P + d, D * P + 2 * d
    total = sparse.csc_matrix(
        (np.ones(d), (np.zeros(d, int), np.arange(at_sigma, at_xi))), shape=(1, n)
    )
    dense = np.zeros((R + 1, n))
    dense[:R, : D * P] = -rows.A.transpose(0, 2, 1).reshape(R, -1)
    dense[: rows.n_planes, at_xi] = -1
    dense[:R, at_xi + 1 :] = -rows.free
    dense[R, at_xi] = -1
    upper = sparse.csc_matrix(
        (np.ones(d), (np.arange(d), np.arange(at_sigma, at_xi))), shape=(d, n)
    )
    A = sparse.vstack([total, sparse.csc_matrix(dense), upper])
    b = np.concatenate([[program.n_selected], -rows.bounds, [0.0], np.ones(d)])
    return A, b, R + 1 + d


def _second_order(d: int, D: int, P: int, n: int) -> tuple[int, Any]:
    """Return the rows of ``|(2 v_k, t_k - sigma_k)| <= t_k + sigma_k`` for every feature."""
    from scipy import sparse

    k = np.arange(d)
    first = k * (P + 2)
    t, sigma = D * P + k, D * P + d + k
    heads = [first, first, first + 1, first + 1]
    tails = [t, sigma, t, sigma]
    values = [-np.ones(d), -np.ones(d), -np.ones(d), np.ones(d)]
    for p in range(P):
        heads.append(first + 2 + p)
        tails.append(p * D + k)
        values.append(np.full(d, -2.0))
    entries = (np.concatenate(values), (np.concatenate(heads), np.concatenate(tails)))
    return d, sparse.csc_matrix(entries, shape=(d * (P + 2), n))
