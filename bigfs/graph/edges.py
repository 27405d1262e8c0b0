"""Edge passes: sums and products over the edges of a graph, from the two rows that each connects.

For dense data a task holds a block and one other block at a time. For sparse data it holds some
columns of all rows, since the pairs of rows may be anywhere: entries go through scratch once,
sorted by groups of columns. The number of groups grows with the number of rows, so that reading all
rows for each group would be quadratic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigfs.blocks.csr_kernels import csr_edge_sum, csr_spread, edge_bytes
from bigfs.blocks.kernels import float_tiles, row_tiles, tile_bytes
from bigfs.blocks.rowblocks import BlockReader, RowBlocks, fold_parts
from bigfs.core.cost import Shape, StageCost, Step, loop_seconds, pass_over
from bigfs.core.memory import task_budget
from bigfs.core.units import MIB
from bigfs.graph.shuffle import Receipt, Runs, commit_runs, write_run
from bigfs.graph.symmetrize import AffinityMatrix
from bigfs.runtime.execute import map_reduce, run_tasks
from bigfs.store.csr import stack
from bigfs.store.scratch import ArrayRef, Scratch, block_bounds

# Lower bound on the entries of its group that a task reads from one file, if sorting permits it.
_SLICE_ENTRIES = 2**16
# Upper bound on the entries that a task sorts, unless one block has more.
_SORTED_ENTRIES = 2**22
# Bytes of an entry while it is sorted: two copies of it, its row, column and group, and its rank.
_SORT_BYTES = 56

# Measured: loop steps per value and neighbor.
_EDGE_LOOPS = 6


@dataclass
class EdgeMoments:
    """Per-feature sums over edges and degree-weighted moments of a set of rows."""

    # Of shape (n_features,), float64: ``f'Lf``: the sum of ``w_ij (f_i - f_j)^2`` over edges, each
    # counted once.
    smoothness: np.ndarray
    weight: float  # sum of the degrees
    mean: np.ndarray  # of shape (n_features,), float64: degree-weighted mean
    # Of shape (n_features,), float64: ``f'Df - (f'D1)^2 / 1'D1``: degree-weighted squared
    # deviations.
    spread: np.ndarray


def edge_moments(blocks: RowBlocks, W: AffinityMatrix, n_groups: int = 1) -> EdgeMoments:
    """Return ``f'Lf`` and the degree-weighted spread of every feature.

    Each block is one task, which also reads the rows at the other ends of its edges, from one other
    block at a time; an edge is counted in the block of its smaller end. For sparse data each task
    holds some columns of all rows instead: entries go through scratch once.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    W : AffinityMatrix
        Over the same rows.
    n_groups : int, default=1
        Number of groups of columns of sparse data.
    """
    if not blocks.sparse:
        reader = blocks.start_pass()
        return map_reduce(_edge_task, blocks.bounds, _merge, reader, W, blocks.rows, label="edges")
    shape, entries = (blocks.n_samples, blocks.n_features), write_groups(blocks, n_groups)
    try:
        shared = (n_groups, entries, W, shape, tuple(blocks.bounds))
        parts = run_tasks(_column_task, range(n_groups), *shared, label="edges", unit="groups")
    finally:
        entries.remove()
    sums = np.empty((3, blocks.n_features))
    for group, part in enumerate(parts):  # each has every n_groups-th column
        sums[:, group::n_groups] = part.smoothness, part.mean, part.spread
    if blocks.offset is not None:
        sums[1] += blocks.offset
    return EdgeMoments(sums[0], parts[0].weight, sums[1], sums[2])


def edges_cost(shape: Shape, n_neighbors: int, n_groups: int = 1) -> StageCost:
    """Return the cost of `edge_moments`: each block with one other at a time."""
    seconds = loop_seconds(shape.n_values, _EDGE_LOOPS * n_neighbors)
    if shape.n_entries is not None:
        needed = _group_bytes(shape, n_neighbors, n_groups)
        per_run, entries = _blocks_per_run(shape, n_groups), shape.block_entries or 0
        n_runs, sorting = -(-shape.n_blocks // per_run), _SORT_BYTES * per_run * entries
        what = "entries in order of groups of columns"
        order = Step(what, shape.read_bytes + sorting, n_runs, 1, shape.n_chunks)
        # A range of every file is read for each group.
        what, requests = f"a group of columns, one of {n_groups}", n_groups * n_runs
        sums = Step(what, needed, n_groups, 0, requests, seconds=seconds)
        return StageCost((order, sums), shape.n_entries * (8 + shape.itemsize))
    edges = 2 * shape.rows * n_neighbors
    needed = shape.read_bytes + 40 * edges + tile_bytes(shape.n_features)
    # A fold holds three arrays per part.
    needed += 3 * 8 * fold_parts(shape.n_blocks) * shape.n_features + 24 * MIB
    # The neighbors of a row lie in few blocks if rows are in order, in all blocks if not.
    what = "a block, a block of its neighbors"
    return StageCost((pass_over(shape, what, needed, seconds=seconds),))


def column_groups(shape: Shape, n_neighbors: int, memory_limit: int) -> int:
    """Return the number of column groups for `edge_moments`: the fewest that fit half a task."""
    if shape.n_entries is None:
        return 1
    room = task_budget(memory_limit) // 2
    fits = (n for n in range(1, shape.n_features) if _group_bytes(shape, n_neighbors, n) <= room)
    return next(fits, shape.n_features)


def _group_bytes(shape: Shape, n_neighbors: int, n_groups: int) -> int:
    """Return the bytes of a task: a group of columns, the edges of some blocks, a tile.

    Columns differ in their number of entries: a group of several columns may have a quarter more
    than its share, plus one full column.
    """
    assert shape.n_entries is not None and shape.block_entries is not None
    share = int(1.25 * shape.n_entries / n_groups) + shape.n_samples
    entries = min(share, shape.n_entries)
    block = int(1.25 * shape.block_entries / n_groups) + shape.rows
    opening = 16 * entries
    edges = 80 * n_groups * shape.rows * n_neighbors
    return max(opening, 12 * entries + edges + edge_bytes(block)) + 16 * shape.n_samples


def _column_task(
    group: int,
    n_groups: int,
    entries: Runs,
    W: AffinityMatrix,
    shape: tuple[int, int],
    bounds: tuple[tuple[int, int], ...],
) -> EdgeMoments:
    """Sum over all edges, for one group of columns."""
    X = read_group(entries, group, shape[0], len(range(group, shape[1], n_groups)))
    total: EdgeMoments | None = None
    # With more groups, the edges of more blocks are read at once: reads grow only as rows do.
    for begin in range(0, len(bounds), n_groups):
        near = bounds[begin : begin + n_groups]
        origin, end = near[0][0], near[-1][1]
        heads, tails, weights = _edges_once(W, origin, end)
        all_degrees = W.degrees.read(origin, end)
        for start, stop in near:
            part = slice(*np.searchsorted(heads, (start, stop)))
            smoothness = csr_edge_sum(X, heads[part], tails[part], weights[part])
            degrees = all_degrees[start - origin : stop - origin]
            own = EdgeMoments(smoothness, float(degrees.sum()), *csr_spread(X[start:stop], degrees))
            total = own if total is None else _merge(total, own)
    assert total is not None
    return total


def _edges_once(
    W: AffinityMatrix, start: int, stop: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return heads, tails and weights of the edges whose smaller end is in rows start to stop."""
    indptr, tails, weights = W.read(start, stop)
    heads = np.repeat(np.arange(start, stop), np.diff(indptr))
    once = heads < tails
    return heads[once], tails[once], weights[once].astype(np.float64)


