"""The search of LFS: figure 2 of the paper on sufficient statistics.

Every step tries all subsets with one feature less of one cluster, in the same passes, and
compares every cluster of the candidate clusterings with the one it overlaps most.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bigfs.core.units import MIB
from bigfs.runtime.progress import Work
from bigfs.selectors.gfs_kmeans import GFSKMeansParameters
from bigfs.selectors.lfs import LFSParameters
from bigfs.selectors.lfs.compare import OldValues, matches, measure_errors
from bigfs.selectors.lfs.held import HeldRows
from bigfs.selectors.lfs.kernels import Clusterings, Rules, Sweep
from bigfs.selectors.lfs.passes import (
    N_GROUPS,
    RowPasses,
    grouped_together,
    pairs_together,
)
from bigfs.selectors.lfs.state import Matches, Proposal, SearchState
from bigfs.solvers.separability import DIGITS, ClusterSums


def search_bytes(n_clusters: int, n_features: int, drop: str) -> int:
    """Return the bytes of the process that compares clusters, beside its passes."""
    square, candidates = 8 * n_features**2, 8 * n_clusters * n_features**2
    # The solution's products and covariances, the best proposals', and the changes of a pass;
    # the replicates of one comparison. With several features at a time all proposals keep theirs.
    matrices = 4 * n_clusters + 6 * N_GROUPS
    if drop == "many":
        matrices += n_clusters * n_features.bit_length()
    # Centers of all candidates: the start, before and after an iteration, their sums and moves.
    return 32 * MIB + square * matrices + 9 * candidates


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
    k, d, several = n_clusters, n_features, n_features.bit_length()
    most_iter, together = parameters.max_iter, pairs_together(product_bytes, d)

    def changes(n_pairs: int) -> int:
        return -(-n_pairs // together) * passes.reads(min(together, n_pairs))

    begin = most_iter * passes.reads(1) + changes(k)
    if k == 1:
        return begin
    step = most_iter * passes.reads(d) + changes(k * d)
    compared = k
    if parameters.drop == "many":
        step += most_iter * passes.reads(several) + changes(k * several)
        compared += k * several
    step += -(-compared // grouped_together(product_bytes, d)) * passes.reads(1)
    return begin + k * (k * (d - 1) + 1) * step


def begin(
    passes: RowPasses, centers: np.ndarray, usable: np.ndarray, parameters: LFSParameters
) -> SearchState:
    """Cluster on all usable features, from centers about the data's origin."""
    k, d = centers.shape
    none = Rules(Clusterings(np.zeros((k, k, d)), np.zeros((k, d), dtype=bool)), np.full(k, -1))
    first = Clusterings(centers[None], usable[None])
    first, swept = converge(passes, first, none, parameters)
    pairs = np.array([(0, cluster, cluster) for cluster in range(k)])
    products = np.concatenate(list(passes.changes(first, none, pairs)))
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
        return passes.lloyd(start, rules, parameters, with_squares)
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
    """Try the subsets with one feature less of one cluster; take the best for every cluster."""
    kept = np.flatnonzero(state.subsets[cluster])
    masks = np.tile(state.subsets[cluster], (len(kept), 1))
    masks[np.arange(len(kept)), kept] = False
    single, matched, proposals = propose(passes, state, masks, parameters)
    best = {proposal.cluster: proposal for proposal in proposals}
    ladder = [[best[other]] if other in best else [] for other in range(len(state.subsets))]
    clusterings = single
    if parameters.drop == "many" and len(kept) > 3:
        own = matched.pairs[:, 2] == cluster
        ratios = dict(
            zip(matched.pairs[own, 0].tolist(), matched.ratios[own].tolist(), strict=True)
        )
        masks = _joint_masks(state.subsets[cluster], kept, ratios)
        several, _, joint = propose(passes, state, masks, parameters, keep_all=True)
        for proposal in joint:
            proposal.clustering += len(single)
        clusterings = Clusterings(
            np.concatenate([single.centers, several.centers]),
            np.concatenate([single.masks, several.masks]),
        )
        for other, rungs in enumerate(ladder):
            mine = [proposal for proposal in joint if proposal.cluster == other]
            rungs[:0] = sorted(mine, key=lambda proposal: int(proposal.mask.sum()))
    accepted = decide(passes, state, clusterings, ladder, parameters)
    _add_products(passes, state, clusterings, accepted)
    for proposal in accepted:
        _replace(state, proposal, clusterings, cluster)
    state.version += bool(accepted)


def _joint_masks(subset: np.ndarray, kept: np.ndarray, own: dict[int, float]) -> np.ndarray:
    """Return subsets without the 2, 4, 8, ... features whose loss does best one at a time."""
    ratios = np.array([own.get(i, -np.inf) for i in range(len(kept))])
    order = kept[np.argsort(-ratios, kind="stable")]
    sizes = [2**power for power in range(1, 32) if 2**power < len(kept)]
    masks = np.tile(subset, (len(sizes), 1))
    for mask, size in zip(masks, sizes, strict=True):
        mask[order[:size]] = False
    return masks


