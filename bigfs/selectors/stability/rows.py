"""Samples of rows, in pairs without common rows, stored in scratch by one pass over X."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from bigfs.blocks import RowBlocks
from bigfs.blocks.preprocess import Transform
from bigfs.blocks.rowblocks import BlockReader
from bigfs.core.seeds import rng
from bigfs.core.threads import parsed
from bigfs.runtime.execute import run_tasks
from bigfs.store.csr import stack
from bigfs.store.location import Location, as_location, replaced_file
from bigfs.store.pages import open_own
from bigfs.store.scratch import ArrayRef, Scratch

# Number of rows in a run. Rows are dealt run by run, so that samples do not depend on the blocks.
_RUN_ROWS = 2**14
_PARTS = ("data", "indices", "indptr")


@dataclass(frozen=True)
class Draw:
    """Rows of each sample: simple random samples without replacement.

    Rows are dealt like cards. The samples of one deal share no rows; a deal has as many pairs as
    there are rows for. Then all rows are shuffled again for the next deal. Samples 2i and 2i + 1
    are a pair.
    """

    n_samples: int
    sample_size: int  # rows of each sample
    n_pairs: int
    random_state: int

    @property
    def pairs_per_deal(self) -> int:
        """Number of pairs of one deal, which share no rows."""
        return min(self.n_pairs, self.n_samples // (2 * self.sample_size))

    @property
    def n_deals(self) -> int:
        """Number of deals, each after a shuffle of all rows."""
        return -(-self.n_pairs // self.pairs_per_deal)

    @property
    def n_drawn(self) -> int:
        """Upper bound of the number of rows that are in any sample."""
        return min(self.n_samples, 2 * self.n_pairs * self.sample_size)

    @property
    def shared_rows(self) -> float:
        """Share of the rows that are in a pair; 0 if no row is in two pairs."""
        return 2 * self.sample_size / self.n_samples if self.n_deals > 1 else 0.0

    def counts(self) -> np.ndarray:
        """Return the number of rows of each run in each sample.

        Returns
        -------
        counts : ndarray of shape (n_runs, 2 * n_pairs), int32
        """
        n_runs = -(-self.n_samples // _RUN_ROWS)
        counts = np.zeros((n_runs, 2 * self.n_pairs), dtype=np.int32)
        for deal in range(self.n_deals):
            fits = self._fits_of(deal)
            left = np.full(len(fits) + 1, self.sample_size)
            left[-1] = self.n_samples - self.sample_size * len(fits)
            generator = rng(self.random_state, "stability counts", deal)
            for run in range(n_runs - 1):
                drawn = generator.multivariate_hypergeometric(left, _RUN_ROWS)
                counts[run, fits.start : fits.stop] = drawn[:-1]
                left -= drawn
            counts[-1, fits.start : fits.stop] = left[:-1]
        return counts

    def _fits_of(self, deal: int) -> range:
        """Return the numbers of the samples of a deal."""
        each = 2 * self.pairs_per_deal
        return range(deal * each, min((deal + 1) * each, 2 * self.n_pairs))

    def rows_of(
        self, start: int, stop: int, counts: np.ndarray, fits: Sequence[int]
    ) -> dict[int, np.ndarray]:
        """Return the rows from ``start`` to ``stop`` that are in each of the given samples.

        Parameters
        ----------
        start, stop : int
            First row and one past the last row.
        counts : ndarray of shape (n_runs, 2 * n_pairs)
            As returned by `counts`.
        fits : sequence of int
            Numbers of the samples.

        Returns
        -------
        rows : dict of int to ndarray of int
            Row indices of each sample, ascending.
        """
        parts: dict[int, list[np.ndarray]] = {fit: [] for fit in fits}
        for run in range(start // _RUN_ROWS, -(-stop // _RUN_ROWS)):
            first = run * _RUN_ROWS
            size = min(_RUN_ROWS, self.n_samples - first)
            for deal in range(self.n_deals):
                dealt = self._fits_of(deal)
                wanted = [fit for fit in dealt if fit in parts]
                if not wanted:
                    continue
                order = rng(self.random_state, f"stability deal {deal}", run).permutation(size)
                ends = np.cumsum(counts[run, dealt.start : dealt.stop])
                for fit in wanted:
                    end = ends[fit - dealt.start]
                    rows = first + np.sort(order[end - counts[run, fit] : end])
                    parts[fit].append(rows[(rows >= start) & (rows < stop)])
        return {fit: np.concatenate(pieces) for fit, pieces in parts.items()}


@dataclass(frozen=True)
class DrawnRows:
    """The rows of samples in scratch: one file for each block, with each row once."""

    folder: str
    n_blocks: int
    sample_size: int
    n_features: int
    dtype: str
    sparse: bool  # True if rows are stored and returned in CSR form

    def file(self, block: int) -> Location:
        """Return the file with the drawn rows of a block."""
        return as_location(self.folder) / f"rows-{block}.npz"

    def sample(self, fit: int) -> tuple[Any, np.ndarray]:
        """Return the rows of a sample, in the order of X, and their indices.

        Returns
        -------
        X : ndarray or CSR block of shape (sample_size, n_features)
        numbers : ndarray of shape (sample_size,), int64
        """
        size, parts, filled = self.sample_size, [], 0
        X = np.empty((0 if self.sparse else size, self.n_features), dtype=self.dtype)
        numbers = np.empty(size, dtype=np.int64)
        for block in range(self.n_blocks):
            with open_own(self.file(block)) as file, np.load(file, allow_pickle=False) as stored:
                get = partial(parsed, stored.__getitem__)
                places = get(f"fit{fit}")
                if not len(places):
                    continue
                end = filled + len(places)
                numbers[filled:end] = get("numbers")[places]
                if self.sparse:
                    shape = (len(get("numbers")), self.n_features)
                    of_block = csr_array(tuple(get(name) for name in _PARTS), shape=shape)
                    parts.append(of_block[places])
                else:
                    np.take(get("rows"), places, axis=0, out=X[filled:end])
                filled = end
        return (stack(parts) if self.sparse else X), numbers


def draw_rows(blocks: RowBlocks, draw: Draw, fits: Sequence[int], scratch: Scratch) -> DrawnRows:
    """Copy the rows of the given samples to scratch, without preprocessing, in one pass.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    draw : Draw
    fits : sequence of int
        Numbers of the samples.
    scratch : Scratch
        Folder that the rows are stored in.
    """
    counts = scratch.put("counts", draw.counts())
    drawn = DrawnRows(
        str(scratch.path),
        len(blocks.bounds),
        draw.sample_size,
        blocks.n_features,
        blocks.dtype.name,
        blocks.sparse,
    )
    # Every fit preprocesses its own rows, for example with their own means.
    reader = replace(blocks.start_pass(), transform=Transform())
    items = list(enumerate(blocks.bounds))
    run_tasks(
        _draw_task, items, reader, draw, counts, tuple(fits), drawn,
        label="samples", unit="blocks",
    )  # fmt: skip
    return drawn


def _draw_task(
    item: tuple[int, tuple[int, int]],
    reader: BlockReader,
    draw: Draw,
    counts: ArrayRef,
    fits: tuple[int, ...],
    drawn: DrawnRows,
) -> None:
    """Write the rows of one block that are in any sample, and the positions of each sample's."""
    block, (start, stop) = item
    wanted = draw.rows_of(start, stop, counts.load(), fits)
    used = np.zeros(stop - start, dtype=bool)
    for rows in wanted.values():
        used[rows - start] = True
    place = np.cumsum(used) - 1
    arrays: dict[str, Any] = {
        f"fit{fit}": place[rows - start].astype(np.int32) for fit, rows in wanted.items()
    }
    rows = reader.read(start, stop)[used]
    if drawn.sparse:
        arrays |= {name: getattr(rows, name) for name in _PARTS}
    else:
        arrays["rows"] = np.ascontiguousarray(rows)
    with replaced_file(drawn.file(block), sync=False, own=True) as file:
        np.savez(file, numbers=start + np.flatnonzero(used), **arrays)
