"""Initial vectors from a coarse graph, whose rows are groups of neighbors.

Eigenvectors of small eigenvalues hardly change along an edge: those of a graph with one row per
group of neighbors, some dozen times smaller, approximate them. Only the first columns of a block
start with them. The others stay random, so that a vector missing in the coarse graph is found as
from a random start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from bigfs.core.threads import compiled
from bigfs.graph import AffinityMatrix
from bigfs.runtime.execute import run_tasks
from bigfs.spectral.block import Record, StoredBlock, block_rows
from bigfs.spectral.eigsh import DENSE_ROWS, solve_dense
from bigfs.spectral.iteration import Iteration, block_width
from bigfs.spectral.operator import Storage, StoredGraph, Transition, store_graph
from bigfs.spectral.problem import Goal, Problem
from bigfs.spectral.tasks import Begin, copy_columns
from bigfs.store.scratch import ArrayRef, Scratch, block_bounds

# With fewer rows it is not worth it.
LEAST_ROWS = 2**17
# Upper bounds on the rows of a coarse graph, as a share of the fine rows, and on its entries per
# fine row: larger ones gain too little for their cost.
_MOST_ROWS, _MOST_ENTRIES = 1 / 4, 12
# One of this many vectors beyond the wanted ones stays random.
_GUARDS_PER_RANDOM = 3
# Rows whose edges are gathered at a time.
_ROWS = 2**14
# Measured: bytes per entry of a coarse graph while it is built from sums added in pairs.
_ENTRY_BYTES = 22
# Measured: bytes per entry of some rows of the fine graph while their sums are computed.
_PART_BYTES = 40
# Bytes per row of the fine graph: its group, before and after ungrouped rows have joined one.
_ROW_BYTES = 8
# Rounds of a rough solution, and its tolerance.
_ROUGH_ROUNDS, _ROUGH_TOL = 3, 1e-2


def n_near(n_missing: int) -> int:
    """Return the number of columns of a block with approximate vectors, more than those wanted."""
    width = block_width(n_missing)
    return width - max(1, (width - n_missing) // _GUARDS_PER_RANDOM)


def group_rows(
    parts: Callable[[], Iterable[tuple[int, np.ndarray, np.ndarray]]], n_rows: int
) -> tuple[np.ndarray, int]:
    """Return the group of each row of a symmetric CSR matrix, int32, and the number of groups.

    A group is a row with its neighbors, or a few leftover rows between such groups. ``parts()``
    yields the rows in order, as (first row, indptr, indices), and is called twice.
    """
    seed, join = compiled(_seed_groups), compiled(_join_groups)
    labels, count = np.full(n_rows, -1, np.int32), 0
    for first, indptr, indices in parts():
        count = int(seed(indptr, indices, first, labels, count))
    joined = labels.copy()
    for first, indptr, indices in parts():
        count = int(join(indptr, indices, first, labels, joined, count))
    return joined, count


def _seed_groups(indptr: Any, indices: Any, first: int, labels: Any, count: int) -> int:
    """Group each row whose neighborhood is ungrouped with its neighbors; return the next number."""
    for i in range(len(indptr) - 1):
        is_free = labels[first + i] < 0
        for entry in range(indptr[i], indptr[i + 1]):
            if labels[indices[entry]] >= 0:
                is_free = False
        if is_free:
            labels[first + i] = count
            for entry in range(indptr[i], indptr[i + 1]):
                labels[indices[entry]] = count
            count += 1
    return count


def _join_groups(
    indptr: Any, indices: Any, first: int, labels: Any, joined: Any, count: int
) -> int:
    """Give ungrouped rows the group of a neighbor, or their own; return the next number."""
    for i in range(len(indptr) - 1):
        if labels[first + i] >= 0:
            continue
        for entry in range(indptr[i], indptr[i + 1]):
            if labels[indices[entry]] >= 0:
                joined[first + i] = labels[indices[entry]]
                break
        if joined[first + i] < 0:
            joined[first + i] = count
            count += 1
    return count


def coarse_rows(
    edges: tuple[np.ndarray, np.ndarray, np.ndarray],
    of_rows: np.ndarray,
    of_columns: np.ndarray,
    count: int,
) -> Any:
    """Return the sums of W over groups as scipy CSR, float32.

    Parameters
    ----------
    edges : tuple of ndarray (indptr, indices, weights)
        Rows of W; weights may be a single value for all entries.
    of_rows, of_columns : ndarray of int32
        The groups of these rows, and of all columns.
    count : int
        Number of groups.
    """
    from scipy.sparse import csc_array, csr_array

    indptr, indices, weights = edges
    n_rows = len(of_rows)
    entries = np.ones(len(indices), np.float32) * weights.astype(np.float32)
    to_groups = csr_array((entries, of_columns[indices], indptr), (n_rows, count))
    ones = (np.ones(n_rows, np.float32), of_rows, np.arange(n_rows + 1, dtype=np.int32))
    return csc_array(ones, (count, n_rows)).tocsr() @ to_groups


def _sum_of(parts: Iterable[Any], most: int) -> Any:
    """Return the sum of sparse matrices, or None once they have more than ``most`` entries.

    Matrices of similar size are added, so that each entry is copied only a few times.
    """
    sums: list[Any] = []
    for part in parts:
        sums.append(part)
        while len(sums) > 1 and sums[-2].nnz < 2 * sums[-1].nnz:
            sums.append(sums.pop() + sums.pop())
        if sum(part.nnz for part in sums) > most:
            return None
    return sum(sums[-2::-1], sums[-1])  # the smallest first


def coarse_start(
    graph: StoredGraph, begin: Begin, n_missing: int, scratch: Scratch, storage: Storage
) -> Begin:
    """Return a start from the vectors of a coarse graph, or ``begin`` if that is not worth it.

    A coarse graph with many rows is itself solved from a coarser one.

    Parameters
    ----------
    graph : StoredGraph
    begin : Begin
        A random start.
    n_missing : int
        Number of wanted vectors.
    scratch : Scratch
        Receives the vectors.
    storage : Storage
    """
    n, count = graph.n_samples, n_near(n_missing)
    if n < LEAST_ROWS:
        return begin
    groups = scratch.create(scratch.unique("groups"), (n,), np.int32, 2**16)
    below = scratch.child(scratch.unique("coarse"))
    shared = (graph, groups, storage.room)
    [n_groups] = run_tasks(_coarse_task, [str(below.path)], *shared, label="coarse graph")
    if n_groups - graph.n_connected <= count:
        return begin
    W = AffinityMatrix.open(below.path, {"weight": "given", "sigma": None})
    goal = Goal(n_groups, graph.n_connected, graph.n_connected - 1 + count, _ROUGH_TOL)
    width = block_width(count)
    shape, rows = (n_groups, count), block_rows(width, n_groups)
    vectors = below.create("vectors", shape, np.float32, rows)
    if n_groups <= DENSE_ROWS or 4 * width > n_groups - graph.n_connected:
        run_tasks(_dense_task, [goal], W, vectors, label="coarse graph")
    else:
        stored = store_graph(W, below, replace(storage, in_memory=True, order="levels"))
        start = coarse_start(stored, begin, count, below, storage)
        block = StoredBlock(stored, below, width, start, Record(None, storage.row_bytes))
        Iteration(goal, block).run_roughly(_ROUGH_ROUNDS)
        run_tasks(copy_columns, block.z.bounds, block.z, vectors, label="coarse graph")
    return replace(begin, groups=groups, vectors=vectors, n_near=count)


def _coarse_task(folder: str, graph: StoredGraph, groups: ArrayRef, room: int) -> int:
    """Store the groups of all rows and their graph; return their number, 0 if it is too large."""
    products, n = Transition(graph), graph.n_samples
    labels, count = group_rows(
        lambda: ((first, csr[0], csr[1]) for first, csr in products.pieces()), n
    )
    of_part = _PART_BYTES * min(n, _ROWS) * graph.W.nnz // n
    free = room - products.nbytes - _ROW_BYTES * n - of_part
    most = min(_MOST_ENTRIES * n, free // _ENTRY_BYTES)
    parts = _coarse_parts(products, labels, count)
    if count > _MOST_ROWS * n or (W := _sum_of(parts, most)) is None:
        return 0
    # The diagonal is included: degrees are the sums of all entries of a row.
    AffinityMatrix.store(W, W @ np.ones(count), Scratch(folder))
    groups.write(0, labels if products.place is None else labels[products.place])
    return count


def _coarse_parts(products: Transition, labels: np.ndarray, count: int) -> Iterator[Any]:
    """Yield the sums over groups of W, for some rows at a time."""
    for first, (indptr, indices, weights, degrees) in products.pieces():
        for start, stop in block_bounds(len(degrees), _ROWS):
            entries = slice(int(indptr[start]), int(indptr[stop]))
            pointers = (indptr[start : stop + 1] - indptr[start]).astype(np.int32)
            edges = pointers, indices[entries], weights if len(weights) == 1 else weights[entries]
            yield coarse_rows(edges, labels[first + start : first + stop], labels, count)


def _dense_task(goal: Goal, W: AffinityMatrix, out: ArrayRef) -> None:
    """Store the vectors of a small coarse graph."""
    problem = Problem.of(W.load(), goal.n_components, goal.tol)
    out.write(0, solve_dense(problem).vectors[:, problem.n_known :].astype(np.float32))
