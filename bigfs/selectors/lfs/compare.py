"""Comparison of clusters in LFS: adjusted normalized separability, eqs. (13) to (18).

New versions of one cluster, members in a smaller subset each, are compared with the present one.
Covariances are those of the features of both subsets; where one of the four is singular, or a
cluster has few rows, all four terms are ratios of traces.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bigfs.selectors.clusters import ROWS_PER_FEATURE, Clusters, SearchedRows, sums_of
from bigfs.selectors.lfs import LFSParameters
from bigfs.solvers.separability import (
    DIGITS,
    covariance,
    is_singular,
    jackknife_error,
    log_separability,
    overlap_measure,
    variance,
    without_each,
)

# Entries of the covariances that are compared at a time.
TOGETHER = 2**18

Sums = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Compared:
    """Versions of a cluster beside the present one."""

    # Of shape (n_versions,), float64: log of ANV(new) over ANV(old), 0 of equal members
    # (proposition 2), -inf where it is not defined; O and U with the replacement.
    ratios: np.ndarray
    overlap: np.ndarray
    unassigned: np.ndarray
    # Of shape (n_versions,), bool: members are equal; the ratio is of traces.
    same: np.ndarray
    traced: np.ndarray


class ClusterComparison:
    """Compares versions of a cluster with the present one.

    Parameters
    ----------
    rows : SearchedRows
    clusters : Clusters
        Of the solution.
    cluster : int
    own : ndarray of shape (n_features,), bool
        Its subset.
    parameters : LFSParameters
    """

    def __init__(
        self,
        rows: SearchedRows,
        clusters: Clusters,
        cluster: int,
        own: np.ndarray,
        parameters: LFSParameters,
    ) -> None:
        self._rows, self._clusters, self._cluster, self._own = rows, clusters, cluster, own
        self._parameters = parameters
        many = parameters.drops_many(len(own))
        self._rows_per_feature = ROWS_PER_FEATURE if many else 1

    def of(self, new: np.ndarray, masks: np.ndarray, sums: Sums) -> Compared:
        """Compare versions that have at least two rows and a smaller subset.

        Parameters
        ----------
        new : ndarray of shape (n_versions, n_rows), bool
            Their members.
        masks : ndarray of shape (n_versions, n_features), bool
        sums : tuple of ndarray
            Counts, sums and sums of squares of the members.
        """
        ratios, traced = np.zeros(len(new)), np.zeros(len(new), dtype=bool)
        overlap, unassigned, penalty = (
            values[0] for values in self._penalties(new, [slice(None)], lambda parts: parts)
        )
        same = (new == self._clusters.members[self._cluster]).all(axis=1)
        others = np.flatnonzero(~same)
        features = np.flatnonzero(self._own | masks.any(axis=0))
        step = max(1, TOGETHER // (len(features) * (len(features) + len(self._clusters.counts))))
        for begin in range(0, len(others), step):
            some = others[begin : begin + step]
            ratios[some], traced[some] = self._log_ratios(
                new[some], masks[some], features, *(part[some] for part in sums)
            )
        ratios[others] -= penalty[others]
        known = np.isfinite(ratios)
        ratios = np.where(known, np.round(np.where(known, ratios, 0.0), DIGITS), -np.inf)
        return Compared(ratios, overlap, unassigned, same, traced)

    def _log_ratios(
        self,
        new: np.ndarray,
        masks: np.ndarray,
        features: np.ndarray,
        counts: np.ndarray,
        sums: np.ndarray,
        squares: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the logs of NV(new) over NV(old), and whether they are of traces."""
        clusters, cluster, own = self._clusters, self._cluster, self._own[features]
        masks, old_count = masks[:, features], clusters.counts[self._cluster]
        sums, squares = sums[:, features], squares[:, features]
        means = clusters.means[:, features]
        largest = np.maximum(own.sum(), masks.sum(axis=1))
        traced = np.minimum(counts, old_count) <= self._rows_per_feature * largest
        if not traced.all():
            old = self._products(clusters.members[cluster], features)
            old_within = covariance(old_count, old_count * means[cluster], old)
            products = np.stack([self._changed(members, old, features) for members in new])
            np.einsum("pii->pi", products)[:] = squares
            within = covariance(counts, sums, products)
            for i in np.flatnonzero(~traced).tolist():
                traced[i] = _any_singular(
                    [(old_within, old_count), (within[i], counts[i])], own, masks[i]
                )
        values, fresh = np.empty(len(new)), sums / counts[:, None]
        for use_trace in np.unique(traced).tolist():
            at = traced == use_trace
            before = clusters.variances[cluster, features] if use_trace else old_within
            after = (variance(counts, sums, squares) if use_trace else within)[at]
            new_counts = np.tile(clusters.counts, (int(at.sum()), 1))
            new_means = np.tile(means, (len(new_counts), 1, 1))
            new_counts[:, cluster], new_means[:, cluster] = counts[at], fresh[at]
            # NV of eqs. (13) and (14): the criterion on both subsets.
            with np.errstate(invalid="ignore"):  # all means may be equal in both
                values[at] = sum(
                    log_separability(new_counts, new_means, after, subset)
                    - log_separability(clusters.counts, means, before, subset)
                    for subset in (own, masks[at])
                )
        return values, traced

    def _products(self, members: np.ndarray, features: np.ndarray) -> np.ndarray:
        """Return the sum of ``x x'`` of some rows in some features."""
        inner = self._rows.X[np.ix_(members, features)]
        return np.asarray(inner.T @ inner)

    def _changed(self, new: np.ndarray, old: np.ndarray, features: np.ndarray) -> np.ndarray:
        """Return the products of a new version, from those of the old one where most rows stay."""
        before = self._clusters.members[self._cluster]
        come, go = new & ~before, before & ~new
        if come.sum() + go.sum() > new.sum():
            return self._products(new, features)
        return old + self._products(come, features) - self._products(go, features)

    def _penalties(
        self,
        new: np.ndarray,
        groups: list[slice],
        totals: Callable[[np.ndarray], np.ndarray],
    ) -> tuple[np.ndarray, ...]:
        """Return O and U with each version, and ``2 (alpha dO + beta dU)``.

        Rows are counted by groups, and ``totals`` makes of the counts, by its first axis, those
        that the measures are taken of; each returned array has that axis before the versions.
        """
        members, cluster = self._clusters.members, self._cluster
        rest = members.sum(axis=0) == members[cluster]  # rows of no other cluster
        counted = []
        for group in groups:
            M, N = members[:, group].astype(np.float64), new[:, group].astype(np.float64)
            own, others = M[cluster], rest[group].astype(np.float64)
            gaps = others.sum() - own @ others, others.sum() - N @ others
            counted.append((M.shape[1], M @ M.T, N @ M.T, N.sum(axis=1), *gaps))
        n, shared, row, count, before, after = (
            totals(np.array(parts, dtype=np.float64)) for parts in zip(*counted, strict=True)
        )
        with_new = np.repeat(shared[:, None], len(new), axis=1)
        with_new[:, :, cluster] = row
        with_new[:, :, :, cluster] = row
        with_new[:, :, cluster, cluster] = count
        overlap, unassigned = overlap_measure(with_new), after / n[:, None]
        d_overlap = overlap - overlap_measure(shared)[:, None]
        d_unassigned = unassigned - (before / n)[:, None]
        alpha, beta = self._parameters.alpha, self._parameters.beta
        return overlap, unassigned, 2 * (alpha * d_overlap + beta * d_unassigned)

    def error(self, new: np.ndarray, mask: np.ndarray, use_trace: bool) -> float:
        """Return the standard error of a version's ratio: each group of rows is left out in turn.

        Memberships are fixed. NaN if a covariance is singular without a group.
        """
        cluster, ends, features = self._cluster, self._rows.ends, np.flatnonzero(self._own | mask)
        groups, inner = list(map(slice, ends[:-1], ends[1:])), self._rows.X.take(features, axis=1)
        members = np.vstack([self._clusters.members, new])
        parts = [sums_of(inner[group], members[:, group]) for group in groups]
        counts, sums, squares = (without_each(np.stack(part)) for part in zip(*parts, strict=True))
        means = sums / np.maximum(counts, 1)[..., None]
        own, mask = self._own[features], mask[features]
        if counts[:, [cluster, -1]].min() <= max(own.sum(), mask.sum()):
            use_trace = True
        replicates = -self._penalties(new[None], groups, without_each)[2][:, 0]
        step = max(1, TOGETHER // len(features) ** 2)
        for place, sign in ((cluster, -1), (-1, 1)):  # the present cluster and the new version
            n, centers = counts[:, :-1].copy(), means[:, :-1].copy()
            n[:, cluster], centers[:, cluster] = counts[:, place], means[:, place]
            within = squares[:, place]
            if not use_trace:
                of_groups = (inner[group][members[place, group]] for group in groups)
                within = without_each(np.stack([part.T @ part for part in of_groups]))
            for begin in range(0, len(groups), step):
                some = slice(begin, begin + step)
                reduced = variance if use_trace else covariance
                scatter = reduced(n[some, cluster], sums[some, place], within[some])
                # A covariance that is not singular in all rows may be so without some of them.
                count = n[some, cluster].min()
                if not use_trace and _any_singular([(scatter, count)], own, mask):
                    return float("nan")
                for subset in (own, mask):
                    values = log_separability(n[some], centers[some], scatter, subset)
                    replicates[some] += sign * values
        return jackknife_error(replicates)


def _any_singular(
    within: list[tuple[np.ndarray, float]], own: np.ndarray, mask: np.ndarray
) -> bool:
    """Return whether one of the covariances is singular in one of two subsets."""
    every = np.arange(len(own))
    return any(
        is_singular(matrix, count, np.flatnonzero(subset))
        for matrix, count in within
        if is_singular(matrix, count, every)  # else it is so in no subset
        for subset in (own, mask)
    )
