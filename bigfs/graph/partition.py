"""Partitions: k-means cells of a sample, balanced so that each fits one task with its index.

Their number and size depend only on the shape, the dtype and the configured memory limit, never
on the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bigfs.blocks.kernels import row_tiles
from bigfs.blocks.kmeans import cluster_rows
from bigfs.core.cost import Shape
from bigfs.core.errors import InputError, MemoryLimitError, check_choice, check_count
from bigfs.core.memory import format_limit, limit_for, task_budget
from bigfs.core.seeds import rng
from bigfs.core.units import KIB, MIB, format_bytes
from bigfs.graph.descent import (
    EXACT_ROWS,
    MAX_ROWS,
    SEARCH_WIDTH,
)
from bigfs.graph.local import ALGORITHMS, METRICS
from bigfs.graph.shuffle import Runs
from bigfs.store.scratch import ArrayRef, Scratch

# Upper bound measured with pynndescent 0.7: bytes per row and neighbor beyond the data; buffers.
_INDEX_BYTES = 40
_BUFFER_BYTES = 24 * MIB
_EXACT_TILES = 80 * MIB

# Measured seconds of exact search, per pair of rows and per pair and feature; of compilation.
_EXACT_SECONDS = (5e-9, 6e-11)
_COMPILE_SECONDS = 25.0
# Measured seconds of pynndescent per row and neighbor, and per row, neighbor and feature.
_DESCENT_SECONDS = (1e-5, 1e-7)
# If rows have to be divided, a partition has at most this many, so that a search takes a minute or
# two and many workers are busy.
_TASK_ROWS = 2**21
_SMALL_ROWS = 2048
_MOST_EXACT_ROWS = 2**15

# Upper bound on the partitions that a row is copied into besides its own.
MAX_COPIES = 3
# Cells are uneven and rows near boundaries are copied: how much larger than the mean the largest
# may become before it is divided, and how far the sample may underestimate it.
_UNEVEN = 1.6
_SAMPLE_ERROR = 1.25
_SAMPLED_PER_CELL = 400
# Size of one read below which requests cost more than bytes.
_SLICE_BYTES = 256 * KIB
_REMOTE_SLICE_BYTES = 4 * MIB
_ROUNDS = 12


@dataclass(frozen=True)
class GraphRequest:
    """Parameters of a graph; see `knn_graph`."""

    n_neighbors: int
    metric: str
    algorithm: str
    eps: float | None
    recall_target: float | None
    if_missed: str
    random_state: int
    n_partitions: int | None
    memory_limit: int

    def __post_init__(self) -> None:
        """Raise InputError for an option out of its range."""
        check_choice("metric", self.metric, METRICS)
        check_choice("algorithm", self.algorithm, ALGORITHMS)
        eps, target = self.eps, self.recall_target
        if eps is not None and not 0 <= eps <= 10:
            raise InputError(f"eps must be a number in [0, 10], or None. Got {eps!r}.")
        if target is not None and not 0 < target < 1:
            raise InputError(
                f"recall_target must be a number in (0, 1), for instance 0.99. Got {target!r}."
            )
        if self.if_missed not in ("error", "warn"):
            raise InputError(f"if_missed must be 'error' or 'warn'. Got {self.if_missed!r}.")


@dataclass(frozen=True)
class PartitionPlan:
    """The cost of the neighbor search, decided before anything is read."""

    n_partitions: int  # initial number of cells; 1 needs no cells
    capacity_rows: int  # upper bound on the rows, copies included, that one task may hold
    exact: bool  # every partition is searched exactly
    sampled_rows: int  # rows that the cells are found from
    run_blocks: int  # blocks of X that one task of the shuffle sorts at a time
    shuffle_bytes: int  # memory of a shuffle task beyond a worker's baseline

    def search_bytes(self, rows: int, n_features: int, itemsize: int, n_neighbors: int) -> int:
        """Return the bytes that a partition of ``rows`` rows needs beyond a worker's baseline."""
        cost = exact_bytes if self.exact else index_bytes
        return cost(rows, n_features, itemsize, n_neighbors)

    def search_seconds(self, n_samples: int, n_features: int, n_neighbors: int) -> float:
        """Return an estimate of the processor time of all searches."""
        each, by_feature = _DESCENT_SECONDS
        descent = n_samples * n_neighbors * (each + by_feature * n_features)
        largest = min(n_samples, self.capacity_rows)
        exact = n_samples * largest * (_EXACT_SECONDS[0] + _EXACT_SECONDS[1] * n_features)
        return exact if self.exact else min(exact, descent)


