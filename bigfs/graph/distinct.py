"""Neighbors among distinct rows, for data whose many duplicates list only each other."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np

from bigfs.blocks import BlockReader, RowBlocks
from bigfs.blocks.kernels import row_tiles
from bigfs.core.memory import DEFAULT_MEMORY_LIMIT, format_limit, limit_for, task_budget
from bigfs.core.units import parse_bytes
from bigfs.graph.affinity import count_beyond
from bigfs.graph.build import knn_graph
from bigfs.graph.knn import KNNGraph
from bigfs.runtime.execute import run_tasks
from bigfs.store.scratch import ArrayRef, Scratch, block_bounds

logger = logging.getLogger("bigfs")

# Duplicates matter if more than this share of the rows has only duplicates as neighbors.
COPIED_SHARE = 0.01
# Over all rows: one to find the duplicates, one to store the distinct rows.
_PASSES = 2
# Bytes per row of the data in the task that finds equal rows.
_TASK_BYTES = 72


def without_copies(
    graph: KNNGraph, blocks: RowBlocks, scratch: Scratch, **settings: Any
) -> KNNGraph:
    """Return the graph, or that of the distinct rows if too many rows list only duplicates.

    In the latter, every row lists the neighbors that its values have among the distinct rows, each
    represented by its first occurrence: duplicates do not change the graph of the distinct rows.

    Parameters
    ----------
    graph : KNNGraph
    blocks : RowBlocks
        The data of the graph.
    scratch : Scratch
        Where a new graph is stored.
    **settings
        Arguments of the call of `bigfs.graph.knn_graph`.
    """
    n_copied, n = count_copied(graph), graph.n_samples
    if not n_copied:
        return graph
    words = f"{n_copied:,} of {n:,} rows have at least {graph.n_neighbors} duplicates"
    note = f"{words}, so all their neighbors in the graph are duplicates."
    if n_copied <= COPIED_SHARE * n:
        return _noted(graph, note)
    limit = parse_bytes(settings.get("memory_limit") or DEFAULT_MEMORY_LIMIT)
    if _TASK_BYTES * n > task_budget(limit):
        needed = format_limit(limit_for(_TASK_BYTES * n))
        remedy = f"A memory_limit of '{needed}' would allow a search among the distinct rows."
        return _noted(graph, f"{note} {remedy}")
    with scratch.temporary("distinct") as working:
        hashes = working.create("hashes", (n, 2), np.uint64, blocks.rows)
        blocks.map_blocks(_hash_kernel, hashes, label="copies")
        place = working.create("place", (n,), np.int32, blocks.rows)
        [ids] = run_tasks(_distinct_task, [str(working.path)], hashes, place, label="copies")
        n_distinct = ids.shape[0]
        if n_distinct < 2:
            return _noted(graph, f"All {n:,} rows are equal: no feature distinguishes them.")
        shape = n_distinct, blocks.n_features
        stored = working.create("distinct.zarr", shape, blocks.dtype, blocks.rows)
        bounds, shared = block_bounds(n_distinct, stored.chunk_rows), (blocks.rows, ids, stored)
        run_tasks(_copy_rows, bounds, blocks.start_pass(), *shared, label="copies")
        rows = RowBlocks.from_any(stored.path, scratch=working.child("rows"))
        settings["n_neighbors"] = min(graph.n_neighbors, n_distinct - 1)
        distinct = knn_graph(rows, **settings, scratch=working.child("graph"))
        scratch.remove(graph.indices_ref, graph.distances_ref, graph.partitions_ref)
        return _noted(
            _spread(distinct, ids, place, graph, scratch),
            f"{words}. Neighbors are searched among the {n_distinct:,} distinct rows; duplicates "
            "share the neighbors of their first occurrence.",
        )


def _noted(graph: KNNGraph, note: str) -> KNNGraph:
    """Log a note, and return the graph with it in its details."""
    logger.warning(note)
    return replace(graph, details={**graph.details, "notes": [note]})


def count_copied(graph: KNNGraph) -> int:
    """Return how many rows have all their neighbors at distance zero."""
    return graph.n_samples - count_beyond(graph, 0.0)


def _hash_kernel(X: np.ndarray, first_row: int, hashes: ArrayRef) -> None:
    """Write two hashes of every row of a block; in practice equal for equal rows only."""
    multipliers = (
        np.random.default_rng(0).integers(2**63, size=(2, X.shape[1]), dtype=np.uint64) * 2 + 1
    )
    out = np.empty((len(X), 2), dtype=np.uint64)
    for part in row_tiles(*X.shape):
        # Adding zero turns -0.0 into 0.0, and in float64 equal values have equal bits.
        bits = (X[part].astype(np.float64) + 0.0).view(np.uint64)
        # The low bits of short numbers are zero: mix the high bits into them first.
        bits = (bits ^ (bits >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
        bits ^= bits >> np.uint64(29)
        for column, factors in enumerate(multipliers):
            out[part, column] = (bits * factors).sum(axis=1, dtype=np.uint64)
    hashes.write(first_row, out)


def _distinct_task(folder: str, hashes: ArrayRef, place: ArrayRef) -> ArrayRef:
    """Store the first of each set of equal rows, and the index of each row's first in that list."""
    values = hashes.load()
    order = np.lexsort((values[:, 1], values[:, 0]))  # stable: equal rows stay in order
    ordered = values[order]
    begins = np.ones(len(values), dtype=bool)
    begins[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    del ordered
    first = np.empty_like(order)  # for each row the first row equal to it
    first[order] = order[begins][np.cumsum(begins) - 1]
    is_first = first == np.arange(len(values))
    place.write(0, (np.cumsum(is_first, dtype=np.int32) - 1)[first])
    return Scratch(folder).put("ids", np.flatnonzero(is_first))


def _copy_rows(
    bounds: tuple[int, int], reader: BlockReader, rows: int, ids: ArrayRef, out: ArrayRef
) -> None:
    """Write one chunk of distinct rows, ascending, reading only the needed parts of X."""
    wanted, parts = ids.read(*bounds), []
    for home in np.unique(wanted // rows):
        in_block = wanted[wanted // rows == home]
        parts.append(reader.read(int(in_block[0]), int(in_block[-1]) + 1)[in_block - in_block[0]])
    out.write(bounds[0], np.concatenate(parts))


def _spread(
    distinct: KNNGraph, ids: ArrayRef, place: ArrayRef, graph: KNNGraph, scratch: Scratch
) -> KNNGraph:
    """Store the graph of all rows, derived from that of the distinct ones."""
    n, rows = graph.n_samples, graph.indices_ref.chunk_rows
    shape = (n, distinct.n_neighbors)
    refs: dict[str, Any] = {
        "indices_ref": scratch.create("indices-distinct", shape, np.int32, rows),
        "distances_ref": scratch.create("distances-distinct", shape, np.float32, rows),
        "partitions_ref": scratch.create("partitions", (n,), np.int32, rows),
    }
    pairs = [(getattr(distinct, name), out) for name, out in refs.items()]
    run_tasks(_spread_task, graph.row_bounds, pairs, ids, place, label="copies")
    details = {**distinct.details, "n_distinct": ids.shape[0]}
    details["passes"] += graph.details["passes"] + _PASSES
    return replace(distinct, **refs, scratch=scratch, details=details)


def _spread_task(
    bounds: tuple[int, int], pairs: list[tuple[ArrayRef, ArrayRef]], ids: ArrayRef, place: ArrayRef
) -> None:
    """Write a block of rows of each array; the first array holds row numbers."""
    wanted = place.read(*bounds)
    for source, out in pairs:
        values = source.take(wanted)
        out.write(bounds[0], ids.load()[values] if out is pairs[0][1] else values)
