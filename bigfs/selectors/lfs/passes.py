"""The passes of LFS over X: tasks over row blocks, or plain calls where the data are tiny.

A block's kernels see rows about the data's mean in float64. Data of one block are shared out by
candidates, those of many blocks by rows; neither the split nor the order of sums depends on how
many workers there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.runtime.execute import run_tasks
from bigfs.selectors.lfs.kernels import (
    Assignment,
    Clusterings,
    GroupSums,
    Rules,
    Sweep,
    assign,
    change_products,
    group_sums,
    label_sums,
    merge_groups,
    merge_sweeps,
    sweep,
)
from bigfs.store.scratch import ArrayRef

# Below this many values a pass takes less time than a Dask graph.
_TINY_VALUES = 250_000
# Candidates of one task, where one block is shared out.
_TASK_CANDIDATES = 16


@dataclass(frozen=True)
class Parcel:
    """Small arrays on their way to the tasks: themselves, or one stored array.

    Attributes
    ----------
    content : ArrayRef or ndarray
        All values one behind the other, float64.
    shapes : tuple of tuple of int
    """

    content: ArrayRef | np.ndarray
    shapes: tuple[tuple[int, ...], ...]

    def open(self) -> list[np.ndarray]:
        """Return the arrays."""
        stored = isinstance(self.content, ArrayRef)
        values = self.content.load() if stored else self.content  # type: ignore[union-attr]
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes])
        parts = np.split(np.asarray(values)[: ends[-1]], ends[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]


class Passes:
    """Runs the kernels of LFS over all rows.

    Whoever uses it limits the threads: asking for that in every pass would take longer than
    many a pass over a small matrix.

    Parameters
    ----------
    blocks : RowBlocks
    origin : ndarray of shape (n_features,)
        What the kernels count from: the data's mean.
    budget_bytes : int
        What the products of one task may take.
    in_memory : bool, default=False
        Keep the rows of data of one block in this process, whatever their size.
    """

    def __init__(
        self, blocks: RowBlocks, origin: np.ndarray, budget_bytes: int, in_memory: bool = False
    ) -> None:
        self.blocks, self.origin = blocks, origin
        self._budget = budget_bytes
        self._whole: np.ndarray | None = None
        tiny = blocks.n_samples * blocks.n_features <= _TINY_VALUES
        if len(blocks.bounds) == 1 and (tiny or in_memory):
            read = blocks.reader.read(0, blocks.n_samples)
            self._whole = np.asarray(read, dtype=np.float64) - origin

    def sweep(self, clusterings: Clusterings, rules: Rules) -> Sweep:
        """Label all rows in every clustering: one pass."""
        arrays = (*_flat(rules), clusterings.centers, clusterings.masks)
        parts = self._run(_sweep_kernel, merge_sweeps, arrays, 2, len(clusterings))
        if len(parts) == 1:
            return parts[0]  # type: ignore[no-any-return]
        return Sweep(
            np.concatenate([part.counts for part in parts]),
            np.concatenate([part.sums for part in parts]),
            parts[0].codes,
            np.concatenate([part.joint for part in parts]),
        )

    def changes(
        self, clusterings: Clusterings, rules: Rules, pairs: np.ndarray
    ) -> Iterator[np.ndarray]:
        """Yield `change_products` over all rows for some of the pairs after the other.

        One pass, or several where memory asks for it; each yields (n_some, d, d).
        """
        together = max(1, self._budget // (24 * self.blocks.n_features**2))
        for begin in range(0, len(pairs), together):
            chosen = pairs[begin : begin + together]
            used, place = np.unique(chosen[:, 0], return_inverse=True)
            some = clusterings.take(used)
            moved = np.column_stack([place, chosen[:, 1:]])
            arrays = (*_flat(rules), some.centers, some.masks, moved)
            yield np.concatenate(self._run(_changes_kernel, np.add, arrays, 1, len(moved)))

    def groups(
        self, clusterings: Clusterings, rules: Rules, pairs: np.ndarray, n_groups: int
    ) -> Iterator[tuple[GroupSums, int]]:
        """Yield for each pair its `group_sums` over all rows and its position in them.

        One pass, or several where memory asks for it.
        """
        together = max(1, self._budget // (48 * n_groups * self.blocks.n_features**2))
        for begin in range(0, len(pairs), together):
            chosen = pairs[begin : begin + together]
            arrays = (*_flat(rules), clusterings.centers, clusterings.masks, chosen)
            [found] = self._run(_groups_kernel, merge_groups, arrays, 0, 1, n_groups)
            for position in range(len(chosen)):
                yield found, position

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
        found : ndarray of shape (n_clusters, 1 + 2 * n_features)
            Counts, sums and squares of the labels' rows.
        """
        arrays = (*_flat(how.rules), how.centers, how.subsets, how.variances)
        more = (leave_unassigned, labels, inside)
        return np.asarray(self._run(_assign_kernel, np.add, arrays, 0, 1, *more)[0])

    def label_means(self, labels: ArrayRef, n_clusters: int) -> np.ndarray:
        """Return the mean of each label's rows, about the origin: one pass."""
        [found] = self._run(_label_kernel, np.add, (), 0, 1, labels, n_clusters)
        return np.asarray(found[:, 1 : 1 + self.blocks.n_features] / np.maximum(found[:, :1], 1))

    def _run(
        self, kernel: Any, merge: Any, arrays: tuple[Any, ...], n_split: int, size: int, *more: Any
    ) -> list[Any]:
        """Run a kernel; the last ``n_split`` arrays may be shared out by their first axis."""
        self.blocks.passes += 1
        if self._whole is not None:
            zero = np.zeros(self.blocks.n_features)
            return [kernel(self._whole, 0, self._pack(arrays, zero, False), *more)]
        if len(self.blocks.bounds) > 1 or not n_split:
            parcel = self._pack(arrays, self.origin, True)
            self.blocks.passes -= 1  # `reduce` counts it
            found = [self.blocks.reduce(kernel, merge, parcel, *more, label="lfs")]
            self._drop([parcel])
            return found
        parcels = []
        for begin in range(0, size, _TASK_CANDIDATES):
            part = slice(begin, begin + _TASK_CANDIDATES)
            split = tuple(array[part] for array in arrays[-n_split:])
            parcels.append(self._pack((*arrays[:-n_split], *split), self.origin, True))
        reader, n = self.blocks.reader, self.blocks.n_samples
        found = run_tasks(_on_whole, parcels, reader, n, kernel, more, label="lfs")
        self._drop(parcels)
        return found

    def _pack(self, arrays: tuple[Any, ...], origin: np.ndarray, store: bool) -> Parcel:
        every = [np.asarray(array, dtype=np.float64) for array in (origin, *arrays)]
        shapes = tuple(array.shape for array in every)
        values = np.concatenate([array.ravel() for array in every])
        if not store:
            return Parcel(values, shapes)
        scratch = self.blocks.scratch
        return Parcel(scratch.put(scratch.unique("lfs"), values), shapes)

    def _drop(self, parcels: list[Parcel]) -> None:
        self.blocks.scratch.remove(
            *[parcel.content for parcel in parcels if isinstance(parcel.content, ArrayRef)]
        )


