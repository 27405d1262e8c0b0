"""The recall of a graph that is updated: true neighbors of some rows are kept and updated too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bigfs.graph.recall import SAMPLED_ROWS, merge_exact, search_pieces
from bigfs.store.scratch import ArrayRef, Scratch

# Arrays that a graph which was updated keeps for the next update.
KEPT = ("checked", "checked_indices", "checked_distances")
# What a full run keeps in place of the first: row numbers. Its graph's details say so by this name.
ROWS_OF_FULL_RUN = "checked_rows"


@dataclass(frozen=True)
class CheckedRows:
    """Rows of a sample whose true neighbors are compared with those of the graph."""

    places: ArrayRef  # of shape (n_checked,), int64: where they are in the sample
    # Each of shape (n_known, n_neighbors): true neighbors of the first of them among the old rows,
    # and distances; none at first.
    known: tuple[ArrayRef, ...]

    @property
    def n_known(self) -> int:
        """Rows that are compared with new rows only."""
        return self.known[0].shape[0] if self.known else 0

    def search(
        self,
        rows: np.ndarray,
        first_row: int,
        n_old: int,
        n_neighbors: int,
        metric: str,
        queries: tuple[np.ndarray, np.ndarray, np.ndarray],
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the exact neighbors in a block.

        Parameters
        ----------
        rows : ndarray of shape (n_rows, n_features)
            The block, prepared.
        first_row, n_old, n_neighbors : int
        metric : str
        queries : tuple of ndarray
            Numbers of the checked rows, the prepared rows, and distances within which those that
            are not known have their neighbors.
        """
        own, prepared, bounds = queries
        if self.known:
            bounds = bounds.copy()
            bounds[: self.n_known] = self.known[1].load()[:, -1]
        indices = np.full((len(own), n_neighbors), -1, np.int64)
        distances = np.full((len(own), n_neighbors), np.inf, np.float32)
        known = slice(0, self.n_known)
        for part, begin in ((known, max(0, n_old - first_row)), (slice(self.n_known, None), 0)):
            piece = rows[begin:]
            if not len(piece) or not len(own[part]):
                continue
            indices[part], distances[part] = search_pieces(
                piece, first_row + begin, prepared[part], own[part], n_neighbors, metric,
                bounds[part],
            )  # fmt: skip
        return indices, distances

    def keep(self, true: tuple[np.ndarray, np.ndarray], scratch: Scratch) -> np.ndarray:
        """Store the true neighbors in all rows for the next update; return their distances."""
        indices, distances = true
        if self.known:
            n = self.n_known
            before = self.known[0].load(), self.known[1].load()
            indices[:n], distances[:n] = merge_exact(before, (indices[:n], distances[:n]))
        for name, values in zip(KEPT, (self.places.load(), indices, distances), strict=True):
            scratch.put(name, values)
        return distances


def keep_checked(rows: np.ndarray, true: tuple[np.ndarray, np.ndarray], scratch: Scratch) -> None:
    """Store the rows that a full run has checked, and their true neighbors."""
    for name, values in zip((ROWS_OF_FULL_RUN, *KEPT[1:]), (rows, *true), strict=True):
        scratch.put(name, values)


def of_full_run(scratch: Scratch, details: dict[str, Any]) -> tuple[Any, ...]:
    """Return row numbers, and addresses of true neighbors and distances; nothing if not kept."""
    if not details.get(ROWS_OF_FULL_RUN):
        return ()
    rows, *true = (ArrayRef.at(scratch.path / name) for name in (ROWS_OF_FULL_RUN, *KEPT[1:]))
    return rows.load(), *true


def choose_checked(
    known: tuple[ArrayRef, ...], sizes: tuple[int, int, float], generator: np.random.Generator
) -> np.ndarray:
    """Return the places in a sample of the rows to check: those known, and as many of new ones.

    Parameters
    ----------
    known : tuple of ArrayRef
        What `KEPT` names, of the former graph; none at first.
    sizes : tuple of (int, int, float)
        Of the former sample and of the new one, and new rows over old ones.
    generator : numpy Generator
    """
    n_before, n_sampled, growth = sizes
    if not known:
        places = generator.choice(n_sampled, min(SAMPLED_ROWS, n_sampled), replace=False)
        return np.sort(places)
    before = known[0].load()
    count = min(n_sampled - n_before, max(1, round(growth * len(before))))
    fresh = n_before + generator.choice(n_sampled - n_before, count, replace=False)
    return np.concatenate([before, np.sort(fresh)])
