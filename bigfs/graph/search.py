"""Tasks of the out-of-core search: sample rows, send rows to partitions, search, merge."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from bigfs.blocks.kernels import slices
from bigfs.blocks.rowblocks import BlockReader, RowBlocks
from bigfs.core.cost import Shape
from bigfs.core.seeds import derive_seed
from bigfs.graph.descent import is_compiled, search_prepared
from bigfs.graph.local import as_distances, merge_neighbors, prepare_rows
from bigfs.graph.partition import Cells, GraphRequest
from bigfs.graph.shuffle import Receipt, Runs, commit_runs, write_run
from bigfs.runtime.execute import run_tasks
from bigfs.runtime.progress import silenced
from bigfs.store.scratch import ArrayRef, Scratch, block_bounds

logger = logging.getLogger("bigfs")

COMPILING = "Compiling the neighbor search (about 30 s, once)"
# Partitions are written to a few sets of runs (shelves); a set is deleted once its partitions are
# searched.
_PARTITIONS_PER_SHELF = 4
_MOST_SHELVES = 8
# Allowance for the sample's error in the number of copies, and for uneven shelves.
_SAMPLE_ERROR = 1.1
# Assumed number of cells that a row goes to, for plans made before the data are sampled.
PLANNED_COPIES = 1.6


def shelf_width(n_partitions: int) -> int:
    """Return the number of partitions that one set of runs holds."""
    shelves = max(1, min(_MOST_SHELVES, n_partitions // _PARTITIONS_PER_SHELF))
    return -(-n_partitions // shelves)


def scratch_bytes(shape: Shape, n_neighbors: int, n_partitions: int, copies: float) -> int:
    """Return an upper bound on the bytes of rows, results and the graph itself in scratch.

    ``copies`` is the average number of cells that a row goes to, see `PLANNED_COPIES`.
    """
    n = shape.n_samples
    searched = n * (copies if n_partitions > 1 else 1.0)
    shelves = -(-n_partitions // shelf_width(n_partitions))
    # All rows exist until the first shelf is searched; then results grow while rows are deleted.
    rows = searched * (shape.n_features * shape.itemsize + 4)
    results = searched * (8 * n_neighbors + 4)
    most = max(rows + results / shelves, results + rows / shelves)
    return int(_SAMPLE_ERROR * most) + 8 * n_neighbors * n


def gather_rows(blocks: RowBlocks, ids: list[np.ndarray], metric: str, working: Scratch) -> Runs:
    """Collect chosen rows, one target per sorted list of row numbers: one pass over X."""
    folder = working.child(working.unique("samples"))
    wanted = [working.put(working.unique("chosen"), chosen) for chosen in ids]
    receipts = blocks.map_blocks(
        _gather_kernel, wanted, metric, blocks.rows, str(folder.path), label="sample"
    )
    return commit_runs(working, str(folder.path), receipts)


def _gather_kernel(
    X: np.ndarray, first_row: int, wanted: list[ArrayRef], metric: str, rows: int, folder: str
) -> Receipt:
    numbers = (ref.load() for ref in wanted)
    lists = [ids[(ids >= first_row) & (ids < first_row + len(X))] for ids in numbers]
    ids = np.concatenate(lists)
    targets = np.repeat(np.arange(len(lists)), [len(part) for part in lists])
    values = {"ids": ids.astype(np.int32), "rows": prepare_rows(X[ids - first_row], metric, ids)}
    return write_run(folder, first_row // rows, targets, len(lists), values)


def distribute_task(
    bounds: tuple[int, int],
    reader: BlockReader,
    layout: tuple[int, int, np.dtype[Any]],
    cells: Cells,
    metric: str,
    width: int,
    folders: list[str],
    homes: ArrayRef,
) -> list[Receipt]:
    """Write one run to each shelf: some blocks, sorted by partition.

    ``layout`` holds the rows of a block, and the number of features and dtype of the data.
    """
    (start, stop), (block_rows, n_features, dtype) = bounds, layout
    ids = np.arange(start, stop, dtype=np.int32)
    rows = np.empty((stop - start, n_features), dtype)
    for part in slices(len(ids), block_rows):
        block = ids[part]
        rows[part] = prepare_rows(reader.read(int(block[0]), int(block[-1]) + 1), metric, block)
    targets, source = cells.assign(rows, ids)
    homes.write(start, targets[: len(ids)].astype(np.int32))
    values = {"ids": ids, "rows": rows}
    receipts = []
    for shelf, folder in enumerate(folders):
        in_shelf = targets // width == shelf
        places = targets[in_shelf] - shelf * width
        run = start // homes.chunk_rows
        receipts.append(write_run(folder, run, places, width, values, source[in_shelf]))
    return receipts


def compile_first() -> None:
    """Compile pynndescent's search if it is not cached, and log that: it takes half a minute."""
    with silenced():
        [is_ready] = run_tasks(_is_compiled, [None], label="search")
    if not is_ready:
        logger.info(COMPILING)
        run_tasks(_compile_task, [None], label=COMPILING, unit="")


