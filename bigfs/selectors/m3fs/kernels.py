"""Kernels of M3FS on one row block: decision values, clusters, planes and their sums.

With two clusters V has one column and a row's cluster is 1 where ``f >= 0``; with more it is the
column of the largest value. A plane names a rival for some rows: 0 for none, else the rival's
cluster plus 1 (with two clusters just 1). All of it is one formula: a row with cluster z and rival
r asks for ``f_z - f_r >= 1``, where with two clusters ``f_z - f_r`` is ``f`` or ``-f``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bigfs.blocks.kernels import tile_rows

# From so many planes on, the sums of several clusters are made cluster by cluster.
_MANY_PLANES = 8


@dataclass
class PlaneSums:
    """Sums of one pass over the rows for one start; two of them add up."""

    hinge: float  # sum of ``max(0, 1 - margin)`` over the rows: the loss of the most violated plane
    chosen: int  # rows that the new plane names a rival for
    gradient: np.ndarray  # of shape (D, P), float64: sums of the new plane
    # Of shape (n_planes, D, P), float64: what new clusters change of the sums of older planes;
    # empty unless asked for.
    gradients: np.ndarray
    counts: np.ndarray  # of shape (n_planes,), int64: and of the rows that they ask something of
    changed: int  # rows whose cluster under V is not the stored one
    sizes: np.ndarray  # of shape (n_clusters,), int64: rows of each cluster under V

    def __add__(self, other: PlaneSums) -> PlaneSums:
        """Add the sums of two sets of rows."""
        return PlaneSums(
            self.hinge + other.hinge,
            self.chosen + other.chosen,
            self.gradient + other.gradient,
            self.gradients + other.gradients,
            self.counts + other.counts,
            self.changed + other.changed,
            self.sizes + other.sizes,
        )


def decisions(X: np.ndarray, V: np.ndarray) -> np.ndarray:
    """Return ``[X 1] V`` in float64; V has a row more than X has columns if it has intercepts."""
    d = X.shape[1]
    F = np.empty((len(X), V.shape[1]))
    step = tile_rows(d)
    for begin in range(0, len(X), step):
        F[begin : begin + step] = X[begin : begin + step].astype(np.float64, copy=False) @ V[:d]
    if len(V) > d:
        F += V[d]
    return F


def clusters_of(F: np.ndarray) -> np.ndarray:
    """Return the cluster of every row: the sign's, or the largest value's."""
    if F.shape[1] == 1:
        return (F[:, 0] >= 0).astype(np.uint8)
    return F.argmax(axis=1).astype(np.uint8)


def rivals(F: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the most violated plane for clusters z, and what every row is short of a margin."""
    if F.shape[1] == 1:
        margins = np.where(z == 1, F[:, 0], -F[:, 0])
        short = 1.0 - margins
        return (short > 0).astype(np.uint8), np.maximum(0.0, short)
    rows = np.arange(len(F))
    own = F[rows, z]
    others = F.copy()
    others[rows, z] = -np.inf
    second = others.argmax(axis=1)
    short = 1.0 - (own - others[rows, second])
    return np.where(short > 0, second + 1, 0).astype(np.uint8), np.maximum(0.0, short)


def plane_weights(plane: np.ndarray, z: np.ndarray, P: int) -> tuple[np.ndarray, int]:
    """Return the weight of every row in a plane's sums, (P, n_rows), and the rows it counts."""
    named = plane > 0
    if P == 1:
        signs = np.where(z == 1, 1.0, -1.0)
        return (named * signs)[None, :], int(named.sum())
    # A row whose rival has become its own cluster asks nothing.
    named &= plane != z + 1
    clusters = np.arange(P)[:, None]
    weights = (z == clusters).astype(np.float64) - (plane == clusters + 1)
    return weights * named, int(named.sum())


def plane_sums(
    X: np.ndarray, planes: list[np.ndarray], z: np.ndarray, P: int, intercept: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums of planes for clusters z, (n_planes, D, P) in float64, and rows counted."""
    d, J = X.shape[1], len(planes)
    sums, counts = np.zeros((J * P, d + intercept)), np.zeros(J, dtype=np.int64)
    step = tile_rows(max(d, J * P))
    for begin in range(0, len(X) if J else 0, step):
        part = slice(begin, begin + step)
        weights = np.empty((J, P, len(X[part])))
        for j, plane in enumerate(planes):
            weights[j], named = plane_weights(plane[part], z[part], P)
            counts[j] += named
        flat, rows = weights.reshape(J * P, -1), X[part].astype(np.float64, copy=False)
        if J < _MANY_PLANES or P == 1:
            sums[:, :d] += flat @ rows
        else:
            # Few rows are of a cluster, or have it as a rival in any of the planes.
            for p in range(P):
                used = weights[:, p].any(axis=0)
                sums[p::P, :d] += weights[:, p, used] @ rows[used]
        if intercept:
            sums[:, d] += flat.sum(axis=1)
    return np.ascontiguousarray(sums.reshape(J, P, d + intercept).transpose(0, 2, 1)), counts


def block_step(
    X: np.ndarray, V: np.ndarray, z: np.ndarray, older: list[np.ndarray], take_over: bool
) -> tuple[PlaneSums, np.ndarray, np.ndarray]:
    """Do one start's part of a pass on one block.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_features)
    V : ndarray of shape (D, P)
    z : ndarray of shape (n_rows,), uint8
        The present clusters.
    older : list of ndarray of shape (n_rows,)
        Planes of which is wanted what the clusters of V change.
    take_over : bool
        Draw the plane for the clusters of V, not for the present ones.

    Returns
    -------
    sums : PlaneSums
    plane : ndarray of shape (n_rows,), uint8
        The most violated plane.
    now : ndarray of shape (n_rows,), uint8
        The clusters of V.
    """
    intercept, P = len(V) > X.shape[1], V.shape[1]
    F = decisions(X, V)
    now = clusters_of(F)
    moved = np.flatnonzero(now != z)
    plane, short = rivals(F, now if take_over else z)
    sums, counts = plane_sums(X, [plane], now if take_over else z, P, intercept)
    changes, counts_changed = np.zeros((len(older), *V.shape)), np.zeros(len(older), np.int64)
    # Few clusters change: the other rows ask the same of the older planes.
    step = tile_rows(X.shape[1])
    for begin in range(0, len(moved) if older else 0, step):
        part = moved[begin : begin + step]
        there, planes = X[part], [older_plane[part] for older_plane in older]
        for clusters, sign in ((now, 1), (z, -1)):
            gathered, asked = plane_sums(there, planes, clusters[part], P, intercept)
            changes += sign * gathered
            counts_changed += sign * asked
    pass_sums = PlaneSums(
        float(short.sum()),
        int(counts[0]),
        sums[0],
        changes,
        counts_changed,
        len(moved),
        np.bincount(now, minlength=max(2, P)),
    )
    return pass_sums, plane, now
