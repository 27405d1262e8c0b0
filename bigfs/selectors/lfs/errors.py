"""Standard errors of comparisons in LFS: a jackknife over groups of rows."""

from __future__ import annotations

import numpy as np

from bigfs.selectors.lfs import LFSParameters
from bigfs.selectors.lfs.compare import memberships, overlap_and_gaps, rows_per_feature
from bigfs.selectors.lfs.held import HeldRows
from bigfs.selectors.lfs.kernels import Clusterings, GroupSums
from bigfs.selectors.lfs.passes import RowPasses
from bigfs.selectors.lfs.state import Proposal, SearchState, clusterings_of
from bigfs.selectors.lfs.traces import trace_ratios
from bigfs.solvers.separability import (
    covariance,
    is_singular,
    jackknife_error,
    overlap_measure,
    pair_separability,
    variance,
    without_each,
)

# Entries of the covariances that are compared at a time.
_TOGETHER = 2**18


def measure_errors(
    passes: RowPasses,
    state: SearchState,
    proposals: list[Proposal],
    parameters: LFSParameters,
) -> None:
    """Set the errors: a jackknife that leaves out one group of rows after the other."""
    traced = [proposal for proposal in proposals if proposal.traced]
    others = [proposal for proposal in proposals if not proposal.traced]
    values = []
    if traced:
        values.append(_of_traces(passes, state, *clusterings_of(traced), traced, parameters))
    if others:
        # Features of neither subset are left out.
        features = [
            np.flatnonzero(state.subsets[proposal.cluster] | proposal.mask) for proposal in others
        ]
        clusterings, pairs = clusterings_of(others)
        groups = passes.groups(clusterings, state.rules, pairs, features)
        for proposal, kept, (sums, position) in zip(others, features, groups, strict=True):
            replicates = _replicates(sums, position, kept, proposal, state, parameters)
            values.append(replicates[:, None])
    for proposal, replicates in zip([*traced, *others], np.hstack(values).T, strict=True):
        known = np.isfinite(replicates).all()
        proposal.error = jackknife_error(replicates) if known else np.nan


def _of_traces(
    passes: RowPasses,
    state: SearchState,
    clusterings: Clusterings,
    pairs: np.ndarray,
    proposals: list[Proposal],
    parameters: LFSParameters,
) -> np.ndarray:
    """Return the log ratios of proposals without each group, (n_groups, n_proposals)."""
    assert isinstance(passes, HeldRows)
    groups = passes.group_squares(clusterings, state.rules, pairs)
    counts, sums = without_each(groups.counts), without_each(groups.sums)
    means, clusters = sums / np.maximum(counts, 1)[..., None], pairs[:, 2]
    variances = np.zeros_like(means)
    variances[:, clusters] = variance(
        counts[:, clusters], sums[:, clusters], without_each(groups.old_products)
    )
    new = [
        without_each(part)[:, :, None]
        for part in (groups.new_counts, groups.new_sums, groups.new_products)
    ]
    every, masks = np.arange(len(pairs)), np.stack([proposal.mask for proposal in proposals])
    places = np.column_stack([every, np.zeros_like(every), clusters])
    joint = without_each(groups.joint)
    values = [
        trace_ratios(places, masks, state.subsets, *figures)
        for figures in zip(counts, means, variances, *new, strict=True)
    ]
    penalties = [
        _penalties(joint[:, i], groups.codes, cluster, counts.shape[1], parameters)
        for i, cluster in enumerate(clusters.tolist())
    ]
    return np.array(values) - np.column_stack(penalties)


