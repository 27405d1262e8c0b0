"""New rows against the rows of the cells nearest to them, and the reverse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bigfs.core.units import MIB
from bigfs.graph.checked import CheckedRows
from bigfs.graph.local import as_distances
from bigfs.graph.partition import assign_cells
from bigfs.graph.within import pair_squares
from bigfs.store.scratch import ArrayRef

# Pairs of rows that are compared at a time: their gaps stay in the processor's cache.
_TILE_PAIRS = 2**18
# Pairs that are kept before the nearest of them are chosen.
_LISTED_PAIRS = 2**18
# Rows of a cell that new rows are compared with at a time, at most.
_PIECE_ROWS = 2048
_PIECE_BYTES = 8 * MIB


@dataclass(frozen=True)
class GrownRows:
    """Rows and limits that the tasks read."""

    n_neighbors: int
    n_old: int
    metric: str
    former: ArrayRef  # of shape (n_old, n_neighbors), float32: distances of the former graph
    # Of shape (n_cells + 1, n_features): row 0 is the origin the others are measured from.
    centers: ArrayRef
    # Prepared rows that stand for all, and their numbers.
    sample: ArrayRef
    sample_ids: ArrayRef
    new: ArrayRef  # of shape (n_new, n_features): prepared new rows
    probes: ArrayRef  # of shape (n_new, n_probes), int32: cells that each is compared with
    # Of shape (n_new,), float32: squared distance within which it has its neighbors there.
    limits: ArrayRef
    checked: CheckedRows  # the rows whose recall is measured


def compare(
    rows: np.ndarray, ids: np.ndarray, home: np.ndarray, reach: np.ndarray, grown: GrownRows
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return lists of new rows, and of old rows to which new ones are nearer than their last."""
    k, n_old, metric = grown.n_neighbors, grown.n_old, grown.metric
    new, origin = grown.new.load(), grown.centers.load()[0]
    probes, limits = grown.probes.load(), grown.limits.load()
    far, far_norms = _mirrored(new, origin)
    squared_reach = reach.astype(np.float64)
    squared_reach = (squared_reach**2 if metric == "euclidean" else 2 * squared_reach) * (1 + 1e-6)
    lists = _Lists(k)
    for members, queries in _by_cell(home, probes, rows.shape[1]):
        near, norms = _beside(rows[members], origin)
        near_limits = squared_reach[members] + _slack(norms, far_norms, rows.shape[1])
        near_limits[reach[members] < 0] = -np.inf
        near_limits = near_limits.astype(np.float32)
        for tile in _tiles(queries, len(members)):
            gaps = far[tile] @ near
            # What is not a number because it is too large is compared exactly.
            is_far = gaps > limits[tile, None]
            is_far &= gaps > near_limits
            hits = np.flatnonzero(~is_far)
            query, row = tile[hits // len(members)], members[hits % len(members)]
            other = ids[row] != n_old + query
            query, row = query[other], row[other]
            gap = as_distances(pair_squares(rows, new, query, row), metric)
            nearer = gap < reach[row]
            lists.add(n_old + query, ids[row], gap)
            lists.add(ids[row[nearer]], n_old + query[nearer], gap[nearer])
    owner, other, gap = lists.first()
    owners, place, counts = np.unique(owner, return_index=True, return_counts=True)
    neighbors = np.full((len(owners), k), -1, np.int32)
    distances = np.full((len(owners), k), np.inf, np.float32)
    line = np.repeat(np.arange(len(owners)), counts)
    column = np.arange(len(owner)) - np.repeat(place, counts)
    neighbors[line, column], distances[line, column] = other, gap
    return owners.astype(np.int32), neighbors, distances


class _Lists:
    """The nearest of the rows that each row was compared with."""

    def __init__(self, n_neighbors: int) -> None:
        self._n_neighbors = n_neighbors
        nothing = np.empty(0, np.int64)
        self._parts = [(nothing, nothing, np.empty(0, np.float32))]
        self._size, self._most = 0, _LISTED_PAIRS

    def add(self, owner: np.ndarray, other: np.ndarray, gap: np.ndarray) -> None:
        """Add pairs of rows and their distances."""
        self._parts.append(_first(owner, other, gap, self._n_neighbors))
        self._size += len(self._parts[-1][0])
        if self._size > self._most:
            self._parts = [self.first()]
            self._size = len(self._parts[0][0])
            self._most = max(self._most, 2 * self._size)

    def first(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the first pairs of each owner by (distance, index), by owner."""
        owner, other, gap = (np.concatenate(part) for part in zip(*self._parts, strict=True))
        return _first(owner, other, gap, self._n_neighbors)


def _first(
    owner: np.ndarray, other: np.ndarray, gap: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the k first pairs of each owner by (distance, index)."""
    order = np.lexsort((other, gap, owner))
    owner = owner[order]
    begins = np.searchsorted(owner, owner)
    kept = np.arange(len(owner)) - begins < k
    return owner[kept], other[order][kept], gap[order][kept]


def search_limits(
    rows: np.ndarray, n_others: int, centers: np.ndarray, probes: np.ndarray, k: int
) -> np.ndarray:
    """Return squared distances within which each new row has k rows in its cells."""
    home, _ = assign_cells(rows, centers, 0.0)
    far, far_norms = _mirrored(rows[n_others:], centers[0])
    best, largest = np.full((len(probes), k), np.inf), 0.0
    for members, queries in _by_cell(home, probes, rows.shape[1]):
        near, norms = _beside(rows[members], centers[0])
        largest = max(largest, float(norms.max()))
        for tile in _tiles(queries, len(members)):
            gaps = far[tile] @ near
            gaps[members[None] == n_others + tile[:, None]] = np.inf
            width = min(k, len(members))
            nearest = np.partition(gaps, width - 1, axis=1)[:, :width]
            both = np.concatenate([best[tile], nearest], axis=1)
            best[tile] = np.partition(both, k - 1, axis=1)[:, :k]
    # Both this bound and the gaps that are compared with it may be off by rounding.
    slack = _slack(far_norms, np.array([largest]), rows.shape[1])
    return (best.max(axis=1) + 2 * slack).astype(np.float32)


def _mirrored(rows: np.ndarray, origin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return rows whose products with the columns of `_beside` are squared distances, and norms."""
    narrow, norms = _narrow(rows, origin)
    narrow[:, :-2] *= -2
    narrow[:, -2], narrow[:, -1] = norms, 1
    return narrow, norms


def _beside(rows: np.ndarray, origin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return columns, one for each row, and squared norms; see `_mirrored`."""
    narrow, norms = _narrow(rows, origin)
    narrow[:, -2], narrow[:, -1] = 1, norms
    return narrow.T, norms


def _narrow(rows: np.ndarray, origin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return rows from an origin in float32, with room for two columns, and squared norms."""
    narrow = np.empty((len(rows), rows.shape[1] + 2), np.float32)
    gaps = narrow[:, :-2]
    with np.errstate(over="ignore"):
        np.subtract(rows, origin, out=gaps, casting="same_kind")
        return narrow, np.einsum("ij,ij->i", gaps, gaps)


def _slack(norms: np.ndarray, others: np.ndarray, n_features: int) -> np.ndarray:
    """Return what ``|a|^2 + |b|^2 - 2ab`` loses to rounding at most."""
    share = 8 * (n_features + 6) * np.finfo(np.float32).eps
    return share * (norms.astype(np.float64) + float(others.max(initial=0.0)))


def _by_cell(
    home: np.ndarray, probes: np.ndarray, n_features: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield rows of a cell, a piece at a time, and the new rows that are compared with them."""
    order, cells, begins = _grouped(home)
    queries, probed, probe_begins = _grouped(probes.ravel())
    of_cell = dict(zip(probed.tolist(), np.split(queries, probe_begins[1:]), strict=True))
    most = max(1, min(_PIECE_ROWS, _PIECE_BYTES // (4 * n_features)))
    for cell, members in zip(cells.tolist(), np.split(order, begins[1:]), strict=True):
        if cell in of_cell:
            for begin in range(0, len(members), most):
                yield members[begin : begin + most], of_cell[cell] // probes.shape[1]


def _grouped(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return places by ascending value, the values, and where the places of each begin."""
    order = np.argsort(values, kind="stable")
    return order, *np.unique(values[order], return_index=True)


def _tiles(queries: np.ndarray, width: int) -> Iterator[np.ndarray]:
    """Yield new rows, few enough at a time."""
    step = max(1, _TILE_PAIRS // width)
    for begin in range(0, len(queries), step):
        yield queries[begin : begin + step]
