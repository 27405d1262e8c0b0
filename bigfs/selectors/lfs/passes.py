"""The passes of LFS over its rows, in three ways.

Few rows of one block are held by this process (`held`). A larger block is read by tasks that share
out the candidates; several blocks are a task each. A block's kernels see rows about the data's mean
in float64. Neither the split nor the order of sums depends on how many workers there are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.blocks.rowblocks import fold_parts
from bigfs.core.cost import Shape, Step, pass_over
from bigfs.core.units import MIB
from bigfs.runtime.execute import run_tasks
from bigfs.selectors.lfs.kernels import (
    TILE_ENTRIES,
    Assignment,
    Clusterings,
    GroupSums,
    Rules,
    Sweep,
    add_to,
    assign,
    change_products,
    group_sums,
    label_sums,
    merge_groups,
    merge_sweeps,
    most_candidates,
    sweep,
)
from bigfs.store.scratch import ArrayRef

# Candidates of one task, where one block is shared out.
_TASK_CANDIDATES = 16
# What tasks of a search import beyond what all stages do: rows in memory have a compiled loop.
LOADS = ("bigfs.selectors.lfs.lloyd",)
# Groups of rows that the jackknife leaves out in turn.
N_GROUPS = 20


@dataclass(frozen=True)
class Shipment:
    """Small arrays on their way to the tasks: themselves, or one stored array."""

    content: ArrayRef | np.ndarray  # all values one behind the other, float64
    shapes: tuple[tuple[int, ...], ...]

    def open(self) -> list[np.ndarray]:
        """Return the arrays."""
        stored = isinstance(self.content, ArrayRef)
        values = self.content.load() if stored else self.content  # type: ignore[union-attr]
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes])
        parts = np.split(np.asarray(values)[: ends[-1]], ends[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]


class RowPasses(ABC):
    """Runs the kernels of LFS over all rows.

    Whoever uses it limits the threads: asking for that in every pass would take longer than
    many a pass over a small matrix.

    Parameters
    ----------
    blocks : RowBlocks
    origin : ndarray of shape (n_features,)
        What the kernels count from: the data's mean.
    product_bytes : int, default=0
        What the products of one pass may take where results are not folded; see `changes`.
    """

    # Whether this process holds the rows, so that the client does all the work.
    held = False

    def __init__(self, blocks: RowBlocks, origin: np.ndarray, product_bytes: int = 0) -> None:
        self.blocks, self.origin = blocks, origin
        self._product_bytes = product_bytes

    @abstractmethod
    def about(self, origin: np.ndarray) -> RowPasses:
        """Return passes over the same rows that count from another origin."""

    @abstractmethod
    def _run(
        self, kernel: Any, merge: Any, arrays: tuple[Any, ...], n_split: int, size: int, *more: Any
    ) -> list[Any]:
        """Run a kernel; the last ``n_split`` arrays may be shared out by their first axis."""

    @staticmethod
    @abstractmethod
    def reads(n_candidates: int) -> int:
        """Return how often a pass reads all rows that may be shared out by candidates."""

    @staticmethod
    @abstractmethod
    def step(shape: Shape, what: str, size: PassSize, times: int) -> Step:
        """Return the step of passes that read all rows ``times`` times at most."""

    def sweep(self, clusterings: Clusterings, rules: Rules) -> Sweep:
        """Label all rows in every clustering: one pass."""
        arrays = (*_flat(rules), clusterings.centers, clusterings.masks)
        parts = self._run(_sweep_kernel, merge_sweeps, arrays, 2, len(clusterings))
        if len(parts) == 1:
            return parts[0]
        return Sweep(
            np.concatenate([part.counts for part in parts]),
            np.concatenate([part.sums for part in parts]),
            parts[0].codes,
            np.concatenate([part.joint for part in parts]),
        )

    def moving(
        self, centers: np.ndarray, kept: np.ndarray, labels: np.ndarray | None
    ) -> np.ndarray:
        """Say of each kept feature if a row may get another label without it: as far as known."""
        return np.ones(len(kept), dtype=bool)

    def changes(
        self, clusterings: Clusterings, rules: Rules, pairs: np.ndarray
    ) -> Iterator[np.ndarray]:
        """Yield `change_products` over all rows for some of the pairs after the other.

        One pass, or several where memory asks for it; each yields (n_some, d, d).
        """
        together = pairs_together(self._product_bytes, self.blocks.n_features)
        for begin in range(0, len(pairs), together):
            chosen = pairs[begin : begin + together]
            used, place = np.unique(chosen[:, 0], return_inverse=True)
            some = clusterings.take(used)
            moved = np.column_stack([place, chosen[:, 1:]])
            arrays = (*_flat(rules), some.centers, some.masks, moved)
            parts = self._run(_changes_kernel, add_to, arrays, 1, len(moved))
            yield parts[0] if len(parts) == 1 else np.concatenate(parts)

    def groups(
        self,
        clusterings: Clusterings,
        rules: Rules,
        pairs: np.ndarray,
        features: list[np.ndarray],
    ) -> Iterator[tuple[GroupSums, int]]:
        """Yield for each pair its `group_sums` over all rows and its position in them.

        Products are those of the pair alone, in its features. One pass, or several where memory
        asks for it.
        """
        together = grouped_together(self._product_bytes, self.blocks.n_features)
        used, place = np.unique(pairs[:, 0], return_inverse=True)
        some, moved = clusterings.take(used), np.column_stack([place, pairs[:, 1:]])
        for begin in range(0, len(pairs), together):
            chosen = moved[begin : begin + together]
            arrays = (*_flat(rules), some.centers, some.masks, chosen)
            [sums] = self._run(_groups_kernel, merge_groups, arrays, 0, 1, N_GROUPS)
            for position in range(len(chosen)):
                kept = features[begin + position]
                at = (slice(None), position, kept[:, None], kept)
                old, new = sums.old_products[at], sums.new_products[at]
                yield replace(sums, old_products=old, new_products=new), position

    def assign(
        self,
        how: Assignment,
        leave_unassigned: bool,
        labels: ArrayRef | None = None,
        inside: ArrayRef | None = None,
    ) -> np.ndarray:
        """Write labels and memberships where there is a place for them: one pass.

        Returns
        -------
        label_sums : ndarray of shape (n_clusters, 1 + 2 * n_features)
            Counts, sums and squares of the labels' rows.
        """
        arrays = (*_flat(how.rules), how.centers, how.subsets, how.variances)
        more = (leave_unassigned, labels, inside)
        return np.asarray(self._run(_assign_kernel, np.add, arrays, 0, 1, *more)[0])

    def label_means(self, labels: ArrayRef, n_clusters: int) -> np.ndarray:
        """Return the mean of each label's rows, about the origin: one pass."""
        [sums] = self._run(_label_kernel, np.add, (), 0, 1, labels, n_clusters)
        return np.asarray(sums[:, 1 : 1 + self.blocks.n_features] / np.maximum(sums[:, :1], 1))