def _flat(rules: Rules) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return rules.clusterings.centers, rules.clusterings.masks, rules.members


def _opened(parcel: Parcel) -> tuple[np.ndarray, Rules, list[np.ndarray]]:
    origin, centers, masks, members, *rest = parcel.open()
    return origin, Rules(Clusterings(centers, masks > 0), members.astype(np.int64)), rest


def _on_whole(parcel: Parcel, reader: Any, n: int, kernel: Any, more: tuple[Any, ...]) -> Any:
    """Read data of one block and run the kernel on it."""
    return kernel(reader.read(0, n), 0, parcel, *more)


def _sweep_kernel(X: np.ndarray, first_row: int, parcel: Parcel) -> Sweep:
    origin, rules, (centers, masks) = _opened(parcel)
    return sweep(X, origin, Clusterings(centers, masks > 0), rules)


def _changes_kernel(X: np.ndarray, first_row: int, parcel: Parcel) -> np.ndarray:
    origin, rules, (centers, masks, pairs) = _opened(parcel)
    return change_products(
        X, origin, Clusterings(centers, masks > 0), rules, pairs.astype(np.int64)
    )


def _groups_kernel(X: np.ndarray, first_row: int, parcel: Parcel, n_groups: int) -> GroupSums:
    origin, rules, (centers, masks, pairs) = _opened(parcel)
    clusterings = Clusterings(centers, masks > 0)
    return group_sums(X, first_row, origin, clusterings, rules, pairs.astype(np.int64), n_groups)


def _assign_kernel(
    X: np.ndarray,
    first_row: int,
    parcel: Parcel,
    leave_unassigned: bool,
    labels: ArrayRef | None,
    inside: ArrayRef | None,
) -> np.ndarray:
    origin, rules, (centers, subsets, variances) = _opened(parcel)
    how = Assignment(rules, centers, subsets > 0, variances)
    found, member = assign(X, origin, how, leave_unassigned)
    if labels is not None:
        labels.write(first_row, found)
    if inside is not None:
        inside.write(first_row, member)
    return label_sums(X, origin, found, len(centers))


def _label_kernel(
    X: np.ndarray, first_row: int, parcel: Parcel, labels: ArrayRef, n_clusters: int
) -> np.ndarray:
    return label_sums(X, parcel.open()[0], labels.read(first_row, first_row + len(X)), n_clusters)