def _replicates(
    groups: GroupSums,
    position: int,
    kept: np.ndarray,
    proposal: Proposal,
    state: SearchState,
    parameters: LFSParameters,
) -> np.ndarray:
    """Return the log ratio without each group, shape (n_groups,); NaN where one is singular."""
    cluster = proposal.cluster
    subsets = state.subsets[cluster][kept], proposal.mask[kept]
    old_set, new_set = (np.flatnonzero(subset) for subset in subsets)
    counts, new_counts = without_each(groups.counts), without_each(groups.new_counts[:, position])
    own, new_own = groups.sums[:, cluster, kept], groups.new_sums[:, position, kept]
    fewest = min(groups.counts[:, cluster].sum(), groups.new_counts[:, position].sum())
    few = fewest <= rows_per_feature(parameters.drops_many(groups.sums.shape[-1])) * max(
        len(old_set), len(new_set)
    )
    use_trace = few or _any_singular(
        [(covariance(groups.counts[:, cluster].sum(), own.sum(axis=0),
                     groups.old_products.sum(axis=0)), counts[:, cluster].min()),
         (covariance(groups.new_counts[:, position].sum(), new_own.sum(axis=0),
                     groups.new_products.sum(axis=0)), new_counts.min())],
        [old_set, new_set],
    )  # fmt: skip
    sums = without_each(groups.sums[..., kept])
    means = sums / np.maximum(counts, 1)[..., None]
    old = _values(counts, means, cluster, groups.old_products, (old_set, new_set), use_trace)
    counts[:, cluster] = new_counts
    means[:, cluster] = without_each(new_own) / np.maximum(new_counts, 1)[:, None]
    new = _values(counts, means, cluster, groups.new_products, (old_set, new_set), use_trace)
    joint = without_each(groups.joint[:, position])
    penalty = _penalties(joint, groups.codes, cluster, counts.shape[1], parameters)
    with np.errstate(invalid="ignore"):  # all means may be equal in both
        return np.asarray(new - old - penalty)


def _values(
    counts: np.ndarray,
    means: np.ndarray,
    cluster: int,
    products: np.ndarray,
    subsets: tuple[np.ndarray, np.ndarray],
    use_trace: bool,
) -> np.ndarray:
    """Return the log of NV of a cluster without each group of its rows; NaN where it is singular.

    Counts and means are those without each group, products those of the groups. Few covariances at
    a time where there are many features.
    """
    values = np.empty(len(products))
    before, after = np.zeros_like(products[:1]), np.zeros_like(products)
    np.cumsum(products[:0:-1], axis=0, out=after[-2::-1])
    together = max(1, _TOGETHER // products[0].size)
    for begin in range(0, len(products), together):
        some = slice(begin, begin + together)
        count, mean = counts[some, cluster], means[some, cluster]
        sums = np.concatenate([before, products[some]]).cumsum(axis=0)
        before = sums[-1:]
        within = covariance(count, count[:, None] * mean, sums[:-1] + after[some])
        # A covariance that is not singular in all rows may be so without some of them.
        lost = not use_trace and _any_singular([(within, count.min())], list(subsets))
        values[some] = (
            np.nan
            if lost
            else pair_separability(counts[some], means[some], within, *subsets, use_trace)
        )
    return values


def _any_singular(within: list[tuple[np.ndarray, float]], subsets: list[np.ndarray]) -> bool:
    """Say whether one of the four within-cluster matrices of a comparison is singular."""
    return any(is_singular(matrix, count, subset) for matrix, count in within for subset in subsets)


def _penalties(
    joint: np.ndarray,
    codes: np.ndarray,
    cluster: int,
    k: int,
    parameters: LFSParameters,
) -> np.ndarray:
    """Return ``2 (alpha dO + beta dU)`` without each group, from (n_groups, n_codes, 2) counts."""
    inside, alone = memberships(codes, k)
    weight = joint.sum(axis=2)
    totals = weight.sum(axis=1)
    shared = (inside * weight[:, None, :]) @ inside.T
    before = overlap_measure(shared), weight[:, codes == 0].sum(axis=1) / totals
    places = np.full(len(joint), 1), np.full(len(joint), cluster)
    overlap, unassigned = overlap_and_gaps(
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
