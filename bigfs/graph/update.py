"""The neighbor graph of data with rows appended, from the graph of their first rows.

The rows are divided into cells: each belongs to the nearest of a sample's centers. A new row is
compared with all rows of the few cells nearest to it, in one pass over X. Each comparison serves
both rows: the new row gets its neighbors, and an old row gets a new neighbor if that is nearer than
its last one. The lists of the former graph and these lists are merged as those of partitions are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import numpy as np

from bigfs.blocks import BlockReader, RowBlocks
from bigfs.blocks.kmeans import cluster_rows
from bigfs.core.cost import Shape
from bigfs.core.errors import MemoryLimitError
from bigfs.core.memory import task_budget
from bigfs.core.paths import plain_name
from bigfs.core.seeds import rng
from bigfs.core.units import MIB, format_bytes
from bigfs.graph import recall
from bigfs.graph.build import timed
from bigfs.graph.knn import KNNGraph
from bigfs.graph.local import (
    as_distances,
    as_squares,
    merge_exact,
    prepare_rows,
    search_exact,
)
from bigfs.graph.partition import assign_cells
from bigfs.graph.search import gather_rows, merge_results
from bigfs.graph.shuffle import Receipt, Runs, commit_runs, write_run
from bigfs.runtime.execute import run_tasks
from bigfs.store.scratch import ArrayRef, Scratch, block_bounds

# Rows per cell, and number of nearest cells that a new row is compared with.
CELL_ROWS = 8192
PROBES = 4
# The cells need not be optimal: a new row is compared with several.
_LLOYD_STEPS = 8
# One in this many old rows is sampled, within the following limits: the sample bounds the
# distances, and part of it measures the recall.
_SAMPLED_SHARE = 32
_FEWEST_SAMPLED = 8192
_SAMPLE_BYTES = 32 * MIB
# Bytes of the pieces of a block and the comparisons in progress, in float32; double for float64.
_TILES_BYTES = 24 * MIB
# Upper bound on the rows of a cell, and on the new rows, that are compared at a time.
_PIECE_ROWS = 2048
_PIECE_BYTES = 2 * MIB
# Arrays that an updated graph keeps for the next update.
KEPT = ("centers", "sample", "sample_ids", *recall.KEPT)


def update_graph(
    blocks: RowBlocks,
    former: KNNGraph,
    *,
    memory_limit: int,
    random_state: int,
    scratch: Scratch,
) -> KNNGraph:
    """Return the graph of all rows, from the graph of the first rows and with its settings.

    Parameters
    ----------
    blocks : RowBlocks of shape (n_samples, n_features)
    former : KNNGraph
        Graph of the first rows.
    memory_limit : int
    random_state : int
    scratch : Scratch
        Where the graph is stored.

    Raises
    ------
    MemoryLimitError
        If the new rows do not fit a task.
    """
    before, seconds = blocks.passes, dict[str, float]()
    kept = _kept(former)
    n_sampled = kept[1].shape[0] if kept else _sample_size(blocks, former.n_samples)
    n_new, budget = blocks.n_samples - former.n_samples, task_budget(memory_limit)
    needed = update_bytes(blocks.layout, n_new, n_sampled, former.metric)
    if needed > budget:
        raise MemoryLimitError(
            f"{n_new:,} new rows and a block need {format_bytes(needed)}, but a task has "
            f"{format_bytes(budget)}"
        )
    with scratch.temporary("update") as working:
        update = _GraphUpdate(blocks, former, random_state, scratch, working)
        with timed(seconds, "sample"):
            kept = kept or update.first_sample(n_sampled)
        with timed(seconds, "new rows"):
            grown = update.grown_rows(kept)
        homes = scratch.create("partitions", (blocks.n_samples,), np.int32, blocks.rows)
        with timed(seconds, "neighbors"):
            results, rows, true = update.search(grown, homes)
        with timed(seconds, "merge"):
            lists, changed = merge_results(
                scratch, "-updated", results, (blocks.n_samples, former.n_neighbors),
                former.indices_ref.chunk_rows, (former.indices_ref, former.distances_ref),
            )  # fmt: skip
        n_cells = grown.centers.shape[0] - 1
        estimate = recall.RecallEstimate.certain(blocks.n_samples)
        if n_cells > 1 or not former.recall_.exact:
            listed = recall.scattered_rows(rows, lists[1])
            estimate = recall.estimate_recall(listed, true)
        details = {
            "kept": list(KEPT),
            "passes": blocks.passes - before,
            "scratch_bytes": results.nbytes,
            "new_rows": n_new,
            "changed_rows": changed,
            "seconds": seconds,
        }
        return KNNGraph(
            *lists, homes, former.metric, former.algorithm, n_cells, estimate, scratch, details
        )


def _kept(former: KNNGraph) -> list[ArrayRef]:
    """Return the arrays that a graph keeps for its next update; empty after a full run."""
    place, names = former.scratch.path, KEPT if former.details.get("kept") else ()
    return [ArrayRef.at(place / plain_name(name, place)) for name in names]


def _sample_size(blocks: RowBlocks, n_old: int) -> int:
    """Return the number of former rows in the sample that represents all of them."""
    width = blocks.n_features * blocks.dtype.itemsize
    size = max(recall.SAMPLED_ROWS, min(_SAMPLE_BYTES // width, n_old // _SAMPLED_SHARE))
    return min(n_old, max(size, min(_FEWEST_SAMPLED, _SAMPLE_BYTES // width)))


def update_bytes(shape: Shape, n_new: int, n_sampled: int, metric: str) -> int:
    """Return the bytes of a task: new rows and their copies, with a block or with the sample."""
    row, tiles = shape.n_features * shape.itemsize, _TILES_BYTES * shape.itemsize // 4
    prepared = 0 if metric == "euclidean" else shape.block_bytes
    narrow = 4 * n_new * shape.n_features
    beside_block = shape.block_bytes + prepared + (n_new + n_sampled) * row + narrow + tiles
    beside_sample = max(3 * n_new + 2 * n_sampled, 4 * n_sampled) * row + tiles
    return max(shape.read_bytes, beside_block, beside_sample)


@dataclass(frozen=True)
class GrownRows:
    """Rows and limits that the tasks read."""

    n_neighbors: int
    n_old: int
    metric: str
    former: ArrayRef  # of shape (n_old, n_neighbors), float32: distances of the former graph
    # Of shape (n_cells + 1, n_features): row 0 is the origin that the others are relative to.
    centers: ArrayRef
    # Prepared rows of a sample that represents all, and their row numbers.
    sample: ArrayRef
    sample_ids: ArrayRef
    new: ArrayRef  # of shape (n_new, n_features): prepared new rows
    probes: ArrayRef  # of shape (n_new, n_probes), int32: cells that each new row is compared with
    # Of shape (n_new,), float64: squared distance within which a new row has k neighbors in them.
    limits: ArrayRef
    # Of shape (n_checked,), int64: positions in the sample of the rows whose recall is measured.
    checked: ArrayRef
    # Each of shape (n_known, n_neighbors): true neighbors among the old rows, and their distances,
    # of the first n_known checked rows; empty if not known.
    known: tuple[ArrayRef, ...]


# Receipts of the lists of some blocks, and the checked rows' nearest neighbors found in them.
_Partial: TypeAlias = tuple[list[Receipt], np.ndarray, np.ndarray]


@dataclass(frozen=True)
class _GraphUpdate:
    """One update: its inputs, and the steps that produce its lists."""

    blocks: RowBlocks
    former: KNNGraph
    random_state: int
    scratch: Scratch
    working: Scratch

    def first_sample(self, size: int) -> list[ArrayRef]:
        """Return centers, a sample of the former rows, its row numbers, and known neighbors."""
        former, n = self.former, self.former.n_samples
        chosen = recall.sample_rows(n, self.random_state, size, "update sample")
        known = recall.of_full_run(former.scratch, former.details)
        if known:
            chosen = np.union1d(chosen, known[0])
            known = self.working.put("known", np.searchsorted(chosen, known[0])), *known[1:]
        runs = gather_rows(self.blocks, [chosen], former.metric, self.working)
        items = [(-(-n // CELL_ROWS), self.random_state)]
        [stored] = run_tasks(_first_centers, items, runs, str(self.working.path), label="cells")
        return [*stored, *known]

    def grown_rows(self, kept: list[ArrayRef]) -> GrownRows:
        """Store the new rows, the cells in which each is searched and the limits of distance."""
        blocks, former, working = self.blocks, self.former, self.working
        n_old, n_new = former.n_samples, blocks.n_samples - former.n_samples
        new = working.create("new", (n_new, blocks.n_features), kept[1].dtype, blocks.rows)
        pieces = [(n_old + a, n_old + b) for a, b in block_bounds(n_new, blocks.rows)]
        run_tasks(_new_rows, pieces, blocks.start_pass(0), former.metric, new, n_old, label="read")
        sizes, places = (former.n_neighbors, n_old), (str(working.path), str(self.scratch.path))
        shared = (sizes, kept, new, places)
        [stored] = run_tasks(_limits_task, [self.random_state], *shared, label="limits")
        about = {"former": former.distances_ref, "new": new, **stored}
        return GrownRows(*sizes, former.metric, **about, known=tuple(kept[4:]))

    def search(self, grown: GrownRows, homes: ArrayRef) -> tuple[Runs, np.ndarray, np.ndarray]:
        """Compare new rows with all rows; also return true distances of the checked rows."""
        n, graph_rows = self.blocks.n_samples, self.former.indices_ref.chunk_rows
        folder = str(self.working.child("results").path)
        destination = folder, graph_rows, -(-n // graph_rows), self.blocks.rows
        receipts, *true = self.blocks.reduce(
            _search_kernel, _combine, grown, homes, destination, label="neighbors"
        )
        runs, places = commit_runs(self.working, folder, receipts), grown.checked.load()
        if grown.known:
            indices, distances = (ref.load() for ref in grown.known)
            of_known = true[0][: len(indices)], true[1][: len(indices)]
            of_known[0][:], of_known[1][:] = merge_exact((indices, distances), of_known)
        for name, values in zip(recall.KEPT, (places, *true), strict=True):
            self.scratch.put(name, values)
        return runs, grown.sample_ids.load()[places], true[1]


def _first_centers(
    item: tuple[int, int], runs: Runs, working: str
) -> tuple[ArrayRef, ArrayRef, ArrayRef]:
    """Store the centers of cells, and the sample with its row numbers."""
    count, random_state = item
    ids, rows = runs.read(0, "ids", "rows")
    origin = rows.mean(axis=0, dtype=np.float64).astype(rows.dtype)
    centers = np.zeros((1, rows.shape[1]), rows.dtype)
    if count > 1:
        centers = cluster_rows(
            rows - origin, count, rng(random_state, "cells"), max_iter=_LLOYD_STEPS
        )
    put = Scratch(working).put
    stored = put("centers", np.concatenate([origin[None], centers]))
    return stored, put("sample", rows), put("sample_ids", ids.astype(np.int64))


def _new_rows(
    bounds: tuple[int, int], reader: BlockReader, metric: str, new: ArrayRef, n_old: int
) -> None:
    """Store the prepared new rows."""
    start, stop = bounds
    new.write(start - n_old, prepare_rows(reader.read(start, stop), metric, np.arange(start, stop)))


def _nearest_cells(rows: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Return the cells that each row is compared with, (n_rows, n_probes) int32."""
    offsets = centers[1:]
    squared = (rows - centers[0]) @ (-2 * offsets.T)
    squared += np.einsum("ij,ij->i", offsets, offsets)
    return np.argsort(squared, axis=1, kind="stable")[:, :PROBES].astype(np.int32)


