"""Comparison of clusters in LFS: adjusted normalized separability, with its sampling error."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from bigfs.selectors.lfs import LFSParameters
from bigfs.selectors.lfs.held import HeldRows
from bigfs.selectors.lfs.kernels import Clusterings, GroupSums, Sweep, has_bit
from bigfs.selectors.lfs.passes import RowPasses
from bigfs.selectors.lfs.state import Matches, Proposal, SearchState
from bigfs.selectors.lfs.traces import trace_ratios
from bigfs.solvers.separability import (
    DIGITS,
    covariance,
    is_singular,
    jackknife_error,
    log_separability,
    overlap_measure,
    pair_separability,
    variance,
)


def matches(
    state: SearchState, masks: np.ndarray, swept: Sweep, parameters: LFSParameters
) -> Matches:
    """Return the matches of every candidate whose subset has fewer features than the cluster's."""
    k, sizes = len(state.subsets), state.subsets.sum(axis=1)
    inside, alone = _memberships(swept.codes, k)
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
    overlap, unassigned = _measures(
        np.tile(shared, (len(which), 1, 1)),
        overlaps[which, :, members],
        counts[which, members],
        alone[clusters][:, None] @ joint[which],
        members,
        clusters,
        n,
    )
    same = counts[which, members] == shared[clusters, clusters]
    same &= overlaps[which, clusters, members] == counts[which, members]
    penalty = 2 * (
        parameters.alpha * (overlap - before[0]) + parameters.beta * (unassigned - before[1])
    )
    pairs, ratios = np.column_stack([which, members, clusters]), np.where(same, 0.0, -np.inf)
    return Matches(pairs, same, overlap, unassigned, penalty, ratios, np.zeros_like(same))


