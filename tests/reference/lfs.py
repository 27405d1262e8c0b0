"""LFS as the paper writes it: dense, row by row memberships, one candidate after the other."""

from __future__ import annotations

import numpy as np


def reference_lfs(
    X: np.ndarray,
    centroids: np.ndarray,
    alpha: float,
    beta: float,
    tie_width: float = 0.0,
    groups: np.ndarray | None = None,
) -> tuple[list[list[int]], np.ndarray]:
    """Return the subset of each cluster and the memberships (n, k).

    ``groups`` (n,) are the groups that the jackknife leaves out, for ``tie_width`` above zero.
    """
    n, d = X.shape
    k = len(centroids)
    labels = lloyd(X, centroids)
    members = np.stack([labels == j for j in range(k)], axis=1)
    subsets = [list(range(d)) for _ in range(k)]
    changed = True
    while changed:
        changed = False
        for i in range(k):
            better = []
            for cluster, (ratio, *new) in _best(X, members, subsets, i, alpha, beta).items():
                mask = new[0]
                accepted = (members[:, cluster] == mask).all() or ratio > 0
                if not accepted and tie_width > 0:
                    terms = (members, subsets, cluster, *new, alpha, beta)
                    accepted = ratio >= -tie_width * _jackknife(X, groups, *terms)
                if accepted:
                    better.append((cluster, *new))
            for cluster, mask, subset in better:
                members[:, cluster], subsets[cluster], changed = mask, subset, True
    return subsets, members


