"""The search of LFS: figure 2 of the paper on sufficient statistics.

Every step tries all subsets with one feature less of one cluster, in the same passes, and
compares every cluster of the candidate clusterings with the one it overlaps most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bigfs.core.units import MIB
from bigfs.runtime.progress import Work
from bigfs.selectors.gfs_kmeans import GFSKMeansParameters
from bigfs.selectors.lfs import LFSParameters
from bigfs.selectors.lfs.compare import OldValues, matches, rows_per_feature
from bigfs.selectors.lfs.errors import measure_errors
from bigfs.selectors.lfs.held import HELD_BYTES, HeldRows, Tried
from bigfs.selectors.lfs.kernels import (
    Candidates,
    Clusterings,
    Rules,
    Sweep,
    least_separate,
    most_candidates,
)
from bigfs.selectors.lfs.passes import (
    N_GROUPS,
    RowPasses,
    grouped_together,
    pairs_together,
)
from bigfs.selectors.lfs.state import Matches, Proposal, SearchState
from bigfs.solvers.separability import (
    DIGITS,
    ClusterSums,
    feature_separability,
    tells_cluster,
)


def search_bytes(n_clusters: int, n_features: int, many: bool) -> int:
    """Return the bytes of the process that compares clusters, beside its passes."""
    n_candidates, square = most_candidates(n_features, many), 8 * n_features**2
    # The solution's products and covariances, the best proposals', and the changes of a pass;
    # the replicates of one comparison. With several features at a time all proposals keep theirs.
    matrices = 4 * n_clusters + 6 * N_GROUPS + (n_clusters * n_candidates if many else 0)
    # Centers of all candidates: the start, before and after an iteration, their sums and moves.
    return 32 * MIB + square * matrices + 72 * n_clusters * n_features * n_candidates


def held_search_bytes(n_rows: int, n_clusters: int, n_features: int, many: bool) -> int:
    """Return the bytes of a search on rows in memory, beside these."""
    k, d, n_candidates = n_clusters, n_features, most_candidates(n_features, many)
    # Covariances in the features of two clusters, that to be replaced and the one tried, each
    # of which has rows enough for them: of the clusters and of a candidate, or of the groups of
    # two clusters, and of those behind each group.
    side = min(n_rows, 2 * n_rows // rows_per_feature(many), d)
    matrices = max(2 * k + 8, 3 * N_GROUPS + 8) * side**2
    # Centers of the rules, twice, and of the best proposal for each cluster.
    proposals = 3 * k + (k * n_candidates if many else 0)
    tried = min(HELD_BYTES, 32 * k * d * n_candidates)
    return 32 * MIB + tried + 8 * (matrices + proposals * k * d)


def most_reads(
    passes: type[RowPasses],
    n_clusters: int,
    n_features: int,
    product_bytes: int,
    parameters: LFSParameters,
) -> int:
    """Return how often a search from given centers may read all rows.

    Every step but the fruitless ones before it makes some cluster's subset smaller.
    """
    k, d, many = n_clusters, n_features, parameters.drops_many(n_features)
    n_candidates = most_candidates(d, many)
    most_iter, together = parameters.max_iter, pairs_together(product_bytes, d)

    def changes(n_pairs: int) -> int:
        return -(-n_pairs // together) * passes.reads(min(together, n_pairs))

    begin = most_iter * passes.reads(1) + changes(k)
    if k == 1:
        return begin
    step = most_iter * passes.reads(n_candidates) + changes(k * n_candidates)
    compared = k * n_candidates if many else k
    step += -(-compared // grouped_together(product_bytes, d)) * passes.reads(1)
    return begin + k * (k * (d - 1) + 1) * step


def begin(
    passes: RowPasses, centers: np.ndarray, usable: np.ndarray, parameters: LFSParameters
) -> SearchState:
    """Cluster on all usable features, from centers about the data's origin."""
    k, d = centers.shape
    none = Rules(Clusterings(np.zeros((k, k, d)), np.zeros((k, d), dtype=bool)), np.full(k, -1))
    first = Clusterings(centers[None], usable[None])
    first, swept = converge(passes, first, none, parameters, with_squares=True)
    if swept.squares is None:
        pairs = np.array([(0, cluster, cluster) for cluster in range(k)])
        products = np.concatenate(list(passes.changes(first, none, pairs)))
    else:
        products = swept.squares[0]
    rules = Rules(first.take(np.zeros(k, dtype=np.int64)), np.arange(k))
    sums = ClusterSums(swept.counts[0], swept.sums[0], products)
    # A cluster alone is separate from nothing: it keeps all.
    tried = np.full(k, -1 if k > 1 else 0)
    return SearchState(rules, np.tile(usable, (k, 1)), sums, passes.origin, tried=tried)


