"""The steps of the out-of-core search: sample rows, send rows to partitions, search, merge."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigfs.blocks.rowblocks import BlockReader, RowBlocks
from bigfs.core.cost import Shape
from bigfs.core.errors import MemoryLimitError
from bigfs.core.seeds import derive_seed
from bigfs.graph.descent import is_compiled, search_prepared
from bigfs.graph.local import as_distances, merge_neighbors, prepare_rows
from bigfs.graph.partition import Cells, GraphRequest, PartitionPlan, group_tiny
from bigfs.graph.shuffle import Receipt, Runs, commit_runs, write_run
from bigfs.runtime.execute import run_tasks
from bigfs.runtime.progress import silenced
from bigfs.store.scratch import ArrayRef, Scratch

logger = logging.getLogger("bigfs")

COMPILING = "Compiling the neighbor search (about 30 s, once)"
# Partitions are written to a few sets of runs: a set is deleted when its partitions are done.
_PARTITIONS_PER_SHELF = 4
_MOST_SHELVES = 8
# How far the sample may be wrong about copies, and shelves about being alike.
_SAMPLE_ERROR = 1.1
# Cells that a row goes to, for plans made before the data are sampled.
PLANNED_COPIES = 1.6


@dataclass(frozen=True)
class Distribution:
    """Prepared rows in partition order, copies of rows near a boundary included."""

    # Columns ``rows`` and ``ids``; each holds ``width`` partitions, the last perhaps fewer.
    shelves: tuple[Runs, ...]
    width: int
    counts: np.ndarray  # of shape (n_partitions,), int64: rows of each partition


def shelf_width(n_partitions: int) -> int:
    """Return how many partitions one set of runs holds."""
    shelves = max(1, min(_MOST_SHELVES, n_partitions // _PARTITIONS_PER_SHELF))
    return -(-n_partitions // shelves)


def scratch_bytes(shape: Shape, n_neighbors: int, n_partitions: int, copies: float) -> int:
    """Return the most bytes that rows, results and the graph itself take in scratch.

    ``copies`` is the number of cells that a row goes to on average, see `PLANNED_COPIES`.
    """
    n = shape.n_samples
    searched = n * (copies if n_partitions > 1 else 1.0)
    shelves = -(-n_partitions // shelf_width(n_partitions))
    # All rows are there until the first shelf is done; results grow as rows go.
    rows, results = (
        searched * (shape.n_features * shape.itemsize + 4),
        searched * (8 * n_neighbors + 4),
    )
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
    lists = []
    for ref in wanted:
        ids = ref.load()
        begin, end = np.searchsorted(ids, [first_row, first_row + len(X)])
        lists.append(ids[begin:end])
    ids = np.concatenate(lists)
    targets = np.repeat(np.arange(len(lists)), [len(part) for part in lists])
    values = {"ids": ids.astype(np.int32), "rows": prepare_rows(X[ids - first_row], metric, ids)}
    return write_run(folder, first_row // rows, targets, len(lists), values)


def distribute(
    blocks: RowBlocks,
    cells: Cells,
    plan: PartitionPlan,
    metric: str,
    working: Scratch,
    homes: ArrayRef,
) -> Distribution:
    """Write every row to its partitions and its own partition to ``homes``: one pass over X.

    Raises
    ------
    MemoryLimitError
        If a partition came out larger than the sample said.
    """
    width = shelf_width(cells.n_partitions)
    n_shelves = -(-cells.n_partitions // width)
    folders = [str(working.child(working.unique("rows")).path) for _ in range(n_shelves)]
    count = plan.run_blocks
    items = [blocks.bounds[i : i + count] for i in range(0, len(blocks.bounds), count)]
    receipts = run_tasks(
        _distribute_task,
        list(enumerate(items)),
        blocks.start_pass(),
        (blocks.n_features, blocks.dtype),
        cells,
        metric,
        width,
        folders,
        homes,
        label="distribute",
        unit="runs",
    )
    shelves = list(zip(*receipts, strict=True))
    counts = np.concatenate(
        [sum(np.diff(receipt.offsets) for receipt in shelf) for shelf in shelves]
    )[: cells.n_partitions]
    if counts.max() > plan.capacity_rows:
        raise MemoryLimitError(
            f"Stage 'graph': a partition has {counts.max():,} rows with copies, and one task can "
            f"hold {plan.capacity_rows:,}. Set n_partitions to "
            f"{2 * max(2, len(counts))} or more, or raise memory_limit."
        )
    runs = [
        commit_runs(working, folder, shelf) for folder, shelf in zip(folders, shelves, strict=True)
    ]
    return Distribution(tuple(runs), width, counts)


def _distribute_task(
    item: tuple[int, list[tuple[int, int]]],
    reader: BlockReader,
    like: tuple[int, np.dtype[Any]],
    cells: Cells,
    metric: str,
    width: int,
    folders: list[str],
    homes: ArrayRef,
) -> list[Receipt]:
    """Write one run to each shelf: some blocks, sorted by partition."""
    run, bounds = item
    n_features, dtype = like
    start, stop = bounds[0][0], bounds[-1][1]
    ids = np.arange(start, stop, dtype=np.int32)
    rows = np.empty((stop - start, n_features), dtype)
    for low, high in bounds:
        block = slice(low - start, high - start)
        rows[block] = prepare_rows(reader.read(low, high), metric, ids[block])
    targets, source = cells.assign(rows, ids)
    homes.write(start, targets[: len(ids)].astype(np.int32))
    values = {"ids": ids, "rows": rows}
    receipts = []
    for shelf, folder in enumerate(folders):
        in_shelf = targets // width == shelf
        places = targets[in_shelf] - shelf * width
        receipts.append(write_run(folder, run, places, width, values, source[in_shelf]))
    return receipts


def search_partitions(
    spread: Distribution,
    partners: np.ndarray,
    request: GraphRequest,
    how: tuple[int, float],
    indices: ArrayRef,
    working: Scratch,
) -> tuple[Runs, int]:
    """Search every partition on its own, several at a time across workers.

    ``how`` says up to how many rows are searched exactly, and by what factor pynndescent explores
    more. With a recall target the rows stay in scratch, for another attempt.

    Returns
    -------
    results : Runs
        One target per stored block of the graph.
    scratch_bytes : int
        The most that rows and results took together.
    """
    folder = str(working.child(working.unique("results")).path)
    rows = indices.chunk_rows
    n_blocks = -(-indices.shape[0] // rows)
    groups = group_tiny(spread.counts, partners, request.n_neighbors + 1)
    sizes = np.array([spread.counts[list(group)].sum() for group in groups])
    # A group is searched while the first of its shelves is still there.
    shelf_of = np.array([group[0] // spread.width for group in groups])
    if sizes.max() > how[0]:
        _compile_first()
    receipts: dict[int, Receipt] = {}
    held, most = sum(runs.nbytes for runs in spread.shelves), 0
    for shelf, runs in enumerate(spread.shelves):
        # The largest first, so that no worker is left with it at the end.
        mine = [int(i) for i in np.argsort(-sizes, kind="stable") if shelf_of[i] == shelf]
        results = run_tasks(
            _search_task,
            [(i, groups[i]) for i in mine],
            spread.shelves,
            spread.width,
            request,
            how,
            (folder, rows, n_blocks),
            label="neighbors",
            unit="partitions",
        )
        receipts.update(zip(mine, results, strict=True))
        written = sum(receipt.nbytes for receipt in receipts.values())
        most = max(most, held + written)
        if request.recall_target is None:
            runs.remove()
            held -= runs.nbytes
    ordered = [receipts[i] for i in range(len(groups))]
    return commit_runs(working, folder, ordered), most


def _compile_first() -> None:
    """Compile pynndescent's search where no process has, and say so: it takes half a minute."""
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


