"""Lloyd's iteration on in-memory rows, for several clusterings with the same initial centers.

Each clustering has its own subset of the features. A backward search tries many subsets that lack
one or two features: the first distances of all follow from those in all features, and bounds
(Hamerly, 2010) save most of the later distances. Compiled by numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bigfs.core.threads import compiled

# Centers are equally near if distances differ by less than this share of the centers' extent: their
# order then decides, not rounding.
TIE = 1e-11
# A squared distance below this share of that in all features is recomputed instead of obtained by
# subtraction; and the share of the latter that rounding may have changed.
_LOST, _ROUNDED = 1e-4, 1e-12


def lloyd(
    rows: np.ndarray, centers: np.ndarray, masks: np.ndarray, max_iter: int, tol: float
) -> tuple[np.ndarray, np.ndarray]:
    """Run Lloyd's iteration for each mask, in its features.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features), float64
    centers : ndarray of shape (n_clusters, n_features), float64
        Initial centers of all clusterings. An empty cluster keeps its center.
    masks : ndarray of shape (n_clusterings, n_features), bool
    max_iter : int
    tol : float
        Stop when the centers move by at most this share of their length.

    Returns
    -------
    ends : ndarray of shape (n_clusterings, n_clusters, n_features), float64
        The final centers, in the features of any mask; the initial ones in other features.
    labels : ndarray of shape (n_clusterings, n_rows), int32
        The nearest of these centers; the first in case of ties.
    """
    from scipy.spatial.distance import cdist

    columns = np.flatnonzero(masks.any(axis=0))
    inner = rows if len(columns) == rows.shape[1] else rows.take(columns, axis=1)
    begin = np.ascontiguousarray(centers[:, columns])
    base = cdist(inner, begin, "sqeuclidean")
    common = base.argmin(axis=1)
    second = np.sort(base, axis=1)[:, 1] if len(begin) > 1 else np.full(len(rows), np.inf)
    marks = (common == np.arange(len(begin))[:, None]).astype(np.float64)
    limits = np.stack([begin.min(axis=0), begin.max(axis=0)])
    sizes, totals = marks.sum(axis=1), marks @ inner
    ends = np.repeat(begin[None], len(masks), axis=0)
    labels = np.repeat(common[None].astype(np.int32), len(masks), axis=0)
    by_row, moved = np.empty((2, len(rows))), np.empty(len(begin))
    for mask, end, of_rows in zip(masks[:, columns], ends, labels, strict=True):
        tie = TIE * float(np.sqrt((begin[:, mask] ** 2).sum()))
        _compiled(_run)(
            inner, mask.astype(np.float64), np.flatnonzero(~mask), tie, begin, limits, base,
            second, max_iter, tol**2, end, of_rows, sizes.copy(), totals.copy(), by_row, moved,
        )  # fmt: skip
    if inner is rows:
        return ends, labels
    full = np.repeat(centers[None], len(masks), axis=0)
    full[:, :, columns] = ends
    return full, labels


def label_sums(
    rows: np.ndarray, labels: np.ndarray, n_clusters: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return counts, sums and sums of squares of each label's rows in several clusterings.

    Rows are added in order, so that equal labels give bit-identical sums.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features), float64
    labels : ndarray of shape (n_clusterings, n_rows), int32
    n_clusters : int

    Returns
    -------
    counts : ndarray of shape (n_clusterings, n_clusters), float64
    sums, squares : ndarray of shape (n_clusterings, n_clusters, n_features), float64
    """
    counts = np.zeros((len(labels), n_clusters))
    sums, squares = np.zeros((2, len(labels), n_clusters, rows.shape[1]))
    _compiled(_add)(rows, labels, counts, sums, squares)
    return counts, sums, squares


def warm_up() -> None:
    """Load numba and the compiled loops: memory of a process, not of a task."""
    _, labels = lloyd(np.eye(2), np.eye(2), np.ones((1, 2), dtype=bool), 1, 0.0)
    label_sums(np.eye(2), labels, 2)