def converge(
    passes: RowPasses,
    start: Clusterings,
    rules: Rules,
    parameters: GFSKMeansParameters,
    with_squares: bool = False,
) -> tuple[Clusterings, Sweep]:
    """Run Lloyd's iteration of several clusterings: one pass serves all that still move.

    All begin at the same centers. An empty cluster keeps its center. The counts are those of the
    centers returned. Rows in memory have sums of squares too, if those are wanted.
    """
    if isinstance(passes, HeldRows):
        at_most = parameters.max_iter, parameters.tol
        return passes.lloyd(start.centers[0], start.masks, rules, *at_most, with_squares)
    centers = start.centers.copy()
    k, d = centers.shape[1:]
    counts, sums = np.zeros((len(start), k)), np.zeros((len(start), k, d))
    joint, codes = None, np.empty(0)
    active = np.arange(len(start))
    limits = None
    for iteration in range(parameters.max_iter):
        swept = passes.sweep(Clusterings(centers[active], start.masks[active]), rules)
        codes = swept.codes
        if joint is None:
            joint = np.zeros((len(start), *swept.joint.shape[1:]))
        counts[active], sums[active], joint[active] = swept.counts, swept.sums, swept.joint
        filled = swept.counts > 0
        updated = centers[active]
        updated[filled] = swept.sums[filled] / swept.counts[filled][:, None]
        squared = ((updated - centers[active]) ** 2 * start.masks[active][:, None, :]).sum(
            axis=(1, 2)
        )
        if limits is None:
            extent = (updated**2 * start.masks[:, None, :]).sum(axis=(1, 2))
            limits = parameters.tol**2 * extent
        moving = squared > limits[active]
        if not moving.any() or iteration == parameters.max_iter - 1:
            break
        active = active[moving]
        centers[active] = updated[moving]
    assert joint is not None
    return Clusterings(centers, start.masks), Sweep(counts, sums, codes, joint)


def search(
    passes: RowPasses,
    state: SearchState,
    parameters: LFSParameters,
    progress: Work | None = None,
    save: Any = None,
) -> SearchState:
    """Drop features until no candidate is better.

    Parameters
    ----------
    passes : RowPasses
    state : SearchState
        Changed in place.
    parameters : LFSParameters
    progress : Work or None
        Hears of every feature that goes.
    save : callable or None
        Called with the state after every step.
    """
    k = len(state.subsets)
    while not state.finished:
        cluster = state.next_cluster
        before = int(state.subsets.sum())
        if state.tried[cluster] != state.version:
            state.tried[cluster] = state.version
            if state.subsets[cluster].sum() > 1:
                step(passes, state, cluster, parameters)
        state.next_cluster = (cluster + 1) % k
        state.round += state.next_cluster == 0
        if progress is not None:
            dropped = before - int(state.subsets.sum())
            progress.advance(dropped, f"round {state.round + 1}, cluster {cluster}")
        if save is not None:
            save(state)
    return state


