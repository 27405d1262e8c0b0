"""Search of LFS: figure 2 of the paper on rows in memory; one pass then labels all rows.

Each step tries smaller subsets of one cluster, and compares every cluster of the solution with the
new cluster that overlaps it most, by adjusted normalized separability, eqs. (13) to (18).
Covariances are computed in the features of both subsets; if one of the four is singular, or a
cluster has few rows, all four terms are ratios of traces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np

from bigfs.blocks.lloyd import label_sums, lloyd
from bigfs.selectors.clusters import (
    N_GROUPS,
    ROWS_PER_FEATURE,
    ClusterRule,
    Clusters,
    SearchedRows,
    least_separate,
    sums_of,
)
from bigfs.selectors.lfs import LFSParameters
from bigfs.selectors.sampled import SampledSearch, SearchState, batch_size
from bigfs.solvers.separability import (
    DIGITS,
    covariance,
    feature_separability,
    is_singular,
    jackknife_error,
    log_separability,
    overlap_measure,
    tells_cluster,
    variance,
    without_each,
)

# Number of covariance entries that are processed at a time.
TOGETHER = 2**18

Sums = Sequence[np.ndarray]


@dataclass(frozen=True)
class ClusterComparison:
    """Compare new versions of a cluster with the current one.

    Parameters
    ----------
    rows : SearchedRows
    clusters : Clusters
        Clusters of the solution.
    cluster : int
        Index of the cluster that is compared.
    own : ndarray of shape (n_features,), bool
        Feature subset of this cluster.
    parameters : LFSParameters
    """

    rows: SearchedRows
    clusters: Clusters
    cluster: int
    own: np.ndarray
    parameters: LFSParameters

    def of(self, new: np.ndarray, masks: np.ndarray, sums: Sums) -> dict[str, np.ndarray]:
        """Compare versions that have at least two rows and a smaller subset.

        Parameters
        ----------
        new : ndarray of shape (n_versions, n_rows), bool
            Members of each version.
        masks : ndarray of shape (n_versions, n_features), bool
        sums : sequence of ndarray
            Counts, sums and sums of squares of the members.

        Returns
        -------
        compared : dict of str to ndarray of shape (n_versions,)
            The fields ``same`` to ``unassigned`` of `Proposal`. The ratio is 0 if the members are
            equal (proposition 2), and -inf if it is not defined.
        """
        ratios, traced = np.zeros(len(new)), np.zeros(len(new), dtype=bool)
        overlap, unassigned, penalty = (
            values[0] for values in self._penalties(new, [slice(None)], lambda parts: parts)
        )
        same = (new == self.clusters.members[self.cluster]).all(axis=1)
        others = np.flatnonzero(~same)
        features = np.flatnonzero(self.own | masks.any(axis=0))
        step = max(1, TOGETHER // (len(features) * (len(features) + len(self.clusters.counts))))
        for begin in range(0, len(others), step):
            some = others[begin : begin + step]
            of_some = [part[some] for part in sums]
            ratios[some], traced[some] = self._log_ratios(new[some], masks[some], features, of_some)
        ratios[others] -= penalty[others]
        ratio = np.round(np.where(np.isfinite(ratios), ratios, -np.inf), DIGITS)
        return {
            "same": same, "ratio": ratio, "traced": traced,
            "overlap": overlap, "unassigned": unassigned,
        }  # fmt: skip

    def _log_ratios(
        self, new: np.ndarray, masks: np.ndarray, features: np.ndarray, of_new: Sums
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the log ratios of NV(new) to NV(old), and the mask of those based on traces."""
        clusters, cluster, own = self.clusters, self.cluster, self.own[features]
        masks, old_count = masks[:, features], clusters.counts[self.cluster]
        counts, sums, squares = of_new[0], of_new[1][:, features], of_new[2][:, features]
        means = clusters.means[:, features]
        largest = np.maximum(own.sum(), masks.sum(axis=1))
        rows_per_feature = ROWS_PER_FEATURE if self.parameters.drops_many(len(self.own)) else 1
        traced = np.minimum(counts, old_count) <= rows_per_feature * largest
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
            # NV of eqs. (13) and (14): product of the criterion over both subsets.
            with np.errstate(invalid="ignore"):  # all means may be equal in both
                values[at] = sum(
                    log_separability(new_counts, new_means, after, subset)
                    - log_separability(clusters.counts, means, before, subset)
                    for subset in (own, masks[at])
                )
        return values, traced

    def _products(self, members: np.ndarray, features: np.ndarray) -> np.ndarray:
        """Return the sum of ``x x'`` over the given rows, in the given features."""
        inner = self.rows.X[np.ix_(members, features)]
        return np.asarray(inner.T @ inner)

    def _changed(self, new: np.ndarray, old: np.ndarray, features: np.ndarray) -> np.ndarray:
        """Return the products of a new version, updated from the old ones if most rows stay."""
        before = self.clusters.members[self.cluster]
        added, removed = new & ~before, before & ~new
        if added.sum() + removed.sum() > new.sum():
            return self._products(new, features)
        return old + self._products(added, features) - self._products(removed, features)

    def _penalties(
        self,
        new: np.ndarray,
        groups: list[slice],
        totals: Callable[[np.ndarray], np.ndarray],
    ) -> tuple[np.ndarray, ...]:
        """Return O and U with each version, and ``2 (alpha dO + beta dU)``.

        Rows are counted per group. ``totals`` maps the counts, stacked along the first axis, to
        those that the measures are computed from, such as leave-one-group-out totals. That axis
        comes before the versions in each returned array.
        """
        members, cluster = self.clusters.members, self.cluster
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
        alpha, beta = self.parameters.alpha, self.parameters.beta
        return overlap, unassigned, 2 * (alpha * d_overlap + beta * d_unassigned)

    def error(self, new: np.ndarray, mask: np.ndarray, use_trace: bool) -> float:
        """Return the jackknife standard error of a version's ratio, leaving out groups of rows.

        Memberships are fixed. NaN if a covariance is singular when a group is left out.
        """
        cluster, ends, features = self.cluster, self.rows.ends, np.flatnonzero(self.own | mask)
        groups, inner = list(map(slice, ends[:-1], ends[1:])), self.rows.X.take(features, axis=1)
        members = np.vstack([self.clusters.members, new])
        parts = [sums_of(inner[group], members[:, group]) for group in groups]
        counts, sums, squares = (without_each(np.stack(part)) for part in zip(*parts, strict=True))
        means = sums / np.maximum(counts, 1)[..., None]
        own, mask = self.own[features], mask[features]
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
                # A covariance that is regular on all rows may be singular without some of them.
                count = n[some, cluster].min()
                if not use_trace and _any_singular([(scatter, count)], own, mask):
                    return float("nan")
                for subset in (own, mask):
                    values = log_separability(n[some], centers[some], scatter, subset)
                    with np.errstate(invalid="ignore"):  # inf - inf; the error is then NaN
                        replicates[some] += sign * values
        return jackknife_error(replicates)


