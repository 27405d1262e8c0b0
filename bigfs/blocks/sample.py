"""Chosen rows of a matrix, gathered in one pass."""

from __future__ import annotations

import numpy as np

from bigfs.blocks.rowblocks import RowBlocks
from bigfs.core.cost import Shape, Step, pass_over
from bigfs.runtime.execute import run_tasks
from bigfs.store.scratch import ArrayRef, Scratch


def gather_parts(blocks: RowBlocks, ids: np.ndarray, folder: Scratch, label: str) -> list[ArrayRef]:
    """Store chosen rows, transformed, an array for each block that has some: one pass.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    ids : ndarray of shape (n_chosen,), int
        Row numbers, ascending.
    folder : Scratch
        Where the arrays are stored.
    label : str
        Name of the pass in the progress.
    """
    wanted = folder.put(folder.unique("chosen"), ids)
    parts = blocks.map_blocks(_gather_kernel, wanted, str(folder.path), label=label)
    folder.remove(wanted)
    return [part for part in parts if part is not None]


def gather_rows(blocks: RowBlocks, ids: np.ndarray, label: str) -> ArrayRef:
    """Store chosen rows (ascending), transformed, as one chunk in scratch: one pass."""
    scratch = blocks.scratch
    folder = scratch.child(scratch.unique("sample"))
    parts = gather_parts(blocks, ids, folder, label)
    rows = scratch.create(scratch.unique("rows"), (len(ids), blocks.n_features), blocks.dtype)
    run_tasks(_join_task, [parts], rows, label=label)
    folder.close()
    return rows


def gather_steps(shape: Shape, size: int) -> tuple[Step, ...]:
    """Return the steps of `gather_rows` for ``size`` rows."""
    row_bytes = shape.n_features * shape.itemsize
    return (
        pass_over(shape, "a block and the rows drawn from it", min(size, shape.rows) * row_bytes),
        # The parts, the rows that they are joined to, and these on their way to storage.
        Step(f"{size:,} rows drawn from all blocks", 3 * size * row_bytes, 1, 0, 1),
    )


def _gather_kernel(X: np.ndarray, first_row: int, wanted: ArrayRef, folder: str) -> ArrayRef | None:
    ids = wanted.load()
    begin, end = np.searchsorted(ids, [first_row, first_row + len(X)])
    if begin == end:
        return None
    scratch = Scratch(folder)
    return scratch.put(scratch.unique(f"rows-{first_row}"), X[ids[begin:end] - first_row])


def _join_task(parts: list[ArrayRef], rows: ArrayRef) -> None:
    rows.write(0, np.concatenate([part.load() for part in parts]))