def exact_rows(algorithm: str, plan: PartitionPlan, counts: np.ndarray, n_features: int) -> int:
    """Return the largest number of rows for which a partition is searched exactly.

    All partitions are searched exactly if that costs less than pynndescent's first call, which
    compiles; if it has to compile anyway, only small partitions are.
    """
    if plan.exact:
        return int(counts.max())
    if algorithm == "pynndescent":
        return 0
    return _MOST_EXACT_ROWS if _cheaper_exactly(counts, n_features) else _SMALL_ROWS


def _cheaper_exactly(counts: np.ndarray, n_features: int) -> bool:
    """Return True if exact search of partitions of these sizes costs less than compiling."""
    squares = float((counts.astype(np.float64) ** 2).sum())
    seconds = squares * (_EXACT_SECONDS[0] + _EXACT_SECONDS[1] * n_features)
    return counts.max() <= _MOST_EXACT_ROWS and seconds <= _COMPILE_SECONDS


def index_bytes(rows: int, n_features: int, itemsize: int, n_neighbors: int) -> int:
    """Return the bytes of a partition with its index, if pynndescent has run before."""
    width = max(SEARCH_WIDTH, n_neighbors + 1)
    copy = 4 * n_features if itemsize != 4 else 0
    per_row = n_features * itemsize + copy + _INDEX_BYTES * width
    return rows * per_row + _BUFFER_BYTES


def exact_bytes(rows: int, n_features: int, itemsize: int, n_neighbors: int) -> int:
    """Return the bytes of a partition that is searched exactly."""
    return rows * (n_features * itemsize + 40 * n_neighbors) + _EXACT_TILES