def _any_singular(
    within: list[tuple[np.ndarray, float]], own: np.ndarray, mask: np.ndarray
) -> bool:
    """Return True if one of the covariances is singular in one of two subsets."""
    every = np.arange(len(own))
    return any(
        is_singular(matrix, count, np.flatnonzero(subset))
        for matrix, count in within
        if is_singular(matrix, count, every)  # otherwise it is regular in every subset
        for subset in (own, mask)
    )


@dataclass
class Proposal:
    """A cluster of a candidate clustering, proposed to replace the cluster that it overlaps."""

    mask: np.ndarray  # of shape (n_features,), bool: the candidate's features
    centers: np.ndarray  # of shape (n_clusters, n_features), float64: the candidate's centers
    label: int  # label of the new cluster in the candidate clustering
    members: np.ndarray  # of shape (n_rows,), bool
    same: bool  # True if the members are those of the old cluster
    ratio: float  # log ratio of the adjusted value to that of the old cluster
    traced: bool  # True if the ratio is based on traces
    overlap: float  # O after the replacement
    unassigned: float  # U after the replacement
    error: float = np.nan  # standard error of the ratio; NaN if it was not needed


@dataclass
class LocalClusters(SearchState):
    """A solution, and the state of the search."""

    name = "lfs"

    subsets: np.ndarray  # of shape (n_clusters, n_features), bool
    members: np.ndarray  # of shape (n_clusters, n_rows), bool
    # The clustering that each cluster was taken from: its centers, of shape (n_clusters,
    # n_clusters, n_features), float64; its features, of shape (n_clusters, n_features), bool; and
    # the label of the cluster in it, of shape (n_clusters,).
    centers: np.ndarray
    masks: np.ndarray
    labels: np.ndarray
    # Of shape (n_clusters,), int64: the version at which a cluster's subsets were last tried.
    tried: np.ndarray
    trace: list[dict[str, Any]] = field(default_factory=list)  # the accepted replacements
    round: int = 0
    next_cluster: int = 0
    version: int = 0  # number of steps that changed the solution

    @classmethod
    def begin(cls, rows: SearchedRows, centers: np.ndarray, parameters: Any) -> LocalClusters:
        """Return the state after clustering in all usable features.

        With a single cluster there is nothing to search, as it has no others to be separate from.
        """
        k, usable = len(centers), rows.usable
        ends, labels = lloyd(rows.X, centers, usable[None], parameters.max_iter, parameters.tol)
        every = np.arange(k)
        return cls(
            np.tile(usable, (k, 1)), labels[0] == every[:, None], np.repeat(ends, k, axis=0),
            np.tile(usable, (k, 1)), every, np.full(k, -1 if k > 1 else 0),
        )  # fmt: skip

    @property
    def finished(self) -> bool:
        """True if the subsets of all clusters were tried on this solution without a change."""
        return bool((self.tried == self.version).all())

    @property
    def note(self) -> str:
        """Number of the round, and number of remaining features, as text."""
        return f"round {self.round + 1}, {int(self.subsets.sum())} features in all clusters"

    def rule(self, rows: SearchedRows) -> ClusterRule:
        """Return the rule that labels all rows."""
        clusters = Clusters.of(rows, self.members)
        variances = np.array(
            [of[kept].mean() for of, kept in zip(clusters.variances, self.subsets, strict=True)]
        )
        # The variance of a cluster of equal rows is zero: with this lower bound only equal rows are
        # near it.
        variances = np.maximum(variances, 1e-12 * variances.max() or 1.0)
        return ClusterRule(
            rows.origin, self.centers, self.masks, np.arange(len(self.labels)), self.labels,
            clusters.means, self.subsets, variances,
        )  # fmt: skip

    def step(self, rows: SearchedRows, parameters: LFSParameters) -> None:
        """Try smaller subsets of the next cluster, and replace the clusters that they improve."""
        cluster = self.next_cluster
        if self.tried[cluster] != self.version:
            self.tried[cluster] = self.version
            if self.subsets[cluster].sum() > 1:
                self._try(rows, cluster, parameters)
        self.next_cluster = (cluster + 1) % len(self.subsets)
        self.round += self.next_cluster == 0

    def _try(self, rows: SearchedRows, cluster: int, parameters: LFSParameters) -> None:
        """Try to drop each feature of a cluster alone, or several features at a time."""
        clusters, kept = Clusters.of(rows, self.members), np.flatnonzero(self.subsets[cluster])
        many = parameters.drops_many(self.subsets.shape[1])
        dropped: Any = kept[:, None]
        if many:
            means, within = clusters.means[:, kept], clusters.variances[cluster, kept]
            dropped = least_separate(kept, feature_separability(clusters.counts, means, within))
        masks = np.tile(self.subsets[cluster], (len(dropped), 1))
        for mask, some in zip(masks, dropped, strict=True):
            mask[some] = False
        comparisons = [
            ClusterComparison(rows, clusters, other, own, parameters)
            for other, own in enumerate(self.subsets)
        ]
        by_cluster = self._proposals(comparisons, masks)
        informative = tells_cluster(
            clusters.counts, clusters.means, clusters.variances, rows.variances, len(rows.X)
        )
        accepted = {}
        for other, proposals in enumerate(by_cluster):
            proposals.sort(key=lambda proposal: int(proposal.mask.sum()))
            # If ties could drop any group of features, all features would soon be lost.
            removable = ~informative[other] if many else np.ones_like(informative[other])
            for proposal in proposals:
                removed = self.subsets[other] & ~proposal.mask
                loses = not proposal.same and proposal.ratio <= 0
                if loses and parameters.tie_width > 0 and removable[removed].all():
                    tried = proposal.members, proposal.mask, proposal.traced
                    proposal.error = comparisons[other].error(*tried)
                # A loss within `tie_width` standard errors is a tie: fewer features are preferred.
                if not loses or proposal.ratio >= -parameters.tie_width * proposal.error:
                    accepted[other] = proposal
                    break
        for other, proposal in accepted.items():
            self._replace(other, proposal, cluster)
        self.version += bool(accepted)

    def _proposals(
        self, comparisons: list[ClusterComparison], masks: np.ndarray
    ) -> list[list[Proposal]]:
        """Return the proposals to replace each cluster: the best one, or all with "many"."""
        k, d = self.subsets.shape
        X, clusters = comparisons[0].rows.X, comparisons[0].clusters
        parameters = comparisons[0].parameters
        by_cluster: list[list[Proposal]] = [[] for _ in range(k)]
        step = batch_size(len(X), d, k)
        for begin in range(0, len(masks), step):
            some = masks[begin : begin + step]
            ends, labels = lloyd(X, clusters.means, some, parameters.max_iter, parameters.tol)
            sums = label_sums(X, labels, k)
            for other in np.flatnonzero(clusters.counts >= 2).tolist():
                by_cluster[other] += _matches(comparisons[other], some, ends, labels, sums)
                if not parameters.drops_many(d):
                    best = max(by_cluster[other], key=attrgetter("ratio"), default=None)
                    by_cluster[other] = [] if best is None else [best]
        return by_cluster

    def _replace(self, cluster: int, proposal: Proposal, tried: int) -> None:
        """Replace a cluster by a proposal, and record it in the trace."""
        old = self.subsets[cluster]
        self.trace.append(
            {
                "round": self.round,
                "tried_cluster": tried,
                "cluster": cluster,
                "dropped": np.flatnonzero(old & ~proposal.mask).tolist(),
                "added": np.flatnonzero(proposal.mask & ~old).tolist(),
                "n_features": int(proposal.mask.sum()),
                "log_ratio": proposal.ratio,
                "standard_error": None if np.isnan(proposal.error) else proposal.error,
                "overlap": proposal.overlap,
                "unassigned": proposal.unassigned,
            }
        )
        self.subsets[cluster], self.members[cluster] = proposal.mask, proposal.members
        self.centers[cluster], self.masks[cluster] = proposal.centers, proposal.mask
        self.labels[cluster] = proposal.label