def _edge_task(
    bounds: tuple[int, int], reader: BlockReader, W: AffinityMatrix, rows: int
) -> EdgeMoments:
    """Sum over the edges whose smaller end is in one block, and over its rows."""
    start, stop = bounds
    X = reader.read(start, stop)
    heads, tails, weights = _edges_once(W, start, stop)
    smoothness = np.zeros(X.shape[1])
    for in_block, first, Z in by_block(tails, reader, X, start, rows):
        smoothness += _edge_sum(
            X, heads[in_block] - start, Z, tails[in_block] - first, weights[in_block]
        )
    degrees = W.degrees.read(start, stop)
    weight = float(degrees.sum())
    mean = np.zeros(X.shape[1])
    for part, tile in float_tiles(X):
        mean += degrees[part] @ tile
    mean /= weight
    # The rounded mean of equal values can differ from them in the last bit.
    constant = (X == X[0]).all(axis=0)
    mean[constant] = X[0, constant]
    spread = np.zeros(X.shape[1])
    for part, tile in float_tiles(X, mean):
        spread += np.einsum("i,ij,ij->j", degrees[part], tile, tile)
    return EdgeMoments(smoothness, weight, mean, spread)


def by_block(
    tails: np.ndarray, reader: BlockReader, X: np.ndarray, start: int, rows: int
) -> Iterator[tuple[np.ndarray, int, np.ndarray]]:
    """Yield, for each block, the edges whose tails are in it, the first row needed, and its rows.

    ``X`` is the block that starts at row ``start``; it is not read again.
    """
    home = tails // rows
    for other in np.unique(home):
        in_block = np.flatnonzero(home == other)
        first, end = int(tails[in_block].min()), int(tails[in_block].max()) + 1
        is_own = int(other) * rows == start
        yield in_block, first, X[first - start : end - start] if is_own else reader.read(first, end)


