"""Groups of columns of a sparse matrix: its entries go through scratch once, in order of groups.

Where sums take pairs of rows that may lie anywhere, a task holds some columns of all rows. The more
rows there are, the more groups: reading all rows for each of them would be quadratic.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bigfs.blocks.rowblocks import BlockReader, RowBlocks
from bigfs.core.cost import Shape, Step
from bigfs.graph.shuffle import Receipt, RunColumn, Runs, commit_runs, write_run
from bigfs.runtime.execute import run_tasks
from bigfs.store.chunking import block_bounds
from bigfs.store.csr import stack

# What a task reads of one file for its group, at least, where a task can sort as many entries.
_SLICE_ENTRIES = 2**16
# Entries that a task sorts, at most, beside those of one block.
_SORTED_ENTRIES = 2**22
# An entry while it is sorted: itself twice, its row, column and group, and its place in order.
_SORT_BYTES = 56


def group_width(n_features: int, n_groups: int, group: int) -> int:
    """Return how many columns a group has, which takes every n-th."""
    return len(range(group, n_features, n_groups))


def sorting_step(shape: Shape, n_groups: int) -> Step:
    """Return the step of `write_groups`."""
    per_run = _blocks_per_run(shape, n_groups)
    needed = shape.read_bytes + _SORT_BYTES * per_run * (shape.block_entries or 0)
    n_runs = -(-shape.n_blocks // per_run)
    return Step("entries in order of groups of columns", needed, n_runs, 1, shape.n_chunks)


def group_requests(shape: Shape, n_groups: int) -> int:
    """Return how many ranges are read for all groups: rows, columns and values of every file."""
    return 3 * n_groups * -(-shape.n_blocks // _blocks_per_run(shape, n_groups))


def groups_bytes(shape: Shape) -> int:
    """Return the bytes of the files."""
    return (shape.n_entries or 0) * (8 + shape.itemsize)


def write_groups(blocks: RowBlocks, n_groups: int) -> Runs:
    """Write the entries of all rows, sorted by group of columns: one pass."""
    scratch = blocks.scratch
    folder = scratch.path / scratch.unique("columns")
    folder.mkdir(parents=True)
    per_run = _blocks_per_run(blocks.layout, n_groups)
    bounds = block_bounds(blocks.n_samples, per_run * blocks.rows)
    shared = (blocks.start_pass(), blocks.rows, n_groups, str(folder))
    receipts = run_tasks(
        _write_task, list(enumerate(bounds)), *shared, label="columns", unit="files"
    )
    columns = (
        RunColumn("row", "int32"),
        RunColumn("column", "int32"),
        RunColumn("value", blocks.dtype.name),
    )
    return commit_runs(scratch, str(folder), columns, receipts)


def read_group(entries: Runs, group: int, n_samples: int, width: int) -> Any:
    """Return a group of columns of all rows as CSR, float64."""
    from scipy.sparse import csr_array

    rows, columns, values = entries.read(group, "row", "column", "value")
    indptr = np.searchsorted(rows, np.arange(n_samples + 1, dtype=rows.dtype))
    del rows
    if indptr[-1] < 2**31:
        indptr = indptr.astype(np.int32)
    return csr_array(
        (values.astype(np.float64, copy=False), columns, indptr), shape=(n_samples, width)
    )


def _blocks_per_run(shape: Shape, n_groups: int) -> int:
    """Return how many blocks a task sorts together, so that slices are not too short."""
    wanted = min(_SLICE_ENTRIES * n_groups, _SORTED_ENTRIES)
    return max(1, wanted // max(1, shape.block_entries or 0))


def _write_task(
    item: tuple[int, tuple[int, int]], reader: BlockReader, rows: int, n_groups: int, folder: str
) -> Receipt:
    """Write the entries of some blocks."""
    run, (start, stop) = item
    X = stack([reader.read(first, min(first + rows, stop)) for first in range(start, stop, rows)])
    row = np.repeat(np.arange(start, stop, dtype=np.int32), np.diff(X.indptr))
    # Numbers of 16 bits are sorted by digits.
    groups = (X.indices % n_groups).astype(np.uint16 if n_groups <= 2**16 else np.int32)
    values = {"row": row, "column": X.indices // n_groups, "value": X.data}
    return write_run(folder, run, groups, n_groups, values)