def _matches(
    comparison: ClusterComparison,
    masks: np.ndarray,
    ends: np.ndarray,
    labels: np.ndarray,
    sums: Sums,
) -> list[Proposal]:
    """Return a proposal per candidate clustering: the cluster that overlaps the current one most.

    Candidates are left out if that cluster has fewer than two rows, if their subset is not smaller
    than that of the current cluster, or if the ratio is not defined.
    """
    members = comparison.clusters.members
    n, k, every = len(masks), len(members), np.arange(len(masks))
    of_cluster = labels[:, members[comparison.cluster]] + k * every[:, None]
    shared = np.bincount(of_cluster.ravel(), minlength=n * k).reshape(n, k)
    most = shared.argmax(axis=1)
    smaller = masks.sum(axis=1) < comparison.own.sum()
    at = np.flatnonzero(smaller & (sums[0][every, most] >= 2))
    if not len(at):
        return []
    most, masks = most[at], masks[at]
    new = labels[at] == most[:, None]
    tried = comparison.of(new, masks, [part[at, most] for part in sums])
    return [
        Proposal(
            masks[i], ends[at[i]], int(most[i]), new[i],
            **{name: values[i].item() for name, values in tried.items()},
        )
        for i in np.flatnonzero(tried["ratio"] > -np.inf).tolist()
    ]  # fmt: skip


