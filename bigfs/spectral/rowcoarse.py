"""A start from a coarse graph for row blocks: groups are found and added up block by block."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigfs.core.seeds import rng
from bigfs.runtime.execute import run_tasks
from bigfs.spectral.chebyshev import rough_vectors
from bigfs.spectral.coarse import (
    ENTRY_BYTES,
    coarse_bytes,
    coarse_rows,
    group_parts,
    group_rows,
    is_worth,
    most_entries,
    strong_edges,
)
from bigfs.spectral.rowblocks import GraphBlockReader, StoredIterate
from bigfs.spectral.rowgraph import RowGraph, load_arrays, save_arrays
from bigfs.spectral.rowstart import write_near
from bigfs.store.chunking import block_bounds
from bigfs.store.location import as_location
from bigfs.store.scratch import ArrayRef, Scratch

# Of an entry while the rows of blocks are put together, or brought in order.
_READ_ENTRY_BYTES = 28
# Rows of vectors that are written at a time.
_CHUNK_ROWS = 2**16


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
    out = None
    if min(n for _, n in sums) >= 0:
        name = scratch.unique("coarse-vectors")
        out = scratch.create(name, (count, n_near), np.float32, _CHUNK_ROWS)
        problem = _CoarseProblem(
            str(folder.path), tuple(attempt for attempt, _ in sums), stored,
            sum(n_entries for _, n_entries in sums), graph.n_connected, random_state,
        )  # fmt: skip
        [is_solved] = run_tasks(_solve_task, [problem], out, room, label="coarse graph")
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
    most = most_entries(reader.n_rows, room)
    W = coarse_rows((edges.indptr, edges.indices, edges.weights), own, labels, shape, most)
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
    offsets: ArrayRef
    n_entries: int
    n_connected: int
    random_state: int

    def parts(self) -> Iterator[tuple[int, Any]]:
        """Yield the first row of each block and its rows, as scipy CSR."""
        from scipy.sparse import csr_array

        first = self.offsets.load()
        for block, attempt in enumerate(self.attempts):
            path = as_location(self.folder) / f"{block:05d}-{attempt:016x}"
            pointers, columns, weights = load_arrays(path)
            shape = (len(pointers) - 1, int(first[-1]))
            yield int(first[block]), csr_array((weights, columns, pointers), shape=shape)

    def load(self) -> Any:
        """Read the coarse graph as scipy CSR."""
        from scipy.sparse import vstack

        return vstack([rows for _, rows in self.parts()], format="csr")


def _solve_task(problem: _CoarseProblem, out: ArrayRef, room: int) -> bool:
    """Store the vectors of the coarse graph; return False if it is too large, or has not so many.

    Rows are grouped once more where the graph does not fit.
    """
    random = rng(problem.random_state, "spectral coarse")
    count, n_near = out.shape
    if coarse_bytes(count, problem.n_entries, n_near, _READ_ENTRY_BYTES) <= room:
        groups, W = None, problem.load()
    else:
        groups, W = _coarser(problem, count, n_near, room)
    vectors = None if W is None else rough_vectors(W, problem.n_connected, n_near, random)
    if vectors is None:
        return False
    for start, stop in block_bounds(count, out.chunk_rows):
        out.write(start, vectors[start:stop] if groups is None else vectors[groups[start:stop]])
    return True


def _coarser(problem: _CoarseProblem, count: int, n_near: int, room: int) -> tuple[Any, Any]:
    """Return groups of the coarse graph's rows and the sums over them, None if too many.

    The coarse graph is read block by block.
    """
    groups, n_groups = group_parts(
        lambda: ((first, *strong_edges(rows, first)) for first, rows in problem.parts()), count
    )
    W: Any = None
    for first, rows in problem.parts():
        own = groups[first : first + rows.shape[0]]
        edges = (rows.indptr, rows.indices, rows.data)
        sums = coarse_rows(edges, own, groups, (n_groups, n_groups), room // ENTRY_BYTES)
        W = sums if W is None or sums is None else W + sums
        if W is None or coarse_bytes(n_groups, W.nnz, n_near, _READ_ENTRY_BYTES) > room:
            return groups, None
    return groups, W


def coarse_task(
    block: int, graph: RowGraph, target: StoredIterate, random_state: int, start: CoarseStart
) -> int:
    """Write a block that begins near the vectors of its rows' groups; return the attempt."""
    reader, first = GraphBlockReader(graph, block), start.offsets.load()
    groups = reader.own(start.groups, 0)[:, 0].astype(np.int64)
    vectors = start.vectors.read(int(first[block]), int(first[block + 1]))
    return write_near(reader, target, random_state, slice(None), vectors[groups])