def _limits_task(
    random_state: int,
    sizes: tuple[int, int],
    kept: list[ArrayRef],
    new: ArrayRef,
    places: tuple[str, str],
) -> dict[str, ArrayRef]:
    """Find the cells of new rows and bounds on their distances; add some of them to the sample.

    Returns the fields of `GrownRows` that are new, by name.
    """
    (k, n_old), (working, out) = sizes, (Scratch(place) for place in places)
    centers, old, ids = (ref.load() for ref in kept[:3])
    rows = new.load()
    probes = _nearest_cells(rows, centers)
    limits = search_limits(np.concatenate([old, rows]), len(old), centers, probes, k)
    generator = rng(random_state, f"update {n_old + len(rows)}")
    share = max(1, round(len(rows) * len(old) / n_old))
    added = np.sort(generator.choice(len(rows), min(share, len(rows)), replace=False))
    ids = np.concatenate([ids, n_old + added])
    # The rows checked before are checked again, with an equal share of the new rows; on the first
    # update any rows of the sample.
    if len(kept) > 3:
        before = kept[3].load()
        count = min(len(added), max(1, round(len(rows) / n_old * len(before))))
        fresh = len(old) + generator.choice(len(added), count, replace=False)
        checked = np.concatenate([before, np.sort(fresh)])
    else:
        count = min(recall.SAMPLED_ROWS, len(ids))
        checked = np.sort(generator.choice(len(ids), count, replace=False))
    return {
        "centers": out.put("centers", centers),
        "sample": out.put("sample", np.concatenate([old, rows[added]])),
        "sample_ids": out.put("sample_ids", ids),
        "probes": working.put("probes", probes),
        "limits": working.put("limits", limits),
        "checked": working.put("checked", checked),
    }