class LocalSearch(SampledSearch):
    """Backward search with a subset for each cluster."""

    kind = LocalClusters
    keeps_members, loops = True, 25

    def compared_bytes(self, n_rows: int, n_clusters: int) -> int:
        """Return the bytes of products and covariances, also with each group left out."""
        d, many = self.shape.n_features, self.parameters.drops_many(self.shape.n_features)
        # Features of two clusters, each with enough rows for a covariance.
        side = min(d, 2 * n_rows // (ROWS_PER_FEATURE if many else 1), n_rows)
        square = 8 * side**2
        at_a_time = max(8 * TOGETHER, square)
        return max(6 * at_a_time, 3 * N_GROUPS * square + 4 * at_a_time) + 8 * n_rows * side

    def scores(self, solution: dict[str, Any], counts: np.ndarray) -> np.ndarray:
        """Return the fraction of rows whose cluster keeps a feature."""
        return np.asarray(counts @ solution["subsets"] / self.shape.n_samples)

    def details(self, solution: dict[str, Any], rule: ClusterRule) -> dict[str, Any]:
        """Return the subsets, the complete rule, and the course of the search."""
        return {
            "origin": rule.origin,
            "feature_masks": rule.subsets,
            "variances": rule.variances,
            "rule_centers": rule.centers,
            "rule_masks": rule.masks,
            "rule_members": rule.labels,
            "trace": solution["trace"],
            "n_iter": max(1, solution["round"]),
        }
