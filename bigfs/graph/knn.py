"""The neighbor graph of data larger than memory: partition, shuffle, search, merge, check."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.core.errors import InputError
from bigfs.core.execute import run_tasks
from bigfs.core.memory import DEFAULT_MEMORY_LIMIT, check_fits
from bigfs.core.units import parse_bytes
from bigfs.graph.local import ALGORITHMS, check_metric, check_n_neighbors
from bigfs.graph.merge import merge_task
from bigfs.graph.partition import PartitionPlan, plan_partitions
from bigfs.graph.recall import RecallEstimate, check_recall, sample_rows
from bigfs.graph.search import Distribution, distribute, gather_rows, search_partitions
from bigfs.store.chunking import block_bounds
from bigfs.store.scratch import ArrayRef, Scratch

logger = logging.getLogger("bigfs")

# Bytes of indices and distances of one stored block of the graph.
_BLOCK_BYTES = 8 * 1024**2


@dataclass(frozen=True)
class KNNGraph:
    """The k nearest neighbors of every row.

    Attributes
    ----------
    indices_ref : ArrayRef of shape (n_samples, n_neighbors), int32
        No row lists itself, no neighbor twice.
    distances_ref : ArrayRef of shape (n_samples, n_neighbors), float32
        True distances, ascending; equal ones by ascending index.
    metric : str
    algorithm : str
        "exact" or "pynndescent".
    n_partitions : int
        How many parts were searched on their own.
    recall_ : RecallEstimate
        The share of true neighbors found.
    scratch : Scratch
        Keeps the stored arrays alive.
    details : dict
        Rows copied, bytes through scratch, passes over X, seconds by step.
    """

    indices_ref: ArrayRef
    distances_ref: ArrayRef
    metric: str
    algorithm: str
    n_partitions: int
    recall_: RecallEstimate
    scratch: Scratch
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def n_samples(self) -> int:
        """Rows of the data."""
        return self.indices_ref.shape[0]

    @property
    def n_neighbors(self) -> int:
        """Neighbors of each row."""
        return self.indices_ref.shape[1]

    @property
    def indices(self) -> Any:
        """Neighbors of every row as a zarr array, read when asked."""
        return self.indices_ref.open()

    @property
    def distances(self) -> Any:
        """Distances to the neighbors as a zarr array, read when asked."""
        return self.distances_ref.open()

    @property
    def row_bounds(self) -> list[tuple[int, int]]:
        """First row and one past the last row of every stored block."""
        return block_bounds(self.n_samples, self.indices_ref.chunk_rows)

    def to_csr(
        self, mode: str = "distance", *, memory_limit: int | str = DEFAULT_MEMORY_LIMIT
    ) -> Any:
        """Return the directed graph as scipy CSR.

        Parameters
        ----------
        mode : {"distance", "connectivity"}, default="distance"
        memory_limit : int or str, default="4 GiB"
            Refuse if the matrix does not fit a process of this size.

        Returns
        -------
        graph : csr_array of shape (n_samples, n_samples), float32
            ``n_neighbors`` entries per row, by ascending distance; distances of zero are stored.

        Raises
        ------
        MemoryLimitError
            If it does not fit.
        """
        from scipy.sparse import csr_array

        if mode not in ("distance", "connectivity"):
            raise InputError(f"mode must be 'distance' or 'connectivity'. Got {mode!r}.")
        n, k = self.indices_ref.shape
        check_fits("graph", n * k * 12 + 8 * n, parse_bytes(memory_limit), "the graph as CSR")
        data = (
            self.distances_ref.load().ravel()
            if mode == "distance"
            else np.ones(n * k, dtype=np.float32)
        )
        indptr = np.arange(n + 1, dtype=np.int64 if n * k >= 2**31 else np.int32) * k
        return csr_array((data, self.indices_ref.load().ravel(), indptr), shape=(n, n))

    def describe(self) -> dict[str, Any]:
        """Return what `open` needs beside the arrays, as JSON values."""
        return {
            "metric": self.metric,
            "algorithm": self.algorithm,
            "n_neighbors": self.n_neighbors,
            "n_partitions": self.n_partitions,
            "recall": self.recall_.as_dict(),
            **self.details,
        }

    @classmethod
    def open(cls, path: str | Path, stored: dict[str, Any]) -> KNNGraph:
        """Return the graph that was stored in a folder."""
        known = {"metric", "algorithm", "n_neighbors", "n_partitions", "recall"}
        return cls(
            ArrayRef.at(Path(path) / "indices"),
            ArrayRef.at(Path(path) / "distances"),
            stored["metric"],
            stored["algorithm"],
            stored["n_partitions"],
            RecallEstimate(**stored["recall"]),
            Scratch(path),
            {name: value for name, value in stored.items() if name not in known},
        )


def knn_graph(
    X: Any,
    n_neighbors: int,
    *,
    metric: str = "euclidean",
    algorithm: str = "auto",
    memory_limit: int | str = DEFAULT_MEMORY_LIMIT,
    random_state: int = 0,
    scratch: Scratch | None = None,
) -> KNNGraph:
    """Return the k nearest neighbors of every row of data that need not fit memory.

    Parameters
    ----------
    X : RowBlocks, array-like, sparse matrix, DataFrame, Dask or zarr array, path or URI
        Data of shape (n_samples, n_features).
    n_neighbors : int
        Neighbors of each row, itself not counted, in [1, n_samples - 1].
    metric : {"euclidean", "cosine", "correlation"}, default="euclidean"
    algorithm : {"auto", "exact", "pynndescent"}, default="auto"
        ``auto`` searches up to 8,192 rows exactly and larger data with pynndescent.
    memory_limit : int or str, default="4 GiB"
        Resident size promised for one worker process; it decides the partitions.
    random_state : int, default=0
        Seed of everything random.
    scratch : Scratch or None, default=None
        Where the graph is stored, and what is needed on the way. None: a temporary folder that
        lives with the result.

    Returns
    -------
    graph : KNNGraph

    Raises
    ------
    InputError
        If a parameter is out of range, or a row has no direction (cosine, correlation).
    MemoryLimitError
        If the search does not fit ``memory_limit``; nothing has run.

    Notes
    -----
    Deterministic for a fixed seed, shape and memory limit, whatever the workers.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from bigfs import knn_graph
    >>> graph = knn_graph(load_digits().data, 5)
    >>> graph.indices.shape, graph.recall_.value
    ((1797, 5), 1.0)
    """
    check_metric(metric)
    if algorithm not in ALGORITHMS:
        raise InputError(f"algorithm must be one of {', '.join(ALGORITHMS)}. Got {algorithm!r}.")
    scratch = scratch or Scratch()
    blocks = RowBlocks.from_any(X, scratch=scratch)
    check_n_neighbors(n_neighbors, blocks.n_samples)
    if blocks.n_samples >= 2**31:
        raise InputError(f"X has {blocks.n_samples:,} rows; a graph takes fewer than 2^31.")
    plan = plan_partitions(
        blocks.n_samples,
        blocks.n_features,
        blocks.dtype.itemsize,
        n_neighbors,
        parse_bytes(memory_limit),
        algorithm,
    )
    working = scratch.child(scratch.unique("search"))
    passes = blocks.passes
    try:
        build = _Build(blocks, n_neighbors, metric, algorithm, random_state, plan, scratch, working)
        return build.run(passes)
    finally:
        working.close()


@dataclass
class _Build:
    """One construction of a graph: its settings, and the steps in order."""

    blocks: RowBlocks
    n_neighbors: int
    metric: str
    algorithm: str
    random_state: int
    plan: PartitionPlan
    scratch: Scratch
    working: Scratch
    seconds: dict[str, float] = field(default_factory=dict)

    def run(self, passes_before: int) -> KNNGraph:
        """Build the graph and estimate its recall."""
        samples = None
        if not self.plan.exact:
            with self._timed("sample"):
                checked = sample_rows(self.blocks.n_samples, self.random_state)
                samples = gather_rows(self.blocks, [checked], self.metric, self.working)
        with self._timed("distribute"):
            spread = distribute(self.blocks, self.metric, self.working)
        indices, distances = self._search(spread)
        recall = RecallEstimate(1.0, 1.0, 1.0, self.blocks.n_samples, exact=True)
        if samples is not None:
            with self._timed("recall"):
                recall = check_recall(self.blocks, samples, distances, self.metric)
            logger.info("neighbor graph: %s", recall)
        return KNNGraph(
            indices,
            distances,
            self.metric,
            "exact" if self.plan.exact else "pynndescent",
            len(spread.counts),
            recall,
            self.scratch,
            {
                "passes": self.blocks.passes - passes_before,
                "rows_searched": int(spread.counts.sum()),
                "predicted_bytes": self.plan.predicted_bytes,
                "seconds": self.seconds,
            },
        )

    def _search(self, spread: Distribution) -> tuple[ArrayRef, ArrayRef]:
        """Search the partitions and bring the neighbors home."""
        n, k = self.blocks.n_samples, self.n_neighbors
        rows = max(1, _BLOCK_BYTES // (8 * k))
        indices = self.scratch.create("indices", (n, k), np.int32, rows)
        distances = self.scratch.create("distances", (n, k), np.float32, rows)
        algorithm = "exact" if self.plan.exact else self.algorithm
        with self._timed("neighbors"):
            results = search_partitions(
                spread, k, self.metric, algorithm, self.random_state, indices, self.working
            )
        self.working.child("rows").close()
        with self._timed("merge"):
            bounds = block_bounds(n, indices.chunk_rows)
            run_tasks(
                merge_task, bounds, results, indices.chunk_rows, indices, distances, label="merge"
            )
        return indices, distances

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        """Record how long a step took."""
        began = time.monotonic()
        yield
        self.seconds[step] = round(time.monotonic() - began, 3)