def step(passes: RowPasses, state: SearchState, cluster: int, parameters: LFSParameters) -> None:
    """Try smaller subsets of one cluster; take the best for every cluster.

    Each feature is left out alone; or several are together, of which the most that may go.
    """
    subset, sums = state.subsets[cluster].copy(), state.sums
    kept, many = np.flatnonzero(subset), parameters.drops_many(len(subset))
    dropped: np.ndarray | list[np.ndarray] = kept[:, None]
    if many:
        means, within = sums.means[:, kept], sums.variances[cluster, kept]
        dropped = least_separate(kept, feature_separability(sums.counts, means, within))
    ladder: list[list[Proposal]] = [[] for _ in state.subsets]
    for proposal in propose(passes, state, Candidates(subset, dropped), parameters, many):
        ladder[proposal.cluster].append(proposal)
    for rungs in ladder:
        rungs.sort(key=lambda proposal: int(proposal.mask.sum()))
    may_tie = _telling_nothing(passes, state) if many else None
    accepted = decide(passes, state, ladder, parameters, may_tie)
    if accepted:
        _replace(passes, state, accepted, cluster)
        state.version += 1


def _telling_nothing(passes: RowPasses, state: SearchState) -> Callable[[Proposal], bool]:
    """Return what says whether a proposal lacks only features that tell nothing of the cluster.

    Ties of several features at a time would soon lose all of them.
    """
    moments, sums = passes.blocks.moments(), state.sums
    telling = np.stack(
        [
            tells_cluster(*of_cluster, moments.variance, moments.count)
            for of_cluster in zip(sums.counts, sums.means, sums.variances, strict=True)
        ]
    )

    def tells_nothing(proposal: Proposal) -> bool:
        gone = state.subsets[proposal.cluster] & ~proposal.mask
        return not telling[proposal.cluster, gone].any()

    return tells_nothing


def propose(
    passes: RowPasses,
    state: SearchState,
    candidates: Candidates,
    parameters: LFSParameters,
    many: bool,
) -> list[Proposal]:
    """Cluster all rows for every candidate, and value what could replace clusters of the solution.

    Returns
    -------
    proposals : list of Proposal
        The best match for each cluster, or all matches.
    """
    best: dict[tuple[int, int], Proposal] = {}
    values = OldValues(passes, state, candidates, rows_per_feature(many))
    for tried in _clustered(passes, state, candidates, parameters):
        matched = matches(state, tried.clusterings.masks, tried.swept, parameters)
        at = np.full((len(tried.clusterings), len(state.subsets)), -1)
        at[matched.pairs[:, 0], matched.pairs[:, 2]] = np.arange(len(matched))
        at = at[tried.places]
        same = np.append(matched.same, False)[at]
        tried_ratios = np.where(same, 0.0, -np.inf)
        products: dict[int, np.ndarray] = {}
        owner = matched.pairs[:, 2]
        for i, places, logs, full in values.ratios(matched, tried):
            cluster = int(owner[i])
            logs = np.where(np.isfinite(logs), np.round(logs, DIGITS), -np.inf)
            if full is not None and logs.max() > -np.inf:
                # The best for each cluster keeps its products, or all do.
                worse = tried_ratios[:, cluster].max() < logs.max() and not many
                products = {j: p for j, p in products.items() if not worse or owner[j] != cluster}
                if many or logs.max() >= tried_ratios[:, cluster].max():
                    products[i] = full
            tried_ratios[places, cluster] = logs
        for place, cluster in _chosen(tried_ratios, tried.candidates, many):
            candidate, ratio = int(tried.candidates[place]), float(tried_ratios[place, cluster])
            key = cluster, candidate if many else 0
            rival = best.get(key)
            if rival is None or (rival.ratio, -rival.candidate) < (ratio, -candidate):
                i = int(at[place, cluster])
                proposal = _proposal(state, candidates, candidate, tried, matched, i)
                if proposal.sums[2] is None:
                    proposal.sums = (*proposal.sums[:2], products[i])
                proposal.ratio = ratio
                best[key] = proposal
    return list(best.values())


