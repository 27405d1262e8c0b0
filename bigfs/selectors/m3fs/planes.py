"""Planes of M3FS on one row block: decision values, clusters, sums; and where rows keep theirs.

With two clusters V has one column and a row's cluster is 1 where ``f >= 0``; with more it is the
column of the largest value. A plane names a rival for some rows: 0 for none, else the rival's
cluster plus 1 (with two clusters just 1). All of it is one formula: a row with cluster z and rival
r asks for ``f_z - f_r >= 1``, where with two clusters ``f_z - f_r`` is ``f`` or ``-f``.

What a start keeps for every row, its clusters and its planes, is one small integer per row (one
bit with two clusters), stored by blocks under the round that made it: a task that runs twice
writes the same values again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.blocks.kernels import tile_rows
from bigfs.store.location import Location, as_location, replaced_file
from bigfs.store.pages import open_own
from bigfs.store.scratch import ArrayRef


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
        return PlaneSums(*(mine + vars(other)[name] for name, mine in vars(self).items()))


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
        short = 1.0 - np.where(z == 1, F[:, 0], -F[:, 0])
        return (short > 0).astype(np.uint8), np.maximum(0.0, short)
    rows = np.arange(len(F))
    others = F.copy()
    others[rows, z] = -np.inf
    second = others.argmax(axis=1)
    short = 1.0 - (F[rows, z] - F[rows, second])
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
        rows = X[part].astype(np.float64, copy=False)
        # Of many planes few rows are of a cluster, or have it as a rival in any of them.
        for p in range(P):
            used = weights[:, p].any(axis=0)
            sums[p::P, :d] += weights[:, p, used] @ rows[used]
        if intercept:
            sums[:, d] += weights.reshape(J * P, -1).sum(axis=1)
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
    sizes = np.bincount(now, minlength=max(2, P))
    hinge, chosen = float(short.sum()), int(counts[0])
    pass_sums = PlaneSums(hinge, chosen, sums[0], changes, counts_changed, len(moved), sizes)
    return pass_sums, plane, now


@dataclass(frozen=True)
class Request:
    """The request of one start to a pass; small and picklable."""

    start: int  # number of the start
    plane: int  # number under which the new plane is stored
    round: int  # under which the clusters of V are stored
    # Round of the present clusters, which the plane is drawn for; 0: the start's labels.
    version: int
    # Draw it for the clusters of V instead, and sum what they change of the older planes.
    take_over: bool
    ids: tuple[int, ...]  # numbers of the older planes


@dataclass(frozen=True)
class StoredRows:
    """Clusters and planes of the rows of one block, in a folder that all processes reach."""

    folder: str
    first_row: int
    n_rows: int
    labels: ArrayRef  # of shape (n_samples, n_starts), uint8: the clusters of round 0
    bits: bool  # values are 0 and 1: eight of them in a byte

    def _path(self, start: int, kind: str, round_: int) -> Location:
        return as_location(self.folder) / f"{kind}-{start}-{round_}-{self.first_row}.npy"

    def _get(self, start: int, kind: str, round_: int) -> np.ndarray:
        with open_own(self._path(start, kind, round_)) as file:
            values = np.load(file, allow_pickle=False)
        return np.unpackbits(values, count=self.n_rows) if self.bits else values

    def _put(self, start: int, kind: str, round_: int, values: np.ndarray) -> None:
        with replaced_file(self._path(start, kind, round_), sync=False, own=True) as file:
            np.save(file, np.packbits(values) if self.bits else values)

    def advance(self, X: np.ndarray, V: np.ndarray, request: Request) -> PlaneSums:
        """Do one start's part of a pass on these rows, and store what it leaves behind."""
        start, older = request.start, []
        if request.take_over:
            older = [self._get(start, "plane", number) for number in request.ids]
        if request.round == 0:
            labels = self.labels.read(self.first_row, self.first_row + self.n_rows)
            self._put(start, "clusters", 0, labels[:, start])
        z = self._get(start, "clusters", request.version)
        sums, plane, now = block_step(X, V, z, older, request.take_over)
        self._put(start, "plane", request.plane, plane)
        if request.take_over:
            self._put(start, "clusters", request.round, now)
        return sums


def label_rows(blocks: RowBlocks, points: np.ndarray, out: ArrayRef) -> list[float]:
    """Write the cluster of every row under each V; return the sums of ``max(0, 1 - margin)``.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    points : ndarray of shape (n_points, D, P)
    out : ArrayRef of shape (n_samples, n_points), or (n_samples,) for one point
    """
    stored = blocks.scratch.put(blocks.scratch.unique("points"), points)
    hinges = blocks.reduce(_label_kernel, np.add, stored, out, label="m3fs labels")
    blocks.scratch.remove(stored)
    return [float(value) for value in hinges]


def _label_kernel(X: np.ndarray, first_row: int, points: ArrayRef, out: ArrayRef) -> np.ndarray:
    of_points = points.load()
    labels, hinges = np.empty((len(X), len(of_points)), out.dtype), np.empty(len(of_points))
    for i, V in enumerate(of_points):
        F = decisions(X, V)
        labels[:, i] = clusters_of(F)
        hinges[i] = rivals(F, labels[:, i])[1].sum()
    out.write(first_row, labels.reshape(len(X), *out.shape[1:]))
    return hinges
