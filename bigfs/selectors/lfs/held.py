"""Rows that this process holds: the passes of LFS without tasks, by loops compiled by numba.

Labels are known from Lloyd's iteration, with counts, sums and sums of squares. Where a comparison
is of traces, which is most often so with many features, no product of two features is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.core.cost import Shape, Step
from bigfs.core.units import MIB
from bigfs.selectors.lfs.follow import Followed, SharedEnding
from bigfs.selectors.lfs.kernels import (
    Candidates,
    Clusterings,
    GroupSums,
    Rules,
    Sweep,
    groups_of,
    labels_of,
    tiles,
)
from bigfs.selectors.lfs.lloyd import lloyd
from bigfs.selectors.lfs.passes import (
    N_GROUPS,
    BlockTasks,
    CandidateTasks,
    PassSize,
    RowPasses,
    Shipment,
    flattened,
    held_step,
)
from bigfs.selectors.lfs.state import Proposal
from bigfs.selectors.lfs.traces import group_squares

# Up to this many values a pass takes less time than a Dask graph.
_HELD_VALUES = 250_000
# Centers and sums of the candidates that are tried at a time.
HELD_BYTES = 32 * MIB
# Fewer candidates than that are all clustered: bounds take longer.
_FOLLOWED = 100


@dataclass
class Tried:
    """Some candidates, clustered.

    Attributes
    ----------
    candidates : ndarray of shape (n_candidates,), int64
    places : ndarray of shape (n_candidates,), int64
        The clustering of each: those that are alike share one.
    clusterings : Clusterings
        Of candidates that share one, the mask is that of the first.
    swept : Sweep
    """

    candidates: np.ndarray
    places: np.ndarray
    clusterings: Clusterings
    swept: Sweep


class HeldRows(RowPasses):
    """Rows that this process holds: one read serves all passes.

    Parameters
    ----------
    blocks, origin, product_bytes
        As in `RowPasses`.
    rows : ndarray of shape (n_samples, n_features) or None, default=None
        The rows, where they are in memory already. None: they are read.
    """

    held = True

    def __init__(
        self,
        blocks: RowBlocks,
        origin: np.ndarray,
        product_bytes: int = 0,
        rows: np.ndarray | None = None,
    ) -> None:
        super().__init__(blocks, origin, product_bytes)
        self.rows = blocks.start_pass().read(0, blocks.n_samples) if rows is None else rows
        self._centered = np.asarray(self.rows, dtype=np.float64) - origin
        self._groups = groups_of(0, len(self._centered), N_GROUPS)
        self._followed = Followed(self._centered)
        # What the last rules say of the rows.
        self._last_rules: Rules | None = None
        self._members = np.empty((0, 0), dtype=bool)
        self._coded = np.empty(0, np.uint64), np.empty(0, np.int64)

    def about(self, origin: np.ndarray) -> RowPasses:
        """Return passes over the same rows that count from another origin."""
        return HeldRows(self.blocks, origin, self._product_bytes, self.rows)

    def _run(
        self, kernel: Any, merge: Any, arrays: tuple[Any, ...], n_split: int, size: int, *more: Any
    ) -> list[Any]:
        content, shapes = flattened(np.zeros(self.blocks.n_features), arrays)
        return [kernel(self._centered, 0, Shipment(content, shapes), *more)]

    def lloyd(
        self,
        centers: np.ndarray,
        masks: np.ndarray,
        rules: Rules,
        max_iter: int,
        tol: float,
        with_squares: bool = False,
    ) -> tuple[Clusterings, Sweep]:
        """Run Lloyd's iteration from the centers in every mask."""
        codes, place = self._codes(rules)
        centers, labels, counts, sums, squares, joint = lloyd(
            self._centered, centers, masks, place, len(codes), max_iter, tol, with_squares
        )
        kept_squares = squares if with_squares else None
        swept = Sweep(counts, sums, codes, joint, kept_squares)
        return Clusterings(centers, masks, labels), swept

    def tried(
        self, centers: np.ndarray, rules: Rules, candidates: Candidates, max_iter: int, tol: float
    ) -> Iterator[Tried]:
        """Run Lloyd's iteration for all candidates: once for those that bounds say are alike."""
        others = np.arange(len(candidates))
        if isinstance(candidates.dropped, np.ndarray) and len(others) >= _FOLLOWED:
            kept = candidates.dropped[:, 0]
            ends, others = self._followed.endings(centers, kept, max_iter, tol)
            if ends:
                yield self._at_the_ends(ends, rules, candidates)
        # Centers where they begin and end, sums and squares.
        together = max(1, HELD_BYTES // (4 * centers.nbytes))
        for begin in range(0, len(others), together):
            some = others[begin : begin + together]
            masks = candidates.masks(some)
            yield Tried(
                some, np.arange(len(some)), *self.lloyd(centers, masks, rules, max_iter, tol, True)
            )

    def _at_the_ends(self, ends: list[SharedEnding], rules: Rules, candidates: Candidates) -> Tried:
        """Return the candidates that bounds say where they end."""
        codes, place = self._codes(rules)
        centers = np.stack([end.centers for end in ends])
        labels = np.stack([end.labels for end in ends]).astype(np.int16)
        n, k = len(ends), centers.shape[1]
        cells = (np.arange(n)[:, None] * len(codes) + place) * k + labels
        joint = np.bincount(cells.ravel(), minlength=n * len(codes) * k)
        parts = [self._followed.sums(end.labels, k) for end in ends]
        swept = Sweep(
            np.stack([part.counts for part in parts]),
            np.stack([part.sums for part in parts]),
            codes,
            joint.reshape(n, len(codes), k).astype(np.float64),
            np.stack([part.squares for part in parts]),
        )
        which = [end.candidates for end in ends]
        groups = np.repeat(np.arange(len(ends)), [len(some) for some in which])
        masks = candidates.masks(np.array([some[0] for some in which]))
        return Tried(np.concatenate(which), groups, Clusterings(centers, masks, labels), swept)

    def moving(
        self, centers: np.ndarray, kept: np.ndarray, labels: np.ndarray | None
    ) -> np.ndarray:
        """Say of each kept feature if a row may get another label without it."""
        nearest, moving = self._followed.moving(centers, kept)
        assert labels is not None
        return moving if np.array_equal(nearest, labels[0]) else np.ones(len(kept), dtype=bool)

    def _codes(self, rules: Rules) -> tuple[np.ndarray, np.ndarray]:
        """Return the memberships that occur, and the place of every row's among them."""
        self._inside(rules)
        return self._coded

    def _inside(self, rules: Rules) -> np.ndarray:
        """Say which rows each cluster has, shape (n_clusters, n_rows)."""
        if self._last_rules is not rules:
            now, last = rules.clusterings, self._last_rules
            changed = np.ones(len(rules.members), dtype=bool)
            if last is None:
                self._members = np.empty((len(changed), len(self._centered)), dtype=bool)
            else:
                changed = (now.centers != last.clusterings.centers).any(axis=(1, 2))
                changed |= (now.masks != last.clusterings.masks).any(axis=1)
                changed |= rules.members != last.members
            labels = self._nearest(now.take(changed))
            self._members[changed] = (labels == rules.members[changed]).T
            self._set_codes(rules)
        return self._members

    def _set_codes(self, rules: Rules) -> None:
        bits = np.uint64(1) << np.arange(len(self._members), dtype=np.uint64)
        codes = (self._members * bits[:, None]).sum(axis=0, dtype=np.uint64)
        codes, place = np.unique(codes, return_inverse=True)
        self._last_rules, self._coded = rules, (codes, place)

    def _nearest(self, clusterings: Clusterings) -> np.ndarray:
        """Return the labels of all rows, shape (n_rows, n_clusterings)."""
        parts = tiles(len(self._centered), clusterings.centers[:, :, 0].size)
        return np.concatenate([labels_of(self._centered[part], clusterings) for part in parts])

    def replaced(self, rules: Rules, proposals: list[Proposal]) -> None:
        """Take note of new rules: the members of some clusters are known."""
        for proposal in proposals:
            self._members[proposal.cluster] = proposal.labels == proposal.member
        self._set_codes(rules)

    def products(self, members: np.ndarray, features: np.ndarray) -> np.ndarray:
        """Return the sum of ``x x'`` of some rows in some features."""
        rows = self._centered[np.ix_(members, features)]
        return np.asarray(rows.T @ rows)

    def members(self, rules: Rules, cluster: int) -> np.ndarray:
        """Say which rows a cluster has."""
        return self._inside(rules)[cluster]

    def group_squares(self, clusterings: Clusterings, rules: Rules, pairs: np.ndarray) -> GroupSums:
        """Return `group_sums` of pairs, with squares of single features for the products."""
        inside, (codes, place) = self._inside(rules), self._codes(rules)
        shared = self._centered, self._groups, N_GROUPS, codes, place
        assert clusterings.labels is not None
        return group_squares(*shared, inside, clusterings.labels, pairs)

    def groups(
        self,
        clusterings: Clusterings,
        rules: Rules,
        pairs: np.ndarray,
        features: list[np.ndarray],
    ) -> Iterator[tuple[GroupSums, int]]:
        """Yield for each pair its `group_sums`, by the labels that are known from `lloyd`."""
        if not len(pairs):
            return
        inside, labels = self._inside(rules), clusterings.labels
        assert labels is not None
        sums = self.group_squares(clusterings, rules, pairs)
        order, ends = np.argsort(self._groups, kind="stable"), np.arange(N_GROUPS + 1)
        for i, (clustering, member, cluster) in enumerate(pairs):
            kept = features[i]
            products = np.empty((2, N_GROUPS, len(kept), len(kept)))
            for which, chosen in enumerate((inside[cluster], labels[clustering] == member)):
                # The rows of a group lie side by side, in their order.
                places = order[chosen[order]]
                rows = self._centered[np.ix_(places, kept)]
                at = np.searchsorted(self._groups[places], ends)
                for g in range(N_GROUPS):
                    part = rows[at[g] : at[g + 1]]
                    np.matmul(part.T, part, out=products[which, g])
            yield replace(sums, old_products=products[0], new_products=products[1]), i

    @staticmethod
    def reads(n_candidates: int) -> int:
        """Return 0: the rows are in memory."""
        return 0

    @staticmethod
    def step(shape: Shape, what: str, size: PassSize, times: int) -> Step:
        """Return the step of the process that holds the rows."""
        # A result does not travel: it is there once, or twice while it is added to.
        needed = held_step(shape).task_bytes + size.work + 2 * size.result
        return Step(what, needed, by_client=True)


def kind_of_passes(shape: Shape) -> type[RowPasses]:
    """Return the way that passes over data of a shape go."""
    if shape.n_blocks > 1:
        return BlockTasks
    few = shape.n_samples * shape.n_features <= _HELD_VALUES
    return HeldRows if few else CandidateTasks
