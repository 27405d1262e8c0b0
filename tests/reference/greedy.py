"""Greedy selection of columns, by projecting the data anew for every candidate of every pick."""

from __future__ import annotations

import numpy as np


def _left(X: np.ndarray, Y: np.ndarray, picks: list[int]) -> float:
    """Return ``|Y - P Y|_F^2`` with P the projection on some columns of X."""
    Q = np.linalg.svd(X[:, picks], full_matrices=False)[0]
    E = Y - Q @ (Q.T @ Y)
    return float(np.linalg.norm(E - Q @ (Q.T @ E)) ** 2)


def forward_selection(X: np.ndarray, Y: np.ndarray, m: int) -> tuple[list[int], np.ndarray]:
    """Add the column of X that explains most of Y, m times; ties go to the lower index.

    With Y = X this is column subset selection (Farahat, Ghodsi, Kamel 2011). Columns that the
    picks explain are not tried.
    """
    picks: list[int] = []
    left = [float(np.linalg.norm(Y) ** 2)]
    for _ in range(m):
        gains = np.full(X.shape[1], -np.inf)
        for j in range(X.shape[1]):
            if np.linalg.matrix_rank(X[:, [*picks, j]], tol=1e-9) == len(picks) + 1:
                gains[j] = left[-1] - _left(X, Y, [*picks, j])
        if not np.isfinite(gains).any():
            break
        picks.append(int(np.flatnonzero(gains >= (1 - 1e-9) * gains.max())[0]))
        left.append(_left(X, Y, picks))
    return picks, -np.diff(left)
