"""Recall of a graph: its neighbors compared with exact ones, for a sample of rows.

The true neighbors of these rows are kept: when the graph is updated, they are updated too.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.core.seeds import rng
from bigfs.graph.local import as_distances, as_squares, merge_exact, prepare_rows, search_exact
from bigfs.graph.shuffle import Runs
from bigfs.runtime.execute import run_tasks
from bigfs.store.scratch import ArrayRef, Scratch

SAMPLED_ROWS = 1000
# Size of the rows searched at a time, in float64: 16 MB.
_PIECE_BYTES = 16 * 1024**2
_FIRST_ROWS = 4096
_NORMAL_QUANTILE = 1.959963984540054  # two-sided 95 %
# Arrays that an updated graph keeps for the next update.
KEPT = ("checked", "checked_indices", "checked_distances")
# The array of row numbers that a full run stores instead of the first of these; the same key in the
# details of a graph is True if they are stored.
ROWS_OF_FULL_RUN = "checked_rows"


@dataclass(frozen=True)
class RecallEstimate:
    """Estimate of the share of true neighbors that a graph contains.

    Attributes
    ----------
    value : float
        Mean over the sampled rows; a neighbor as near as the k-th true one counts as true.
    low, high : float
        Bounds of the 95 % interval.
    n_rows : int
        Number of sampled rows.
    exact : bool
        True if the search was exact, so that nothing had to be estimated.
    """

    value: float
    low: float
    high: float
    n_rows: int
    exact: bool = False

    @classmethod
    def certain(cls, n_rows: int) -> RecallEstimate:
        """Return the recall of an exact search."""
        return cls(1.0, 1.0, 1.0, n_rows, exact=True)

    def __str__(self) -> str:
        """Return a readable description."""
        if self.exact:
            return "recall 1 (exact search)"
        return (
            f"recall {self.value:.4f} (95 % interval {self.low:.4f} to {self.high:.4f}, "
            f"{self.n_rows} rows checked)"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)


def sample_rows(
    n_samples: int, random_state: int, count: int = SAMPLED_ROWS, purpose: str = "recall"
) -> np.ndarray:
    """Return the sorted numbers of ``count`` random rows, or of all; by default those to check."""
    generator, count = rng(random_state, purpose), min(count, n_samples)
    return np.sort(generator.choice(n_samples, count, replace=False, shuffle=False))


def true_neighbors(
    blocks: RowBlocks,
    samples: Runs,
    n_neighbors: int,
    metric: str,
    listed: ArrayRef | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the exact neighbors of sampled rows: one pass over X.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    samples : Runs
        Target 0: the prepared rows to check, sorted by row number.
    n_neighbors : int
    metric : str
    listed : ArrayRef of shape (n_rows, n_neighbors), float32, or None, default=None
        Distances to the neighbors listed by a graph: upper bounds on the true ones.

    Returns
    -------
    indices : ndarray of shape (n_rows, n_neighbors), int64
    distances : ndarray of shape (n_rows, n_neighbors), float32
    """
    return blocks.reduce(
        _exact_kernel, merge_exact, samples, n_neighbors, metric, listed, label="recall"
    )


def scattered_rows(ids: np.ndarray | range, values: ArrayRef) -> np.ndarray:
    """Return the stored rows with the given numbers; a worker reads them block by block."""
    [rows] = run_tasks(ArrayRef.take, [values], ids, label="rows")
    return np.asarray(rows)


