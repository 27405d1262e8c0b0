"""M3FS as printed, dense: one slack per row, an n x n Laplacian, no planes. Slow and obvious."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


def laplacian(W: np.ndarray) -> np.ndarray:
    """Return ``I - D^-1/2 W D^-1/2``."""
    root = 1 / np.sqrt(W.sum(axis=1))
    return np.eye(len(W)) - root[:, None] * W * root


@dataclass(frozen=True)
class Dense:
    """Solution of problem (6) or (15) for fixed clusters."""

    V: np.ndarray
    b: np.ndarray
    sigma: np.ndarray
    objective: float


def solve_given_clusters(  # noqa: PLR0915 (one program, written down from top to bottom)
    X: np.ndarray,
    z: np.ndarray,
    L: np.ndarray,
    *,
    m: int,
    C: float,
    smoothness: float,
    balance: float,
    n_clusters: int,
) -> Dense:
    """Solve problem (6) (two clusters) or (15) with the rows' clusters held, by Clarabel.

    C and smoothness multiply means over the rows; an intercept for every column.
    """
    import clarabel
    from scipy import sparse

    n, d = X.shape
    P = 1 if n_clusters == 2 else n_clusters
    Z = np.column_stack([X, np.ones(n)])
    D = d + 1
    n_v = D * P
    size = n_v + 2 * d + n
    quadratic = np.zeros((size, size))
    form = 2 * smoothness * Z.T @ L @ Z / n
    for p in range(P):
        quadratic[p * D : (p + 1) * D, p * D : (p + 1) * D] = form
    q = np.concatenate([np.zeros(n_v), np.full(d, 0.5), np.zeros(d), np.full(n, C / n)])
    rows, right = [], []
    for i in range(n):
        for r in range(max(2, P)):
            if r == z[i]:
                continue
            row = np.zeros(size)
            if P == 1:
                row[:D] = Z[i] * (1 if z[i] == 1 else -1)
            else:
                row[z[i] * D : (z[i] + 1) * D] += Z[i]
                row[r * D : (r + 1) * D] -= Z[i]
            row[n_v + 2 * d + i] = 1
            rows.append(-row)
            right.append(-1.0)
        row = np.zeros(size)
        row[n_v + 2 * d + i] = -1
        rows.append(row)
        right.append(0.0)
    mean = Z.mean(axis=0)
    pairs = [(0, None)] if P == 1 else [(p, r) for p in range(P) for r in range(P) if p != r]
    for p, r in pairs:
        row = np.zeros(size)
        row[p * D : (p + 1) * D] = mean
        if r is not None:
            row[r * D : (r + 1) * D] -= mean
        rows += [row, -row]
        right += [balance, balance]
    for k in range(d):
        row = np.zeros(size)
        row[n_v + d + k] = 1
        rows.append(row)
        right.append(1.0)
    total = np.zeros(size)
    total[n_v + d : n_v + 2 * d] = 1
    cones, cone_rows = [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(len(rows))], []
    for k in range(d):
        block = np.zeros((P + 2, size))
        block[0, [n_v + k, n_v + d + k]] = -1
        block[1, n_v + k], block[1, n_v + d + k] = -1, 1
        for p in range(P):
            block[2 + p, p * D + k] = -2
        cone_rows.append(block)
        cones.append(clarabel.SecondOrderConeT(P + 2))
    A = sparse.csc_matrix(np.vstack([total, *rows, *cone_rows]))
    b = np.concatenate([[m], right, np.zeros(d * (P + 2))])
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    actual = clarabel.DefaultSolver(
        sparse.csc_matrix(np.triu(quadratic)), q, A, b, cones, settings
    ).solve()
    assert str(actual.status) == "Solved", actual.status
    x = np.asarray(actual.x)
    V = x[:n_v].reshape(P, D).T
    return Dense(V[:d], V[d], x[n_v + d : n_v + 2 * d], float(actual.obj_val))


def mean_loss(F: np.ndarray) -> float:
    """Return the mean of ``max(0, 1 - margin)`` for the clusters that F itself gives."""
    if F.shape[1] == 1:
        return float(np.maximum(0, 1 - np.abs(F[:, 0])).mean())
    ordered = np.sort(F, axis=1)
    return float(np.maximum(0, 1 - (ordered[:, -1] - ordered[:, -2])).mean())