def _is_compiled(item: None) -> bool:
    return is_compiled()


def _compile_task(item: None) -> None:
    rows = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    search_prepared(rows, 5, 0, exact_rows=0)


def search_task(
    item: tuple[int, tuple[int, ...]],
    shelves: list[Runs],
    request: GraphRequest,
    how: tuple[int, float],
    destination: tuple[str, int, int],
) -> Receipt:
    """Find the neighbors of all rows of a group of partitions within the group.

    ``how`` holds the largest number of rows that is searched exactly, and the factor by which
    pynndescent explores more; ``destination`` holds a folder, the rows of a block of the graph, and
    the number of blocks.
    """
    number, group = item
    folder, graph_rows, n_blocks = destination
    places = (divmod(partition, shelves[0].n_targets) for partition in group)
    parts = [shelves[shelf].read(target, "ids", "rows") for shelf, target in places]
    ids, rows = parts[0]
    if len(group) > 1:
        ids, first = np.unique(np.concatenate([part[0] for part in parts]), return_index=True)
        rows = np.concatenate([part[1] for part in parts])[first]
    del parts
    seed = derive_seed(request.random_state, "neighbors", number)
    local, squared = search_prepared(rows, request.n_neighbors, seed, *how)
    del rows
    distances = as_distances(squared, request.metric)
    values = {"row": ids, "neighbor": ids[local], "distance": distances}
    return write_run(folder, number, ids // graph_rows, n_blocks, values)


def merge_results(
    scratch: Scratch,
    suffix: str,
    results: Runs,
    shape: tuple[int, int],
    rows: int,
    former: tuple[ArrayRef, ...] = (),
) -> tuple[tuple[ArrayRef, ArrayRef], int]:
    """Store the merged lists of a graph; also return how many of the former lists changed.

    Parameters
    ----------
    scratch : Scratch
    suffix : str
        Appended to array names, to distinguish them from those of a graph in the same place.
    results : Runs
        One target per stored block of the graph.
    shape : tuple of (int, int)
        Shape of the graph: rows, and neighbors of each.
    rows : int
        Rows of a block.
    former : tuple of ArrayRef, default=()
        Indices and distances of the graph of the first rows.
    """
    indices = scratch.create(f"indices{suffix}", shape, np.int32, rows)
    lists = indices, scratch.create(f"distances{suffix}", shape, np.float32, rows)
    bounds = block_bounds(shape[0], rows)
    changed = run_tasks(_merge_task, bounds, results, former, lists, label="merge")
    return lists, sum(changed)


def _merge_task(
    bounds: tuple[int, int],
    results: Runs,
    former: tuple[ArrayRef, ...],
    out: tuple[ArrayRef, ...],
) -> int:
    """Merge and write one block of the graph; return how many of its former lists changed.

    ``former`` and ``out`` are indices and distances; ``former`` is empty for a new graph.
    """
    start, stop = bounds
    lists = results.read(start // out[0].chunk_rows, "row", "neighbor", "distance")
    before = [ref.read(start, stop) for ref in former]
    if former:
        owners = np.arange(start, start + len(before[0]), dtype=lists[0].dtype)
        lists = [np.concatenate(pair) for pair in zip([owners, *before], lists, strict=True)]
    owners, neighbors, far = lists
    merged = merge_neighbors(owners, neighbors, far, start, stop - start)
    for ref, values in zip(out, merged, strict=True):
        ref.write(start, values)
    return int((merged[0][: len(before[0])] != before[0]).any(axis=1).sum()) if former else 0
