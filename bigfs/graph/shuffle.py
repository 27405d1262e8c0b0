"""A sort-based shuffle through scratch: each task writes one run, sorted by target.

A run is one file of records sorted by target, so that the records of one target in one run are a
single ranged read. There is no file per (run, target) pair. Every attempt of a task writes a file
of its own; only files of committed attempts are ever read.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigfs.store.location import Location, as_location, read_into, remove_tree, replaced_file
from bigfs.store.pages import open_own
from bigfs.store.scratch import ArrayRef, Scratch, block_bounds

_TILE_BYTES = 8 * 1024**2


@dataclass(frozen=True)
class Receipt:
    """Report of a finished attempt: its id, columns, offset of each target's rows, and size."""

    attempt: int
    columns: np.dtype[Any]  # as in `Runs`
    offsets: np.ndarray
    nbytes: int


@dataclass(frozen=True)
class Runs:
    """Committed runs, read by target; pickles to a few hundred bytes."""

    folder: str
    columns: np.dtype[Any]  # dtype of a record: a field for each column
    # Of shape (n_targets + 1, n_runs), int64: first row of every target in every run.
    offsets: ArrayRef
    attempts: ArrayRef  # of shape (n_runs,), uint64: the committed attempt of each run
    nbytes: int  # size of all runs

    @property
    def n_targets(self) -> int:
        """Number of targets of every run."""
        return self.offsets.shape[0] - 1

    def read(self, target: int, *names: str) -> list[np.ndarray]:
        """Return the named columns of a target, in run order.

        Raises
        ------
        StorageError
            If a run is missing or shorter than its receipt says.
        """
        begins, ends = self.offsets.read(target, target + 2)
        filled = np.flatnonzero(ends > begins)
        return self.read_ranges([(run, begins[run], ends[run]) for run in filled.tolist()], *names)

    def remove(self) -> None:
        """Delete the runs; a concurrent reader gets an error, never wrong rows."""
        remove_tree(self.folder)

    def read_ranges(self, ranges: list[tuple[int, int, int]], *names: str) -> list[np.ndarray]:
        """Return the named columns of ranges of rows, given as (run, start, stop)."""
        attempts = self.attempts.load()
        total = sum(stop - start for _, start, stop in ranges)
        out = {name: np.empty(total, self.columns[name]) for name in names}
        filled, size = 0, self.columns.itemsize
        for run, start, stop in ranges:
            with open_own(_run_path(self.folder, run, int(attempts[run])), buffering=0) as file:
                for low, high in block_bounds(stop - start, _tile_rows(self.columns)):
                    records = np.empty(high - low, self.columns)
                    read_into(file, (start + low) * size, records)
                    for name, values in out.items():
                        values[filled + low : filled + high] = records[name]
            filled += stop - start
        return [out[name] for name in names]


def _tile_rows(columns: np.dtype[Any]) -> int:
    return max(1, _TILE_BYTES // columns.itemsize)


def _run_path(folder: str, run: int, attempt: int) -> Location:
    return as_location(folder) / f"run-{run:06d}-{attempt:016x}"


def write_run(
    folder: str,
    run: int,
    targets: np.ndarray,
    n_targets: int,
    values: dict[str, np.ndarray],
    source: np.ndarray | None = None,
) -> Receipt:
    """Write rows sorted by target; rows of one target keep their order.

    Parameters
    ----------
    folder : str
    run : int
        The number of this run.
    targets : ndarray of shape (n_rows,), int
        In [0, n_targets).
    values : dict of ndarray
        Arrays of the columns, by name.
    source : ndarray of shape (n_rows,) or None
        Row of ``values`` to write for each target; None: the same row. A row may go to several
        targets.
    """
    order = np.argsort(targets, kind="stable")
    rows = order if source is None else source[order]
    counts = np.bincount(targets, minlength=n_targets)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    attempt = secrets.randbits(63)
    columns = np.dtype([(name, column.dtype, column.shape[1:]) for name, column in values.items()])
    with replaced_file(_run_path(folder, run, attempt), sync=False, own=True) as file:
        for low, high in block_bounds(len(rows), _tile_rows(columns)):
            records = np.empty(high - low, columns)
            for name, column in values.items():
                records[name] = column[rows[low:high]]
            file.write(records.view("u1").data)
    return Receipt(attempt, columns, offsets, len(rows) * columns.itemsize)


def commit_runs(scratch: Scratch, folder: str, receipts: Sequence[Receipt]) -> Runs:
    """Return runs that read the attempts of the receipts, one receipt per run, in order."""
    offsets = np.stack([receipt.offsets for receipt in receipts], axis=1)
    attempts = np.array([receipt.attempt for receipt in receipts], dtype=np.uint64)
    return Runs(
        folder,
        receipts[0].columns,
        scratch.put(scratch.unique("offsets"), offsets),
        scratch.put(scratch.unique("attempts"), attempts),
        sum(receipt.nbytes for receipt in receipts),
    )
