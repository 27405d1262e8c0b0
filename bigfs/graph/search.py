"""The steps of the out-of-core search: sample rows, send rows to partitions, search each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bigfs.blocks import BlockReader, RowBlocks
from bigfs.core.errors import MemoryLimitError
from bigfs.core.execute import run_tasks
from bigfs.core.memory import reset_peak
from bigfs.core.seeds import derive_seed
from bigfs.graph.local import as_distances, prepare_rows, search_prepared
from bigfs.graph.merge import result_columns
from bigfs.graph.partition import Cells, PartitionPlan, group_tiny
from bigfs.graph.shuffle import Column, Receipt, Runs, commit_runs, write_run
from bigfs.store.scratch import ArrayRef, Scratch


@dataclass(frozen=True)
class Distribution:
    """Prepared rows in partition order, copies of rows near a boundary included.

    Attributes
    ----------
    runs : Runs
        Columns ``rows`` and ``ids``, one target per partition.
    counts : ndarray of shape (n_partitions,), int64
        Rows of each partition.
    """

    runs: Runs
    counts: np.ndarray


def row_columns(blocks: RowBlocks) -> tuple[Column, ...]:
    """Return the columns of a run of prepared rows."""
    return Column("ids", "int32"), Column("rows", blocks.dtype.name, blocks.n_features)


def gather_rows(blocks: RowBlocks, ids: list[np.ndarray], metric: str, working: Scratch) -> Runs:
    """Collect chosen rows, one target per sorted list of row numbers: one pass over X."""
    folder = working.child(working.unique("samples"))
    wanted = [working.put(working.unique("chosen"), chosen) for chosen in ids]
    receipts = blocks.map_blocks(
        _gather_kernel, wanted, metric, blocks.rows, str(folder.path), label="sample"
    )
    return commit_runs(working, str(folder.path), row_columns(blocks), receipts)


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
    blocks: RowBlocks, cells: Cells, plan: PartitionPlan, metric: str, working: Scratch
) -> Distribution:
    """Send every row to its partitions: one pass over X.

    Raises
    ------
    MemoryLimitError
        If a partition came out larger than the sample said.
    """
    folder = working.child(working.unique("rows"))
    count = plan.run_blocks
    items = [blocks.bounds[i : i + count] for i in range(0, len(blocks.bounds), count)]
    blocks.passes += 1
    receipts = run_tasks(
        _distribute_task,
        list(enumerate(items)),
        blocks.reader,
        cells,
        metric,
        str(folder.path),
        label="distribute",
        unit="runs",
    )
    counts = sum(np.diff(receipt.offsets) for receipt in receipts)
    if counts.max() > plan.capacity_rows:
        raise MemoryLimitError(
            f"Stage 'graph': a partition has {counts.max():,} rows with copies, and one task can "
            f"hold {plan.capacity_rows:,}. Set n_partitions to "
            f"{2 * max(2, len(counts))} or more, or raise memory_limit."
        )
    runs = commit_runs(working, str(folder.path), row_columns(blocks), receipts)
    return Distribution(runs, counts)


def _distribute_task(
    item: tuple[int, list[tuple[int, int]]],
    reader: BlockReader,
    cells: Cells,
    metric: str,
    folder: str,
) -> Receipt:
    """Write one run: some blocks, sorted by partition."""
    reset_peak()
    run, bounds = item
    start, stop = bounds[0][0], bounds[-1][1]
    ids = np.arange(start, stop, dtype=np.int32)
    if len(bounds) == 1:
        rows = prepare_rows(reader.read(start, stop), metric, ids)
    else:
        first = prepare_rows(reader.read(*bounds[0]), metric, ids)
        rows = np.empty((stop - start, first.shape[1]), first.dtype)
        rows[: len(first)] = first
        for low, high in bounds[1:]:
            here = slice(low - start, high - start)
            rows[here] = prepare_rows(reader.read(low, high), metric, ids[here])
    targets, source = cells.assign(rows, ids)
    values = {"ids": ids, "rows": rows}
    return write_run(folder, run, targets, cells.n_partitions, values, source)


@dataclass(frozen=True)
class _Search:
    """What every partition's task has to know."""

    n_neighbors: int
    metric: str
    algorithm: str
    effort: float
    random_state: int
    graph_rows: int
    n_blocks: int
    folder: str


def search_partitions(
    spread: Distribution,
    partners: np.ndarray,
    n_neighbors: int,
    metric: str,
    algorithm: str,
    effort: float,
    random_state: int,
    indices: ArrayRef,
    working: Scratch,
) -> Runs:
    """Search every partition on its own, several at a time across workers."""
    folder = working.child(working.unique("results"))
    rows = indices.chunk_rows
    search = _Search(
        n_neighbors,
        metric,
        algorithm,
        effort,
        random_state,
        rows,
        -(-indices.shape[0] // rows),
        str(folder.path),
    )
    groups = group_tiny(spread.counts, partners, n_neighbors + 1)
    sizes = np.array([spread.counts[list(group)].sum() for group in groups])
    # The largest first, so that no worker is left with it at the end.
    order = np.argsort(-sizes, kind="stable")
    receipts = run_tasks(
        _search_task,
        [(int(i), groups[i]) for i in order],
        spread.runs,
        search,
        label="neighbors",
        unit="partitions",
    )
    receipts = [receipts[place] for place in np.argsort(order)]
    return commit_runs(working, str(folder.path), result_columns(n_neighbors), receipts)


def _search_task(item: tuple[int, tuple[int, ...]], runs: Runs, search: _Search) -> Receipt:
    """Find the neighbors of all rows of one partition within it."""
    reset_peak()
    number, group = item
    ids, rows = runs.read(group[0], "ids", "rows")
    if len(group) > 1:
        parts = [runs.read(partition, "ids", "rows") for partition in group]
        ids, first = np.unique(np.concatenate([part[0] for part in parts]), return_index=True)
        rows = np.concatenate([part[1] for part in parts])[first]
    seed = derive_seed(search.random_state, "neighbors", number)
    local, squared = search_prepared(
        rows, search.n_neighbors, search.metric, seed, search.algorithm, search.effort
    )
    del rows
    values = {
        "row": ids,
        "neighbor": ids[local],
        "distance": as_distances(squared, search.metric),
    }
    return write_run(search.folder, number, ids // search.graph_rows, search.n_blocks, values)