def _edge_sum(
    X: np.ndarray, i: np.ndarray, Z: np.ndarray, j: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Return the sum of ``w (x_i - z_j)^2`` per feature, in tiles of edges."""
    total = np.zeros(X.shape[1])
    for part in row_tiles(len(i), X.shape[1]):
        gap = X[i[part]].astype(np.float64)
        gap -= Z[j[part]]
        total += np.einsum("e,ef,ef->f", weights[part], gap, gap)
    return total


def _merge(a: EdgeMoments, b: EdgeMoments) -> EdgeMoments:
    weight = a.weight + b.weight
    delta = b.mean - a.mean
    mean = a.mean + delta * (b.weight / weight)
    spread = a.spread + b.spread + delta**2 * (a.weight * b.weight / weight)
    return EdgeMoments(a.smoothness + b.smoothness, weight, mean, spread)


def write_groups(blocks: RowBlocks, n_groups: int) -> Runs:
    """Write the entries of all rows, sorted by group of columns: one pass."""
    scratch = blocks.scratch
    folder = str(scratch.child(scratch.unique("columns")).path)
    per_run = _blocks_per_run(blocks.layout, n_groups)
    bounds = block_bounds(blocks.n_samples, per_run * blocks.rows)
    shared = (blocks.start_pass(), blocks.rows, n_groups, folder)
    receipts = run_tasks(
        _write_task, list(enumerate(bounds)), *shared, label="columns", unit="files"
    )
    return commit_runs(scratch, folder, receipts)


def read_group(entries: Runs, group: int, n_samples: int, width: int) -> Any:
    """Return one group of columns of all rows as CSR, float64."""
    from scipy.sparse import csr_array

    rows, columns, values = entries.read(group, "row", "column", "value")
    indptr = np.searchsorted(rows, np.arange(n_samples + 1, dtype=rows.dtype))
    del rows
    if indptr[-1] < 2**31:
        indptr = indptr.astype(np.int32)
    values = values.astype(np.float64, copy=False)
    return csr_array((values, columns, indptr), shape=(n_samples, width))


def _blocks_per_run(shape: Shape, n_groups: int) -> int:
    """Return the number of blocks that a task sorts together, so that slices are long enough."""
    wanted = min(_SLICE_ENTRIES * n_groups, _SORTED_ENTRIES)
    return max(1, wanted // max(1, shape.block_entries or 0))


def _write_task(
    item: tuple[int, tuple[int, int]], reader: BlockReader, rows: int, n_groups: int, folder: str
) -> Receipt:
    """Write the entries of some blocks."""
    run, (start, stop) = item
    X = stack([reader.read(first, min(first + rows, stop)) for first in range(start, stop, rows)])
    row = np.repeat(np.arange(start, stop, dtype=np.int32), np.diff(X.indptr))
    # numpy sorts 16-bit integers by radix sort.
    groups = (X.indices % n_groups).astype(np.uint16 if n_groups <= 2**16 else np.int32)
    values = {"row": row, "column": X.indices // n_groups, "value": X.data}
    return write_run(folder, run, groups, n_groups, values)


def edge_products(
    blocks: RowBlocks, indices: ArrayRef, weight: str, working: Scratch
) -> tuple[ArrayRef, float, int]:
    """Return the product of every row with each of its neighbors.

    Each block is one task, which also reads the rows at the other ends of its edges, from one other
    block at a time. The value of an edge has the same bits from both ends.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    indices : ArrayRef of shape (n_samples, n_neighbors), int32
    weight : {"dot", "cosine"}
        ``x'y``, or ``x'y / (|x| |y|)``, which is zero for a row of zeros.
    working : Scratch
        Where the values are stored.

    Returns
    -------
    values : ArrayRef of shape (n_samples, n_neighbors), float64
        Products of each row with its neighbors.
    least : float
        The smallest positive one, 0 if there is none.
    n_unlike : int
        Number of rows whose products with all their neighbors are zero: mainly rows of zeros.
    """
    values = working.create("products", indices.shape, np.float64, blocks.rows)
    shared = (blocks.start_pass(), indices, blocks.rows, weight == "cosine", values)
    results = run_tasks(_product_task, blocks.bounds, *shared, label="products", unit="blocks")
    least, n_unlike = zip(*results, strict=True)
    return values, min(least) if np.isfinite(min(least)) else 0.0, sum(n_unlike)


def _product_task(
    bounds: tuple[int, int],
    reader: BlockReader,
    indices: ArrayRef,
    rows: int,
    cosine: bool,
    values: ArrayRef,
) -> tuple[float, int]:
    """Write the products of a block's rows; return the least positive one and the unlike rows."""
    start, stop = bounds
    X = reader.read(start, stop)
    neighbors = indices.read(start, stop)
    heads = np.repeat(np.arange(len(X)), neighbors.shape[1])
    tails = neighbors.ravel()
    products: np.ndarray = np.empty(len(tails))
    for in_block, first, Z in by_block(tails, reader, X, start, rows):
        products[in_block] = _pair_products(X, heads[in_block], Z, tails[in_block] - first, cosine)
    products = products.reshape(neighbors.shape)
    values.write(start, products)
    least = float(products.min(initial=np.inf, where=products > 0))
    return least, int((~products.any(axis=1)).sum())


def _pair_products(
    X: np.ndarray, i: np.ndarray, Z: np.ndarray, j: np.ndarray, cosine: bool
) -> np.ndarray:
    """Return ``x_i'z_j`` of every pair, or its cosine, in float64 and in tiles of pairs."""
    products = np.empty(len(i))
    for part in row_tiles(len(i), X.shape[1]):
        # The memory order of a row's values determines the order of summation.
        x = X[i[part]].astype(np.float64, order="C")
        z = Z[j[part]].astype(np.float64, order="C")
        dots = np.einsum("ef,ef->e", x, z)
        if cosine:
            lengths = np.sqrt(np.einsum("ef,ef->e", x, x)) * np.sqrt(np.einsum("ef,ef->e", z, z))
            # Rounding may make the cosine of parallel rows exceed 1.
            dots = np.clip(dots / np.where(lengths > 0, lengths, np.inf), -1.0, 1.0)
        products[part] = dots
    return products
