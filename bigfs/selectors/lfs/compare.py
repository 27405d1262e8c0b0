"""Comparison of clusters in LFS: adjusted normalized separability.

Candidates that are one subset without one feature each, and have clusters in common, are compared
together: from one inverse, or from the sums of all features but one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bigfs.selectors.lfs import LFSParameters
from bigfs.selectors.lfs.held import HeldRows, Tried
from bigfs.selectors.lfs.kernels import Candidates, Sweep, has_bit
from bigfs.selectors.lfs.passes import RowPasses
from bigfs.selectors.lfs.state import Matches, SearchState
from bigfs.selectors.lfs.traces import trace_ratios, trace_ratios_without_each
from bigfs.solvers.separability import (
    covariance,
    is_singular,
    log_separability_without_each,
    overlap_measure,
    pair_separability,
)

# Rows of a cluster for each feature that a covariance needs where several features are dropped at a
# time: the inverse of one of few rows is noise, and takes most of the time.
_ROWS_PER_FEATURE = 10


def rows_per_feature(many: bool) -> int:
    """Return how many rows of a cluster comparisons by covariances need for each feature."""
    return _ROWS_PER_FEATURE if many else 1


def matches(
    state: SearchState, masks: np.ndarray, swept: Sweep, parameters: LFSParameters
) -> Matches:
    """Return the matches of every candidate whose subset has fewer features than the cluster's."""
    k, sizes = len(state.subsets), state.subsets.sum(axis=1)
    inside, alone = memberships(swept.codes, k)
    joint = swept.joint
    weight = joint[0].sum(axis=1)
    n = weight.sum()
    shared = (inside * weight) @ inside.T
    before = overlap_measure(shared), float(weight[swept.codes == 0].sum() / n)
    overlaps, counts = inside @ joint, joint.sum(axis=1)
    members = overlaps.argmax(axis=2)
    smaller = (sizes > masks.sum(axis=1)[:, None]) & (shared.diagonal() >= 2)
    filled = np.take_along_axis(counts, members, axis=1) >= 2
    which, clusters = np.nonzero(smaller & filled)
    members = members[which, clusters]
    same = counts[which, members] == shared[clusters, clusters]
    same &= overlaps[which, clusters, members] == counts[which, members]
    overlap, unassigned = np.full(len(same), before[0]), np.full(len(same), before[1])
    at = which[~same], members[~same], clusters[~same]
    overlap[~same], unassigned[~same] = overlap_and_gaps(
        np.tile(shared, (len(at[0]), 1, 1)),
        overlaps[at[0], :, at[1]],
        counts[at[:2]],
        alone[at[2]][:, None] @ joint[at[0]],
        *at[1:],
        n,
    )
    penalty = 2 * (
        parameters.alpha * (overlap - before[0]) + parameters.beta * (unassigned - before[1])
    )
    pairs = np.column_stack([which, members, clusters])
    return Matches(pairs, same, np.zeros_like(same), overlap, unassigned, penalty)


