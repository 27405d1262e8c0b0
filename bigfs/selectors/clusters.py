"""Clusters of rows: their sums, and the rule that labels all rows in one pass.

Shared by LFS and GFS-k-means. Each cluster of a solution is one label of one k-means clustering
in a subset of the features, so the memberships of any row follow from small arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.blocks.kernels import block_moments
from bigfs.blocks.lloyd import TIE
from bigfs.core.cost import Shape, Step, pass_over
from bigfs.selectors.kept import discard, hand_over, handed
from bigfs.solvers.separability import variance
from bigfs.store.scratch import ArrayRef

# Number of groups of rows that the jackknife leaves out in turn.
N_GROUPS = 20
# Number of array entries processed at a time.
TILE_ENTRIES = 500_000
# Minimum number of rows of a cluster per feature for a covariance, if several features are dropped
# at a time: the inverse of a covariance of few rows is noise, and takes most of the time.
ROWS_PER_FEATURE = 10


@dataclass(frozen=True)
class SearchedRows:
    """Centered rows in memory, sorted by the groups of the jackknife."""

    X: np.ndarray  # of shape (n_rows, n_features), float64
    origin: np.ndarray  # of shape (n_features,), float64: the mean
    order: np.ndarray  # of shape (n_rows,): indices of the rows before sorting
    ends: np.ndarray  # of shape (N_GROUPS + 1,): boundaries of the groups
    variances: np.ndarray  # of shape (n_features,), float64
    usable: np.ndarray  # of shape (n_features,), bool: features that vary

    @classmethod
    def of(cls, data: np.ndarray) -> SearchedRows:
        """Return the rows, centered and sorted by group."""
        groups, moments = groups_of(len(data), N_GROUPS), block_moments(data)
        order = np.argsort(groups, kind="stable")
        X = np.asarray(data[order], dtype=np.float64)
        X -= moments.mean
        ends = np.searchsorted(groups[order], np.arange(N_GROUPS + 1))
        return cls(X, moments.mean, order, ends, moments.variance, ~moments.constant)


def groups_of(n_rows: int, n_groups: int) -> np.ndarray:
    """Return the group of each row: a hash of the row number, in [0, n_groups)."""
    z = np.arange(n_rows, dtype=np.uint64)
    z = z * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) % np.uint64(n_groups)).astype(np.int64)


def sums_of(X: np.ndarray, members: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the counts, sums and sums of squares of the rows of each cluster.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_features), float64
    members : ndarray of shape (n_clusters, n_rows), bool

    Returns
    -------
    counts : ndarray of shape (n_clusters,), float64
    sums, squares : ndarray of shape (n_clusters, n_features), float64
    """
    marks = members.astype(np.float64)
    squares, step = np.empty((len(marks), X.shape[1])), max(1, TILE_ENTRIES // (len(X) + 1))
    for begin in range(0, X.shape[1], step):
        part = slice(begin, begin + step)
        squares[:, part] = marks @ X[:, part] ** 2
    return marks.sum(axis=1), marks @ X, squares


@dataclass(frozen=True)
class Clusters:
    """Clusters of rows in memory, which may overlap."""

    members: np.ndarray  # of shape (n_clusters, n_rows), bool
    counts: np.ndarray  # of shape (n_clusters,), float64
    means: np.ndarray  # of shape (n_clusters, n_features): zero (the origin) for empty clusters
    variances: np.ndarray  # of shape (n_clusters, n_features)

    @classmethod
    def of(cls, rows: SearchedRows, members: np.ndarray) -> Clusters:
        """Return the clusters with the given memberships."""
        counts, sums, squares = sums_of(rows.X, members)
        means = sums / np.maximum(counts, 1)[:, None]
        return cls(members, counts, means, variance(counts, sums, squares))


def least_separate(kept: np.ndarray, separability: np.ndarray) -> list[np.ndarray]:
    """Return sets of features to drop together: a quarter of those kept, halved down to one.

    Parameters
    ----------
    kept : ndarray of int
        Features that are kept.
    separability : ndarray of the shape of kept
        Separability of the clusters in each feature alone. Each set has the features of lowest
        separability.

    Returns
    -------
    sets : list of ndarray of int
        The largest set first.
    """
    order, sizes = kept[np.argsort(separability, kind="stable")], [max(1, len(kept) // 4)]
    while sizes[-1] > 1:
        sizes.append(sizes[-1] // 2)
    return [order[:size] for size in sizes]


def most_candidates(n_features: int, many: bool) -> int:
    """Return an upper bound of the number of candidates of a step.

    A candidate drops one feature, or, if ``many``, one of the sets of `least_separate`.
    """
    return max(1, (n_features // 4).bit_length()) if many else n_features


@dataclass(frozen=True)
class ClusterRule:
    """Rule that labels rows: by membership, or by eq. (20) if a row has no or several clusters."""

    origin: np.ndarray  # of shape (n_features,), float64: subtracted from rows before labeling
    # Of shape (n_clusterings, n_clusters, n_features), float64, and (n_clusterings, n_features),
    # bool: centers and features of the k-means clusterings.
    centers: np.ndarray
    masks: np.ndarray
    # Of shape (n_clusters,), int64: the clustering that each cluster comes from, and its label in
    # it.
    clusterings: np.ndarray
    labels: np.ndarray
    # Of shape (n_clusters, n_features): means of the clusters, and masks of the features that each
    # keeps.
    means: np.ndarray
    subsets: np.ndarray
    variances: np.ndarray  # of shape (n_clusters,), float64: mean variance of a cluster's features

    def label(self, X: np.ndarray, leave: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Label rows.

        A row that is in several clusters gets the nearest of them by eq. (20). A row that is in no
        cluster gets the nearest of all clusters, or -1 if ``leave``. If several clusters are
        equally near up to rounding, the first is chosen.

        Parameters
        ----------
        X : ndarray of shape (n_rows, n_features)
        leave : bool
            If True, rows that are in no cluster are labeled -1.

        Returns
        -------
        labels : ndarray of shape (n_rows,), int32
        inside : ndarray of shape (n_rows, n_clusters), bool
            Memberships.
        sums : ndarray of shape (n_clusters, 1 + 2 * n_features), float64
            Counts, sums about the origin and sums of squares of the rows of each label.
        """
        n, d = X.shape
        k = len(self.means)
        labels, inside = np.empty(n, dtype=np.int32), np.empty((n, k), dtype=bool)
        sums = np.zeros((k, 1 + 2 * d))
        masked = self.means * self.subsets
        norms = (masked**2).sum(axis=1)
        step = max(64, TILE_ENTRIES // (len(self.centers) * k + d))
        for begin in range(0, n, step):
            part = slice(begin, begin + step)
            rows = X[part] - self.origin
            member = self._nearest(rows)[:, self.clusterings] == self.labels
            squared_rows = rows**2
            extent = squared_rows @ self.subsets.T + norms
            squared = extent - 2 * rows @ masked.T
            squared[squared <= TIE * extent] = 0.0
            distance = np.sqrt(squared) / self.variances
            unassigned = ~member.any(axis=1)
            distance[~(member | unassigned[:, None])] = np.inf
            least = distance.min(axis=1, keepdims=True)
            nearest = (distance <= (1 + 1e-9) * least).argmax(axis=1)
            nearest[unassigned & leave] = -1
            labels[part], inside[part] = nearest, member
            marks = (nearest == np.arange(k)[:, None]).astype(np.float64)
            sums[:, 0] += marks.sum(axis=1)
            sums[:, 1 : 1 + d] += marks @ rows
            sums[:, 1 + d :] += marks @ squared_rows
        return labels, inside, sums

    def _nearest(self, rows: np.ndarray) -> np.ndarray:
        """Return the label of each row in each clustering; ties go to the first center."""
        masked = self.centers * self.masks[:, None, :]
        norms = np.einsum("cjd,cjd->jc", masked, masked)
        tie = TIE * norms.sum(axis=0)
        labels = np.zeros((len(rows), len(masked)), dtype=np.int64)
        nearest = rows @ (-2 * masked[:, 0].T) + norms[0]
        for j in range(1, masked.shape[1]):
            squared = rows @ (-2 * masked[:, j].T) + norms[j]
            closer = squared < nearest - tie
            np.copyto(labels, j, where=closer)
            np.copyto(nearest, squared, where=closer)
        return labels


def moments_of(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the counts, means and variances of each label from the sums of `ClusterRule.label`."""
    d = sums.shape[1] // 2
    n = np.maximum(sums[:, :1], 1)
    means = sums[:, 1 : 1 + d] / n
    return sums[:, 0], means, sums[:, 1 + d :] / n - means**2


def label_all(
    blocks: RowBlocks,
    rule: ClusterRule,
    leave: bool,
    labels: ArrayRef,
    inside: ArrayRef | None = None,
) -> np.ndarray:
    """Write the labels of all rows, and their memberships if requested, in one pass.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    rule : ClusterRule
    leave : bool
        If True, rows that are in no cluster are labeled -1.
    labels : ArrayRef of shape (n_samples,)
    inside : ArrayRef of shape (n_samples, n_clusters) or None, default=None
        Array for the memberships. None does not store them.

    Returns
    -------
    sums : ndarray of shape (n_clusters, 1 + 2 * n_features)
        As in `ClusterRule.label`.
    """
    stored = hand_over(blocks.scratch.path, vars(rule))
    sums = blocks.reduce(_label_kernel, np.add, stored, leave, labels, inside, label="labels")
    discard(stored)
    return np.asarray(sums)


def _label_kernel(
    X: np.ndarray,
    first_row: int,
    stored: Any,
    leave: bool,
    labels: ArrayRef,
    inside: ArrayRef | None,
) -> np.ndarray:
    rule = ClusterRule(**handed(stored))
    of_rows, members, sums = rule.label(X, leave)
    labels.write(first_row, of_rows)
    if inside is not None:
        inside.write(first_row, members)
    return sums


def labels_step(shape: Shape, n_clusters: int) -> Step:
    """Return the cost of `label_all`: a block, its labels, a tile and the rule."""
    rule = 16 * n_clusters**2 * shape.n_features
    labels = (12 + n_clusters) * shape.rows
    return pass_over(shape, "a block and its labels", labels + rule + 32 * TILE_ENTRIES)