def _search_kernel(
    X: np.ndarray,
    first_row: int,
    grown: GrownRows,
    homes: ArrayRef,
    destination: tuple[str, int, int, int],
) -> _Partial:
    """Compare a block with the new rows near it, and exactly with the checked rows."""
    ids = first_row + np.arange(len(X))
    rows = prepare_rows(X, grown.metric, ids)
    home, _ = assign_cells(rows, grown.centers.load(), 0.0)
    homes.write(first_row, home)
    reach = np.full(len(rows), -np.inf, np.float32)
    last = grown.former.read(first_row, first_row + len(rows))[:, -1]  # of old rows
    reach[: len(last)] = last
    owners, neighbors, distances = compare(rows, ids, home, reach, grown)
    folder, graph_rows, n_blocks, block_rows = destination
    values = {"row": owners, "neighbor": neighbors, "distance": distances}
    receipt = write_run(folder, first_row // block_rows, owners // graph_rows, n_blocks, values)
    return ([receipt], *_checked(rows, first_row, grown))


def _checked(rows: np.ndarray, first_row: int, grown: GrownRows) -> tuple[np.ndarray, np.ndarray]:
    """Return the exact neighbors of the checked rows in a block."""
    chosen, n_old = grown.checked.load(), grown.n_old
    own, queries = grown.sample_ids.load()[chosen], grown.sample.load()[chosen]
    bounds = np.empty(len(own), np.float32)
    old = own < n_old
    bounds[old] = grown.former.take(own[old])[:, -1]
    bounds[~old] = as_distances(grown.limits.load()[own[~old] - n_old], grown.metric)
    n_known = grown.known[0].shape[0] if grown.known else 0
    if n_known:
        bounds[:n_known] = grown.known[1].load()[:, -1]
    indices = np.full((len(own), grown.n_neighbors), -1, np.int64)
    distances = np.full(indices.shape, np.inf, np.float32)
    # Rows with known neighbors among the old rows are compared with new rows only.
    for part, begin in ((slice(n_known), max(0, n_old - first_row)), (slice(n_known, None), 0)):
        if begin < len(rows) and len(own[part]):
            indices[part], distances[part] = recall.search_pieces(
                rows[begin:], first_row + begin, queries[part], own[part], grown.n_neighbors,
                grown.metric, bounds[part],
            )  # fmt: skip
    return indices, distances


def _combine(a: _Partial, b: _Partial) -> _Partial:
    return (a[0] + b[0], *merge_exact(a[1:], b[1:]))


def compare(
    rows: np.ndarray, ids: np.ndarray, home: np.ndarray, reach: np.ndarray, grown: GrownRows
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return lists of new rows, and of old rows that have a new row nearer than their last one.

    Parameters
    ----------
    rows, ids, home : ndarray
        A block of prepared rows, their row numbers, and their cells.
    reach : ndarray of shape (n_rows,), float32
        Distances from old rows to their last neighbors; minus infinity for new rows.
    grown : GrownRows
    """
    k, n_old, metric = grown.n_neighbors, grown.n_old, grown.metric
    new, probes, limits = grown.new.load(), grown.probes.load(), grown.limits.load()
    # Lists of the rows of the block, filled for old rows only, and then of all new rows.
    owners = np.concatenate([ids, n_old + np.arange(len(new))])
    neighbors = np.full((len(owners), k), -1, np.int64)
    distances = np.full(neighbors.shape, np.inf, np.float32)

    def add(places: np.ndarray, others: np.ndarray, nearest: tuple[np.ndarray, np.ndarray]) -> None:
        """Merge what `search_exact` finds for some rows among others with these row numbers."""
        listed = np.where(nearest[0] < 0, -1, others[nearest[0]])
        neighbors[places], distances[places] = merge_exact(
            (neighbors[places], distances[places]), (listed, as_distances(nearest[1], metric))
        )

    for members, queries in _by_cell(home, probes, rows.shape[1]):
        numbers, part = n_old + queries, new[queries]
        own = _places(ids[members], numbers)
        nearest = search_exact(rows[members], k, part, own, limits[queries])
        add(len(rows) + queries, ids[members], nearest)
        old = members[reach[members] > 0]
        last = as_squares(reach[old], metric)
        add(old, numbers, search_exact(part, k, rows[old], np.full(len(old), -1), last))
    of_old = distances[: len(rows)]
    of_old[of_old >= reach[:, None]] = np.inf
    neighbors[np.isinf(distances)] = -1
    has = neighbors[:, 0] >= 0
    return owners[has].astype(np.int32), neighbors[has].astype(np.int32), distances[has]


def search_limits(
    rows: np.ndarray, n_others: int, centers: np.ndarray, probes: np.ndarray, k: int
) -> np.ndarray:
    """Return squared distances within which each new row has k rows in its cells."""
    home, _ = assign_cells(rows, centers, 0.0)
    best = np.full((len(probes), k), np.inf)
    # The nearest cell bounds the distances of interest in the others.
    for some in np.split(probes, [1], axis=1)[: probes.shape[1]]:
        for members, queries in _by_cell(home, some, rows.shape[1]):
            numbers = n_others + queries
            own, reach = _places(members, numbers), best[queries, -1]
            _, squared = search_exact(rows[members], k, rows[numbers], own, reach)
            best[queries] = np.sort(np.hstack([best[queries], squared]), axis=1)[:, :k]
    return best[:, -1]


def _places(ids: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the positions of numbers in ascending ``ids``, -1 for those that are not in it."""
    place = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return np.where(ids[place] == wanted, place, -1)


def _by_cell(
    home: np.ndarray, probes: np.ndarray, n_features: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield rows of a cell and the new rows compared with them, a piece of each at a time."""
    cells = np.unique(home)
    most = max(1, min(_PIECE_ROWS, _PIECE_BYTES // (4 * n_features)))
    for members, probed in zip(_among(home, cells), _among(probes.ravel(), cells), strict=True):
        near = probed // probes.shape[1]
        for first, second in product(range(0, len(members), most), range(0, len(near), most)):
            yield members[first : first + most], near[second : second + most]


def _among(values: np.ndarray, cells: np.ndarray) -> Iterator[np.ndarray]:
    """Yield, for each cell, the positions at which ``values`` equals it, ascending."""
    order = np.argsort(values, kind="stable")
    begins, ends = (np.searchsorted(values, cells, side, order) for side in ("left", "right"))
    return (order[begin:end] for begin, end in zip(begins, ends, strict=True))
