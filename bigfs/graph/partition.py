"""How many partitions, of what size: arithmetic from shape, type and memory limit alone."""

from __future__ import annotations

from dataclasses import dataclass

from bigfs.core.errors import MemoryLimitError
from bigfs.core.memory import limit_for, task_budget
from bigfs.core.units import MIB, format_bytes
from bigfs.graph.local import EXACT_ROWS, MAX_ROWS

# Measured: a worker is 590 MiB after one small NNDescent, 370 before.
_COMPILED_BYTES = 220 * MIB
# Measured with pynndescent 0.7: at most this per row and neighbor beyond the data, plus buffers.
_INDEX_BYTES = 40
_SEARCH_WIDTH = 16
_BUFFER_BYTES = 24 * MIB
_EXACT_TILES = 48 * MIB


@dataclass(frozen=True)
class PartitionPlan:
    """The cost of neighbor search, decided before anything is read.

    Attributes
    ----------
    n_partitions : int
        How many k-means cells to begin with.
    capacity_rows : int
        The most rows, copies included, that one task may hold.
    exact : bool
        Every partition is small enough, or was asked, to be searched exactly.
    predicted_bytes : int
        The largest task's need beyond a worker's baseline.
    """

    n_partitions: int
    capacity_rows: int
    exact: bool
    predicted_bytes: int


def index_bytes(rows: int, n_features: int, itemsize: int, n_neighbors: int) -> int:
    """Return the bytes of a partition with its pynndescent index, beyond the warmed process."""
    width = max(_SEARCH_WIDTH, n_neighbors + 1)
    copy = 4 * n_features if itemsize != 4 else 0
    return rows * (n_features * itemsize + copy + _INDEX_BYTES * width) + _BUFFER_BYTES


def exact_bytes(rows: int, n_features: int, itemsize: int, n_neighbors: int) -> int:
    """Return the bytes of a partition that is searched exactly."""
    return rows * (n_features * (itemsize + 8) + 40 * n_neighbors) + _EXACT_TILES


def plan_partitions(
    n_samples: int,
    n_features: int,
    itemsize: int,
    n_neighbors: int,
    memory_limit_bytes: int,
    algorithm: str,
) -> PartitionPlan:
    """Return the plan for a shape, a type and a limit.

    Raises
    ------
    MemoryLimitError
        If not even a small partition fits.
    """
    budget = task_budget(memory_limit_bytes)
    shape = (n_features, itemsize, n_neighbors)
    if algorithm == "exact" or (algorithm == "auto" and n_samples <= EXACT_ROWS):
        capacity, exact = _rows_within(exact_bytes, shape, budget), True
    else:
        indexed = _rows_within(index_bytes, shape, budget - _COMPILED_BYTES)
        capacity, exact = min(indexed, MAX_ROWS - 1), False
    if n_samples > capacity:
        cost = exact_bytes if exact else index_bytes
        needed = cost(n_samples, *shape) + (0 if exact else _COMPILED_BYTES)
        raise MemoryLimitError(
            f"Stage 'graph' needs {format_bytes(needed)} for the neighbor search among "
            f"{n_samples:,} rows x {n_features} features; a memory_limit of "
            f"{format_bytes(memory_limit_bytes)} leaves {format_bytes(budget)} to one task. "
            f"Nothing has run. Set memory_limit to '{format_bytes(limit_for(needed))}' or more."
        )
    cost = exact_bytes if exact else index_bytes
    return PartitionPlan(1, capacity, exact, cost(n_samples, *shape))


def _rows_within(cost: object, shape: tuple[int, int, int], budget: int) -> int:
    """Return the most rows whose cost, linear in the rows, stays within a budget."""
    fixed = cost(0, *shape)  # type: ignore[operator]
    per_row = cost(1, *shape) - fixed  # type: ignore[operator]
    return max(0, (budget - fixed) // per_row)
