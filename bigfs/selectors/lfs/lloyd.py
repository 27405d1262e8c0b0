"""Lloyd's iteration of many clusterings that begin at the same centers, on rows in memory.

The clusterings of a backward search differ in a feature or two: most rows have the label that they
have in all of the features, for which a bound is enough, and centers move so little afterwards that
most rows need no new distance (the bounds of Hamerly, 2010), or few (those of Elkan, 2003).
Compiled by numba: candidates are too small for NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from bigfs.core.compiling import compiled

# Centers are as near as each other where distances differ by less than this share of the centers'
# extent: rounding does not choose between them, their order does.
TIE = 1e-11
# A squared distance that is less than this share of that in all features is computed anew, not
# by taking away; and the share of it that rounding may have changed.
_LOST, _ROUNDED = 1e-4, 1e-12


def lloyd(
    rows: np.ndarray,
    centers: np.ndarray,
    masks: np.ndarray,
    codes: np.ndarray,
    n_codes: int,
    max_iter: int,
    tol: float,
    with_squares: bool = False,
) -> tuple[np.ndarray, ...]:
    """Run Lloyd's iteration in the features of every mask.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features), float64
    centers : ndarray of shape (n_clusters, n_features), float64
        Where all begin. An empty cluster keeps its center.
    masks : ndarray of shape (n_clusterings, n_features), bool
    codes : ndarray of shape (n_rows,), int
        In [0, n_codes); labels are counted against them.
    n_codes, max_iter : int
    tol : float
        Stop when the centers move by less than this share of their length.
    with_squares : bool, default=False

    Returns
    -------
    centers : ndarray of shape (n_clusterings, n_clusters, n_features), float64
        Where they ended, in the features of any mask; else where they began.
    labels : ndarray of shape (n_clusterings, n_rows), int16
        The nearest of those centers; the first of those that are as near.
    counts, sums, squares : ndarray of shape (n_clusterings, n_clusters), (..., n_features) twice
        Of the labels' rows, which are added in their order: equal labels, equal bits. Squares are
        empty unless asked for.
    joint : ndarray of shape (n_clusterings, n_codes, n_clusters), float64
    """
    k, size, union = len(centers), len(masks), masks.any(axis=0)
    ends = np.tile(centers, (size, 1, 1))
    labels = np.empty((size, len(rows)), dtype=np.int16)
    columns = np.flatnonzero(union)
    inner = rows if union.all() else rows.take(columns, axis=1)  # a mask would copy twice
    n, d, begin = len(rows), len(columns), centers[:, columns]
    # Arrays that are made in compiled code take a second more to compile.
    by_row, by_pair, common = np.empty((4, n)), np.empty((2, n, k)), np.empty(n, np.int16)
    by_center, by_cluster = np.zeros((5, k, d)), np.zeros((5, k))
    by_center[0] = begin
    _compiled(_nearest)(inner, by_center[0], by_pair[0], by_row, common)
    sums = _SharedSums(rows, common, k, with_squares)
    by_center[1] = sums.common[0][:, columns]
    by_cluster[0] = np.bincount(common, minlength=k)
    _compiled(_run)(
        inner, columns, np.ascontiguousarray(masks[:, columns], dtype=np.float64), max_iter, tol**2,
        ends, labels, common, np.stack([begin.min(axis=0), begin.max(axis=0)]), begin.T.copy(),
        by_center, by_row, by_pair, by_cluster,
        np.empty(d, np.int64), np.empty(n + 1, np.int64), np.empty(n, np.bool_),
    )  # fmt: skip
    joint = np.empty((size, n_codes, k))
    parts = np.empty((1 + with_squares, size, *centers.shape))
    for c, label in enumerate(labels):
        joint[c] = np.bincount(codes * k + label, minlength=n_codes * k).reshape(n_codes, k)
        parts[:, c] = sums.of(label)
    squares = parts[1] if with_squares else parts[0, :0]
    return ends, labels, joint.sum(axis=1), parts[0], squares, joint


class _SharedSums:
    """Sums of the rows of labels, and of their squares: those of most are those of the first."""

    def __init__(self, rows: np.ndarray, common: np.ndarray, k: int, with_squares: bool) -> None:
        self._rows, self._labels = rows, common
        self._work = np.empty((2, k, rows.shape[1]))
        self._add(common, np.ones(k, dtype=bool))
        self.common = self._work[: 1 + with_squares].copy()

    def of(self, labels: np.ndarray) -> np.ndarray:
        """Return sums of shape (1 or 2, n_clusters, n_features)."""
        sums, changed = self.common.copy(), labels != self._labels
        differs = np.zeros(sums.shape[1], dtype=bool)
        differs[labels[changed]] = differs[self._labels[changed]] = True
        if differs.any():
            self._add(labels, differs)
            sums[:, differs] = self._work[: len(sums), differs]
        return sums

    def _add(self, labels: np.ndarray, chosen: np.ndarray) -> None:
        """Add up the rows of some clusters in their order: equal labels, equal bits."""
        self._work[:, chosen] = 0.0
        _compiled(_add)(self._rows, labels, chosen, self._work[0], self._work[1])


def warm_up() -> None:
    """Load numba and the compiled loop: part of a process, not of a task."""
    lloyd(np.eye(2), np.eye(2), np.ones((1, 2), dtype=bool), np.zeros(2, np.int64), 1, 1, 0.0)


@cache
def _compiled(loop: Callable[..., None]) -> Callable[..., None]:
    """Return a compiled loop."""
    return compiled(loop, fastmath={"reassoc", "contract", "nnan", "nsz"}, error_model="numpy")


def _nearest(rows: Any, centers: Any, squared: Any, least: Any, labels: Any) -> None:
    """Fill in squared distances, the two least of each row and its label; compiled by numba."""
    for i in range(len(rows)):
        best, first, second = 0, np.inf, np.inf
        for j in range(len(centers)):
            distance = 0.0
            for f in range(rows.shape[1]):
                distance += (rows[i, f] - centers[j, f]) ** 2
            squared[i, j] = distance
            if distance < first:
                second, first, best = first, distance, j
            elif distance < second:
                second = distance
        labels[i], least[0, i], least[1, i] = best, first, second


def _add(rows: Any, labels: Any, chosen: Any, sums: Any, squares: Any) -> None:
    """Add up the rows of chosen labels and their squares; compiled by numba."""
    for i in range(len(rows)):
        j = labels[i]
        if chosen[j]:
            for f in range(rows.shape[1]):
                sums[j, f] += rows[i, f]
                squares[j, f] += rows[i, f] ** 2


def _run(  # noqa: C901, PLR0915  # one loop: every function of its own is compiled for itself
    inner: Any, union: Any, masks: Any, max_iter: int, tol2: float,
    ends: Any, labels: Any, common: Any, limits: Any, across: Any,
    by_center: Any, by_row: Any, by_pair: Any, by_cluster: Any,
    gone: Any, open_rows: Any, known: Any,
) -> None:  # fmt: skip
    """Fill in centers and labels of all clusterings, and arrays of work; compiled by numba."""
    n, d = inner.shape
    k = ends.shape[1]
    # What all candidates have in common: squared distances in all of their features and the two
    # least of each row, its label, sums, and between which values the centers lie.
    begin, common_total, centers, updated = by_center[0], by_center[1], by_center[2], by_center[3]
    first, second, base, common_size = by_row[0], by_row[1], by_pair[0], by_cluster[0]
    low, high = limits[0], limits[1]
    # Of each row: a bound on the distance to its center less the way of that, how far bounds may
    # come nearer to each other in all, and, where known, bounds on distances to the others plus
    # the way of these. Ways are what centers have moved in all.
    near, room, least_to, total = by_row[2], by_row[3], by_pair[1], by_center[4]
    size, moved, way, nearer = by_cluster[1], by_cluster[2], by_cluster[3], by_cluster[4]
    for c in range(len(masks)):
        mask, label = masks[c], labels[c]
        n_gone = 0
        for f in range(d):
            if mask[f] == 0:
                gone[n_gone] = f
                n_gone += 1
        limit, extent = 0.0, 0.0
        for i in range(n):
            known[i] = False
        for j in range(k):
            for f in range(d):
                extent += mask[f] * begin[j, f] ** 2
            size[j], way[j], nearer[j] = common_size[j], 0.0, 0.0
            for f in range(d):
                total[j, f], centers[j, f] = common_total[j, f], begin[j, f]
        tie = TIE * np.sqrt(extent)
        for iteration in range(max_iter):
            n_open = 0
            for i in range(n):
                if iteration:
                    open_rows[n_open] = i
                    n_open += nearer[label[i]] >= room[i]
                    continue
                own = common[i]
                least, other = first[i] * (1 + _ROUNDED), second[i] * (1 - _ROUNDED)
                for g in range(n_gone):
                    f = gone[g]
                    least -= (inner[i, f] - begin[own, f]) ** 2
                    below, above = (inner[i, f] - low[f]) ** 2, (inner[i, f] - high[f]) ** 2
                    other -= below if below > above else above
                least, other = least if least > 0 else 0.0, other if other > 0 else 0.0
                label[i], near[i] = own, np.sqrt(least)
                room[i] = np.sqrt(other) - near[i] - tie
                open_rows[n_open] = i
                n_open += room[i] <= 0
            for at_row in range(n_open):
                i = open_rows[at_row]
                own, row = label[i], inner[i]
                to = least_to[i]
                if not known[i]:
                    known[i] = True
                    for j in range(k):
                        to[j] = base[i, j]
                    for g in range(n_gone):
                        f = gone[g]
                        for j in range(k):
                            to[j] -= (row[f] - across[f, j]) ** 2
                    for j in range(k):
                        if to[j] <= _LOST * base[i, j]:
                            to[j] = 0.0
                            for f in range(d):
                                to[j] += mask[f] * (row[f] - begin[j, f]) ** 2
                        to[j] = np.sqrt(to[j])
                    if iteration == 0:
                        near[i] = to[own]
                    to[own] = np.inf
                other = np.inf
                for j in range(k):
                    bound = to[j] - way[j]
                    other = bound if bound < other else other
                least = near[i] + way[own]
                if least + tie >= other or iteration == 0:
                    best = own
                    if iteration:
                        distance = 0.0
                        for f in range(d):
                            distance += mask[f] * (row[f] - centers[own, f]) ** 2
                        least = np.sqrt(distance)
                    if least + tie >= other:
                        exact, other = least, np.inf
                        for j in range(k):
                            bound = to[j] - way[j]
                            if bound <= least + tie:
                                if iteration:
                                    distance = 0.0
                                    for f in range(d):
                                        distance += mask[f] * (row[f] - centers[j, f]) ** 2
                                    bound = np.sqrt(distance)
                                    to[j] = bound + way[j]
                                if bound < least - tie or (bound <= least + tie and j < best):
                                    bound, least, best = least, bound, j
                            other = bound if bound < other else other
                        if best != own:
                            label[i] = best
                            to[own], to[best] = exact + way[own], np.inf
                            size[own] -= 1.0
                            size[best] += 1.0
                            for f in range(d):
                                total[own, f] -= row[f]
                                total[best, f] += row[f]
                            own = best
                near[i] = least - way[own]
                room[i] = other - least - tie + nearer[own]
            change, extent = 0.0, 0.0
            for j in range(k):
                step, share = 0.0, 1 / size[j] if size[j] > 0 else 0.0
                for f in range(d):
                    updated[j, f] = total[j, f] * share if size[j] > 0 else centers[j, f]
                    step += mask[f] * (updated[j, f] - centers[j, f]) ** 2
                    extent += mask[f] * updated[j, f] ** 2
                moved[j] = np.sqrt(step)
                change += step
            if iteration == 0:
                limit = tol2 * extent
            if change <= limit or iteration == max_iter - 1:
                break
            widest, next_widest, at = 0.0, 0.0, -1
            for j in range(k):
                if moved[j] > widest:
                    widest, next_widest, at = moved[j], widest, j
                elif moved[j] > next_widest:
                    next_widest = moved[j]
            for j in range(k):
                way[j] += moved[j]
                nearer[j] += moved[j] + (next_widest if j == at else widest)
                for f in range(d):
                    centers[j, f] = updated[j, f]
        for j in range(k):
            for f in range(d):
                ends[c, j, union[f]] = centers[j, f]