def _compiled(loop: Callable[..., None]) -> Callable[..., None]:
    """Return a compiled loop."""
    return compiled(loop, "reassoc", "contract", "nnan", "nsz", error_model="numpy")


def _add(rows: Any, labels: Any, counts: Any, sums: Any, squares: Any) -> None:
    """Add up the rows of each label and their squares; compiled by numba."""
    for c in range(len(labels)):
        for i in range(len(rows)):
            j = labels[c, i]
            counts[c, j] += 1.0
            for f in range(rows.shape[1]):
                x = rows[i, f]
                sums[c, j, f] += x
                squares[c, j, f] += x * x


def _run(  # noqa: C901, PLR0915  # one loop: functions of its own would be compiled apart
    rows: Any, mask: Any, removed: Any, tie: float, begin: Any, limits: Any, base: Any,
    base_second: Any, max_iter: int, tol2: float,
    centers: Any, label: Any, size: Any, total: Any, by_row: Any, moved: Any,
) -> None:  # fmt: skip
    """Fill in the centers and labels of a clustering; compiled by numba."""
    n, d = rows.shape
    k = len(begin)
    # Bounds on the distances of each row: upper to its own center, lower to the nearest other one.
    near, other = by_row[0], by_row[1]
    limit, widest, next_widest, at = 0.0, 0.0, 0.0, -1
    for iteration in range(max_iter):
        for i in range(n):
            own = label[i]
            if iteration == 0:
                # An upper bound on what any other center loses without the removed features.
                distance, apart = base[i, own], base_second[i]
                for g in removed:
                    x = rows[i, g]
                    distance -= (x - begin[own, g]) ** 2
                    apart -= max((x - limits[0, g]) ** 2, (x - limits[1, g]) ** 2)
                near[i] = np.sqrt(max(distance, 0.0) + _ROUNDED * base[i, own])
                other[i] = np.sqrt(max(apart - _ROUNDED * base_second[i], 0.0))
            else:
                near[i] += moved[own]
                other[i] -= next_widest if own == at else widest
                if near[i] + tie >= other[i]:
                    distance = 0.0
                    for f in range(d):
                        distance += mask[f] * (rows[i, f] - centers[own, f]) ** 2
                    near[i] = np.sqrt(distance)
            if near[i] + tie < other[i]:
                continue
            best, least, second = 0, np.inf, np.inf
            for j in range(k):
                distance = 0.0
                if iteration == 0:
                    distance = base[i, j]
                    for g in removed:
                        distance -= (rows[i, g] - centers[j, g]) ** 2
                if iteration > 0 or distance < _LOST * base[i, j]:
                    distance = 0.0
                    for f in range(d):
                        distance += mask[f] * (rows[i, f] - centers[j, f]) ** 2
                distance = np.sqrt(distance)
                if distance < least - tie:
                    best, least, second = j, distance, least
                elif distance < second:
                    second = distance
            near[i], other[i] = least, second
            if best != own:
                label[i] = best
                size[own] -= 1.0
                size[best] += 1.0
                for f in range(d):
                    total[own, f] -= rows[i, f]
                    total[best, f] += rows[i, f]
        change, spread = 0.0, 0.0
        for j in range(k):
            moved[j] = 0.0
            for f in range(d):
                to = total[j, f] / size[j] if size[j] > 0 else centers[j, f]
                moved[j] += mask[f] * (to - centers[j, f]) ** 2
                spread += mask[f] * to**2
            change += moved[j]
        if iteration == 0:
            limit = tol2 * spread
        if change <= limit or iteration == max_iter - 1:
            break
        widest, next_widest, at = 0.0, 0.0, -1
        for j in range(k):
            moved[j] = np.sqrt(moved[j])
            if moved[j] > widest:
                widest, next_widest, at = moved[j], widest, j
            elif moved[j] > next_widest:
                next_widest = moved[j]
            for f in range(d):
                if size[j] > 0:
                    centers[j, f] = total[j, f] / size[j]
