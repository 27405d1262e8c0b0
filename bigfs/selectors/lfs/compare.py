"""How LFS compares clusters: adjusted normalized separability, with its sampling error."""

from __future__ import annotations

import numpy as np

from bigfs.selectors.lfs import LFSParameters
from bigfs.selectors.lfs.kernels import Clusterings, GroupSums, Sweep, has_bit
from bigfs.selectors.lfs.passes import Passes
from bigfs.selectors.lfs.state import Proposal, State
from bigfs.solvers.separability import (
    covariance,
    is_singular,
    jackknife_error,
    overlap_measure,
    pair_separability,
)


def matches(
    state: State, masks: np.ndarray, swept: Sweep, parameters: LFSParameters
) -> list[Proposal]:
    """Return the matches of every candidate whose subset has fewer features than the cluster's."""
    k, sizes = len(state.subsets), state.subsets.sum(axis=1)
    inside = np.stack([has_bit(swept.codes, cluster) for cluster in range(k)]).astype(float)
    weight = swept.joint[0].sum(axis=1)
    n = weight.sum()
    shared = (inside * weight) @ inside.T
    before = overlap_measure(shared), float(weight[swept.codes == 0].sum() / n)
    proposals = []
    for clustering, mask in enumerate(masks):
        joint = swept.joint[clustering]
        overlaps = inside @ joint
        for cluster in np.flatnonzero(sizes > mask.sum()).tolist():
            member = int(overlaps[cluster].argmax())
            count, old = joint[:, member].sum(), shared[cluster, cluster]
            if count < 2 or old < 2:
                continue
            same = overlaps[cluster, member] == count == old
            after = _measures(shared, inside, joint, swept.codes, cluster, member)
            penalty = 2 * (
                parameters.alpha * (after[0] - before[0]) + parameters.beta * (after[1] - before[1])
            )
            proposals.append(
                Proposal(clustering, member, cluster, mask, bool(same), *after, penalty)
            )
    return proposals


def _measures(
    shared: np.ndarray,
    inside: np.ndarray,
    joint: np.ndarray,
    codes: np.ndarray,
    cluster: int,
    member: int,
) -> tuple[float, float]:
    """Return O and U after a replacement, from the counts of memberships and labels."""
    after = shared.copy()
    after[cluster] = after[:, cluster] = inside @ joint[:, member]
    after[cluster, cluster] = joint[:, member].sum()
    alone = (codes & ~(np.uint64(1) << np.uint64(cluster))) == 0
    left = joint[alone].sum() - joint[alone, member].sum()
    return overlap_measure(after), float(left / joint.sum())


class OldValues:
    """The ratio of values before and after a replacement, with the old parts computed once."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._counts, self._means = state.sums.counts, state.sums.means
        self._within = [state.sums.covariance(i) for i in range(len(self._counts))]

    def ratio(self, proposal: Proposal) -> float:
        """Return the log of ANV(new) over ANV(old), eqs. (13) to (18); -inf where undefined."""
        new_count, new_sums, new_products = proposal.sums
        cluster = proposal.cluster
        old_set = np.flatnonzero(self._state.subsets[cluster])
        new_set = np.flatnonzero(proposal.mask)
        within = covariance(new_count, new_sums, new_products)
        use_trace = _any_singular(
            [(self._within[cluster], self._counts[cluster]), (within, new_count)],
            [old_set, new_set],
        )
        counts, means = self._counts.copy(), self._means.copy()
        counts[cluster], means[cluster] = new_count, new_sums / new_count
        new = pair_separability(counts, means, within, old_set, new_set, use_trace)
        old = pair_separability(
            self._counts, self._means, self._within[cluster], old_set, new_set, use_trace
        )
        value = float(new - old) - proposal.penalty
        return value if np.isfinite(value) else -np.inf


def _any_singular(within: list[tuple[np.ndarray, float]], subsets: list[np.ndarray]) -> bool:
    """Say whether one of the four within-cluster matrices of a comparison is singular."""
    return any(
        is_singular(matrix[np.ix_(subset, subset)], count)
        for matrix, count in within
        for subset in subsets
    )


def measure_errors(
    passes: Passes,
    state: State,
    clusterings: Clusterings,
    proposals: list[Proposal],
    parameters: LFSParameters,
) -> None:
    """Set the errors: a jackknife that leaves out one group of rows after the other."""
    used, place = np.unique([proposal.clustering for proposal in proposals], return_inverse=True)
    pairs = np.array(
        [(p, *proposal.pair[1:]) for p, proposal in zip(place, proposals, strict=True)]
    )
    sums = passes.groups(clusterings.take(used), state.rules, pairs)
    for proposal, (groups, position) in zip(proposals, sums, strict=True):
        values = _replicates(groups, position, proposal, state, parameters)
        proposal.error = jackknife_error(values) if np.isfinite(values).all() else np.nan


def _without(parts: np.ndarray) -> np.ndarray:
    """Return the totals without each group in turn."""
    return np.asarray(parts.sum(axis=0) - parts)


def _replicates(
    groups: GroupSums, position: int, proposal: Proposal, state: State, parameters: LFSParameters
) -> np.ndarray:
    """Return the log ratio without each group, shape (n_groups,)."""
    cluster = proposal.cluster
    old_set, new_set = np.flatnonzero(state.subsets[cluster]), np.flatnonzero(proposal.mask)
    counts, sums = _without(groups.counts), _without(groups.sums)
    means = sums / np.maximum(counts, 1)[..., None]
    old_within = covariance(
        counts[:, cluster], sums[:, cluster], _without(groups.old_products[:, position])
    )
    new_counts = _without(groups.new_counts[:, position])
    new_sums = _without(groups.new_sums[:, position])
    new_within = covariance(new_counts, new_sums, _without(groups.new_products[:, position]))
    use_trace = _any_singular(
        [(state.sums.covariance(cluster), counts[:, cluster].min()),
         (covariance(*proposal.sums), new_counts.min())],
        [old_set, new_set],
    )  # fmt: skip
    old = pair_separability(counts, means, old_within, old_set, new_set, use_trace)
    counts[:, cluster], means[:, cluster] = new_counts, new_sums / new_counts[:, None]
    new = pair_separability(counts, means, new_within, old_set, new_set, use_trace)
    penalty = np.array(
        [_penalty(joint, groups.codes, cluster, len(counts[0]), parameters)
         for joint in _without(groups.joint[:, position])]
    )  # fmt: skip
    return np.asarray(new - old - penalty)


def _penalty(
    joint: np.ndarray, codes: np.ndarray, cluster: int, k: int, parameters: LFSParameters
) -> float:
    """Return ``2 (alpha dO + beta dU)`` from counts of memberships outside and inside the new."""
    inside = np.stack([has_bit(codes, other) for other in range(k)]).astype(float)
    weight = joint.sum(axis=1)
    shared = (inside * weight) @ inside.T
    overlap, unassigned = _measures(shared, inside, joint, codes, cluster, 1)
    before = float(weight[codes == 0].sum() / weight.sum())
    return 2 * (
        parameters.alpha * (overlap - overlap_measure(shared))
        + parameters.beta * (unassigned - before)
    )