class BlockTasks(RowPasses):
    """A task for each row block; results are folded."""

    def about(self, origin: np.ndarray) -> RowPasses:
        """Return passes over the same rows that count from another origin."""
        return type(self)(self.blocks, origin, self._product_bytes)

    def _run(
        self, kernel: Any, merge: Any, arrays: tuple[Any, ...], n_split: int, size: int, *more: Any
    ) -> list[Any]:
        shipment = self._stored(arrays)
        folded = self.blocks.reduce(kernel, merge, shipment, *more, label="lfs")
        self._remove([shipment])
        return [folded]

    @staticmethod
    def reads(n_candidates: int) -> int:
        """Return 1: a task has all candidates."""
        return 1

    @staticmethod
    def step(shape: Shape, what: str, size: PassSize, times: int) -> Step:
        """Return the step of the tasks, and of the fold of their results."""
        needed = block_bytes(shape) + size.needed(shape.n_blocks)
        return Step(what, needed, shape.n_blocks, 1, shape.n_chunks, times)

    def _stored(self, arrays: tuple[Any, ...]) -> Shipment:
        content, shapes = flattened(self.origin, arrays)
        scratch = self.blocks.scratch
        return Shipment(scratch.put(scratch.unique("lfs"), content), shapes)

    def _remove(self, shipments: list[Shipment]) -> None:
        self.blocks.scratch.remove(*(shipment.content for shipment in shipments))  # type: ignore[arg-type]