def propose(
    passes: RowPasses,
    state: SearchState,
    masks: np.ndarray,
    parameters: LFSParameters,
    keep_all: bool = False,
) -> tuple[Clusterings, Matches, list[Proposal]]:
    """Cluster all rows on every mask, and value what could replace clusters of the solution.

    The best match for each cluster becomes a proposal, or all matches. Products (d x d) are made
    where values need them, and stay with proposals only.
    """
    start = np.broadcast_to(state.sums.means, (len(masks), *state.sums.sums.shape))
    clusterings, swept = converge(
        passes, Clusterings(start, masks), state.rules, parameters, with_squares=True
    )
    matched = matches(state, masks, swept, parameters)
    values = OldValues(state)
    values.trace(matched, swept, masks)
    products: dict[int, np.ndarray] = {
        i: state.sums.products[matched.pairs[i, 2]] for i in np.flatnonzero(matched.same).tolist()
    }

    def proposal(i: int) -> Proposal:
        clustering, member, cluster = matched.pairs[i].tolist()
        known = products.get(i)
        if known is None and swept.squares is not None:
            known = swept.squares[clustering, member]
        return Proposal(
            clustering,
            member,
            cluster,
            masks[clustering],
            same=bool(matched.same[i]),
            overlap=float(matched.overlap[i]),
            unassigned=float(matched.unassigned[i]),
            penalty=float(matched.penalty[i]),
            sums=(float(swept.counts[clustering, member]), swept.sums[clustering, member], known),
            traced=bool(matched.traced[i]),
            ratio=float(matched.ratios[i]),
        )

    untraced = np.flatnonzero(~(matched.same | matched.traced))
    waiting = iter(untraced.tolist())
    for changes in passes.changes(clusterings, state.rules, matched.pairs[untraced]):
        some = [next(waiting) for _ in changes]
        for i, change in zip(some, changes, strict=True):
            products[i] = state.sums.products[matched.pairs[i, 2]] + change
            if swept.squares is not None:
                np.fill_diagonal(products[i], swept.squares[tuple(matched.pairs[i, :2])])
        matched.ratios[some] = np.round(values.ratios([proposal(i) for i in some]), DIGITS)
        if not keep_all:
            products = {i: products[i] for i in matched.best().tolist() if i in products}
    chosen = range(len(matched)) if keep_all else matched.best().tolist()
    return clusterings, matched, [proposal(i) for i in chosen]


def _add_products(
    passes: RowPasses, state: SearchState, clusterings: Clusterings, accepted: list[Proposal]
) -> None:
    """Make the products of replacements that were valued without them."""
    without = [proposal for proposal in accepted if proposal.sums[2].ndim == 1]
    waiting = iter(without)
    pairs = np.array([proposal.pair for proposal in without], dtype=np.int64).reshape(-1, 3)
    for changes in passes.changes(clusterings, state.rules, pairs):
        for change in changes:
            proposal = next(waiting)
            products = state.sums.products[proposal.cluster] + change
            np.fill_diagonal(products, proposal.sums[2])
            proposal.sums = (*proposal.sums[:2], products)


def decide(
    passes: RowPasses,
    state: SearchState,
    clusterings: Clusterings,
    ladder: list[list[Proposal]],
    parameters: LFSParameters,
) -> list[Proposal]:
    """Return the replacements to make: for each cluster the first of its ladder that is better.

    Better: the ratio is positive, the members are equal, or the loss is within ``tie_width``
    standard errors: a tie, which fewer features win.
    """
    undecided: list[Proposal] = []
    for rungs in ladder:
        for proposal in rungs:
            if proposal.same or proposal.ratio > 0:
                break
            if parameters.tie_width > 0 and np.isfinite(proposal.ratio):
                undecided.append(proposal)
    if undecided:
        measure_errors(passes, state, clusterings, undecided, parameters)
    accepted = []
    for rungs in ladder:
        for proposal in rungs:
            if (
                proposal.same
                or proposal.ratio > 0
                or proposal.ratio >= -parameters.tie_width * proposal.error
            ):
                accepted.append(proposal)
                break
    return accepted


def _replace(state: SearchState, proposal: Proposal, clusterings: Clusterings, tried: int) -> None:
    """Put a cluster in the place of another, and say so in the trace."""
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
    state.rules = state.rules.replaced(
        cluster, clusterings.centers[proposal.clustering], proposal.mask, proposal.member
    )
    state.subsets[cluster] = proposal.mask
    count, sums, products = proposal.sums
    state.sums.counts[cluster] = count
    state.sums.sums[cluster] = sums
    state.sums.products[cluster] = products
