"""Cost of a neighbor graph and its affinity matrix, step by step, before anything is read."""

from __future__ import annotations

from bigfs.config.sections import GraphConfig
from bigfs.core.cost import Shape, StageCost, Step, loop_seconds, pass_over, product_seconds
from bigfs.core.units import MIB
from bigfs.graph.partition import PartitionPlan, plan_partitions
from bigfs.graph.recall import SAMPLED_ROWS
from bigfs.graph.search import PLANNED_COPIES, scratch_bytes, shelf_width

# Bytes of indices and distances of one stored block of the graph.
GRAPH_BLOCK_BYTES = 8 * MIB
# Measured: bytes per directed edge while a block's edges are merged with their reverses.
_UNION_BYTES = 160
# Measured: loop steps per edge, from lists to the matrix.
_UNION_LOOPS = 200
# Copies of the lists (some sorted) while a block's neighbors are merged, and the sort's tiles.
_MERGE_COPIES = 4
_MERGE_TILES = 64 * MIB
# Measured: bytes per edge while its weight is computed from its two rows, and tiles of these rows.
_PRODUCT_BYTES = 56
_PRODUCT_TILES = 40 * MIB
# Pieces of a block in float64 and their distances to the sampled rows.
_RECALL_TILES = 64 * MIB


def graph_block_rows(n_neighbors: int) -> int:
    """Return the number of rows of one stored block of the graph."""
    return max(1, GRAPH_BLOCK_BYTES // (8 * n_neighbors))


def graph_cost(
    shape: Shape, settings: GraphConfig, memory_limit: int, remote: bool = False
) -> StageCost:
    """Return the cost of `bigfs.graph.knn_graph` and `bigfs.graph.affinity`.

    ``remote`` is True if the run directory is in a bucket.

    Raises
    ------
    MemoryLimitError
        If not even small partitions fit ``memory_limit``.
    """
    n, k, algorithm = shape.n_samples, settings.n_neighbors, settings.algorithm
    plan = plan_partitions(shape, k, memory_limit, algorithm=algorithm, remote=remote)
    steps = _search_steps(shape, plan, k, settings.recall_target)
    products = settings.weight in ("dot", "cosine")
    if products:
        beside = shape.read_bytes + _PRODUCT_BYTES * shape.rows * k + _PRODUCT_TILES
        steps.append(pass_over(shape, "a block and a block of its neighbors", beside))
    steps += affinity_steps(n, k, settings.weight)
    # Neighbors and distances, the matrix with at most two entries per edge, a few numbers per row.
    stored = n * (8 * k + 24 * k + 28)
    scratch = scratch_bytes(shape, k, plan.n_partitions, PLANNED_COPIES)
    united = n * k * (16 + 24 + 8 * products) + stored
    # Unless partitions are searched exactly, pynndescent may be used.
    return StageCost(tuple(steps), max(scratch, united), stored, compiles=not plan.exact)


def _search_steps(
    rows: Shape, plan: PartitionPlan, n_neighbors: int, recall_target: float | None
) -> list[Step]:
    """Return the steps from the rows to their neighbors."""
    n, d, itemsize = rows.n_samples, rows.n_features, rows.itemsize
    parts, row_bytes = plan.n_partitions, d * itemsize
    runs = -(-rows.n_blocks // plan.run_blocks)
    shelves = -(-parts // shelf_width(parts))
    steps = []
    certain = plan.exact and parts == 1
    if not certain:
        chosen = (plan.sampled_rows + SAMPLED_ROWS) * row_bytes
        steps.append(pass_over(rows, "a block and the rows sampled from it", min(chosen, 2**25)))
    if parts > 1:
        needed = 4 * plan.sampled_rows * row_bytes
        what = f"k-means of {plan.sampled_rows:,} sampled rows"
        steps.append(Step(what, needed, 1, 0, 2 * rows.n_blocks))
    again = 1 if recall_target is None else 2
    what = f"{plan.run_blocks} block(s) sorted by partition"
    steps.append(Step(what, plan.shuffle_bytes, runs, 1, rows.n_chunks + runs * shelves, again))
    largest = min(n, plan.capacity_rows)
    what = f"a partition of at most {largest:,} rows x {d:,} features with its neighbor search"
    needed = plan.search_bytes(largest, d, itemsize, n_neighbors)
    requests, seconds = parts * (runs + 1), plan.search_seconds(n, d, n_neighbors)
    steps.append(Step(what, needed, parts, 0, requests, again, seconds=seconds))
    home = graph_block_rows(n_neighbors)
    blocks = -(-n // home)
    needed = _MERGE_COPIES * min(n, home) * (8 * n_neighbors + 4) + _MERGE_TILES
    requests = blocks * (parts + 2)
    steps.append(Step("the neighbors of a block of rows", needed, blocks, 0, requests, again))
    if not certain:
        what = "a block searched for the neighbors of sampled rows"
        beside = recall_bytes(rows) - rows.read_bytes
        seconds = product_seconds(min(n, SAMPLED_ROWS), n, d)
        steps.append(pass_over(rows, what, beside, times=again, seconds=seconds))
    return steps


def recall_bytes(rows: Shape) -> int:
    """Return the bytes of a task that searches a block for the neighbors of sampled rows."""
    sampled = min(rows.n_samples, SAMPLED_ROWS) * rows.n_features * rows.itemsize
    return rows.read_bytes + sampled + _RECALL_TILES


def affinity_steps(n_samples: int, n_neighbors: int, weight: str = "binary") -> list[Step]:
    """Return the steps from neighbors to the affinity matrix."""
    home = graph_block_rows(n_neighbors)
    blocks = -(-n_samples // home)
    edges = min(n_samples, home) * n_neighbors
    # Heat weights need the scales of both ends, which may be in any block.
    needed, requests = (96, blocks + 5) if weight == "heat" else (64, 4)
    what = "the edges of a block of rows"
    weighed = Step(what, needed * edges, blocks, 0, requests * blocks)
    what, requests = f"{what} merged with their reverses", blocks * (blocks + 6)
    seconds = loop_seconds(n_samples, n_neighbors, _UNION_LOOPS)
    united = Step(what, _UNION_BYTES * edges, blocks, 0, requests, seconds=seconds)
    return [weighed, united, Step("a chunk of the matrix", 64 * MIB, blocks, 0, 8 * blocks)]
