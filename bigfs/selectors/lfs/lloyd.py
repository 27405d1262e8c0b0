"""Lloyd's iteration of many clusterings that begin at the same centers, on rows in memory.

The clusterings of a backward search differ in a feature or two: their first distances follow from
those in all of the features, and centers move so little afterwards that most rows need no new
distance (the bounds of Hamerly, 2010). Compiled by numba: candidates are too small for NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from bigfs.core.compiling import compiled
from bigfs.selectors.lfs.kernels import tiles


def lloyd(
    rows: np.ndarray,
    centers: np.ndarray,
    masks: np.ndarray,
    codes: np.ndarray,
    n_codes: int,
    max_iter: int,
    tol: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
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

    Returns
    -------
    centers : ndarray of shape (n_clusterings, n_clusters, n_features), float64
    labels : ndarray of shape (n_clusterings, n_rows), int16
        The nearest of those centers.
    counts, sums : ndarray of shape (n_clusterings, n_clusters), (..., n_features)
        Of the labels' rows.
    joint : ndarray of shape (n_clusterings, n_codes, n_clusters), float64
    """
    n, k, size = len(rows), len(centers), len(masks)
    union = masks.any(axis=0)
    base = np.empty((n, k))
    for cluster, center in enumerate(centers):
        base[:, cluster] = ((rows - center) ** 2 * union).sum(axis=1)
    ends = np.tile(centers, (size, 1, 1))
    labels = np.empty((size, n), dtype=np.int16)
    counts, joint = np.zeros((size, k)), np.zeros((size, n_codes, k))
    last = np.empty(size, dtype=np.int64)
    _compiled()(
        rows, base, masks.astype(np.float64), union.astype(np.float64), codes,
        max_iter, tol**2, ends, labels, last, counts, joint,
    )  # fmt: skip
    return ends, labels, counts, _sums(rows, labels, last, k), joint


def _sums(rows: np.ndarray, labels: np.ndarray, last: np.ndarray, k: int) -> np.ndarray:
    """Return the sums of the labels' rows, to the bits of `sweep`.

    That takes all clusterings which still move at once, and tiles of rows by their number: so
    does this, with rows of zeros for those that do not end here.
    """
    n, d = rows.shape
    sums = np.zeros((len(labels), k, d))
    for iteration in np.unique(last):
        moving = np.flatnonzero(last >= iteration)
        ended = np.flatnonzero(last[moving] == iteration)
        total = np.zeros((len(moving) * k, d))
        for part in tiles(n, len(total)):
            own = labels[moving[ended], part].T + ended * k
            marks = np.zeros((len(own), len(total)))
            np.put_along_axis(marks, own, 1.0, axis=1)
            total += marks.T @ rows[part]
        sums[moving[ended]] = total.reshape(len(moving), k, d)[ended]
    return sums


def warm_up() -> None:
    """Load numba and the compiled loop: part of a process, not of a task."""
    lloyd(np.eye(2), np.eye(2), np.ones((1, 2), dtype=bool), np.zeros(2, np.int64), 1, 1, 0.0)


@cache
def _compiled() -> Callable[..., None]:
    """Return the compiled loop."""
    return compiled(_run, fastmath={"reassoc", "contract"})


def _run(  # noqa: C901, PLR0915  # one loop: every function of its own is compiled for itself
    rows: Any, base: Any, masks: Any, union: Any, codes: Any, max_iter: int, tol2: float,
    ends: Any, labels: Any, last: Any, counts: Any, joint: Any,
) -> None:  # fmt: skip
    """Fill in the results of all clusterings; compiled by numba."""
    n, d = rows.shape
    k = base.shape[1]
    near, far = np.empty(n), np.empty(n)
    total, size = np.empty((k, d)), np.empty(k)
    updated, moved = np.empty((k, d)), np.empty(k)
    distances = np.empty(k)
    gone = np.empty(d, np.int64)
    for c in range(len(masks)):
        mask, centers, label = masks[c], ends[c], labels[c]
        n_gone = 0
        for f in range(d):
            if union[f] > mask[f]:
                gone[n_gone] = f
                n_gone += 1
        limit = 0.0
        for j in range(k):
            size[j] = 0.0
            for f in range(d):
                total[j, f] = 0.0
        for iteration in range(max_iter):
            widest, second, at = 0.0, 0.0, -1
            if iteration:
                for j in range(k):
                    if moved[j] > widest:
                        widest, second, at = moved[j], widest, j
                    elif moved[j] > second:
                        second = moved[j]
            for i in range(n):
                if iteration:
                    own = label[i]
                    near[i] += moved[own]
                    far[i] -= second if own == at else widest
                    if near[i] < far[i]:
                        continue
                row = rows[i]
                for j in range(k):
                    center = centers[j]
                    if iteration:
                        distance = 0.0
                        for f in range(d):
                            distance += mask[f] * (row[f] - center[f]) ** 2
                    else:
                        distance = base[i, j]
                        for g in range(n_gone):
                            distance -= (row[gone[g]] - center[gone[g]]) ** 2
                    distances[j] = distance
                best, first, other = 0, distances[0], np.inf
                for j in range(1, k):
                    if distances[j] < first:
                        other, first, best = first, distances[j], j
                    elif distances[j] < other:
                        other = distances[j]
                near[i], far[i] = np.sqrt(max(first, 0.0)), np.sqrt(max(other, 0.0))
                if iteration == 0:
                    label[i] = best
                elif best != own:
                    label[i] = best
                    size[own] -= 1.0
                    size[best] += 1.0
                    for f in range(d):
                        total[own, f] -= row[f]
                        total[best, f] += row[f]
            if iteration == 0:
                for i in range(n):
                    size[label[i]] += 1.0
                    into = total[label[i]]
                    for f in range(d):
                        into[f] += rows[i, f]
            change, extent = 0.0, 0.0
            for j in range(k):
                step = 0.0
                for f in range(d):
                    updated[j, f] = total[j, f] / size[j] if size[j] > 0 else centers[j, f]
                    step += mask[f] * (updated[j, f] - centers[j, f]) ** 2
                    extent += mask[f] * updated[j, f] ** 2
                moved[j] = np.sqrt(step)
                change += step
            if iteration == 0:
                limit = tol2 * extent
            last[c] = iteration
            if change <= limit or iteration == max_iter - 1:
                break
            for j in range(k):
                for f in range(d):
                    centers[j, f] = updated[j, f]
        for i in range(n):
            counts[c, label[i]] += 1.0
            joint[c, codes[i], label[i]] += 1.0
