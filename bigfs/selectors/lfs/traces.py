"""Comparisons by ratios of traces, on rows in memory: no product of two features is needed."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array

from bigfs.selectors.lfs.kernels import TILE_ENTRIES, GroupSums
from bigfs.solvers.separability import variance, without_each


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
    step = max(1, TILE_ENTRIES // (2 * means.size))  # a pair takes a gap to every mean
    parts = [pairs[begin : begin + step] for begin in range(0, len(pairs), step)]
    new, old = (masks, new_counts, new_sums, new_squares), (subsets, counts, means, variances)
    between = _between(counts, means)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = [_ratios(part, *new, *old, between) for part in parts]
    return np.concatenate([np.empty(0), *values])


def _between(counts: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Return the variance between clusters, shape (n_features,)."""
    share = counts / counts.sum()
    return np.asarray(share @ (means - share @ means) ** 2)


def _ratios(
    pairs: np.ndarray,
    masks: np.ndarray,
    new_counts: np.ndarray,
    new_sums: np.ndarray,
    new_squares: np.ndarray,
    subsets: np.ndarray,
    counts: np.ndarray,
    means: np.ndarray,
    variances: np.ndarray,
    between: np.ndarray,
) -> np.ndarray:
    """Return the ratios of some pairs."""
    which, members, clusters = pairs.T
    count = new_counts[which, members][:, None]
    sums = new_sums[which, members]
    fresh, within = sums / count, variance(count[:, 0], sums, new_squares[which, members])
    # Shares of the clusters that stay, and of the one that comes.
    sizes = np.where(np.arange(len(counts)) == clusters[:, None], 0.0, counts)
    total = sizes.sum(axis=1, keepdims=True) + count
    share, own = sizes / total, count / total
    center = own * fresh + share @ means
    gaps = means - center[:, None]
    np.square(gaps, out=gaps)
    now = (share[:, None] @ gaps)[:, 0] + own * (fresh - center) ** 2
    kept = np.stack([subsets[clusters], masks[which]]).astype(np.float64)
    new, new_within = np.vecdot(kept, now), np.vecdot(kept, within)
    old, old_within = kept @ between, np.vecdot(kept, variances[clusters])
    values = np.log(new / new_within) - np.log(old / old_within)
    known = (new_within > 0) & (old_within > 0)
    return np.where(known.all(axis=0), values.sum(axis=0), np.nan)


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
        parts += [_between(n, centers), within]
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
    k, p, width = len(inside), len(pairs), 2 * len(codes)
    chosen = labels[pairs[:, 0]] == pairs[:, 1, None]
    sizes, sums, squares = _sums(rows, groups, n_groups, np.concatenate([inside, chosen]))
    joint = np.empty((n_groups, p, len(codes), 2))
    cells = width * groups + 2 * place
    for pair, of_pair in enumerate(chosen):
        n_rows = np.bincount(cells + of_pair, minlength=n_groups * width)
        joint[:, pair] = n_rows.reshape(n_groups, len(codes), 2)
    old_squares = squares[:, pairs[:, 2]]
    return GroupSums(
        sizes[:, :k], sums[:, :k], sizes[:, k:], sums[:, k:], old_squares, squares[:, k:],
        codes, joint,
    )  # fmt: skip


def _sums(
    rows: np.ndarray, groups: np.ndarray, n_groups: int, chosen: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return counts, sums and sums of squares of each group's rows in each of several sets.

    ``chosen`` (n_sets, n_rows) says which rows these have.
    """
    (n_sets, n), d = chosen.shape, rows.shape[1]
    sums, squares = np.zeros((2, n_groups * n_sets, d))
    counts = np.zeros(n_groups * n_sets)
    step = max(TILE_ENTRIES // d, len(counts))
    for part in [slice(begin, begin + step) for begin in range(0, n, step)]:
        sets, members = np.nonzero(chosen[:, part])
        cells = groups[part][members] * n_sets + sets
        shape = len(counts), len(rows[part])
        marks = csr_array((np.ones(len(cells)), (cells, members)), shape=shape)
        counts += np.diff(marks.indptr)
        sums += marks @ rows[part]
        squares += marks @ rows[part] ** 2
    by_set = (n_groups, n_sets, d)
    return counts.reshape(by_set[:2]), sums.reshape(by_set), squares.reshape(by_set)
