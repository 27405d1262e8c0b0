"""Kernels of LFS on one row block; imports no scikit-learn.

A clustering is its centers: the label of a row is the nearest center in the features of a mask.
A cluster of the solution is one label of one such clustering (`Rules`), so the memberships of any
row follow from small arrays, and nothing that has a row per sample is stored during the search.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bigfs.selectors.lfs.lloyd import TIE

# Distances computed at a time: they stay in a core's cache.
TILE_ENTRIES = 500_000


@dataclass
class Clusterings:
    """Several k-means clusterings, each in its own features."""

    # Of shape (n_clusterings, n_clusters, n_features), float64: about the data's origin.
    centers: np.ndarray
    # Of shape (n_clusterings, n_features), bool: features that distances are taken in.
    masks: np.ndarray
    # Of shape (n_clusterings, n_rows), int16: of rows in memory, where they are known.
    labels: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.centers)

    def take(self, which: np.ndarray | list[int]) -> Clusterings:
        """Return some of them."""
        labels = None if self.labels is None else self.labels[which]
        return Clusterings(self.centers[which], self.masks[which], labels)


@dataclass
class Candidates:
    """Feature subsets to try: one of them without some features each."""

    subset: np.ndarray  # of shape (n_features,), bool
    # Features that each candidate lacks; of shape (n_candidates, 1) where it is one each.
    dropped: np.ndarray | list[np.ndarray]

    def __len__(self) -> int:
        return len(self.dropped)

    def mask(self, candidate: int) -> np.ndarray:
        """Return the features of one."""
        mask = self.subset.copy()
        mask[self.dropped[candidate]] = False
        return mask

    def masks(self, candidates: np.ndarray | range) -> np.ndarray:
        """Return the features of some, shape (n, n_features)."""
        return np.stack([self.mask(int(candidate)) for candidate in candidates])


def least_separate(kept: np.ndarray, alone: np.ndarray) -> list[np.ndarray]:
    """Return features to drop together: a quarter of those kept, and halves of it down to one.

    Parameters
    ----------
    kept : ndarray of int
    alone : ndarray of the shape of kept
        How separate clusters are in each feature alone; the least go first.
    """
    order, sizes = kept[np.argsort(alone, kind="stable")], [max(1, len(kept) // 4)]
    while sizes[-1] > 1:
        sizes.append(sizes[-1] // 2)
    return [order[:size] for size in sizes]


def most_candidates(n_features: int, many: bool) -> int:
    """Return how many candidates a step has at most: one for each feature, or `least_separate`."""
    return max(1, (n_features // 4).bit_length()) if many else n_features


@dataclass
class Rules:
    """Assignment of rows to the clusters of the solution."""

    clusterings: Clusterings  # one for each cluster
    members: np.ndarray  # of shape (n_clusters,), int64: the label that is the cluster

    def copy(self) -> Rules:
        """Return rules that can be changed."""
        centers, masks = self.clusterings.centers.copy(), self.clusterings.masks.copy()
        return Rules(Clusterings(centers, masks), self.members.copy())


def tiles(n_rows: int, width: int) -> list[slice]:
    """Return slices of rows whose distances to ``width`` centers fit a core's cache."""
    step = max(64, TILE_ENTRIES // max(1, width))
    return [slice(begin, min(begin + step, n_rows)) for begin in range(0, n_rows, step)]


def labels_of(rows: np.ndarray, clusterings: Clusterings) -> np.ndarray:
    """Return the nearest center of each row in each clustering, shape (n_rows, n_clusterings).

    Of centers that are as near but for rounding the first.
    """
    n_clusters = clusterings.centers.shape[1]
    masked = clusterings.centers * clusterings.masks[:, None, :]
    norms = np.einsum("cjd,cjd->jc", masked, masked)
    tie = TIE * norms.sum(axis=0)
    labels = np.zeros((len(rows), len(clusterings)), dtype=np.int64)
    nearest: np.ndarray | None = None
    for j in range(n_clusters):
        squared = rows @ (-2 * masked[:, j].T)
        squared += norms[j]
        if nearest is None:
            nearest = squared
            continue
        closer = squared < nearest - tie
        np.copyto(labels, j, where=closer)
        np.copyto(nearest, squared, where=closer)
    return labels


def codes_of(rows: np.ndarray, rules: Rules) -> np.ndarray:
    """Return the memberships of each row as the bits of a number, shape (n_rows,), uint64."""
    inside = labels_of(rows, rules.clusterings) == rules.members
    bits = np.uint64(1) << np.arange(len(rules.members), dtype=np.uint64)
    return (inside * bits).sum(axis=1, dtype=np.uint64)


def has_bit(codes: np.ndarray, cluster: int | np.ndarray) -> np.ndarray:
    """Say which codes contain a cluster, or each of several (n, 1)."""
    return (codes >> np.asarray(cluster, np.uint64)) & np.uint64(1) == 1


@dataclass
class Sweep:
    """Sums of one pass over several clusterings."""

    counts: np.ndarray  # of shape (n_clusterings, n_clusters), float64
    sums: np.ndarray  # of shape (n_clusterings, n_clusters, n_features), float64
    codes: np.ndarray  # of shape (n_codes,), uint64: the memberships that occur
    # Of shape (n_clusterings, n_codes, n_clusters), float64: rows with those memberships and a
    # label.
    joint: np.ndarray
    squares: np.ndarray | None = None  # sums of squares, where somebody asked for them

    def take(self, which: np.ndarray | list[int]) -> Sweep:
        """Return counts and sums of some clusterings."""
        return Sweep(self.counts[which], self.sums[which], self.codes, self.joint[which])


def sweep(X: np.ndarray, origin: np.ndarray, clusterings: Clusterings, rules: Rules) -> Sweep:
    """Label the rows of a block in every clustering, and count labels against memberships."""
    n_clusterings, n_clusters, n_features = clusterings.centers.shape
    sums = np.zeros((n_clusterings * n_clusters, n_features))
    parts = []
    offset = np.arange(n_clusterings) * n_clusters
    for rows_of in tiles(len(X), n_clusterings * n_clusters):
        rows = X[rows_of] - origin
        labels = labels_of(rows, clusterings)
        codes, place = np.unique(codes_of(rows, rules), return_inverse=True)
        marks = np.zeros((len(rows), n_clusterings * n_clusters))
        np.put_along_axis(marks, labels + offset, 1.0, axis=1)
        sums += marks.T @ rows
        joint = np.zeros((n_clusterings, len(codes), n_clusters))
        for code in range(len(codes)):
            joint[:, code] = marks[place == code].sum(axis=0).reshape(n_clusterings, n_clusters)
        parts.append(Sweep(np.empty(0), np.empty(0), codes, joint))
    codes, joint = merge_joint([(part.codes, part.joint) for part in parts])
    return Sweep(
        joint.sum(axis=1), sums.reshape(n_clusterings, n_clusters, n_features), codes, joint
    )


def merge_joint(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Add counts whose next to last axis goes by codes that differ from part to part."""
    codes = np.unique(np.concatenate([part for part, _ in parts]))
    *head, _, n_clusters = parts[0][1].shape
    joint = np.zeros((*head, len(codes), n_clusters))
    for part_codes, counts in parts:
        joint[..., np.searchsorted(codes, part_codes), :] += counts
    return codes, joint


def merge_sweeps(a: Sweep, b: Sweep) -> Sweep:
    """Merge what two blocks say, using the memory of the first."""
    codes, joint = merge_joint([(a.codes, a.joint), (b.codes, b.joint)])
    return Sweep(add_to(a.counts, b.counts), add_to(a.sums, b.sums), codes, joint)


def change_products(
    X: np.ndarray, origin: np.ndarray, clusterings: Clusterings, rules: Rules, pairs: np.ndarray
) -> np.ndarray:
    """Return the gain of a cluster's sum of ``x x'`` where a new one takes its place.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_features)
    origin : ndarray of shape (n_features,)
    clusterings, rules
    pairs : ndarray of shape (n_pairs, 3), int64
        Clustering, the label of it that is the new cluster, and the cluster it would replace.

    Returns
    -------
    products : ndarray of shape (n_pairs, n_features, n_features), float64
        Rows that come less rows that go: only those are touched.
    """
    products = np.zeros((len(pairs), X.shape[1], X.shape[1]))
    for rows_of in tiles(len(X), len(clusterings) * clusterings.centers.shape[1]):
        rows = X[rows_of] - origin
        labels = labels_of(rows, clusterings)
        codes = codes_of(rows, rules)
        for place, (clustering, member, cluster) in enumerate(pairs):
            new, old = labels[:, clustering] == member, has_bit(codes, cluster)
            come, go = rows[new & ~old], rows[old & ~new]
            if len(come):
                products[place] += come.T @ come
            if len(go):
                products[place] -= go.T @ go
    return products


@dataclass
class GroupSums:
    """Statistics of the groups that a jackknife leaves out in turn."""

    # Of shape (n_groups, n_clusters), (n_groups, n_clusters, n_features): of the clusters of the
    # solution.
    counts: np.ndarray
    sums: np.ndarray
    # Of shape (n_groups, n_pairs), (n_groups, n_pairs, n_features): of the clusters that would
    # come.
    new_counts: np.ndarray
    new_sums: np.ndarray
    # Of shape (n_groups, n_pairs, n_features, n_features): of the cluster that would go, and of the
    # one that would come; without the last axis where only squares of single features were asked
    # for.
    old_products: np.ndarray
    new_products: np.ndarray
    codes: np.ndarray  # of shape (n_codes,), uint64
    # Of shape (n_groups, n_pairs, n_codes, 2), float64: rows with those memberships, outside and
    # inside the cluster that would come.
    joint: np.ndarray


def groups_of(first_row: int, n_rows: int, n_groups: int) -> np.ndarray:
    """Return the group of consecutive rows: a hash of the row number, in [0, n_groups)."""
    z = np.arange(first_row, first_row + n_rows, dtype=np.uint64)
    z = z * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) % np.uint64(n_groups)).astype(np.int64)


def group_sums(
    X: np.ndarray,
    first_row: int,
    origin: np.ndarray,
    clusterings: Clusterings,
    rules: Rules,
    pairs: np.ndarray,
    n_groups: int,
) -> GroupSums:
    """Return the statistics of each group for pairs as in `change_products`."""
    d, k, p = X.shape[1], len(rules.members), len(pairs)
    totals = GroupSums(
        np.zeros((n_groups, k)), np.zeros((n_groups, k, d)),
        np.zeros((n_groups, p)), np.zeros((n_groups, p, d)),
        np.zeros((n_groups, p, d, d)), np.zeros((n_groups, p, d, d)),
        np.empty(0, np.uint64), np.empty(0),
    )  # fmt: skip
    parts = []
    groups = groups_of(first_row, len(X), n_groups)
    for rows_of in tiles(len(X), len(clusterings) * clusterings.centers.shape[1]):
        rows, group = X[rows_of] - origin, groups[rows_of]
        inside = labels_of(rows, clusterings)[:, pairs[:, 0]] == pairs[:, 1]
        every = codes_of(rows, rules)
        codes, place = np.unique(every, return_inverse=True)
        joint = np.zeros((n_groups, p, len(codes), 2))
        of_cluster = [has_bit(every, cluster) for cluster in range(k)]
        for g in range(n_groups):
            here = group == g
            part = rows[here]
            for cluster in range(k):
                old = part[of_cluster[cluster][here]]
                totals.counts[g, cluster] += len(old)
                totals.sums[g, cluster] += old.sum(axis=0)
            for pair, cluster in enumerate(pairs[:, 2]):
                chosen = inside[here, pair]
                old, new = part[of_cluster[cluster][here]], part[chosen]
                totals.new_counts[g, pair] += len(new)
                totals.new_sums[g, pair] += new.sum(axis=0)
                totals.old_products[g, pair] += old.T @ old
                totals.new_products[g, pair] += new.T @ new
                cells = np.bincount(2 * place[here] + chosen, minlength=2 * len(codes))
                joint[g, pair] += cells.reshape(len(codes), 2)
        parts.append((codes, joint))
    totals.codes, totals.joint = merge_joint(parts)
    return totals


def merge_groups(a: GroupSums, b: GroupSums) -> GroupSums:
    """Merge what two blocks say, using the memory of the first."""
    a.codes, a.joint = merge_joint([(a.codes, a.joint), (b.codes, b.joint)])
    for name in ("counts", "sums", "new_counts", "new_sums", "old_products", "new_products"):
        add_to(getattr(a, name), getattr(b, name))
    return a


def add_to(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Add an array to the first one."""
    a += b
    return a


@dataclass
class Assignment:
    """Rule that labels rows: eq. (20)."""

    rules: Rules
    # Of shape (n_clusters, n_features), float64: means of the clusters, about the data's origin.
    centers: np.ndarray
    subsets: np.ndarray  # of shape (n_clusters, n_features), bool
    # Of shape (n_clusters,), float64: mean variance of the cluster's features within it.
    variances: np.ndarray


def assign(
    X: np.ndarray, origin: np.ndarray, how: Assignment, leave_unassigned: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return labels (n_rows,), int32, and memberships (n_rows, n_clusters), bool.

    A row of several clusters takes the nearest of them by eq. (20), a row of none the nearest of
    all, or -1 where it is to be left; of those that are as near but for rounding the first.
    """
    n_clusters = len(how.centers)
    labels = np.empty(len(X), dtype=np.int32)
    inside = np.empty((len(X), n_clusters), dtype=bool)
    masked = how.centers * how.subsets
    for rows_of in tiles(len(X), n_clusters**2):
        rows = X[rows_of] - origin
        member = labels_of(rows, how.rules.clusterings) == how.rules.members
        extent = rows**2 @ how.subsets.T + (masked**2).sum(axis=1)
        squared = extent - 2 * rows @ masked.T
        squared[squared <= TIE * extent] = 0.0
        distance = np.sqrt(squared) / how.variances
        alone = ~member.any(axis=1)
        distance[~(member | alone[:, None])] = np.inf
        least = distance.min(axis=1, keepdims=True)
        nearest = (distance <= (1 + 1e-9) * least).argmax(axis=1)
        labels[rows_of] = np.where(alone & leave_unassigned, -1, nearest)
        inside[rows_of] = member
    return labels, inside


def label_sums(X: np.ndarray, origin: np.ndarray, labels: np.ndarray, n: int) -> np.ndarray:
    """Return counts, sums and squares of each label's rows, shape (n, 1 + 2 * n_features)."""
    sums = np.zeros((n, 1 + 2 * X.shape[1]))
    for label in range(n):
        rows = X[labels == label] - origin
        sums[label] = [len(rows), *rows.sum(axis=0), *(rows**2).sum(axis=0)]
    return sums
