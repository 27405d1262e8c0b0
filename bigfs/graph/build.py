"""The neighbor graph of data larger than memory: partition, shuffle, search, merge, check.

The steps are repeated until a recall target is met.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.core.errors import ConvergenceError, InputError, MemoryLimitError
from bigfs.core.memory import DEFAULT_MEMORY_LIMIT
from bigfs.core.units import parse_bytes
from bigfs.graph.cost import graph_block_rows
from bigfs.graph.knn import KNNGraph
from bigfs.graph.local import check_n_neighbors
from bigfs.graph.partition import (
    Cells,
    GraphRequest,
    PartitionPlan,
    assign_cells,
    exact_rows,
    find_cells,
    group_tiny,
    plan_partitions,
)
from bigfs.graph.recall import (
    ROWS_OF_FULL_RUN,
    SAMPLED_ROWS,
    RecallEstimate,
    estimate_of,
    estimate_recall,
    keep_checked,
    sample_rows,
    scattered_rows,
    true_neighbors,
)
from bigfs.graph.representation import check_representation, gram_serves, principal_rows
from bigfs.graph.search import (
    compile_first,
    distribute_task,
    gather_rows,
    merge_results,
    scratch_bytes,
    search_task,
    shelf_width,
)
from bigfs.graph.shuffle import Receipt, Runs, commit_runs
from bigfs.runtime.execute import run_tasks
from bigfs.store.location import is_remote
from bigfs.store.scratch import ArrayRef, Scratch, block_bounds

logger = logging.getLogger("bigfs")

# Default eps: the first, or the second if the first copies a row into more partitions than
# `_MOST_COPIES` on average.
_DEFAULT_EPS = (0.15, 0.1)
_MOST_COPIES = 1.4
ATTEMPTS = 6
MORE_EFFORT = 1.5
# Values of eps to choose from for a recall target: how far past a boundary rows are copied.
EPS_GRID = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8)
# The search inside a partition misses some neighbors too: it gets this share of the allowed loss.
_LEFT_TO_SEARCH = 0.5
# float32 loses digits (subnormal numbers) only below 1.2e-38.
LEAST_DISTANCE = 1e-30
# A warning with a remedy is given if the share of true neighbors is below this.
GOOD_RECALL = 0.9


def knn_graph(
    X: Any,
    n_neighbors: int,
    *,
    metric: str = "euclidean",
    algorithm: str = "auto",
    representation: str = "raw",
    memory_limit: int | str = DEFAULT_MEMORY_LIMIT,
    n_partitions: int | None = None,
    eps: float | None = None,
    recall_target: float | None = None,
    if_missed: str = "error",
    random_state: int = 0,
    scratch: Scratch | None = None,
) -> KNNGraph:
    """Return the k nearest neighbors of every row of data that need not fit memory.

    Rows are divided into k-means cells and those near a boundary are copied across it. Every cell
    is searched on its own, and each row keeps the nearest of the neighbors its copies found.

    Parameters
    ----------
    X : RowBlocks, ndarray, sparse matrix, DataFrame, Dask or zarr array, path or URI
        Data of shape (n_samples, n_features).
    n_neighbors : int
        Number of neighbors of each row, not counting itself, in [1, n_samples - 1].
    metric : {"euclidean", "cosine", "correlation"}, default="euclidean"
    algorithm : {"auto", "exact", "pynndescent"}, default="auto"
        Search within a partition; ``auto`` is exact if that costs less than the seconds that
        pynndescent needs to compile.
    representation : str, default="raw"
        Values by which rows are compared: ``raw`` features, or ``pca:p``, the first p principal
        components (metric euclidean). Distances and recall are then those of the components; for
        sparse or wide data the components are approximate, found in a few passes.
    memory_limit : int or str, default="4 GiB"
        Resident size promised for one worker process; it determines the partitions.
    n_partitions : int or None, default=None
        Initial number of partitions. None: the fewest that ``memory_limit`` allows, of at most
        2,097,152 rows each if there are several.
    eps : float or None, default=None
        A row is copied to partitions whose center is within ``1 + eps`` times the distance to
        its nearest center. None: the value that ``recall_target`` requires, or without a target
        0.15, or 0.1 if 0.15 makes more than 1.4 copies of a row on average.
    recall_target : float or None, default=None
        Raise ``eps`` and the search effort until the lower bound of the recall reaches this.
    if_missed : {"error", "warn"}, default="error"
        Action if the target cannot be met.
    random_state : int, default=0
        Seed of all randomness.
    scratch : Scratch or None, default=None
        Where the graph and intermediate results are stored. None: a temporary folder that is
        deleted together with the result.

    Returns
    -------
    graph : KNNGraph

    Raises
    ------
    InputError
        If a parameter is out of range, ``recall_target`` is higher than 1,000 checked rows can
        show, or a row has no direction (cosine, correlation).
    MemoryLimitError
        If the search does not fit ``memory_limit``, or a partition turns out too large for a task.
    ConvergenceError
        If ``recall_target`` is not met.

    Notes
    -----
    The result is deterministic for a fixed seed, shape and memory limit, whatever the workers.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from bigfs import knn_graph
    >>> graph = knn_graph(load_digits().data, 5)
    >>> graph.indices.shape, graph.recall_.value
    ((1797, 5), 1.0)
    """
    searched = (n_neighbors, metric, algorithm, eps, recall_target, if_missed, random_state)
    request = GraphRequest(*searched, n_partitions, parse_bytes(memory_limit))
    n_components = check_representation(representation, metric)
    scratch = scratch or Scratch()
    blocks = RowBlocks.from_any(X, scratch=scratch)
    check_n_neighbors(n_neighbors, blocks.n_samples)
    if metric == "euclidean":
        blocks.refuse_below(LEAST_DISTANCE, "since distances are stored in float32")
    if blocks.n_samples >= 2**31:
        raise InputError(f"X has {blocks.n_samples:,} rows; a graph supports fewer than 2^31.")
    rows, passes = blocks, blocks.passes
    details: dict[str, Any] = {"representation": representation}
    with scratch.temporary("search") as working:
        if n_components is not None:
            gram = gram_serves(blocks.layout, request.memory_limit)
            rows, details["explained_variance"], _ = principal_rows(
                blocks, n_components, random_state, working, gram=gram
            )
        plan = plan_partitions(
            rows.layout, n_neighbors, request.memory_limit, algorithm=algorithm,
            n_partitions=n_partitions, remote=is_remote(scratch.path),
        )  # fmt: skip
        graph = _Build(rows, request, plan, scratch, working).run(details)
        blocks.source.check_unchanged()
    if rows is not blocks:
        over_components = graph.details["passes"]
        graph.details.update(passes=blocks.passes - passes, passes_over_components=over_components)
    return graph


@dataclass
class _Build:
    """One construction of the graph of checked rows: inputs, and what the steps have measured.

    Passes over X: only the shuffle's if one exact partition suffices; otherwise three, to sample
    rows, to distribute them (which needs the centers) and to search exactly for the neighbors of
    the sampled rows (which needs the sample). A target adds one pass for the pilot, and one for
    each new ``eps``.
    """

    blocks: RowBlocks
    request: GraphRequest
    plan: PartitionPlan
    scratch: Scratch
    working: Scratch
    seconds: dict[str, float] = field(default_factory=dict)
    scratch_bytes: int = 0
    shares: np.ndarray | None = None
    exact_rows: int = 0
    homes: ArrayRef = field(init=False)
    counts: np.ndarray = field(init=False)  # of shape (n_partitions,), int64: rows of each

    def run(self, details: dict[str, Any]) -> KNNGraph:
        """Sample, distribute, search, merge and check."""
        rows = self.blocks.rows * self.plan.run_blocks
        self.homes = self.scratch.create("partitions", (self.blocks.n_samples,), np.int32, rows)
        before, request = self.blocks.passes, self.request
        target = request.recall_target
        samples = None
        if not self.plan.exact or self.plan.n_partitions > 1:
            self._check_target()
            samples = self._sample()
        true = None if samples is None or target is None else self._true(samples)
        eps, cells = self._first_eps(samples, true)
        effort = 1.0
        shelves: list[Runs] = []
        lists: tuple[ArrayRef, ArrayRef] | None = None
        for attempt in range(ATTEMPTS):
            if cells.eps != eps:
                cells, shelves = self._cells(samples, eps), []
            shelves = shelves or self._distribute(cells)
            # A task of an abandoned earlier search may still write: it must not hit new arrays.
            self.scratch.remove(*lists or ())
            lists = self._search(shelves, cells, effort, f"-{attempt + 1}" if attempt else "")
            if samples is None:
                recall = RecallEstimate.certain(self.blocks.n_samples)
                break
            listed = scattered_rows(samples.read(0, "ids")[0], lists[1])
            if true is None:
                true = self._true(samples, self.working.put("listed", listed))
            recall = estimate_recall(listed, true[1])
            logger.info("neighbor graph: %s", recall)
            if target is None or recall.low >= target:
                break
            eps, effort = self._more(eps, effort, recall)
        else:
            message = (
                f"recall_target {target} is not met after {ATTEMPTS} attempts: {recall}. Raise "
                "memory_limit, so that there are fewer partitions, or lower recall_target."
            )
            if request.if_missed == "error":
                raise ConvergenceError(message)
            warnings.warn(message, stacklevel=3)
        if samples is not None and true is not None:
            keep_checked(samples.read(0, "ids")[0], true, self.scratch)
        assert lists is not None  # set by the first attempt
        counts, scratch = self.counts, self.scratch
        algorithm = "exact" if counts.max() <= self.exact_rows else "pynndescent"
        details = {
            **details,
            ROWS_OF_FULL_RUN: samples is not None,
            "eps": eps if len(counts) > 1 else 0.0,
            "effort": effort,
            "passes": self.blocks.passes - before,
            "rows_searched": int(counts.sum()),
            "largest_partition": int(counts.max()),
            "scratch_bytes": self.scratch_bytes,
            "predicted_scratch_bytes": self.predicted_scratch,
            "seconds": self.seconds,
        }
        return KNNGraph(
            *lists, self.homes, request.metric, algorithm, len(counts), recall, scratch, details
        )

    def _check_target(self) -> None:
        """Raise InputError for a target higher than the checked rows can show."""
        target, n_checked = self.request.recall_target, min(SAMPLED_ROWS, self.blocks.n_samples)
        most = estimate_of(np.ones(n_checked), self.request.n_neighbors).low
        if target is not None and target > most and self.request.if_missed == "error":
            raise InputError(
                f"recall_target {target} is more than {n_checked:,} checked rows can show, which "
                f"is {most:.4f} if all their neighbors are found. Lower it, or set algorithm to "
                "'exact' and a memory_limit with which the rows fit one partition."
            )

    def _sample(self) -> Runs:
        """Collect the rows to check (target 0) and those that define the cells (target 1)."""
        n, state = self.blocks.n_samples, self.request.random_state
        chosen = [sample_rows(n, state)]
        if self.plan.n_partitions > 1:
            chosen.append(sample_rows(n, state, self.plan.sampled_rows, "partition sample"))
        with timed(self.seconds, "sample"):
            return gather_rows(self.blocks, chosen, self.request.metric, self.working)

    def _true(self, samples: Runs, listed: ArrayRef | None = None) -> tuple[np.ndarray, np.ndarray]:
        with timed(self.seconds, "recall"):
            return true_neighbors(
                self.blocks, samples, self.request.n_neighbors, self.request.metric, listed
            )

    def _first_eps(
        self, samples: Runs | None, true: tuple[np.ndarray, np.ndarray] | None
    ) -> tuple[float, Cells]:
        """Return eps as given, or the pilot's choice for the target, or the default; and cells."""
        eps = _DEFAULT_EPS[0] if self.request.eps is None else self.request.eps
        cells = self._cells(samples, eps)
        if self.request.eps is None and cells.copies > _MOST_COPIES:
            cells = self._cells(samples, _DEFAULT_EPS[1])
        target = self.request.recall_target
        if target is None or true is None or self.plan.n_partitions == 1:
            return cells.eps, cells
        with timed(self.seconds, "pilot"):
            # A neighbor can only be found if both rows are in one partition. For sampled rows and
            # their true neighbors the centers alone show this for any eps: one pass.
            ids, where = np.unique(true[0], return_inverse=True)
            neighbors = gather_rows(self.blocks, [ids], self.request.metric, self.working)
            places = self.working.put("places", where.reshape(true[0].shape))
            shared = (samples, neighbors, places)
            [shares] = run_tasks(_colocation_task, [cells], *shared, label="pilot")
            self.shares = np.array(shares)
        if self.request.eps is not None:
            return cells.eps, cells
        # The smallest eps that leaves the search enough room for its own misses.
        enough = self.shares >= target + (1 - target) * _LEFT_TO_SEARCH
        return EPS_GRID[int(enough.argmax()) if enough.any() else -1], cells

    def _cells(self, samples: Runs | None, eps: float) -> Cells:
        """Find the partitions from the sample, in a task."""
        if samples is None or self.plan.n_partitions == 1:
            return Cells(None, (1,), (0,), eps, 1.0)
        shared = (self.request, self.plan, self.blocks.n_samples, samples, str(self.working.path))
        with timed(self.seconds, "partition"):
            [cells] = run_tasks(find_cells, [eps], *shared, label="partition")
        return cells

    def _distribute(self, cells: Cells) -> list[Runs]:
        """Write every row to its partitions, and its own partition to ``homes``: one pass over X.

        The prepared rows, including copies near a boundary, are written in partition order as the
        columns ``rows`` and ``ids`` of a few shelves.
        """
        blocks, working, request = self.blocks, self.working, self.request
        self.predicted_scratch = scratch_bytes(
            blocks.layout, request.n_neighbors, cells.n_partitions, cells.copies
        )
        working.check_free("graph", self.predicted_scratch)
        width = shelf_width(cells.n_partitions)
        n_shelves = -(-cells.n_partitions // width)
        folders = [str(working.child(working.unique("rows")).path) for _ in range(n_shelves)]
        bounds = block_bounds(blocks.n_samples, self.homes.chunk_rows)
        layout = blocks.rows, blocks.n_features, blocks.dtype
        shared = (layout, cells, request.metric, width, folders, self.homes)
        with timed(self.seconds, "distribute"):
            reader = blocks.start_pass()
            receipts = run_tasks(
                distribute_task, bounds, reader, *shared, label="distribute", unit="runs"
            )
            shelves = list(zip(*receipts, strict=True))
            sizes = [sum(np.diff(receipt.offsets) for receipt in shelf) for shelf in shelves]
            self.counts = np.concatenate(sizes)[: cells.n_partitions]
            if self.counts.max() > self.plan.capacity_rows:
                raise MemoryLimitError(
                    f"Stage 'graph': a partition has {self.counts.max():,} rows including copies, "
                    f"but one task can hold {self.plan.capacity_rows:,}. Set n_partitions to "
                    f"{2 * max(2, len(self.counts))} or more, or raise memory_limit."
                )
            return [commit_runs(working, *pair) for pair in zip(folders, shelves, strict=True)]

    def _search(
        self, shelves: list[Runs], cells: Cells, effort: float, suffix: str
    ) -> tuple[ArrayRef, ArrayRef]:
        """Search every partition on its own, several at a time, and merge the results by row.

        With a recall target the rows stay in scratch for another attempt.
        """
        n, request, k = self.blocks.n_samples, self.request, self.request.n_neighbors
        self.exact_rows = exact_rows(
            request.algorithm, self.plan, self.counts, self.blocks.n_features
        )
        rows = min(n, graph_block_rows(k))
        folder = str(self.working.child(self.working.unique("results")).path)
        receipts: dict[int, Receipt] = {}
        with timed(self.seconds, "neighbors"):
            groups = group_tiny(self.counts, cells.partners(), k + 1)
            sizes = np.array([self.counts[list(group)].sum() for group in groups])
            # A group is searched while the first of its shelves still exists.
            shelf_of = np.array([group[0] // shelves[0].n_targets for group in groups])
            if sizes.max() > self.exact_rows:
                compile_first()
            shared = shelves, request, (self.exact_rows, effort), (folder, rows, -(-n // rows))
            held = sum(runs.nbytes for runs in shelves)
            for shelf, runs in enumerate(shelves):
                # The largest first, so that no worker is left with one at the end.
                mine = [int(i) for i in np.argsort(-sizes, kind="stable") if shelf_of[i] == shelf]
                items = [(i, groups[i]) for i in mine]
                parts = run_tasks(search_task, items, *shared, label="neighbors", unit="partitions")
                receipts.update(zip(mine, parts, strict=True))
                written = sum(receipt.nbytes for receipt in receipts.values())
                self.scratch_bytes = max(self.scratch_bytes, held + written)
                if request.recall_target is None:
                    runs.remove()
                    held -= runs.nbytes
            results = commit_runs(self.working, folder, [receipts[i] for i in range(len(groups))])
        with timed(self.seconds, "merge"):
            lists, _ = merge_results(self.scratch, suffix, results, (n, k), rows)
        results.remove()
        return lists

    def _more(self, eps: float, effort: float, recall: RecallEstimate) -> tuple[float, float]:
        """Return a larger eps if boundaries lose more neighbors than the search, or more effort."""
        if self.shares is not None:
            lost_at_boundaries = 1 - float(np.interp(eps, EPS_GRID, self.shares))
            larger = [step for step in EPS_GRID if step > eps]
            if larger and lost_at_boundaries > (1 - recall.value) / 2:
                return larger[0], effort
        return eps, effort * MORE_EFFORT


@contextmanager
def timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    """Add the time spent in the block to ``seconds[step]``."""
    began = time.monotonic()
    yield
    seconds[step] = round(seconds.get(step, 0.0) + time.monotonic() - began, 3)


def _colocation_task(cells: Cells, samples: Runs, neighbors: Runs, places: ArrayRef) -> list[float]:
    """Return the share of true neighbors within reach for every eps of the grid."""
    assert cells.centers is not None  # one partition leaves nothing to choose
    centers, where = cells.centers.load(), places.load()
    [rows], [others] = samples.read(0, "rows"), neighbors.read(0, "rows")
    own = np.repeat(np.arange(len(rows)), where.shape[1])
    shares = []
    for eps in EPS_GRID:
        ours, theirs = (_membership(some, centers, eps) for some in (rows, others))
        in_common = ours[own].multiply(theirs[where.ravel()]).sum(axis=1)
        shares.append(float((in_common > 0).mean()))
    return shares


def _membership(rows: np.ndarray, centers: np.ndarray, eps: float) -> Any:
    """Return the cells that each row goes to, as CSR of shape (n_rows, n_cells)."""
    from scipy.sparse import csr_array

    cells, source = assign_cells(rows, centers, eps)
    shape = (len(rows), len(centers) - 1)
    return csr_array((np.ones(len(cells), np.int32), (source, cells)), shape=shape)


def missed_neighbors(graph: KNNGraph) -> list[str]:
    """Return and log a warning if the graph misses many neighbors; else return an empty list."""
    recall = graph.recall_
    if recall.value >= GOOD_RECALL:
        return []
    seconds = sum(graph.details["seconds"].values())
    most = sum(MORE_EFFORT**step for step in range(1, ATTEMPTS))
    note = (
        f"The graph has {recall.value:.0%} of the true neighbors ({recall.n_rows:,} rows checked). "
        f"Set graph.recall_target to {GOOD_RECALL} or more to repeat the search, each time 50 % "
        f"wider, until it is met; this search took {seconds:.0f} s, all repetitions take at "
        f"most {most:.0f} times as long. Data without groups or with many dimensions need it most."
    )
    logger.warning(note)
    return [note]
