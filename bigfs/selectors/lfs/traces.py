"""Comparisons by ratios of traces, on rows in memory: no product of two features is needed.

Compiled by numba: a step compares hundreds of pairs of clusters, each of them small.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from bigfs.core.compiling import compiled
from bigfs.selectors.lfs.kernels import GroupSums
from bigfs.solvers.separability import ROUNDING, variance, without_each


def trace_ratios(
    pairs: np.ndarray,
    masks: np.ndarray,
    subsets: np.ndarray,
    counts: np.ndarray,
    means: np.ndarray,
    variances: np.ndarray,
    new_counts: np.ndarray,
    new_sums: np.ndarray,
    new_squares: np.ndarray,
) -> np.ndarray:
    """Return the logs of NV(new) over NV(old), eqs. (13) and (14), by the ratios of eq. (5).

    Parameters
    ----------
    pairs : ndarray of shape (n_pairs, 3), int64
        As in `kernels.change_products`.
    masks : ndarray of shape (n_clusterings, n_features), bool
    subsets : ndarray of shape (n_clusters, n_features), bool
        Of the solution's clusters.
    counts, means, variances : ndarray of shape (n_clusters,), (n_clusters, n_features) twice
        Of the solution's clusters.
    new_counts, new_sums, new_squares : ndarray of shape (n_clusterings, n_clusters), (..., \
n_features) twice
        Of the candidates' clusters.

    Returns
    -------
    ratios : ndarray of shape (n_pairs,), float64
        NaN where a cluster has no extent.
    """
    ratios = np.empty(len(pairs))
    _compiled(_ratios)(
        pairs, masks.astype(np.float64), subsets.astype(np.float64), counts, means, variances,
        new_counts, new_sums, new_squares, ROUNDING, counts.sum(), np.zeros((4, means.shape[1])),
        ratios,
    )  # fmt: skip
    return ratios


def trace_ratios_without_each(
    tried: np.ndarray,
    subset: np.ndarray,
    cluster: int,
    counts: np.ndarray,
    means: np.ndarray,
    variances: np.ndarray,
    new_count: float,
    new_sum: np.ndarray,
    new_square: np.ndarray,
) -> np.ndarray:
    """Return `trace_ratios` of one pair, for the features tried without each one in turn.

    Parameters
    ----------
    tried, subset : ndarray of shape (n_features,), bool
        Features of which candidates lack one each, and those of the cluster.
    cluster : int
        The one to replace.
    counts, means : ndarray of shape (n_clusters,), (n_clusters, n_features)
    variances, new_sum, new_square : ndarray of shape (n_features,)
        Of the cluster, and of the one that would come.
    new_count : float

    Returns
    -------
    ratios : ndarray of shape (n_tried,), float64
        NaN where a cluster has no extent.
    """
    after, now = counts.copy(), means.copy()
    after[cluster], now[cluster] = new_count, new_sum / new_count
    parts = []
    fresh = variance(np.asarray(new_count), new_sum, new_square)
    for n, centers, within in ((after, now, fresh), (counts, means, variances)):
        share = n / n.sum()
        parts += [share @ (centers - share @ centers) ** 2, within]
    figures = np.stack(parts, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.zeros(())
        for sums in (figures[subset].sum(axis=0), without_each(figures[tried])):
            new, new_within, old, old_within = np.moveaxis(sums, -1, 0)
            known = (new_within > 0) & (old_within > 0)
            logs = np.log(new / new_within) - np.log(old / old_within)
            value = value + np.where(known, logs, np.nan)
    return np.asarray(value)


def group_squares(
    rows: np.ndarray,
    groups: np.ndarray,
    n_groups: int,
    codes: np.ndarray,
    place: np.ndarray,
    inside: np.ndarray,
    labels: np.ndarray,
    pairs: np.ndarray,
) -> GroupSums:
    """Return `kernels.group_sums` of pairs with sums of squares for products.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features), float64
    groups : ndarray of shape (n_rows,), int64
        In [0, n_groups).
    n_groups : int
    codes : ndarray of shape (n_codes,), uint64
    place : ndarray of shape (n_rows,), int64
        Of each row's memberships among the codes.
    inside : ndarray of shape (n_clusters, n_rows), bool
    labels : ndarray of shape (n_clusterings, n_rows), int16
    pairs : ndarray of shape (n_pairs, 3), int64

    Returns
    -------
    sums : GroupSums
        ``old_products`` and ``new_products`` have shape (n_groups, n_pairs, n_features).
    """
    k, d, p = len(inside), rows.shape[1], len(pairs)
    counts, new_counts = np.zeros((n_groups, k)), np.zeros((n_groups, p))
    sums, squares = np.zeros((n_groups, k, d)), np.zeros((n_groups, k, d))
    new_sums, new_squares = np.zeros((n_groups, p, d)), np.zeros((n_groups, p, d))
    joint = np.zeros((n_groups, p, len(codes), 2))
    _compiled(_groups)(
        rows, groups, place, inside, labels, pairs,
        counts, sums, squares, new_counts, new_sums, new_squares, joint,
    )  # fmt: skip
    old_squares = squares[:, pairs[:, 2]]
    return GroupSums(counts, sums, new_counts, new_sums, old_squares, new_squares, codes, joint)


def warm_up() -> None:
    """Load numba and the compiled loops: part of a process, not of a task."""
    square, pairs, some = np.eye(2), np.zeros((1, 3), np.int64), np.ones((1, 2), dtype=bool)
    new = square[None]
    trace_ratios(pairs, some, square > 0, np.ones(2), square, square, new[0, :1], new, new)
    places = np.zeros(2, np.int64)
    codes, labels = np.zeros(1, np.uint64), np.zeros((1, 2), np.int16)
    group_squares(square, places, 1, codes, places, square > 0, labels, pairs)


@cache
def _compiled(loop: Callable[..., None]) -> Callable[..., None]:
    """Return a compiled loop."""
    return compiled(loop, fastmath={"reassoc", "contract"}, error_model="numpy")


def _ratios(  # noqa: C901  # one loop: every function of its own is compiled for itself
    pairs: Any, masks: Any, subsets: Any, counts: Any, means: Any, variances: Any,
    new_counts: Any, new_sums: Any, new_squares: Any, rounding: float, n: float, work: Any,
    ratios: Any,
) -> None:  # fmt: skip
    """Fill in the ratios, with rows of zeros to work with; compiled by numba."""
    k, d = means.shape
    between, now, center, fresh = work[0], work[1], work[2], work[3]
    for j in range(k):
        for f in range(d):
            center[f] += counts[j] / n * means[j, f]
    for j in range(k):
        for f in range(d):
            between[f] += counts[j] / n * (means[j, f] - center[f]) ** 2
    for p in range(len(pairs)):
        c, member, cluster = pairs[p, 0], pairs[p, 1], pairs[p, 2]
        count = new_counts[c, member]
        total = n - counts[cluster] + count
        for f in range(d):
            fresh[f] = new_sums[c, member, f] / count
            center[f] = count / total * fresh[f]
        for j in range(k):
            if j != cluster:
                for f in range(d):
                    center[f] += counts[j] / total * means[j, f]
        for f in range(d):
            now[f] = count / total * (fresh[f] - center[f]) ** 2
        for j in range(k):
            if j != cluster:
                for f in range(d):
                    now[f] += counts[j] / total * (means[j, f] - center[f]) ** 2
        value = 0.0
        for second in range(2):
            kept = masks[c] if second else subsets[cluster]
            old_between, old_within, new_between, new_within = 0.0, 0.0, 0.0, 0.0
            for f in range(d):
                variance = new_squares[c, member, f] / count - fresh[f] ** 2
                if variance <= rounding * fresh[f] ** 2:
                    variance = 0.0
                old_between += kept[f] * between[f]
                old_within += kept[f] * variances[cluster, f]
                new_between += kept[f] * now[f]
                new_within += kept[f] * variance
            if old_within > 0 and new_within > 0:
                value += np.log(new_between / new_within) - np.log(old_between / old_within)
            else:
                value = np.nan
        ratios[p] = value


def _groups(
    rows: Any, groups: Any, place: Any, inside: Any, labels: Any, pairs: Any,
    counts: Any, sums: Any, squares: Any, new_counts: Any, new_sums: Any, new_squares: Any,
    joint: Any,
) -> None:  # fmt: skip
    """Add up the rows of every group; compiled by numba."""
    n, d = rows.shape
    for i in range(n):
        g = groups[i]
        for j in range(len(inside)):
            if inside[j, i]:
                counts[g, j] += 1.0
                for f in range(d):
                    sums[g, j, f] += rows[i, f]
                    squares[g, j, f] += rows[i, f] ** 2
        for p in range(len(pairs)):
            chosen = labels[pairs[p, 0], i] == pairs[p, 1]
            joint[g, p, place[i], 1 if chosen else 0] += 1.0
            if chosen:
                new_counts[g, p] += 1.0
                for f in range(d):
                    new_sums[g, p, f] += rows[i, f]
                    new_squares[g, p, f] += rows[i, f] ** 2
