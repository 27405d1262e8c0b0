"""Directed edges to a symmetric CSR matrix, by row blocks: transposition through the shuffle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from bigfs.core.text import FROM_0
from bigfs.graph.shuffle import Receipt, RunColumn, Runs, commit_runs, write_run
from bigfs.runtime.execute import run_tasks
from bigfs.store.chunking import block_bounds
from bigfs.store.scratch import ArrayRef, Scratch

# Entries per chunk of the stored matrix: 16 MB of weights.
ENTRY_CHUNK = 2 * 1024**2

_REVERSED = (
    RunColumn("row", "int32"),
    RunColumn("column", "int32"),
    RunColumn("weight", "float64"),
)
_ENTRIES = (RunColumn("column", "int32"), RunColumn("weight", "float64"))

# What a task calls to get the directed edges (heads, tails, weights) of rows start to stop.
EdgeReader = Callable[[int, int, Any], tuple[np.ndarray, np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class SymmetricCSR:
    """Addresses of a stored symmetric matrix in CSR form."""

    data: ArrayRef
    indices: ArrayRef
    indptr: ArrayRef
    degrees: ArrayRef


def union_rows(
    rows: np.ndarray, columns: np.ndarray, weights: np.ndarray, n_rows: int, n_columns: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the CSR rows of a union of entries: duplicates and zeros dropped, columns sorted.

    Parameters
    ----------
    rows, columns : ndarray of shape (n_entries,), int
        Rows counted from the first of the block.
    weights : ndarray of shape (n_entries,), float64
        Of two entries at one place the larger is kept.
    n_rows, n_columns : int

    Returns
    -------
    columns, weights, counts : ndarray
        ``counts`` (n_rows,) entries per row.
    """
    keys = rows.astype(np.int64) * n_columns + columns
    order = np.lexsort((-weights, keys))
    keys, weights = keys[order], weights[order]
    keep = weights != 0
    keep[1:] &= keys[1:] != keys[:-1]
    keys, weights = keys[keep], weights[keep]
    counts = np.bincount(keys // n_columns, minlength=n_rows)
    return (keys % n_columns).astype(np.int32), weights, counts


def symmetrize(
    edges: EdgeReader,
    context: Any,
    n_samples: int,
    rows: int,
    scratch: Scratch,
    complaint: str,
) -> SymmetricCSR:
    """Store the union of directed edges with their reverses, ``W = max(W, W')``.

    Parameters
    ----------
    edges : callable
        Module-level; returns the edges of a row range and is handed ``context``.
    context : object
        Small descriptors.
    n_samples, rows : int
        Rows of the matrix, and of one block.
    scratch : Scratch
        Gets ``data``, ``indices``, ``indptr`` and ``degrees``.
    complaint : str
        How the InputError for a row without positive degree goes on.
    """
    bounds = block_bounds(n_samples, rows)
    working = scratch.child(scratch.unique("symmetrize"))
    reverses = working.child("reverses")
    try:
        receipts = run_tasks(
            _write_reverses,
            bounds,
            edges,
            context,
            rows,
            len(bounds),
            str(reverses.path),
            label="transpose",
        )
        runs = commit_runs(working, str(reverses.path), _REVERSED, receipts)
        entries = working.child("entries")
        counts = working.create("counts", (n_samples,), np.int64, rows)
        degrees = scratch.create("degrees", (n_samples,), np.float64, rows)
        receipts = run_tasks(
            _write_entries,
            bounds,
            edges,
            context,
            rows,
            n_samples,
            runs,
            counts,
            degrees,
            str(entries.path),
            complaint,
            label="union",
        )
        reverses.close()
        pieces = commit_runs(working, str(entries.path), _ENTRIES, receipts)
        starts = np.cumsum([0, *(int(receipt.offsets[-1]) for receipt in receipts)])
        return _assemble(pieces, starts, counts, degrees, rows, scratch, working)
    finally:
        working.close()


def _assemble(
    pieces: Runs,
    starts: np.ndarray,
    counts: ArrayRef,
    degrees: ArrayRef,
    rows: int,
    scratch: Scratch,
    working: Scratch,
) -> SymmetricCSR:
    """Copy the blocks' entries into arrays whose chunks have one writer each."""
    nnz, n_samples = int(starts[-1]), counts.shape[0]
    data = scratch.create("data", (nnz,), np.float64, ENTRY_CHUNK)
    indices = scratch.create("indices", (nnz,), np.int32, ENTRY_CHUNK)
    indptr = scratch.create("indptr", (n_samples + 1,), np.int64, rows)
    where = working.put("starts", starts)
    run_tasks(
        _copy_entries,
        block_bounds(nnz, ENTRY_CHUNK),
        pieces,
        where,
        data,
        indices,
        label="matrix",
    )
    run_tasks(
        _write_indptr,
        block_bounds(n_samples + 1, rows),
        counts,
        where,
        rows,
        indptr,
        label="row pointers",
    )
    return SymmetricCSR(data, indices, indptr, degrees)


def _write_reverses(
    bounds: tuple[int, int], edges: EdgeReader, context: Any, rows: int, n_blocks: int, folder: str
) -> Receipt:
    """Send every edge to the block of its tail."""
    heads, tails, weights = edges(*bounds, context)
    values = {
        "row": tails.astype(np.int32, copy=False),
        "column": heads.astype(np.int32, copy=False),
        "weight": weights,
    }
    return write_run(folder, bounds[0] // rows, tails // rows, n_blocks, values)


def _write_entries(
    bounds: tuple[int, int],
    edges: EdgeReader,
    context: Any,
    rows: int,
    n_samples: int,
    reverses: Runs,
    counts: ArrayRef,
    degrees: ArrayRef,
    folder: str,
    complaint: str,
) -> Receipt:
    """Unite a block's edges with their reverses from other blocks, and sum its degrees."""
    from bigfs.core.errors import InputError

    start, stop = bounds
    heads, tails, weights = edges(start, stop, context)
    row, column, weight = reverses.read(start // rows, "row", "column", "weight")
    columns, weights, per_row = union_rows(
        np.concatenate([heads, row]) - start,
        np.concatenate([tails, column]),
        np.concatenate([weights, weight]),
        stop - start,
        n_samples,
    )
    degree = np.bincount(np.repeat(np.arange(stop - start), per_row), weights, stop - start)
    if not (degree > 0).all():
        bad = int(np.argmin(degree > 0))
        raise InputError(
            f"Row {start + bad} of the graph has degree {degree[bad]:.3g}{complaint} {FROM_0}"
        )
    counts.write(start, per_row.astype(np.int64))
    degrees.write(start, degree)
    values = {"column": columns, "weight": weights}
    return write_run(folder, start // rows, np.zeros(len(columns), dtype=np.int64), 1, values)


def _copy_entries(
    bounds: tuple[int, int], pieces: Runs, where: ArrayRef, data: ArrayRef, indices: ArrayRef
) -> None:
    """Fill one chunk of the matrix from the blocks it spans."""
    start, stop = bounds
    starts = where.load()
    first = int(np.searchsorted(starts, start, side="right")) - 1
    last = int(np.searchsorted(starts, stop, side="left"))
    parts = [
        pieces.read_rows(
            block,
            max(start, int(low)) - int(low),
            min(stop, int(high)) - int(low),
            "column",
            "weight",
        )
        for block, (low, high) in enumerate(pairwise(starts[first : last + 1]), start=first)
    ]
    indices.write(start, np.concatenate([part[0] for part in parts]))
    data.write(start, np.concatenate([part[1] for part in parts]))


def _write_indptr(
    bounds: tuple[int, int], counts: ArrayRef, where: ArrayRef, rows: int, indptr: ArrayRef
) -> None:
    """Write the row pointers of one block: entries before it, then running sums."""
    start, stop = bounds
    n_samples = counts.shape[0]
    if start == n_samples:
        indptr.write(start, where.load()[-1:])
        return
    before = int(where.load()[start // rows])
    per_row = counts.read(start, min(stop, n_samples))
    sums = before + np.concatenate([[0], np.cumsum(per_row)])
    indptr.write(start, sums[: stop - start])
