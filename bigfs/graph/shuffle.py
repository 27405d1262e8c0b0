"""A sort-based shuffle through scratch: each task writes one run, sorted by where rows go.

A run is one file of contiguous columns with its rows in target order, so that what one target
takes from one run is one ranged read per column. There is no file per (run, target) pair, and
every attempt of a task writes a file of its own: only committed ones are ever read.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bigfs.store.location import Location, as_location, new_file, read_into, remove_tree, write_from
from bigfs.store.pages import open_own
from bigfs.store.scratch import ArrayRef, Scratch

_TILE_BYTES = 8 * 1024**2


@dataclass(frozen=True)
class RunColumn:
    """One column of a run: ``width`` values of one type per row; 0 for a flat column."""

    name: str
    dtype: str
    width: int = 0

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return np.dtype(self.dtype).itemsize * (self.width or 1)


@dataclass(frozen=True)
class Receipt:
    """Report of a finished attempt: its name, columns, where each target's rows begin, its size."""

    attempt: int
    columns: tuple[RunColumn, ...]  # in file order
    offsets: np.ndarray
    nbytes: int


@dataclass(frozen=True)
class Runs:
    """Committed runs, read by target; pickles to a few hundred bytes."""

    folder: str
    columns: tuple[RunColumn, ...]  # in file order
    # Of shape (n_targets + 1, n_runs), int64: first row of every target in every run.
    offsets: ArrayRef
    attempts: ArrayRef  # of shape (n_runs,), uint64: the attempt that counts, by run
    nbytes: int  # size of all runs

    def read(self, target: int, *names: str) -> list[np.ndarray]:
        """Return the named columns of a target, in the order of the runs.

        Raises
        ------
        StorageError
            If a run is missing or shorter than its receipt says.
        """
        begins, ends = self.offsets.read(target, target + 2)
        [sizes] = self.offsets.read(self.offsets.shape[0] - 1, self.offsets.shape[0])
        attempts = self.attempts.load()
        total = int((ends - begins).sum())
        out = self._empty(total, names)
        filled = 0
        for run in np.flatnonzero(ends > begins):
            count = int(ends[run] - begins[run])
            parts = {name: values[filled : filled + count] for name, values in out.items()}
            self._fill(int(run), int(attempts[run]), int(sizes[run]), int(begins[run]), parts)
            filled += count
        return [out[name] for name in names]

    def read_rows(self, run: int, start: int, stop: int, *names: str) -> list[np.ndarray]:
        """Return the named columns of rows ``start`` to ``stop`` of one run."""
        [sizes] = self.offsets.read(self.offsets.shape[0] - 1, self.offsets.shape[0])
        attempts = self.attempts.load()
        out = self._empty(stop - start, names)
        self._fill(run, int(attempts[run]), int(sizes[run]), start, out)
        return [out[name] for name in names]

    def remove(self) -> None:
        """Delete the runs; whoever still reads them gets an error, never other rows."""
        remove_tree(self.folder)

    def _empty(self, count: int, names: tuple[str, ...]) -> dict[str, np.ndarray]:
        """Return room for the named columns."""
        return {
            c.name: np.empty((count, c.width) if c.width else count, c.dtype)
            for c in self.columns
            if c.name in names
        }

    def _fill(
        self, run: int, attempt: int, size: int, start: int, parts: dict[str, np.ndarray]
    ) -> None:
        """Read one range of one run into prepared arrays, one ranged read per column."""
        with open_own(_run_path(self.folder, run, attempt), buffering=0) as file:
            section = 0
            for column in self.columns:
                if column.name in parts:
                    read_into(file, section + start * column.row_bytes, parts[column.name])
                section += size * column.row_bytes


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
    """Write rows in target order; rows of one target keep their order.

    Parameters
    ----------
    folder : str
    run : int
        The number of this run.
    targets : ndarray of shape (n_rows,), int
        In [0, n_targets).
    values : dict of ndarray
        The columns, in file order.
    source : ndarray of shape (n_rows,) or None
        Which row of ``values`` each written row is; None: the same. A row may go to several
        targets.
    """
    order = np.argsort(targets, kind="stable")
    rows = order if source is None else source[order]
    counts = np.bincount(targets, minlength=n_targets)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    attempt = secrets.randbits(63)
    with new_file(_run_path(folder, run, attempt)) as file:
        for column in values.values():
            # A few megabytes of a column at a time.
            step = max(1, _TILE_BYTES // max(1, column[:1].nbytes))
            for begin in range(0, len(rows), step):
                write_from(file, column[rows[begin : begin + step]])
    columns = tuple(
        RunColumn(name, column.dtype.name, 0 if column.ndim == 1 else column.shape[1])
        for name, column in values.items()
    )
    return Receipt(attempt, columns, offsets, len(rows) * sum(c.row_bytes for c in columns))


def commit_runs(scratch: Scratch, folder: str, receipts: Sequence[Receipt]) -> Runs:
    """Make the receipts' attempts the ones that are read; one receipt per run, in order."""
    offsets = np.stack([receipt.offsets for receipt in receipts], axis=1)
    attempts = np.array([receipt.attempt for receipt in receipts], dtype=np.uint64)
    return Runs(
        folder,
        receipts[0].columns,
        scratch.put(scratch.unique("offsets"), offsets),
        scratch.put(scratch.unique("attempts"), attempts),
        sum(receipt.nbytes for receipt in receipts),
    )