def neighbors_of(
    blocks: RowBlocks, queries: np.ndarray, n_neighbors: int, metric: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the exact nearest rows of queries in memory: one pass over X.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    queries : ndarray of shape (n_queries, n_features)
    n_neighbors : int
        At most ``n_samples``.
    metric : str

    Returns
    -------
    indices : ndarray of shape (n_queries, n_neighbors), int64
    distances : ndarray of shape (n_queries, n_neighbors), float32
    """
    prepared = prepare_rows(np.asarray(queries, dtype=blocks.dtype), metric)
    with blocks.scratch.temporary("queries") as working:
        ref = working.put("rows", prepared)
        return blocks.reduce(_query_kernel, merge_exact, ref, n_neighbors, metric, label="queries")


def _query_kernel(
    X: np.ndarray, first_row: int, queries: ArrayRef, k: int, metric: str
) -> tuple[np.ndarray, np.ndarray]:
    rows, prepared = prepare_rows(X, metric, first_row + np.arange(len(X))), queries.load()
    return search_pieces(rows, first_row, prepared, np.full(len(prepared), -1), k, metric)


def _exact_kernel(
    X: np.ndarray, first_row: int, samples: Runs, k: int, metric: str, listed: ArrayRef | None
) -> tuple[np.ndarray, np.ndarray]:
    ids, queries = samples.read(0, "ids", "rows")
    bounds = None if listed is None else listed.load()[:, -1]
    rows = prepare_rows(X, metric, first_row + np.arange(len(X)))
    return search_pieces(rows, first_row, queries, ids.astype(np.int64), k, metric, bounds)


def search_pieces(
    rows: np.ndarray,
    first_row: int,
    queries: np.ndarray,
    own: np.ndarray,
    k: int,
    metric: str,
    bounds: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the exact neighbors of queries in a block, searched a piece at a time.

    Parameters
    ----------
    rows, queries : ndarray of shape (n_rows, n_features) and (n_queries, n_features)
        Prepared, see `bigfs.graph.local.prepare_rows`; at least one row.
    first_row : int
    own : ndarray of shape (n_queries,), int64
        Row number of each query, which is excluded, or -1.
    k : int
    metric : str
    bounds : ndarray of shape (n_queries,), float32, or None, default=None
        Distances beyond which no neighbors are needed.

    Returns
    -------
    indices : ndarray of shape (n_queries, k), int64
        -1 where fewer rows are within the bound.
    distances : ndarray of shape (n_queries, k), float32
    """
    step = max(1, _PIECE_BYTES // (8 * rows.shape[1]))
    best = None
    begin = 0
    while begin < len(rows):
        # Without bounds a small first piece provides them, which excludes most of the other rows.
        piece = rows[begin : begin + (min(step, _FIRST_ROWS) if bounds is None else step)]
        place = own - first_row - begin
        place = np.where((own >= 0) & (place >= 0) & (place < len(piece)), place, -1)
        reach = None if bounds is None else as_squares(bounds, metric)
        indices, squared = search_exact(piece, k, queries, place, reach)
        indices = np.where(indices < 0, -1, indices + np.int64(first_row + begin))
        neighbors = indices, as_distances(squared, metric)
        best = neighbors if best is None else merge_exact(best, neighbors)
        last = best[1][:, -1]
        bounds = last if bounds is None else np.minimum(bounds, last)
        begin += len(piece)
    assert best is not None  # a block has rows
    return best


def estimate_recall(distances: np.ndarray, true: np.ndarray) -> RecallEstimate:
    """Return the recall of found distances against true ones, both (n_rows, k), float32."""
    # Two ways to sum the same distance may differ in its last bit.
    reach = true[:, -1:] * np.float32(1 + 1e-6)
    return estimate_of((distances <= reach).mean(axis=1), true.shape[1])


def estimate_of(per_row: np.ndarray, k: int) -> RecallEstimate:
    """Return the recall from the share of k true neighbors that each row has.

    The interval is Wilson's, with the effective number of trials that follows from the variance
    over the rows. Its lower bound is at most that of ``n_rows`` trials without a miss: neighbors
    tend to be missed together, by rows.
    """
    value, variance, n_rows = float(per_row.mean()), float(per_row.var()), len(per_row)
    trials = n_rows * value * (1 - value) / variance if variance > 0 else float(n_rows)
    trials = min(max(trials, 1.0), float(n_rows * k))
    z2 = _NORMAL_QUANTILE**2 / trials
    center = (value + z2 / 2) / (1 + z2)
    half = _NORMAL_QUANTILE * np.sqrt(value * (1 - value) / trials + z2 / (4 * trials)) / (1 + z2)
    low = min(max(0.0, float(center - half)), 1 / (1 + _NORMAL_QUANTILE**2 / n_rows))
    return RecallEstimate(value, low, min(1.0, float(center + half)), n_rows)


def keep_checked(rows: np.ndarray, true: tuple[np.ndarray, np.ndarray], scratch: Scratch) -> None:
    """Store the rows that a full run has checked, and their true neighbors."""
    for name, values in zip((ROWS_OF_FULL_RUN, *KEPT[1:]), (rows, *true), strict=True):
        scratch.put(name, values)


def of_full_run(scratch: Scratch, details: dict[str, Any]) -> tuple[Any, ...]:
    """Return row numbers and references to true neighbors and distances; empty if not kept."""
    if not details.get(ROWS_OF_FULL_RUN):
        return ()
    rows, *true = (ArrayRef.at(scratch.path / name) for name in (ROWS_OF_FULL_RUN, *KEPT[1:]))
    return rows.load(), *true
