"""What each method's stage costs after its graph: the formulas of plans and of refusals alike.

``shape`` is the data's; ``limit`` the memory limit of a worker process, in bytes. Methods that
keep blocks in memory between passes say how much they would like to keep.
"""

from __future__ import annotations

from dataclasses import replace

from bigfs.core.cost import Shape, StageCost, Step, pass_over
from bigfs.core.memory import task_budget
from bigfs.core.units import MIB
from bigfs.graph.cost import graph_cost
from bigfs.runtime.execute import TREE_ARITY
from bigfs.spectral.choice import SPECTRUM
from bigfs.spectral.cost import spectral_cost

# Neighbors of the graph that a number of clusters is chosen by, where a method has none.
EIGENGAP_NEIGHBORS = 5
# Matrices of n_features^2 alive at once. Q-alpha: Gram, coordinates, the iteration's and its
# workspace; UDFS: two partial sums, or M, its reweighted copy and workspace.
QALPHA_MATRICES = 5
UDFS_MATRICES = 4
# Planes that a task of M3FS may have to hold at once, as far as the memory plan goes.
M3FS_PLANES = 200


def known_count(n_clusters: int | str) -> int:
    """Return a number of clusters, or the most that "auto" chooses."""
    return SPECTRUM if isinstance(n_clusters, str) else n_clusters


def fold_parts(n_blocks: int) -> int:
    """Return how many partial results a fold holds, with the one it makes."""
    return min(n_blocks, TREE_ARITY) + 1


def gram_bytes(shape: Shape, n_targets: int) -> int:
    """Return what the Gram pass with companions needs: a fold, or two blocks and their sums."""
    partial = 8 * (shape.n_features + n_targets) ** 2
    return fold_parts(shape.n_blocks) * partial + shape.read_bytes


def gram_step(shape: Shape, n_targets: int, what: str = "the Gram matrix") -> Step:
    """Return the step of the Gram pass with companions."""
    d = shape.n_features
    what = f"{what}: {fold_parts(shape.n_blocks)} sums of {d:,} x {d:,} in a fold"
    # One more, which may still be on its way when the fold begins.
    needed = gram_bytes(shape, n_targets) + 8 * (d + n_targets) ** 2
    return Step(what, needed, shape.n_blocks, 1, shape.n_chunks)


def moments_step(shape: Shape) -> Step:
    """Return the step of the moments: a tile in float64 beside the block."""
    return pass_over(shape, "a block and its moments", 16 * MIB)


def max_variance_cost(shape: Shape) -> StageCost:
    """Return the cost of the variances."""
    return StageCost((moments_step(shape),))


def edges_cost(shape: Shape, n_neighbors: int) -> StageCost:
    """Return the cost of a pass over the edges: each block with one other at a time."""
    edges = 2 * shape.rows * n_neighbors
    needed = shape.read_bytes + 40 * edges + 32 * MIB
    # Rows of one neighborhood lie in few blocks where rows are in order, in all where they are not.
    return StageCost((pass_over(shape, "a block, one that its edges lead to", needed),))


def _with_eigengap(cost: StageCost, n_clusters: int | str, shape: Shape, limit: int) -> StageCost:
    """Add what choosing "auto" costs."""
    if not isinstance(n_clusters, str):
        return cost
    k = min(EIGENGAP_NEIGHBORS, shape.n_samples - 1)
    graph = graph_cost(shape, k, limit)
    spectral = spectral_cost(shape.n_samples, k, n_clusters, limit)
    return replace(
        cost,
        steps=(*graph.steps, *spectral.steps, *cost.steps),
        scratch_bytes=max(cost.scratch_bytes, graph.scratch_bytes + spectral.scratch_bytes),
        compiles=graph.compiles,
    )