def _memberships(codes: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which codes contain each cluster, and which no other one; (k, n_codes), float64."""
    inside = has_bit(codes, np.arange(k)[:, None])
    return inside.astype(float), (inside.sum(axis=0) == inside).astype(float)


def _measures(
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


class OldValues:
    """The ratios of values before and after replacements, with the old parts computed once."""

    def __init__(self, state: SearchState) -> None:
        self._state, self._counts, self._means = state, state.sums.counts, state.sums.means
        squares = np.diagonal(state.sums.products, axis1=1, axis2=2)
        self._variances = variance(self._counts, state.sums.sums, squares)
        self._sets = [np.flatnonzero(subset) for subset in state.subsets]
        self._singular: dict[int, bool] = {}

    @cached_property
    def _within(self) -> list[np.ndarray]:
        return [self._state.sums.covariance(i) for i in range(len(self._counts))]

    def _is_singular(self, cluster: int) -> bool:
        """Say whether an old cluster's covariance is singular in its own subset."""
        if cluster not in self._singular:
            old = self._within[cluster], self._counts[cluster], self._sets[cluster]
            self._singular[cluster] = is_singular(*old)
        return self._singular[cluster]

    def trace(self, matched: Matches, swept: Sweep, masks: np.ndarray) -> None:
        """Set the ratios that are of traces whatever the products are, where squares are known."""
        if swept.squares is None or not len(matched):
            return
        singular = np.zeros(len(self._counts), dtype=bool)
        for cluster in np.unique(matched.pairs[:, 2]):
            count, subset = self._counts[cluster], self._sets[cluster]
            flat = count <= len(subset) or not (self._variances[cluster, subset] > 0).all()
            singular[cluster] = flat or self._is_singular(cluster)
        which, members, clusters = matched.pairs.T
        few = swept.counts[which, members] <= self._state.subsets.sum(axis=1)[clusters]
        matched.traced = (singular[clusters] | few) & ~matched.same
        ratios = trace_ratios(
            matched.pairs[matched.traced], masks, self._state.subsets, self._counts, self._means,
            self._variances, swept.counts, swept.sums, swept.squares,
        ) - matched.penalty[matched.traced]  # fmt: skip
        ratios = np.where(np.isfinite(ratios), ratios, -np.inf)
        matched.ratios[matched.traced] = np.round(ratios, DIGITS)

    def ratios(self, proposals: list[Proposal]) -> np.ndarray:
        """Return the log of ANV(new) over ANV(old), eqs. (13) to (18); -inf where undefined.

        Most comparisons of many features are of traces: these are made many at a time.
        """
        values = np.empty(len(proposals))
        alike: dict[tuple[int, int], list[tuple[int, np.ndarray, np.ndarray]]] = {}
        for place, proposal in enumerate(proposals):
            old_set, new_set = self._sets[proposal.cluster], np.flatnonzero(proposal.mask)
            within = covariance(*proposal.sums)
            old = self._within[proposal.cluster], self._counts[proposal.cluster]
            new = within, proposal.sums[0]
            if (
                self._is_singular(proposal.cluster)
                or is_singular(*old, new_set)
                or any(is_singular(*new, subset) for subset in (old_set, new_set))
            ):
                kind = proposal.cluster, len(new_set)
                alike.setdefault(kind, []).append((place, new_set, within.diagonal().copy()))
            else:
                values[place] = self._of_inverses(proposal, within, old_set, new_set)
        for (cluster, _), group in alike.items():
            places = [place for place, _, _ in group]
            some = [proposals[place] for place in places]
            sets, variances = (np.stack(parts) for parts in list(zip(*group, strict=True))[1:])
            values[places] = self._of_like_traces(some, cluster, variances, sets)
        values -= [proposal.penalty for proposal in proposals]
        return np.where(np.isfinite(values), values, -np.inf)

    def _of_inverses(
        self, proposal: Proposal, within: np.ndarray, old_set: np.ndarray, new_set: np.ndarray
    ) -> float:
        """Return one ratio, without its penalty, of the values by eq. (7)."""
        cluster, counts, means = proposal.cluster, self._counts.copy(), self._means.copy()
        counts[cluster], means[cluster] = proposal.sums[0], proposal.sums[1] / proposal.sums[0]
        new = pair_separability(counts, means, within, old_set, new_set, False)
        old = pair_separability(
            self._counts, self._means, self._within[cluster], old_set, new_set, False
        )
        return float(_log_ratio(new, old))

    def _of_like_traces(
        self, proposals: list[Proposal], cluster: int, variances: np.ndarray, sets: np.ndarray
    ) -> np.ndarray:
        """Return the ratios of proposals for a cluster, subsets of one size, by eq. (5)."""
        size, old_set = len(proposals), self._sets[cluster]
        new_counts = np.array([proposal.sums[0] for proposal in proposals])
        new_sums = np.stack([proposal.sums[1] for proposal in proposals])
        counts, means = np.tile(self._counts, (size, 1)), np.tile(self._means, (size, 1, 1))
        inner = sets[:, None, :]
        old = log_separability(
            self._counts, self._means[:, old_set], self._within[cluster].diagonal()[old_set], True
        ) + log_separability(
            counts,
            np.take_along_axis(means, inner, axis=2),
            self._within[cluster].diagonal()[sets],
            True,
        )
        counts[:, cluster], means[:, cluster] = new_counts, new_sums / new_counts[:, None]
        new = log_separability(counts, means[:, :, old_set], variances[:, old_set], True)
        new += log_separability(
            counts,
            np.take_along_axis(means, inner, axis=2),
            np.take_along_axis(variances, sets, axis=1),
            True,
        )
        return _log_ratio(new, old)


def _any_singular(within: list[tuple[np.ndarray, float]], subsets: list[np.ndarray]) -> bool:
    """Say whether one of the four within-cluster matrices of a comparison is singular."""
    return any(is_singular(matrix, count, subset) for matrix, count in within for subset in subsets)


def measure_errors(
    passes: RowPasses,
    state: SearchState,
    clusterings: Clusterings,
    proposals: list[Proposal],
    parameters: LFSParameters,
) -> None:
    """Set the errors: a jackknife that leaves out one group of rows after the other."""
    traced = [proposal for proposal in proposals if proposal.traced]
    others = [proposal for proposal in proposals if not proposal.traced]
    values = [_of_traces(passes, state, clusterings, traced, parameters)] if traced else []
    pairs = np.array([proposal.pair for proposal in others], dtype=np.int64).reshape(-1, 3)
    groups = passes.groups(clusterings, state.rules, pairs)
    for proposal, (sums, position) in zip(others, groups, strict=True):
        values.append(_replicates(sums, position, proposal, state, parameters)[:, None])
    for proposal, replicates in zip([*traced, *others], np.hstack(values).T, strict=True):
        known = np.isfinite(replicates).all()
        proposal.error = jackknife_error(replicates) if known else np.nan


def _of_traces(
    passes: RowPasses,
    state: SearchState,
    clusterings: Clusterings,
    proposals: list[Proposal],
    parameters: LFSParameters,
) -> np.ndarray:
    """Return the log ratios of proposals without each group, (n_groups, n_proposals)."""
    assert isinstance(passes, HeldRows)
    pairs = np.array([proposal.pair for proposal in proposals])
    groups = passes.group_squares(clusterings, state.rules, pairs)
    counts, sums = _without(groups.counts), _without(groups.sums)
    means, clusters = sums / np.maximum(counts, 1)[..., None], pairs[:, 2]
    variances = np.zeros_like(means)
    variances[:, clusters] = variance(
        counts[:, clusters], sums[:, clusters], _without(groups.old_products)
    )
    new = [
        _without(part)[:, :, None]
        for part in (groups.new_counts, groups.new_sums, groups.new_products)
    ]
    every, masks = np.arange(len(pairs)), np.stack([proposal.mask for proposal in proposals])
    places = np.column_stack([every, np.zeros_like(every), clusters])
    joint = _without(groups.joint)
    values = [
        trace_ratios(places, masks, state.subsets, *figures)
        for figures in zip(counts, means, variances, *new, strict=True)
    ]
    penalties = [
        _penalties(joint[:, i], groups.codes, cluster, counts.shape[1], parameters)
        for i, cluster in enumerate(clusters.tolist())
    ]
    return np.array(values) - np.column_stack(penalties)


def _without(parts: np.ndarray) -> np.ndarray:
    """Return the totals without each group in turn.

    The others are added up: taking a group from the total would leave rounding where nothing is.
    """
    totals = np.zeros_like(parts)
    np.cumsum(parts[:-1], axis=0, out=totals[1:])
    totals[:-1] += np.cumsum(parts[:0:-1], axis=0)[::-1]
    return totals


def _replicates(
    groups: GroupSums,
    position: int,
    proposal: Proposal,
    state: SearchState,
    parameters: LFSParameters,
) -> np.ndarray:
    """Return the log ratio without each group, shape (n_groups,); NaN where one is singular."""
    cluster = proposal.cluster
    subsets = state.subsets[cluster], proposal.mask
    counts, new_counts = _without(groups.counts), _without(groups.new_counts[:, position])
    use_trace = _any_singular(
        [(state.sums.covariance(cluster), counts[:, cluster].min()),
         (covariance(*proposal.sums), new_counts.min())],
        [np.flatnonzero(subset) for subset in subsets],
    )  # fmt: skip
    # Features of neither subset are left out.
    kept = np.flatnonzero(subsets[0] | subsets[1])
    old_set, new_set = (np.flatnonzero(subset[kept]) for subset in subsets)
    sums, new_sums = _without(groups.sums[..., kept]), _without(groups.new_sums[:, position, kept])
    old_products, new_products = (
        _without(products[:, position, kept[:, None], kept])
        for products in (groups.old_products, groups.new_products)
    )
    means = sums / np.maximum(counts, 1)[..., None]
    old_within = covariance(counts[:, cluster], sums[:, cluster], old_products)
    new_within = covariance(new_counts, new_sums, new_products)
    left = [(old_within, counts[:, cluster].min()), (new_within, new_counts.min())]
    if not use_trace and _any_singular(left, [old_set, new_set]):
        return np.full(len(counts), np.nan)
    old = pair_separability(counts, means, old_within, old_set, new_set, use_trace)
    counts[:, cluster], means[:, cluster] = (
        new_counts,
        new_sums / np.maximum(new_counts, 1)[:, None],
    )
    new = pair_separability(counts, means, new_within, old_set, new_set, use_trace)
    joint = _without(groups.joint[:, position])
    penalty = _penalties(joint, groups.codes, cluster, counts.shape[1], parameters)
    return _log_ratio(new, old) - penalty


def _log_ratio(new: np.ndarray, old: np.ndarray) -> np.ndarray:
    """Return the log of a ratio from two logs: NaN where all means are equal in both."""
    with np.errstate(invalid="ignore"):
        return np.asarray(new - old)


def _penalties(
    joint: np.ndarray,
    codes: np.ndarray,
    cluster: int,
    k: int,
    parameters: LFSParameters,
) -> np.ndarray:
    """Return ``2 (alpha dO + beta dU)`` without each group, from (n_groups, n_codes, 2) counts."""
    inside, alone = _memberships(codes, k)
    weight = joint.sum(axis=2)
    totals = weight.sum(axis=1)
    shared = (inside * weight[:, None, :]) @ inside.T
    before = overlap_measure(shared), weight[:, codes == 0].sum(axis=1) / totals
    places = np.full(len(joint), 1), np.full(len(joint), cluster)
    overlap, unassigned = _measures(
        shared,
        joint[:, :, 1] @ inside.T,
        joint[:, :, 1].sum(axis=1),
        (alone[cluster] @ joint)[:, None],
        *places,
        totals,
    )
    return np.asarray(
        2 * (parameters.alpha * (overlap - before[0]) + parameters.beta * (unassigned - before[1]))
    )