def memberships(codes: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which codes contain each cluster, and which no other one; (k, n_codes), float64."""
    inside = has_bit(codes, np.arange(k)[:, None])
    return inside.astype(float), (inside.sum(axis=0) == inside).astype(float)


def overlap_and_gaps(
    shared: np.ndarray,
    row: np.ndarray,
    count: np.ndarray,
    alone: np.ndarray,
    members: np.ndarray,
    clusters: np.ndarray,
    totals: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return O and U after each of many replacements; all of it counts rows.

    Parameters
    ----------
    shared : ndarray of shape (n, k, k)
        Rows that clusters share before; overwritten.
    row : ndarray of shape (n, k)
        Rows that the new cluster shares with the old ones.
    count : ndarray of shape (n,)
        Its rows.
    alone : ndarray of shape (n, 1, n_labels)
        Rows of each label that are in no other cluster than the one that goes.
    members, clusters : ndarray of shape (n,)
        Label of the new cluster, and the one that goes.
    totals : ndarray of shape (n,) or float
        All rows.
    """
    every = np.arange(len(shared))
    left = alone.sum(axis=(1, 2)) - alone[every, 0, members]
    shared[every, clusters] = row
    shared[every, :, clusters] = row
    shared[every, clusters, clusters] = count
    return overlap_measure(shared), left / totals


@dataclass
class _Old:
    """A cluster of the solution, in the features of its own subset and of the candidates'.

    Attributes
    ----------
    features : ndarray of int
    products, within : ndarray of shape (n, n), float64
        Sums of ``x x'``, and the covariance.
    own, tried : ndarray of int
        Places of the two subsets among the features.
    logs : tuple of (float, ndarray) or None
        Logs of the criterion on its own subset, and on the other without each feature.
    """

    features: np.ndarray
    products: np.ndarray
    within: np.ndarray
    own: np.ndarray
    tried: np.ndarray
    logs: tuple[float, np.ndarray] | None


class OldValues:
    """The ratios of values before and after replacements, with the old parts computed once.

    Parameters
    ----------
    passes : RowPasses
    state : SearchState
    candidates : Candidates
    rows_per_feature : int
        Clusters with no more rows for each feature are compared by traces.
    """

    def __init__(
        self, passes: RowPasses, state: SearchState, candidates: Candidates, rows_per_feature: int
    ) -> None:
        self._passes, self._state, self._candidates = passes, state, candidates
        self._rows_per_feature = rows_per_feature
        self._counts, self._means = state.sums.counts, state.sums.means
        self._variances = state.sums.variances
        self._sizes = state.subsets.sum(axis=1)
        self._singular: dict[int, bool] = {}
        self._old: dict[int, _Old] = {}

    def ratios(
        self, matched: Matches, tried: Tried
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray | None]]:
        """Yield the log of ANV(new) over ANV(old), eqs. (13) to (18), of matches that differ.

        Yields
        ------
        match : int
        places : ndarray of int
            Which of those tried have the clustering.
        ratios : ndarray of the shape of places
            Where it is not defined, it is not finite.
        products : ndarray of shape (n_features, n_features) or None
            Of the new cluster, where somebody else than this process reads the rows.
        """
        swept, others = tried.swept, np.flatnonzero(~matched.same)
        order = np.argsort(tried.places, kind="stable")
        ends = np.searchsorted(tried.places[order], np.arange(len(tried.clusterings) + 1))
        places = [order[ends[g] : ends[g + 1]] for g in range(len(tried.clusterings))]
        singles = np.diff(ends) == 1
        if swept.squares is not None:
            which, members, clusters = matched.pairs[others].T
            # Few rows: no covariance of so many features is needed.
            sizes = tried.clusterings.masks.sum(axis=1) - ~singles
            largest = self._rows_per_feature * np.maximum(self._sizes[clusters], sizes[which])
            matched.traced[others] = [
                few or self._is_singular(cluster)
                for few, cluster in zip(
                    np.minimum(swept.counts[which, members], self._counts[clusters]) <= largest,
                    clusters.tolist(),
                    strict=True,
                )
            ]
            alone = np.flatnonzero(matched.traced & singles[matched.pairs[:, 0]])
            values = trace_ratios(
                matched.pairs[alone], tried.clusterings.masks, self._state.subsets, self._counts,
                self._means, self._variances, swept.counts, swept.sums, swept.squares,
            )  # fmt: skip
            for i, value in zip(alone.tolist(), values - matched.penalty[alone], strict=True):
                yield i, places[matched.pairs[i, 0]], np.array([value]), None
            for i in np.flatnonzero(matched.traced & ~singles[matched.pairs[:, 0]]).tolist():
                some = places[matched.pairs[i, 0]]
                yield i, some, self._traces(matched, i, tried, some) - matched.penalty[i], None
        untraced = others[~matched.traced[others]]
        for i, change, full in self._changes(matched, untraced, tried):
            some = places[matched.pairs[i, 0]]
            values = self._of_covariances(matched, i, tried, some, change)
            yield i, some, values - matched.penalty[i], full

    def _changes(
        self, matched: Matches, which: np.ndarray, tried: Tried
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray | None]]:
        """Yield matches, the gain of products in the features that count, and all new products."""
        passes, rules, clusterings = self._passes, self._state.rules, tried.clusterings
        if isinstance(passes, HeldRows):
            assert clusterings.labels is not None
            for i in which.tolist():
                clustering, member, cluster = matched.pairs[i].tolist()
                new, old = clusterings.labels[clustering] == member, passes.members(rules, cluster)
                features = self._of_cluster(cluster).features
                gain = passes.products(new & ~old, features)
                yield i, gain - passes.products(old & ~new, features), None
            return
        waiting = iter(which.tolist())
        for changes in passes.changes(clusterings, rules, matched.pairs[which]):
            for change in changes:
                i = next(waiting)
                cluster = int(matched.pairs[i, 2])
                features = self._of_cluster(cluster).features
                full = self._state.sums.products[cluster] + change
                yield i, change[np.ix_(features, features)], full

    def _is_singular(self, cluster: int) -> bool:
        """Say whether an old cluster's covariance is singular in its own subset."""
        if cluster not in self._singular:
            subset, count = self._state.subsets[cluster], self._counts[cluster]
            flat = count <= self._rows_per_feature * self._sizes[cluster]
            flat = flat or (self._variances[cluster, subset] <= 0).any()
            if not flat:
                old = self._of_cluster(cluster)
                flat = old.logs is None and is_singular(old.within, count, old.own)
            self._singular[cluster] = bool(flat)
        return self._singular[cluster]

    def _of_cluster(self, cluster: int) -> _Old:
        if cluster not in self._old:
            state, subset = self._state, self._candidates.subset
            features = np.flatnonzero(state.subsets[cluster] | subset)
            own = np.flatnonzero(state.subsets[cluster][features])
            tried = np.flatnonzero(subset[features])
            if isinstance(self._passes, HeldRows):
                members = self._passes.members(state.rules, cluster)
                products = self._passes.products(members, features)
            else:
                products = state.sums.products[cluster][np.ix_(features, features)]
            within = covariance(self._counts[cluster], state.sums.sums[cluster, features], products)
            logs = _logs(self._counts, self._means[:, features], cluster, within, own, tried)
            self._old[cluster] = _Old(features, products, within, own, tried, logs)
        return self._old[cluster]

    def _traces(self, matched: Matches, i: int, tried: Tried, some: np.ndarray) -> np.ndarray:
        """Return the ratios of a match, by eq. (5), for all candidates that share it."""
        clustering, member, cluster = matched.pairs[i]
        swept = tried.swept
        assert swept.squares is not None
        ratios = trace_ratios_without_each(
            self._candidates.subset, self._state.subsets[cluster], cluster, self._counts,
            self._means, self._variances[cluster], swept.counts[clustering, member],
            swept.sums[clustering, member], swept.squares[clustering, member],
        )  # fmt: skip
        return np.asarray(ratios[tried.candidates[some]])

    def _of_covariances(
        self, matched: Matches, i: int, tried: Tried, some: np.ndarray, change: np.ndarray
    ) -> np.ndarray:
        """Return the ratios of a match by eq. (7); by eq. (5) where a covariance is singular."""
        clustering, member, cluster = matched.pairs[i].tolist()
        old, swept = self._of_cluster(cluster), tried.swept
        features, own, count = old.features, old.own, swept.counts[clustering, member]
        products = old.products + change
        if swept.squares is not None:
            np.fill_diagonal(products, swept.squares[clustering, member][features])
        within = covariance(count, swept.sums[clustering, member, features], products)
        counts, means = self._counts.copy(), self._means[:, features].copy()
        counts[cluster] = count
        means[cluster] = swept.sums[clustering, member, features] / count
        chosen, dropped = tried.candidates[some], self._candidates.dropped
        if isinstance(dropped, np.ndarray) and old.logs is not None:
            logs = _logs(counts, means, cluster, within, own, old.tried)
            if logs is not None:
                return np.asarray(logs[0] + logs[1][chosen] - old.logs[0] - old.logs[1][chosen])
        fewest = min(count, self._counts[cluster]) / self._rows_per_feature
        lost = self._is_singular(cluster) or is_singular(within, fewest, own)
        values = np.empty(len(chosen))
        for place, candidate in enumerate(chosen.tolist()):
            mask = self._candidates.mask(candidate)
            subsets = own, np.flatnonzero(mask[features])
            use_trace = (
                lost
                or is_singular(old.within, fewest, subsets[1])
                or is_singular(within, fewest, subsets[1])
            )
            new = pair_separability(counts, means, within, *subsets, use_trace)
            before = self._means[:, features]
            with np.errstate(invalid="ignore"):  # all means may be equal in both
                values[place] = new - pair_separability(
                    self._counts, before, old.within, *subsets, use_trace
                )
        return values


def _logs(
    counts: np.ndarray,
    means: np.ndarray,
    cluster: int,
    within: np.ndarray,
    own: np.ndarray,
    tried: np.ndarray,
) -> tuple[float, np.ndarray] | None:
    """Return the logs of eq. (7) in one subset, and in another without each feature.

    None: there is a covariance that is singular, or not far from it.
    """
    if counts[cluster] <= max(len(own), len(tried)):
        return None
    on_tried = log_separability_without_each(counts, means[:, tried], within[np.ix_(tried, tried)])
    if on_tried is None or np.array_equal(own, tried):
        return on_tried
    on_own = log_separability_without_each(counts, means[:, own], within[np.ix_(own, own)])
    return None if on_own is None else (on_own[0], on_tried[1])