def reference_lfs_many(
    X: np.ndarray, centroids: np.ndarray, alpha: float, beta: float
) -> tuple[list[list[int]], np.ndarray]:
    """Return the subsets and memberships of the search that drops several features at a time.

    A cluster is tried without the quarter of its features in which alone it is least separate, half
    of that, and so on; every cluster takes the smallest of these subsets that is better, by traces
    where it has less than ten rows a feature. Without ties.
    """
    k, d = centroids.shape
    labels = lloyd(X, centroids)
    members = np.stack([labels == j for j in range(k)], axis=1)
    subsets = [list(range(d)) for _ in range(k)]
    changed = True
    while changed:
        changed = False
        for i in range(k):
            if len(subsets[i]) == 1:
                continue
            means = np.stack([X[inside].mean(axis=0) for inside in members.T])
            share = members.sum(axis=0) / members.sum()
            between = share @ (means - share @ means) ** 2
            alone = between / X[members[:, i]].var(axis=0)
            order = sorted(subsets[i], key=lambda f: alone[f])
            size, taken = max(1, len(order) // 4), {}
            while size:
                subset = sorted(order[size:])
                labels = lloyd(X[:, subset], means[:, subset])
                for cluster in set(range(k)) - set(taken):
                    if len(subset) >= len(subsets[cluster]):
                        continue
                    shared = [(members[:, cluster] & (labels == j)).sum() for j in range(k)]
                    mask = labels == int(np.argmax(shared))
                    if mask.sum() < 2 or members[:, cluster].sum() < 2:
                        continue
                    ratio, same = 0.0, bool((mask == members[:, cluster]).all())
                    if not same:
                        fewest = min(mask.sum(), members[:, cluster].sum())
                        few = fewest <= 10 * max(len(subset), len(subsets[cluster]))
                        terms = (members, subsets, cluster, mask, subset)
                        traces = few or singular(X, *terms)
                        ratio = log_ratio(X, *terms, alpha, beta, traces)
                    if same or ratio > 0:
                        taken[cluster] = mask, subset
                size //= 2
            for cluster, (mask, subset) in taken.items():
                members[:, cluster], subsets[cluster], changed = mask, subset, True
    return subsets, members


def lloyd(X: np.ndarray, centroids: np.ndarray, max_iter: int = 100) -> np.ndarray:
    """Return the labels of k-means from these centroids; an empty cluster keeps its center."""
    centers = centroids.copy()
    for _ in range(max_iter):
        labels = ((X[:, None, :] - centers) ** 2).sum(axis=2).argmin(axis=1)
        before = centers.copy()
        for j in np.unique(labels):
            centers[j] = X[labels == j].mean(axis=0)
        if np.allclose(before, centers, rtol=0, atol=1e-12):
            break
    return labels


def _best(X, members, subsets, i, alpha, beta):
    best: dict[int, tuple] = {}
    if len(subsets[i]) == 1:
        return best
    means = np.stack([X[inside].mean(axis=0) for inside in members.T])
    for feature in subsets[i]:
        subset = [f for f in subsets[i] if f != feature]
        labels = lloyd(X[:, subset], means[:, subset])
        for cluster in range(len(subsets)):
            if len(subset) >= len(subsets[cluster]):
                continue
            overlap = [(members[:, cluster] & (labels == j)).sum() for j in range(len(subsets))]
            mask = labels == int(np.argmax(overlap))
            if mask.sum() < 2 or members[:, cluster].sum() < 2:
                continue
            same = (mask == members[:, cluster]).all()
            ratio = 0.0
            if not same:
                ratio = log_ratio(X, members, subsets, cluster, mask, subset, alpha, beta)
            if cluster not in best or ratio > best[cluster][0]:
                best[cluster] = (ratio, mask, subset)
    return best


def log_ratio(X, members, subsets, cluster, mask, subset, alpha, beta, use_trace=None) -> float:
    """Return log ANV(new) - log ANV(old), eqs. (13) to (18), a rise of O or U penalized."""
    after = members.copy()
    after[:, cluster] = mask
    old = subsets[cluster]
    pairs = [(members, old), (members, subset), (after, subset), (after, old)]
    if use_trace is None:
        use_trace = singular(X, members, subsets, cluster, mask, subset)
    values = [np.log(separability(X[:, s], m, cluster, use_trace)) for m, s in pairs]
    d_overlap = overlap(after) - overlap(members)
    d_unassigned = float((~after.any(axis=1)).mean() - (~members.any(axis=1)).mean())
    penalty = 2 * (alpha * d_overlap + beta * d_unassigned)
    return values[2] + values[3] - values[0] - values[1] - penalty


def singular(X, members, subsets, cluster, mask, subset) -> bool:
    """Say whether one of the four within-cluster matrices has no inverse."""
    for inside in (members[:, cluster], mask):
        for features in (subsets[cluster], subset):
            rows = X[inside][:, features]
            if len(rows) <= len(features) or np.linalg.matrix_rank(np.cov(rows.T)) < len(features):
                return True
    return False


def separability(X, members, cluster, use_trace) -> float:
    """Return tr(S_w^-1 S_b) of a cluster, eq. (7), or tr(S_b) / tr(S_w)."""
    counts = members.sum(axis=0)
    share = counts / counts.sum()
    means = np.stack([X[inside].mean(axis=0) for inside in members.T])
    away = means - share @ means
    between = (share[:, None, None] * away[:, :, None] * away[:, None, :]).sum(axis=0)
    within = np.atleast_2d(np.cov(X[members[:, cluster]].T, bias=True))
    if use_trace:
        return float(np.trace(between) / np.trace(within))
    return float(np.trace(np.linalg.solve(within, between)))


def overlap(members) -> float:
    """Return O of eq. (15)."""
    k, sizes = members.shape[1], members.sum(axis=0)
    return float(
        sum(
            (members[:, i] & members[:, j]).sum() / ((sizes[i] + sizes[j]) / 2)
            for i in range(k)
            for j in range(k)
            if i != j
        )
    )


def _jackknife(X, groups, members, subsets, cluster, mask, subset, alpha, beta) -> float:
    use_trace = singular(X, members, subsets, cluster, mask, subset)
    values = []
    for group in np.unique(groups):
        rows = groups != group
        terms = (members[rows], subsets, cluster, mask[rows], subset, alpha, beta)
        values.append(log_ratio(X[rows], *terms, use_trace))
    away = np.array(values) - np.mean(values)
    return float(np.sqrt((len(values) - 1) / len(values) * (away**2).sum()))
