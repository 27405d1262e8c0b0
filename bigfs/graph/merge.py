"""Merging of the partitions' results into the k nearest neighbors of each row."""

from __future__ import annotations

import numpy as np

from bigfs.graph.order import nearest
from bigfs.graph.shuffle import RunColumn, Runs
from bigfs.store.scratch import ArrayRef

# Entries sorted at a time: the temporaries stay near 60 MB.
_TILE_ENTRIES = 2**20


def result_columns(n_neighbors: int) -> tuple[RunColumn, ...]:
    """Return the columns of a partition's result run."""
    return (
        RunColumn("row", "int32"),
        RunColumn("neighbor", "int32", n_neighbors),
        RunColumn("distance", "float32", n_neighbors),
    )


def merge_neighbors(
    rows: np.ndarray, neighbors: np.ndarray, distances: np.ndarray, first_row: int, n_rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return each row's k best distinct neighbors by (distance, index).

    Parameters
    ----------
    rows : ndarray of shape (n_lists,), int
        Whose list it is; every row of the range has at least one.
    neighbors, distances : ndarray of shape (n_lists, n_neighbors)
    first_row, n_rows : int

    Returns
    -------
    indices : ndarray of shape (n_rows, n_neighbors), int32
    distances : ndarray of shape (n_rows, n_neighbors), float32
    """
    k = neighbors.shape[1]
    order = np.argsort(rows, kind="stable")
    local = rows[order] - first_row
    counts = np.bincount(local, minlength=n_rows)
    begins = np.cumsum(counts) - counts
    indices = neighbors[order[begins]]
    merged = distances[order[begins]]
    several = np.flatnonzero(counts > 1)
    widest = int(counts.max(initial=1))
    step = max(1, _TILE_ENTRIES // (widest * k))
    for begin in range(0, len(several), step):
        part = several[begin : begin + step]
        slots = begins[part, None] + np.arange(widest)
        present = np.arange(widest) < counts[part, None]
        lists = order[np.where(present, slots, begins[part, None])]
        ids = neighbors[lists].reshape(len(part), -1)
        far = distances[lists]
        far[~present] = np.inf
        indices[part], merged[part] = _best_distinct(ids, far.reshape(len(part), -1), k)
    return indices, merged


def _best_distinct(ids: np.ndarray, far: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the k first of each row by (distance, id), each id once."""
    order = np.lexsort((far, ids), axis=1)
    ids = np.take_along_axis(ids, order, axis=1)
    far = np.take_along_axis(far, order, axis=1)
    far[:, 1:][ids[:, 1:] == ids[:, :-1]] = np.inf
    return nearest(ids, far, k)


def merge_task(
    bounds: tuple[int, int], results: Runs, rows: int, indices: ArrayRef, distances: ArrayRef
) -> None:
    """Merge and write one block of the graph."""
    start, stop = bounds
    owners, neighbors, far = results.read(start // rows, "row", "neighbor", "distance")
    merged = merge_neighbors(owners, neighbors, far, start, stop - start)
    indices.write(start, merged[0])
    distances.write(start, merged[1])