def plan_partitions(
    shape: Shape,
    n_neighbors: int,
    memory_limit: int,
    *,
    algorithm: str,
    n_partitions: int | None = None,
    remote: bool = False,
) -> PartitionPlan:
    """Return the plan for a shape, a dtype and a memory limit.

    ``remote`` is True if scratch is in a bucket; the shuffle then reads larger slices.

    Raises
    ------
    MemoryLimitError
        If not even small partitions fit, or the requested number of partitions does not.
    InputError
        If ``n_partitions`` is out of range.
    """
    n, d, itemsize = shape.n_samples, shape.n_features, shape.itemsize
    budget = task_budget(memory_limit)
    exact = algorithm == "exact" or (algorithm == "auto" and _cheaper_exactly(np.array([n]), d))
    cost = exact_bytes if exact else index_bytes
    room = budget if exact else task_budget(memory_limit, compiled=True)
    capacity = _rows_within(cost, (d, itemsize, n_neighbors), room)
    if not exact and capacity < EXACT_ROWS:
        # The limit is so tight or the rows so wide that an index is not worth its memory.
        exact, cost = True, exact_bytes
        capacity = min(EXACT_ROWS, _rows_within(cost, (d, itemsize, n_neighbors), budget))
    capacity = min(capacity, MAX_ROWS - 1)
    if n > capacity and n_partitions is None:
        capacity = min(capacity, _TASK_ROWS)
    fewest = 1 if n <= capacity else -(-int(n * _UNEVEN) // max(1, capacity))
    smallest = min(n, 8 * (n_neighbors + 1))
    if capacity < smallest or fewest > n // smallest:
        needed = cost(smallest * 16, d, itemsize, n_neighbors)
        raise MemoryLimitError(
            f"Stage 'graph' needs at least {format_bytes(needed)} for a partition of "
            f"{smallest * 16} rows x {d} features; a memory_limit of "
            f"{format_bytes(memory_limit)} leaves {format_bytes(budget)} to one task. "
            f"Nothing has run. Set memory_limit to "
            f"'{format_limit(limit_for(needed, compiled=not exact))}' or more."
        )
    if n_partitions is not None:
        fewest = _check_count(n_partitions, n, fewest, smallest, memory_limit)
    sampled = 0
    if fewest > 1:
        sampled = min(n, max(10_000, _SAMPLED_PER_CELL * fewest), budget // (4 * d * itemsize))
        sampled = max(sampled, min(n, 16 * fewest))
    block_bytes = shape.block_rows * d * itemsize
    slice_bytes = _REMOTE_SLICE_BYTES if remote else _SLICE_BYTES
    run_blocks = max(1, min(slice_bytes * fewest, budget // 4) // block_bytes)
    shuffle_bytes = (run_blocks + 2) * min(block_bytes, n * d * itemsize) + _BUFFER_BYTES
    return PartitionPlan(fewest, capacity, exact, sampled, run_blocks, shuffle_bytes)


def _rows_within(
    cost: Callable[[int, int, int, int], int], row: tuple[int, int, int], budget: int
) -> int:
    """Return the most rows whose cost, linear in the number of rows, stays within a budget."""
    fixed = cost(0, *row)
    return max(0, (budget - fixed) // (cost(1, *row) - fixed))


def _check_count(n_partitions: int, n: int, fewest: int, smallest: int, memory_limit: int) -> int:
    """Return the requested number of partitions, or raise if it is not possible."""
    reason = f"so that each partition has enough of the {n} rows"
    check_count("n_partitions", n_partitions, max(1, n // smallest), reason)
    if n_partitions < fewest:
        raise MemoryLimitError(
            f"n_partitions must be at least {fewest} for a memory_limit of "
            f"{format_bytes(memory_limit)}. Got {n_partitions}. Nothing has run. Raise "
            "either, or leave n_partitions unset."
        )
    return int(n_partitions)


@dataclass(frozen=True)
class Cells:
    """Assignment of rows to partitions; pickles to a few hundred bytes."""

    # Of shape (n_cells + 1, n_features): row 0 is the origin that the others are relative to.
    # None if all rows are one partition.
    centers: ArrayRef | None
    # Number of partitions into which each cell is divided, by row number: more than one only if it
    # has too many rows that are too similar to be separated.
    parts: tuple[int, ...]
    nearest: tuple[int, ...]  # the nearest other cell of each cell
    eps: float  # a row goes to every cell within ``1 + eps`` times the distance to its nearest
    copies: float  # average number of cells that a row of the sample went to

    @property
    def n_partitions(self) -> int:
        """Number of partitions."""
        return sum(self.parts)

    def partners(self) -> np.ndarray:
        """Return, for each partition, the one that it joins if it has too few rows."""
        first = np.concatenate([[0], np.cumsum(self.parts)])
        joined = [
            first[cell] + (part + 1) % count if count > 1 else first[self.nearest[cell]]
            for cell, count in enumerate(self.parts)
            for part in range(count)
        ]
        return np.array(joined, dtype=np.int64)

    def assign(self, rows: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return partitions, and for each of them the row (counted from 0) that goes to it."""
        if self.centers is None:
            return np.zeros(len(rows), dtype=np.int64), np.arange(len(rows))
        cells, source = assign_cells(rows, self.centers.load(), self.eps)
        parts = np.array(self.parts)
        first = np.cumsum(parts) - parts
        return first[cells] + ids[source] % parts[cells], source


def assign_cells(
    rows: np.ndarray, centers: np.ndarray, eps: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return cells and the rows that go to them: the nearest cell and those nearly as near.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
    centers : ndarray of shape (n_cells + 1, n_features)
        As in `Cells`.
    eps : float

    Returns
    -------
    cells, source : ndarray
        The first ``n_rows`` entries are each row's own cell; copies follow.
    """
    origin, offsets = centers[0], centers[1:]
    norms = np.einsum("ij,ij->i", offsets, offsets)
    width = min(len(offsets), 1 + MAX_COPIES)
    own = np.empty(len(rows), dtype=np.int64)
    cells, source = [own], [np.arange(len(rows))]
    for part in row_tiles(len(rows), max(rows.shape[1], len(offsets))):
        tile = rows[part] - origin
        squared = tile @ (-2 * offsets.T)
        squared += norms
        own[part] = squared.argmin(axis=1)
        if width == 1 or eps == 0:
            continue
        squared += np.einsum("ij,ij->i", tile, tile)[:, None]
        np.maximum(squared, 0, out=squared)
        reach = squared.min(axis=1) * (1 + eps) ** 2
        near = squared <= reach[:, None]
        near[np.arange(len(tile)), own[part]] = False
        many = np.flatnonzero(near.sum(axis=1) >= width)
        nearest = np.argsort(squared[many], axis=1, kind="stable")[:, :width]
        keep = np.zeros((len(many), len(offsets)), dtype=bool)
        np.put_along_axis(keep, nearest, True, axis=1)
        near[many] &= keep
        copied, where = np.nonzero(near)
        cells.append(where)
        source.append(copied + part.start)
    return np.concatenate(cells), np.concatenate(source)


def find_cells(
    eps: float,
    request: GraphRequest,
    plan: PartitionPlan,
    n_samples: int,
    samples: Runs,
    folder: str,
) -> Cells:
    """Find balanced cells of sampled rows: k-means, then divide large cells and drop tiny ones.

    Runs as a task; the centers stay in storage. The rows are target 1 of ``samples``.
    """
    [rows] = samples.read(1, "rows")
    generator = rng(request.random_state, "partitions")
    origin = rows.mean(axis=0, dtype=np.float64).astype(rows.dtype)
    rows = rows - origin
    no_origin = np.zeros((1, rows.shape[1]), rows.dtype)
    centers = cluster_rows(rows, plan.n_partitions, generator)
    parts = np.ones(len(centers), dtype=np.int64)
    # Partitions should have neither too few rows nor too many; each row of the sample represents
    # ``scale`` rows.
    smallest = max(n_samples / plan.n_partitions / 16, 8 * (request.n_neighbors + 1))
    largest, scale = plan.capacity_rows / _SAMPLE_ERROR, n_samples / len(rows)
    for attempt in range(_ROUNDS):
        cells, _ = assign_cells(rows, np.concatenate([no_origin, centers]), eps)
        home = cells[: len(rows)]
        sizes = np.bincount(cells, minlength=len(centers)) * scale
        home_sizes = np.bincount(home, minlength=len(centers)) * scale
        if attempt < 2 and len(centers) > 1 and (home_sizes < smallest).any():
            keep = home_sizes >= min(smallest, home_sizes.max())
            centers, parts = centers[keep], parts[keep]
            continue
        large = np.flatnonzero(sizes / parts > largest)
        if not len(large):
            break
        divided = []
        for cell in large:
            halves = cluster_rows(rows[home == cell], 2, generator)
            # A cell that several rounds cannot divide holds rows that float32 cannot distinguish.
            if len(halves) < 2 or attempt >= _ROUNDS // 2:
                parts[cell] = int(np.ceil(sizes[cell] / largest))
                continue
            divided.append(halves[1])
            centers[cell] = halves[0]
        centers = np.concatenate([centers, *(center[None] for center in divided)])
        parts = np.concatenate([parts, np.ones(len(divided), dtype=np.int64)])
    cells, _ = assign_cells(rows, np.concatenate([no_origin, centers]), eps)
    norms = np.einsum("ij,ij->i", centers, centers)
    gaps = norms[:, None] + norms - 2 * centers @ centers.T
    np.fill_diagonal(gaps, np.inf)
    nearest = tuple(gaps.argmin(axis=1).tolist())
    scratch = Scratch(folder)
    stored = scratch.put(scratch.unique("centers"), np.concatenate([origin[None], centers]))
    return Cells(stored, tuple(parts.tolist()), nearest, eps, len(cells) / len(rows))


def group_tiny(counts: np.ndarray, partners: np.ndarray, smallest: int) -> list[tuple[int, ...]]:
    """Return groups of partitions to search together, so that no group has too few rows.

    Parameters
    ----------
    counts : ndarray of shape (n_partitions,), int
    partners : ndarray of shape (n_partitions,), int
        The partition that each partition joins if needed.
    smallest : int
        Fewest rows of a group.
    """
    group = np.arange(len(counts))
    for partition in np.argsort(counts, kind="stable"):
        if counts[partition] >= smallest:
            break  # all that follow are large enough too
        mine = group == group[partition]
        if counts[mine].sum() < smallest:
            outside = group[~mine]
            other = group[partners[partition]]
            if mine[partners[partition]] and len(outside):
                other = outside.min()
            group[mine] = other
    return [tuple(np.flatnonzero(group == number).tolist()) for number in np.unique(group)]
