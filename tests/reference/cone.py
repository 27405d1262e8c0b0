"""The cone program of M3FS by Clarabel, a general solver for cone programs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bigfs.solvers.cone import ConeProgram


@dataclass(frozen=True)
class Reference:
    """Clarabel's result; ``objective`` is the program's at V, with the least slack."""

    solved: bool  # or the best that it came to

    V: np.ndarray
    sigma: np.ndarray
    objective: float


def violation(program: ConeProgram, V: np.ndarray) -> float:
    """Return by how much V violates the balance; a slack makes up for every plane."""
    if not np.isfinite(program.balance):
        return 0.0
    means = program.mean @ V
    spread = abs(means[0]) if len(means) == 1 else np.ptp(means)
    return max(0.0, float(spread) - program.balance)


def objective(program: ConeProgram, V: np.ndarray, sigma: np.ndarray) -> float:
    """Return the objective as it is written, with the least slack for V."""
    squares = np.square(V[: program.n_features]).sum(axis=1)
    used = squares > 0
    short = program.bounds - np.einsum("jdp,dp->j", program.planes, V)
    value = 0.5 * (squares[used] / sigma[used]).sum() + program.C * max(0.0, short.max())
    if program.smooth is not None:
        value += np.einsum("dp,de,ep->", V, program.smooth, V)
    return float(value)


def solve_by_clarabel(program: ConeProgram) -> Reference:
    """Solve the program; the unknowns are V by columns, t, sigma, xi and f."""
    import clarabel
    from scipy import sparse

    d, rows = program.n_features, program.rows
    R, D, P = rows.A.shape
    n_v, n_free = D * P, rows.free.shape[1]
    at_t, at_sigma, at_xi = n_v, n_v + d, n_v + 2 * d
    n = at_xi + 1 + n_free
    q = np.zeros(n)
    q[at_t:at_sigma], q[at_xi] = 0.5, program.C
    quadratic = sparse.csc_matrix((n, n))
    if program.smooth is not None:
        block = sparse.kron(sparse.eye(P), sparse.csc_matrix(2 * program.smooth))
        rest = sparse.csc_matrix((n - n_v, n - n_v))
        quadratic = sparse.triu(sparse.block_diag([block, rest]), format="csc")
    ones, k = np.ones(d), np.arange(d)
    total = sparse.csc_matrix((ones, (np.zeros(d, int), at_sigma + k)), shape=(1, n))
    linear = np.zeros((R + 1, n))
    linear[:R, :n_v] = -rows.A.transpose(0, 2, 1).reshape(R, -1)
    linear[: rows.n_planes, at_xi] = linear[R, at_xi] = -1
    linear[:R, at_xi + 1 :] = -rows.free
    upper = sparse.csc_matrix((ones, (k, at_sigma + k)), shape=(d, n))
    # |(2 v_k, t_k - sigma_k)| <= t_k + sigma_k
    first, t, sigma = k * (P + 2), at_t + k, at_sigma + k
    heads, tails = [first, first, first + 1, first + 1], [t, sigma, t, sigma]
    values = [-ones, -ones, -ones, ones]
    for p in range(P):
        heads.append(first + 2 + p)
        tails.append(p * D + k)
        values.append(-2 * ones)
    entries = (np.concatenate(values), (np.concatenate(heads), np.concatenate(tails)))
    cones = sparse.csc_matrix(entries, shape=(d * (P + 2), n))
    matrix = sparse.vstack([total, sparse.csc_matrix(linear), upper, cones], format="csc")
    right = np.concatenate(
        [[program.n_selected], -rows.bounds, [0.0], ones, np.zeros(cones.shape[0])]
    )
    kinds = [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(R + 1 + d)]
    kinds += [clarabel.SecondOrderConeT(P + 2)] * d
    settings = clarabel.DefaultSettings()
    settings.verbose, settings.max_threads = False, 1
    settings.tol_gap_rel = settings.tol_gap_abs = settings.tol_feas = 1e-8
    solution = clarabel.DefaultSolver(quadratic, q, matrix, right, kinds, settings).solve()
    x = np.asarray(solution.x)
    V, sigma = x[:n_v].reshape(P, D).T, np.maximum(x[at_sigma:at_xi], 1e-300)
    solved = str(solution.status) in ("Solved", "AlmostSolved")
    return Reference(solved, V, sigma, program.certify(V, np.zeros(R))[0])