class CandidateTasks(BlockTasks):
    """One block: tasks read all rows, each for some of the candidates."""

    def _run(
        self, kernel: Any, merge: Any, arrays: tuple[Any, ...], n_split: int, size: int, *more: Any
    ) -> list[Any]:
        if not n_split:
            return super()._run(kernel, merge, arrays, n_split, size, *more)
        shipments = []
        for begin in range(0, size, _TASK_CANDIDATES):
            part = slice(begin, begin + _TASK_CANDIDATES)
            split = tuple(array[part] for array in arrays[-n_split:])
            shipments.append(self._stored((*arrays[:-n_split], *split)))
        reader = self.blocks.start_pass(len(shipments))
        results = run_tasks(
            _on_all_rows, shipments, reader, self.blocks.n_samples, kernel, more, label="lfs"
        )
        self._remove(shipments)
        return results

    @staticmethod
    def reads(n_candidates: int) -> int:
        """Return the number of tasks, each of which reads all rows."""
        return -(-n_candidates // _TASK_CANDIDATES)


@dataclass(frozen=True)
class PassSize:
    """Memory of the passes of a search beside their rows, in bytes."""

    work: int  # centers, masks and labels of a tile
    result: int  # the largest result of a task

    def needed(self, n_blocks: int) -> int:
        """Return the bytes of a worker for the tasks over so many blocks and their fold."""
        return self.work + result_copies(n_blocks) * self.result


def result_copies(n_blocks: int) -> int:
    """Return how many results a worker has at once: those of a fold, and one on its way."""
    return fold_parts(n_blocks) + 1


def sweep_size(
    passes: type[RowPasses], n_clusters: int, n_features: int, n_candidates: int
) -> PassSize:
    """Return the size of `RowPasses.sweep` with so many candidates."""
    together = min(n_candidates, _TASK_CANDIDATES) if passes is CandidateTasks else n_candidates
    per_candidate = 8 * n_clusters * n_features
    tile = 24 * max(TILE_ENTRIES, 64 * n_clusters * together)
    # Centers as they come and within their masks; of rows in memory none are shipped.
    work = 32 * MIB + tile + (0 if passes.held else 2 * per_candidate * n_candidates)
    return PassSize(work, per_candidate * together)


def pairs_together(product_bytes: int, n_features: int) -> int:
    """Return how many pairs one pass of `RowPasses.changes` serves: each three times in memory."""
    return max(1, product_bytes // (24 * n_features**2))


def grouped_together(product_bytes: int, n_features: int) -> int:
    """Return how many pairs one pass of `RowPasses.groups` serves: each three times in memory."""
    return max(1, product_bytes // (48 * N_GROUPS * n_features**2))


def search_size(
    passes: type[RowPasses], n_clusters: int, n_features: int, many: bool, product_bytes: int
) -> PassSize:
    """Return the size of the largest pass of a search."""
    n_candidates, square = most_candidates(n_features, many), 8 * n_features**2
    size = sweep_size(passes, n_clusters, n_features, n_candidates)
    n_pairs = n_clusters * n_candidates
    changes = square * min(n_pairs, pairs_together(product_bytes, n_features))
    groups = 2 * N_GROUPS * square * min(n_pairs, grouped_together(product_bytes, n_features))
    return PassSize(size.work, max(size.result, changes, groups))


def block_bytes(shape: Shape) -> int:
    """Return the bytes of a task for a block: while it is read, or with a tile in float64."""
    tile = 16 * min(shape.rows, TILE_ENTRIES) * shape.n_features
    return max(shape.read_bytes, shape.block_bytes + tile)


def held_step(shape: Shape) -> Step:
    """Return the step in which the client reads the rows of `held.HeldRows`."""
    # The rows as they are, about the origin, and those of a label with their squares.
    needed = shape.n_samples * shape.n_features * (shape.itemsize + 32)
    return Step("all rows in memory", needed, 1, 1, shape.n_chunks, by_client=True)


def labels_step(shape: Shape) -> Step:
    """Return the step of `RowPasses.assign`: a block, all rows of a label, and their squares."""
    rows = shape.rows * shape.n_features * (shape.itemsize + 16)
    return pass_over(shape, "a block and its labels", rows)


def flattened(
    origin: np.ndarray, arrays: tuple[Any, ...]
) -> tuple[np.ndarray, tuple[tuple[int, ...], ...]]:
    """Return the values of all arrays one behind the other, and their shapes."""
    every = [np.asarray(array, dtype=np.float64) for array in (origin, *arrays)]
    return np.concatenate([array.ravel() for array in every]), tuple(a.shape for a in every)


def _flat(rules: Rules) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return rules.clusterings.centers, rules.clusterings.masks, rules.members


def _opened(shipment: Shipment) -> tuple[np.ndarray, Rules, list[np.ndarray]]:
    origin, centers, masks, members, *rest = shipment.open()
    return origin, Rules(Clusterings(centers, masks > 0), members.astype(np.int64)), rest


def _on_all_rows(
    shipment: Shipment, reader: Any, n: int, kernel: Any, more: tuple[Any, ...]
) -> Any:
    """Read data of one block and run the kernel on it."""
    return kernel(reader.read(0, n), 0, shipment, *more)


def _sweep_kernel(X: np.ndarray, first_row: int, shipment: Shipment) -> Sweep:
    origin, rules, (centers, masks) = _opened(shipment)
    return sweep(X, origin, Clusterings(centers, masks > 0), rules)


def _changes_kernel(X: np.ndarray, first_row: int, shipment: Shipment) -> np.ndarray:
    origin, rules, (centers, masks, pairs) = _opened(shipment)
    return change_products(
        X, origin, Clusterings(centers, masks > 0), rules, pairs.astype(np.int64)
    )


def _groups_kernel(X: np.ndarray, first_row: int, shipment: Shipment, n_groups: int) -> GroupSums:
    origin, rules, (centers, masks, pairs) = _opened(shipment)
    clusterings = Clusterings(centers, masks > 0)
    return group_sums(X, first_row, origin, clusterings, rules, pairs.astype(np.int64), n_groups)


def _assign_kernel(
    X: np.ndarray,
    first_row: int,
    shipment: Shipment,
    leave_unassigned: bool,
    labels: ArrayRef | None,
    inside: ArrayRef | None,
) -> np.ndarray:
    origin, rules, (centers, subsets, variances) = _opened(shipment)
    how = Assignment(rules, centers, subsets > 0, variances)
    assigned, member = assign(X, origin, how, leave_unassigned)
    if labels is not None:
        labels.write(first_row, assigned)
    if inside is not None:
        inside.write(first_row, member)
    return label_sums(X, origin, assigned, len(centers))


def _label_kernel(
    X: np.ndarray, first_row: int, shipment: Shipment, labels: ArrayRef, n_clusters: int
) -> np.ndarray:
    return label_sums(X, shipment.open()[0], labels.read(first_row, first_row + len(X)), n_clusters)