def mcfs_cost(shape: Shape, n_components: int | str, n_selected: int, limit: int) -> StageCost:
    """Return the cost of the regressions: one Gram pass, or few columns of it in some passes."""
    K, d = known_count(n_components), shape.n_features
    if gram_bytes(shape, K) <= task_budget(limit):
        paths = Step(f"a path on the Gram matrix of {d:,} features", path_bytes(d), K, 0, 2 * K)
        return StageCost((gram_step(shape, K, "the regressions' Gram matrix"), paths))
    room = wide_room(shape, K, limit)
    columns = min(room, max(1, min(2 * n_selected, room // K)) * K)
    needed = shape.read_bytes + 8 * fold_parts(shape.n_blocks) * d * max(K, columns)
    what = f"Gram columns of {columns:,} of {d:,} features"
    steps = (
        pass_over(shape, "products of a block with the eigenvectors", 8 * d * K),
        Step(what, needed, shape.n_blocks, 1, shape.n_chunks, 4),
        Step(f"a path on {what}", 16 * d * columns, K, 0, 2 * K, 4),
    )
    return StageCost(steps, at_most=True)


def path_bytes(n_features: int) -> int:
    """Return what a path on the Gram matrix of all features takes."""
    return 16 * n_features**2 + 16 * MIB


def wide_room(shape: Shape, n_targets: int, limit: int) -> int:
    """Return how many Gram columns of candidates may exist: a fold holds several partial sums."""
    column = 8 * fold_parts(shape.n_blocks) * shape.n_features
    budget = task_budget(limit) - shape.read_bytes - column * n_targets
    return max(0, min(shape.n_features, budget // column))


def ndfs_block_bytes(shape: Shape, n_entries: int, n_clusters: int) -> int:
    """Return what a task of NDFS needs: a block, its edges and their rows of F."""
    edges = -(-n_entries // shape.n_samples)
    # A block and its copy while it is read, edges with their rows of F, F before and after.
    per_row = 2 * shape.n_features * shape.itemsize + edges * (24 + 8 * n_clusters)
    return shape.rows * (per_row + 48 * n_clusters) + 8 * 10**6


def ndfs_cost(
    shape: Shape, n_neighbors: int, n_clusters: int | str, max_iter: int, limit: int
) -> StageCost:
    """Return the cost of NDFS: a Gram pass, and one for each iteration."""
    c, d, n = known_count(n_clusters), shape.n_features, shape.n_samples
    needed = ndfs_block_bytes(shape, 2 * n * n_neighbors, c)
    what = f"a block of {shape.rows:,} rows with its edges' rows of F"
    steps = [Step(what, needed, shape.n_blocks, 1, 3 * shape.n_chunks, max_iter)]
    parts = fold_parts(shape.n_blocks) + 1
    if parts * 8 * d * d <= task_budget(limit):
        steps.append(gram_step(shape, 0))
    stored = 4 * n
    return StageCost(
        tuple(steps), 5 * 8 * n * c + stored, stored, shape.nbytes + 16 * n * (c + 1), at_most=True
    )


def m3fs_block_bytes(shape: Shape, n_columns: int, n_rows_of_v: int, smooth: bool) -> int:
    """Return what a task of M3FS needs: a block with its planes, and the sums of smoothness."""
    # A block and its copy while it is read, decision values, planes and their weights.
    per_row = 2 * shape.n_features * shape.itemsize + 32 * n_columns + M3FS_PLANES
    return shape.rows * per_row + 48 * 10**6 + (24 * n_rows_of_v**2 if smooth else 0)


def m3fs_compared_rows(shape: Shape) -> int:
    """Return on how many rows of data the endings of M3FS are compared."""
    return min(shape.n_samples, 10_000, max(100, 2**22 // shape.n_features))


def m3fs_choice_bytes(shape: Shape) -> int:
    """Return what a task that compares endings needs.

    The rows as stored, in float64 and a cluster's; a matrix of rows or features and its workspace.
    """
    rows, d = m3fs_compared_rows(shape), shape.n_features
    return rows * d * (shape.itemsize + 16) + 24 * min(rows, d) ** 2 + 8 * MIB


def m3fs_cost(
    shape: Shape,
    n_clusters: int | str,
    *,
    fit_intercept: bool,
    smoothness: float,
    max_iter: int,
    sample_size: int | None,
    n_neighbors: int,
    compares: bool,
    limit: int,
) -> StageCost:
    """Return the cost of M3FS: at most ``max_iter`` passes for a start, over a sample if asked."""
    c, n = known_count(n_clusters), shape.n_samples
    columns = 1 if c == 2 else c
    rows, steps, compiles = shape, [], False
    stored = 8 * n
    if sample_size is not None and sample_size < n:
        rows = replace(shape, n_samples=sample_size)
        steps += [
            pass_over(shape, "a block and the rows sampled of it", rows.nbytes),
            pass_over(shape, "a block and its labels", 8 * shape.rows * (columns + 2)),
        ]
        k = min(n_neighbors, sample_size - 1)
        graph = graph_cost(rows, k, limit, weight="heat")
        embedding = spectral_cost(sample_size, k, c, limit, weight="heat")
        steps += [_off_x(step) for step in (*graph.steps, *embedding.steps)]
        compiles = graph.compiles
    needed = m3fs_block_bytes(rows, columns, shape.n_features + fit_intercept, smoothness > 0)
    what = f"a block of {rows.rows:,} rows with its planes"
    one = Step(what, needed, rows.n_blocks, 1, rows.n_chunks, max_iter)
    steps.append(one if rows is shape else _off_x(one))
    scratch = stored + 60 * rows.n_samples * c
    if compares:
        compared = m3fs_compared_rows(rows) * shape.n_features * shape.itemsize
        what = "the rows that starts are compared on"
        ending = (
            pass_over(rows, f"a block and {what}", compared),
            Step(what, m3fs_choice_bytes(rows)),
        )
        steps += ending if rows is shape else [_off_x(step) for step in ending]
        scratch += 2 * compared
    return StageCost(tuple(steps), scratch, stored, rows.nbytes, compiles, at_most=True)


def _off_x(step: Step) -> Step:
    """Return a step that reads a sample, not X."""
    return Step(step.what, step.task_bytes, step.tasks, 0, step.requests, step.times)


def qalpha_cost(shape: Shape, n_clusters: int | str, limit: int) -> StageCost:
    """Return the cost of Q-alpha: a Gram pass, then matrices of features in one process."""
    needed = 8 * QALPHA_MATRICES * shape.n_features**2
    what = f"{QALPHA_MATRICES} matrices of {shape.n_features:,} x {shape.n_features:,} features"
    cost = StageCost((gram_step(shape, 0), Step(what, needed, by_client=True)))
    return _with_eigengap(cost, n_clusters, shape, limit)


def udfs_block_bytes(shape: Shape, n_neighbors: int, gathered_rows: int) -> int:
    """Return what a task of UDFS needs for a block and the rows of its neighborhoods."""
    at_once = min(shape.rows, gathered_rows)
    row_bytes = shape.n_features * shape.itemsize
    # The block, the one read beside it, the gathered rows, two partial sums.
    gathered = (2 * shape.rows + at_once * (n_neighbors + 1)) * row_bytes
    return gathered + 16 * shape.n_features**2 + 32 * 10**6


def udfs_cost(
    shape: Shape, n_neighbors: int, gathered_rows: int, n_clusters: int | str, limit: int
) -> StageCost:
    """Return the cost of UDFS: one pass over blocks and neighborhoods, then small matrices."""
    d = shape.n_features
    block = udfs_block_bytes(shape, n_neighbors, gathered_rows)
    solve = f"{UDFS_MATRICES} matrices of {d:,} x {d:,} features"
    steps = [
        Step("a block with its neighbors' rows", block, shape.n_blocks, 1, shape.n_chunks),
        Step(solve, 8 * UDFS_MATRICES * d * d, by_client=True),
    ]
    if isinstance(n_clusters, str):  # chosen on the graph that is there
        n, k = shape.n_samples, n_neighbors
        steps += spectral_cost(n, k, n_clusters, limit).steps
    return StageCost(tuple(steps))


def fsgmm_parameter_bytes(n_clusters: int, n_features: int) -> int:
    """Return the bytes of the parameters with two partial sums, and of a tile's relevances."""
    return 8 * n_features * (10 * n_clusters + 20) + 16 * n_clusters * n_features * 8 + 24 * 10**6


def fsgmm_cost(shape: Shape, n_clusters: int, max_iter: int) -> StageCost:
    """Return the cost of FSGMM: at most ``max_iter`` passes, and those of moments and labels."""
    needed = fsgmm_parameter_bytes(n_clusters, shape.n_features)
    what = f"a block of {shape.rows:,} rows and {n_clusters} components"
    steps = (moments_step(shape), pass_over(shape, what, needed, times=max_iter + 1))
    return StageCost(steps, 4 * shape.n_samples, 4 * shape.n_samples, at_most=True)


# Distances of a block of rows, and what k-means allocates whatever the rows.
_JUDGING_BYTES = 64 * MIB


def evaluation_cost(
    shape: Shape, n_selected: int, n_repetitions: int, nearest_neighbor: bool, limit: int
) -> StageCost:
    """Return the cost of comparing the selection, and all features, with labels."""
    columns = replace(shape, n_features=n_selected)
    steps = [pass_over(shape, "a block and its selected columns", columns.block_bytes)]
    for part in (columns, shape):
        passes = int(part is shape)
        if in_memory_bytes(part) <= task_budget(limit):
            what = f"{part.n_samples:,} rows x {part.n_features:,} features in memory"
            tasks = 1 + n_repetitions + 16 * nearest_neighbor
            needed = in_memory_bytes(part) + _JUDGING_BYTES
            steps.append(Step(what, needed, tasks, passes, tasks, 1))
        else:
            what = "a block and its nearest centers"
            steps.append(pass_over(part, what, 128 * MIB, times=10 * n_repetitions))
    return StageCost(
        tuple(steps),
        columns.nbytes,
        0,
        loads=("bigfs.evaluate.protocols", "scipy.optimize", "sklearn.cluster"),
        at_most=True,
    )


def in_memory_bytes(shape: Shape) -> int:
    """Return what clustering rows in one task takes: them, and copies of k-means."""
    return 3 * shape.nbytes
