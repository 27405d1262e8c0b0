"""Choice of eps, how far past a boundary rows are copied, before the search.

A neighbor can only be found where both rows are in one partition. For sampled rows and their
true neighbors that is known for any eps from the centers alone.
"""

from __future__ import annotations

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.graph.partition import Cells, assign_cells
from bigfs.graph.search import gather_rows
from bigfs.graph.shuffle import Runs
from bigfs.runtime.execute import run_tasks
from bigfs.store.scratch import ArrayRef, Scratch

EPS_GRID = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8)
# The search inside a partition misses some neighbors too: it gets this share of what may be lost.
_LEFT_TO_SEARCH = 0.5
_TILE_BYTES = 16 * 1024**2


def colocation(
    blocks: RowBlocks, samples: Runs, true: np.ndarray, cells: Cells, metric: str, working: Scratch
) -> np.ndarray:
    """Return, for every eps of the grid, the share of true neighbors within reach: one pass.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    samples : Runs
        Target 0: the sampled rows.
    true : ndarray of shape (n_rows, n_neighbors), int64
        Their true neighbors.
    cells : Cells
    metric : str
    working : Scratch
    """
    ids, where = np.unique(true, return_inverse=True)
    neighbors = gather_rows(blocks, [ids], metric, working)
    places = working.put(working.unique("places"), where.reshape(true.shape))
    [shares] = run_tasks(_colocation_task, [cells], samples, neighbors, places, label="pilot")
    return np.array(shares)


def _colocation_task(cells: Cells, samples: Runs, neighbors: Runs, places: ArrayRef) -> list[float]:
    assert cells.centers is not None  # with one partition there is nothing to choose
    centers, where = cells.centers.load(), places.load()
    [rows], [others] = samples.read(0, "rows"), neighbors.read(0, "rows")
    shares = []
    for eps in EPS_GRID:
        ours = _membership(rows, centers, eps)
        theirs = _membership(others, centers, eps)
        together = 0
        step = max(1, _TILE_BYTES // (where.shape[1] * ours.shape[1]))
        for begin in range(0, len(rows), step):
            tile = slice(begin, begin + step)
            together += int((ours[tile, None] & theirs[where[tile]]).any(axis=2).sum())
        shares.append(together / where.size)
    return shares


def _membership(rows: np.ndarray, centers: np.ndarray, eps: float) -> np.ndarray:
    """Return which cells each row goes to, (n_rows, n_cells) bool."""
    cells, source = assign_cells(rows, centers, eps)
    member = np.zeros((len(rows), len(centers) - 1), dtype=bool)
    member[source, cells] = True
    return member


def choose_eps(shares: np.ndarray, target: float) -> float:
    """Return the smallest eps that leaves the search enough room below the target."""
    enough = shares >= target + (1 - target) * _LEFT_TO_SEARCH
    return EPS_GRID[int(enough.argmax()) if enough.any() else len(EPS_GRID) - 1]
