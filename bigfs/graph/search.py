"""The steps of the out-of-core search: sample rows, send rows to partitions, search each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.core.execute import run_tasks
from bigfs.core.seeds import derive_seed
from bigfs.graph.local import as_distances, prepare_rows, search_prepared
from bigfs.graph.merge import result_columns
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
    folder = working.child("samples")
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


def distribute(blocks: RowBlocks, metric: str, working: Scratch) -> Distribution:
    """Send every row to its partitions: one pass over X."""
    folder = working.child("rows")
    receipts = blocks.map_blocks(
        _distribute_kernel, metric, blocks.rows, str(folder.path), label="distribute"
    )
    runs = commit_runs(working, str(folder.path), row_columns(blocks), receipts)
    return Distribution(runs, sum(np.diff(receipt.offsets) for receipt in receipts))


def _distribute_kernel(
    X: np.ndarray, first_row: int, metric: str, rows: int, folder: str
) -> Receipt:
    ids = np.arange(first_row, first_row + len(X), dtype=np.int32)
    values = {"ids": ids, "rows": prepare_rows(X, metric, ids)}
    return write_run(folder, first_row // rows, np.zeros(len(X), dtype=np.int64), 1, values)


@dataclass(frozen=True)
class _Search:
    """What every partition's task has to know."""

    n_neighbors: int
    metric: str
    algorithm: str
    random_state: int
    graph_rows: int
    n_blocks: int
    folder: str


def search_partitions(
    spread: Distribution,
    n_neighbors: int,
    metric: str,
    algorithm: str,
    random_state: int,
    indices: ArrayRef,
    working: Scratch,
) -> Runs:
    """Search every partition on its own, several at a time across workers."""
    folder = working.child("results")
    rows = indices.chunk_rows
    search = _Search(
        n_neighbors, metric, algorithm, random_state, rows, -(-indices.shape[0] // rows),
        str(folder.path),
    )
    # The largest first, so that no worker is left with it at the end.
    order = np.argsort(-spread.counts, kind="stable")
    receipts = run_tasks(
        _search_task, order.tolist(), spread.runs, search, label="neighbors", unit="partitions"
    )
    receipts = [receipts[place] for place in np.argsort(order)]
    return commit_runs(working, str(folder.path), result_columns(n_neighbors), receipts)


def _search_task(partition: int, runs: Runs, search: _Search) -> Receipt:
    ids, rows = runs.read(partition, "ids", "rows")
    seed = derive_seed(search.random_state, "neighbors", partition)
    local, squared = search_prepared(
        rows, search.n_neighbors, search.metric, seed, search.algorithm
    )
    del rows
    values = {
        "row": ids,
        "neighbor": ids[local],
        "distance": as_distances(squared, search.metric),
    }
    return write_run(search.folder, partition, ids // search.graph_rows, search.n_blocks, values)
