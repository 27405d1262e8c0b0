"""Rows that this process holds: the passes of LFS without tasks, by loops compiled by numba.

Labels are known from Lloyd's iteration, with counts, sums and sums of squares. Where a comparison
is of traces, which is most often so with many features, no product of two features is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.core.cost import Shape, Step
from bigfs.selectors.gfs_kmeans import GFSKMeansParameters
from bigfs.selectors.lfs.kernels import (
    Clusterings,
    GroupSums,
    Rules,
    Sweep,
    groups_of,
    labels_of,
    tiles,
)
from bigfs.selectors.lfs.lloyd import lloyd, moving_features
from bigfs.selectors.lfs.passes import (
    N_GROUPS,
    BlockTasks,
    CandidateTasks,
    PassSize,
    RowPasses,
    Shipment,
    flattened,
    held_step,
    pairs_together,
)
from bigfs.selectors.lfs.traces import group_squares

# Up to this many values a pass takes less time than a Dask graph.
_HELD_VALUES = 250_000


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
        # What the last rules say of the rows, and the labels of the last clusterings.
        self._last_rules: Rules | None = None
        self._members = np.empty((0, 0), dtype=bool)
        self._coded = np.empty(0, np.uint64), np.empty(0, np.int64)
        self._labeled: tuple[Clusterings, np.ndarray] | None = None

    def about(self, origin: np.ndarray) -> RowPasses:
        """Return passes over the same rows that count from another origin."""
        return HeldRows(self.blocks, origin, self._product_bytes, self.rows)

    def _run(
        self, kernel: Any, merge: Any, arrays: tuple[Any, ...], n_split: int, size: int, *more: Any
    ) -> list[Any]:
        content, shapes = flattened(np.zeros(self.blocks.n_features), arrays)
        return [kernel(self._centered, 0, Shipment(content, shapes), *more)]

    def lloyd(
        self, start: Clusterings, rules: Rules, parameters: GFSKMeansParameters, with_squares: bool
    ) -> tuple[Clusterings, Sweep]:
        """Run Lloyd's iteration from the centers of the first clustering in every mask."""
        codes, place = self._codes(rules)
        rows, centers = self._centered, start.centers[0]
        max_iter, tol = parameters.max_iter, parameters.tol
        centers, labels, counts, sums, squares, joint = lloyd(
            rows, centers, start.masks, place, len(codes), max_iter, tol, with_squares
        )
        clusterings = Clusterings(centers, start.masks)
        self._labeled = clusterings, labels
        kept_squares = squares if with_squares else None
        return clusterings, Sweep(counts, sums, codes, joint, kept_squares, labels)

    def moving(self, centers: np.ndarray, kept: np.ndarray, swept: Sweep) -> np.ndarray:
        """Say of each kept feature if a row may get another label without it."""
        assert swept.labels is not None
        return moving_features(self._centered[:, kept], centers[:, kept], swept.labels[0])

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
            bits = np.uint64(1) << np.arange(len(changed), dtype=np.uint64)
            codes = (self._members * bits[:, None]).sum(axis=0, dtype=np.uint64)
            codes, place = np.unique(codes, return_inverse=True)
            self._last_rules, self._coded = rules, (codes, place)
        return self._members

    def _nearest(self, clusterings: Clusterings) -> np.ndarray:
        """Return the labels of all rows, shape (n_rows, n_clusterings)."""
        parts = tiles(len(self._centered), clusterings.centers[:, :, 0].size)
        return np.concatenate([labels_of(self._centered[part], clusterings) for part in parts])

    def _labels(self, clusterings: Clusterings, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the labels of all rows in the clusterings of pairs, and the pairs by those."""
        used, place = np.unique(pairs[:, 0], return_inverse=True)
        if self._labeled is not None and self._labeled[0] is clusterings:
            labels = self._labeled[1][used]
        else:
            labels = self._nearest(clusterings.take(used)).T.astype(np.int16)
        return labels, np.column_stack([place, pairs[:, 1:]])

    def changes(
        self, clusterings: Clusterings, rules: Rules, pairs: np.ndarray
    ) -> Iterator[np.ndarray]:
        """Yield `change_products`, by the labels that are known from `lloyd`."""
        if not len(pairs):
            return
        inside, d = self._inside(rules), self.blocks.n_features
        labels, moved = self._labels(clusterings, pairs)
        together = pairs_together(self._product_bytes, d)
        for begin in range(0, len(pairs), together):
            chosen = moved[begin : begin + together]
            changes = np.empty((len(chosen), d, d))
            for change, (clustering, member, cluster) in zip(changes, chosen, strict=True):
                new, old = labels[clustering] == member, inside[cluster]
                come, go = self._centered[new & ~old], self._centered[old & ~new]
                np.matmul(come.T, come, out=change)
                if len(go):
                    change -= go.T @ go
            yield changes

    def group_squares(self, clusterings: Clusterings, rules: Rules, pairs: np.ndarray) -> GroupSums:
        """Return `group_sums` of pairs, with squares of single features for the products."""
        labels, moved = self._labels(clusterings, pairs)
        inside, (codes, place) = self._inside(rules), self._codes(rules)
        shared = self._centered, self._groups, N_GROUPS, codes, place
        return group_squares(*shared, inside, labels, moved)

    def groups(
        self, clusterings: Clusterings, rules: Rules, pairs: np.ndarray
    ) -> Iterator[tuple[GroupSums, int]]:
        """Yield for each pair its `group_sums`, by the labels that are known from `lloyd`."""
        if not len(pairs):
            return
        inside, d = self._inside(rules), self.blocks.n_features
        sums = self.group_squares(clusterings, rules, pairs)
        labels, moved = self._labels(clusterings, pairs)
        order, ends = np.argsort(self._groups, kind="stable"), np.arange(N_GROUPS + 1)
        for i, (clustering, member, cluster) in enumerate(moved):
            products = np.empty((2, N_GROUPS, 1, d, d))
            for which, chosen in enumerate((inside[cluster], labels[clustering] == member)):
                # The rows of a group lie side by side, in their order.
                places = order[chosen[order]]
                rows, at = self._centered[places], np.searchsorted(self._groups[places], ends)
                for g in range(N_GROUPS):
                    part = rows[at[g] : at[g + 1]]
                    np.matmul(part.T, part, out=products[which, g, 0])
            of_pair = replace(
                sums,
                new_counts=sums.new_counts[:, i : i + 1],
                new_sums=sums.new_sums[:, i : i + 1],
                old_products=products[0],
                new_products=products[1],
                joint=sums.joint[:, i : i + 1],
            )
            yield of_pair, 0

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