def _search_task(
    item: tuple[int, tuple[int, ...]],
    shelves: tuple[Runs, ...],
    width: int,
    request: GraphRequest,
    how: tuple[int, float],
    destination: tuple[str, int, int],
) -> Receipt:
    """Find the neighbors of all rows of one partition within it."""
    number, group = item
    folder, graph_rows, n_blocks = destination
    ids, rows = shelves[group[0] // width].read(group[0] % width, "ids", "rows")
    if len(group) > 1:
        parts = [shelves[p // width].read(p % width, "ids", "rows") for p in group]
        ids, first = np.unique(np.concatenate([part[0] for part in parts]), return_index=True)
        rows = np.concatenate([part[1] for part in parts])[first]
    seed = derive_seed(request.random_state, "neighbors", number)
    local, squared = search_prepared(rows, request.n_neighbors, seed, *how)
    del rows
    values = {
        "row": ids,
        "neighbor": ids[local],
        "distance": as_distances(squared, request.metric),
    }
    return write_run(folder, number, ids // graph_rows, n_blocks, values)


def merge_task(
    bounds: tuple[int, int],
    results: Runs,
    former: tuple[ArrayRef, ...],
    out: tuple[ArrayRef, ...],
) -> int:
    """Merge and write one block of the graph; return how many of its former lists changed.

    ``former`` and ``out`` are indices and distances; of a new graph there are no former ones.
    """
    start, stop = bounds
    lists = results.read(start // out[0].chunk_rows, "row", "neighbor", "distance")
    held = max(0, min(stop, former[0].shape[0]) - start) if former else 0
    before = [ref.read(start, start + held) for ref in former] if held else []
    if held:
        owners = np.arange(start, start + held, dtype=lists[0].dtype)
        lists = [np.concatenate(pair) for pair in zip([owners, *before], lists, strict=True)]
    owners, neighbors, far = lists
    merged = merge_neighbors(owners, neighbors, far, start, stop - start)
    for ref, values in zip(out, merged, strict=True):
        ref.write(start, values)
    return int((merged[0][:held] != before[0]).any(axis=1).sum()) if held else 0
