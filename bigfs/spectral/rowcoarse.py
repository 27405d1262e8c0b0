"""A start from a coarse graph for row blocks: groups are found and added up block by block."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigfs.core.seeds import rng
from bigfs.runtime.execute import run_tasks
from bigfs.spectral.chebyshev import rough_vectors
from bigfs.spectral.coarse import coarse_bytes, coarse_rows, group_rows, is_worth
from bigfs.spectral.rowblocks import GraphBlockReader, StoredIterate
from bigfs.spectral.rowgraph import RowGraph, load_arrays, save_arrays
from bigfs.spectral.rowstart import write_near
from bigfs.store.location import as_location
from bigfs.store.scratch import ArrayRef, Scratch


@dataclass(frozen=True)
class CoarseStart:
    """Addresses of vectors that are the same in each group of rows."""

    # One column: the number of each row's group within its block.
    groups: StoredIterate
    offsets: ArrayRef  # of shape (n_blocks + 1,), int64: the first group of each block
    vectors: ArrayRef  # of shape (n_groups, n_near), float32


def coarse_start(
    graph: RowGraph,
    groups: StoredIterate,
    n_near: int,
    scratch: Scratch,
    random_state: int,
    room: int,
) -> CoarseStart | None:
    """Return vectors of the graph of groups, or None if it is too large or not worth it.

    Parameters
    ----------
    graph : RowGraph
    groups : StoredIterate
        Gets the groups.
    n_near : int
        Number of vectors.
    scratch : Scratch
        Gets the rest; what is needed on the way is removed.
    random_state : int
    room : int
        Bytes that a task may take.
    """
    blocks = range(graph.n_blocks)
    if not is_worth(graph.n_samples, 0):
        return None
    grouped = run_tasks(group_task, blocks, graph, groups, label="groups")
    groups = groups.with_attempts([attempt for attempt, _ in grouped])
    offsets = np.concatenate([[0], np.cumsum([count for _, count in grouped])])
    count = int(offsets[-1])
    if not is_worth(graph.n_samples, count):
        groups.remove()
        return None
    stored, folder = scratch.put(scratch.unique("offsets"), offsets), scratch.child("coarse")
    sums = run_tasks(
        _sum_task, blocks, graph, groups, stored, str(folder.path), room, label="coarse graph"
    )
    entries = sum(n_entries for _, n_entries in sums)
    out = None
    if min(n for _, n in sums) >= 0 and coarse_bytes(count, entries, n_near) <= room:
        name = scratch.unique("coarse-vectors")
        out = scratch.create(name, (count, n_near), np.float32, count)
        problem = _CoarseProblem(
            str(folder.path), tuple(attempt for attempt, _ in sums), graph.n_connected, random_state
        )
        [is_solved] = run_tasks(_solve_task, [problem], out, label="coarse graph")
        if not is_solved:
            scratch.remove(out)
            out = None
    folder.close()
    if out is None:
        groups.remove()
        scratch.remove(stored)
        return None
    return CoarseStart(groups, stored, out)


def group_task(block: int, graph: RowGraph, target: StoredIterate) -> tuple[int, int]:
    """Store the groups of a block's rows; return the attempt and their number."""
    reader = GraphBlockReader(graph, block)
    edges = reader.edges
    groups, count = group_rows(edges.indptr, edges.indices, reader.n_rows)
    return reader.write(target, [groups[:, None]]), count


def _sum_task(
    block: int, graph: RowGraph, groups: StoredIterate, offsets: ArrayRef, folder: str, room: int
) -> tuple[int, int]:
    """Store the coarse rows of a block; return the attempt and their entries, -1 if too many."""
    reader, first = GraphBlockReader(graph, block), offsets.load()
    edges = reader.edges
    labels = reader.wide(groups, 0)[:, 0].astype(np.int32)
    own = labels[: reader.n_rows].copy()
    labels[: reader.n_rows] += first[block]
    filled = reader.n_rows
    for owner, _, count in reader.links[1].tolist():
        labels[filled : filled + count] += first[owner]
        filled += count
    shape = (int(first[block + 1] - first[block]), int(first[-1]))
    W = coarse_rows((edges.indptr, edges.indices, edges.weights), own, labels, shape, room)
    attempt = secrets.randbits(62)
    if W is None:
        return attempt, -1
    save_arrays(as_location(folder) / f"{block:05d}-{attempt:016x}", W.indptr, W.indices, W.data)
    return attempt, int(W.nnz)


@dataclass(frozen=True)
class _CoarseProblem:
    """Arguments of the task that solves the coarse graph."""

    folder: str
    attempts: tuple[int, ...]  # of the files of its rows
    n_connected: int
    random_state: int

    def load(self) -> Any:
        """Read the coarse graph as scipy CSR."""
        from scipy.sparse import csr_array

        lengths, indices, data = [np.zeros(1, np.int64)], [], []
        for block, attempt in enumerate(self.attempts):
            path = as_location(self.folder) / f"{block:05d}-{attempt:016x}"
            pointers, columns, weights = load_arrays(path)
            lengths.append(np.diff(pointers))
            indices.append(columns)
            data.append(weights)
        indptr = np.cumsum(np.concatenate(lengths))
        shape = (len(indptr) - 1,) * 2
        return csr_array((np.concatenate(data), np.concatenate(indices), indptr), shape=shape)


def _solve_task(problem: _CoarseProblem, out: ArrayRef) -> bool:
    """Store the vectors of the coarse graph; return False if it has not so many."""
    random = rng(problem.random_state, "spectral coarse")
    vectors = rough_vectors(problem.load(), problem.n_connected, out.shape[1], random)
    if vectors is None:
        return False
    out.write(0, vectors)
    return True


def coarse_task(
    block: int, graph: RowGraph, target: StoredIterate, random_state: int, start: CoarseStart
) -> int:
    """Write a block that begins near the vectors of its rows' groups; return the attempt."""
    reader, first = GraphBlockReader(graph, block), start.offsets.load()
    groups = reader.own(start.groups, 0)[:, 0].astype(np.int64)
    vectors = start.vectors.read(int(first[block]), int(first[block + 1]))
    return write_near(reader, target, random_state, slice(None), vectors[groups])