def _clustered(
    passes: RowPasses, state: SearchState, candidates: Candidates, parameters: LFSParameters
) -> Iterator[Tried]:
    """Cluster all rows for every candidate, from the means of the solution's clusters."""
    means = state.sums.means
    if isinstance(passes, HeldRows):
        at_most = parameters.max_iter, parameters.tol
        yield from passes.tried(means, state.rules, candidates, *at_most)
        return
    every = np.arange(len(candidates))
    start = np.broadcast_to(means, (len(candidates), *means.shape))
    begun = Clusterings(start, candidates.masks(every))
    yield Tried(every, every, *converge(passes, begun, state.rules, parameters))


def _chosen(found: np.ndarray, candidates: np.ndarray, many: bool) -> Iterator[tuple[int, int]]:
    """Yield place and cluster of the largest ratio for each cluster, or of all there are."""
    if many:
        yield from zip(*(at.tolist() for at in np.nonzero(found > -np.inf)), strict=True)
        return
    order = np.argsort(candidates)
    for cluster, place in enumerate(order[found[order].argmax(axis=0)].tolist()):
        if found[place, cluster] > -np.inf:
            yield place, cluster


def _proposal(
    state: SearchState,
    candidates: Candidates,
    candidate: int,
    tried: Tried,
    matched: Matches,
    i: int,
) -> Proposal:
    clustering, member, cluster = matched.pairs[i].tolist()
    swept, labels = tried.swept, tried.clusterings.labels
    sums = swept.sums[clustering, member].copy()
    products: np.ndarray | None = None
    if swept.squares is not None:
        products = swept.squares[clustering, member].copy()
    elif matched.same[i]:
        products = state.sums.products[cluster]
    return Proposal(
        candidate,
        member,
        cluster,
        candidates.mask(candidate),
        tried.clusterings.centers[clustering].copy(),
        None if labels is None else labels[clustering].copy(),
        same=bool(matched.same[i]),
        overlap=float(matched.overlap[i]),
        unassigned=float(matched.unassigned[i]),
        sums=(float(swept.counts[clustering, member]), sums, products),
        traced=bool(matched.traced[i]),
        ratio=0.0,
    )


def decide(
    passes: RowPasses,
    state: SearchState,
    ladder: list[list[Proposal]],
    parameters: LFSParameters,
    may_tie: Callable[[Proposal], bool] | None = None,
) -> list[Proposal]:
    """Return the replacements to make: for each cluster the first of its ladder that is better.

    Better: the ratio is positive, the members are equal, or the loss is within ``tie_width``
    standard errors: a tie, which fewer features win. ``may_tie`` says which losses may be one.
    """
    tie_width = parameters.tie_width
    undecided: list[Proposal] = []
    for rungs in ladder:
        for proposal in rungs:
            if proposal.same or proposal.ratio > 0:
                break
            tied = tie_width > 0 and np.isfinite(proposal.ratio)
            if tied and (may_tie is None or may_tie(proposal)):
                undecided.append(proposal)
    if undecided:
        measure_errors(passes, state, undecided, parameters)
    accepted = []
    for rungs in ladder:
        for proposal in rungs:
            if proposal.same or proposal.ratio > 0 or proposal.ratio >= -tie_width * proposal.error:
                accepted.append(proposal)
                break
    return accepted


def _replace(passes: RowPasses, state: SearchState, accepted: list[Proposal], tried: int) -> None:
    """Put clusters in the place of others, and say so in the trace."""
    rules = state.rules.copy()
    for proposal in accepted:
        cluster = proposal.cluster
        old = state.subsets[cluster]
        state.trace.append(
            {
                "round": state.round,
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
        rules.clusterings.centers[cluster] = proposal.center
        rules.clusterings.masks[cluster] = proposal.mask
        rules.members[cluster] = proposal.member
        state.subsets[cluster] = proposal.mask
        count, sums, products = proposal.sums
        state.sums.counts[cluster] = count
        state.sums.sums[cluster] = sums
        state.sums.products[cluster] = products
    if isinstance(passes, HeldRows):
        passes.replaced(rules, accepted)
    state.rules = rules
