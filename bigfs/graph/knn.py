"""The neighbor graph of data larger than memory: partition, shuffle, search, merge, check."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.core.errors import InputError
from bigfs.core.memory import DEFAULT_MEMORY_LIMIT, check_fits
from bigfs.core.paths import plain_name
from bigfs.core.units import parse_bytes
from bigfs.graph.build import ATTEMPTS, MORE_EFFORT, GraphRequest, build_graph
from bigfs.graph.local import check_n_neighbors
from bigfs.graph.recall import RecallEstimate
from bigfs.graph.representation import check_representation, principal_rows
from bigfs.store.chunking import block_bounds
from bigfs.store.location import Location, as_location
from bigfs.store.scratch import ArrayRef, Kept, Scratch

logger = logging.getLogger("bigfs")

# float32 has no digits to lose below 1.2e-38.
LEAST_DISTANCE = 1e-30
# A warning with the remedy is given below this share of true neighbors.
GOOD_RECALL = 0.9


@dataclass(frozen=True)
class KNNGraph(Kept):
    """The k nearest neighbors of every row.

    Attributes
    ----------
    indices_ref : ArrayRef of shape (n_samples, n_neighbors), int32
        No row lists itself, no neighbor twice.
    distances_ref : ArrayRef of shape (n_samples, n_neighbors), float32
        True distances, ascending; equal ones by ascending index.
    partitions_ref : ArrayRef of shape (n_samples,), int32
        The part of the data each row belongs to: most neighbors are in the same one.
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
    partitions_ref: ArrayRef
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
        return self.indices_ref.open(self.scratch)

    @property
    def distances(self) -> Any:
        """Distances to the neighbors as a zarr array, read when asked."""
        return self.distances_ref.open(self.scratch)

    @property
    def row_bounds(self) -> list[tuple[int, int]]:
        """First row and one past the last row of every stored block."""
        return block_bounds(self.n_samples, self.indices_ref.chunk_rows)

    def check_fits(self, memory_limit: int | str) -> None:
        """Raise MemoryLimitError if the graph does not fit a process as CSR."""
        n, k = self.indices_ref.shape
        check_fits("graph", n * k * 12 + 8 * n, parse_bytes(memory_limit), "the graph as CSR")

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
        self.check_fits(memory_limit)
        data = (
            self.distances_ref.load().ravel()
            if mode == "distance"
            else np.ones(n * k, dtype=np.float32)
        )
        indptr = np.arange(n + 1, dtype=np.int64 if n * k >= 2**31 else np.int32) * k
        return csr_array((data, self.indices_ref.load().ravel(), indptr), shape=(n, n))

    def describe(self) -> dict[str, Any]:
        """Return the metadata that `open` needs beside the arrays, as JSON values."""
        return {
            "metric": self.metric,
            "algorithm": self.algorithm,
            "n_neighbors": self.n_neighbors,
            "n_partitions": self.n_partitions,
            "recall": self.recall_.as_dict(),
            "arrays": [
                ref.path.rsplit("/", 1)[1] for ref in (self.indices_ref, self.distances_ref)
            ],
            **self.details,
        }

    @classmethod
    def open(cls, path: str | Location, stored: dict[str, Any]) -> KNNGraph:
        """Return the graph that was stored in a folder."""
        known = {"metric", "algorithm", "n_neighbors", "n_partitions", "recall", "arrays"}
        indices, distances = (plain_name(name, path) for name in stored["arrays"])
        return cls(
            ArrayRef.at(as_location(path) / indices),
            ArrayRef.at(as_location(path) / distances),
            ArrayRef.at(as_location(path) / "partitions"),
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

    Rows are divided into k-means cells, those near a boundary are copied across it, every cell
    is searched on its own, and each row keeps the best of what its copies found.

    Parameters
    ----------
    X : RowBlocks, array-like, sparse matrix, DataFrame, Dask or zarr array, path or URI
        Data of shape (n_samples, n_features).
    n_neighbors : int
        Neighbors of each row, itself not counted, in [1, n_samples - 1].
    metric : {"euclidean", "cosine", "correlation"}, default="euclidean"
    algorithm : {"auto", "exact", "pynndescent"}, default="auto"
        How a partition is searched; ``auto`` is exact where that costs less than the seconds
        that pynndescent compiles for.
    representation : str, default="raw"
        What rows are compared by: ``raw`` features, or ``pca:p``, the first p principal
        components (metric euclidean); distances and recall are then those of the components.
    memory_limit : int or str, default="4 GiB"
        Resident size promised for one worker process; it decides the partitions.
    n_partitions : int or None, default=None
        Partitions to begin with. None: as few as ``memory_limit`` allows.
    eps : float or None, default=None
        A row is copied to partitions whose center is within ``1 + eps`` times the distance to
        its nearest. None: 0.15, or 0.1 where that makes more than 1.6 copies of a row on
        average, or what ``recall_target`` asks for.
    recall_target : float or None, default=None
        Raise ``eps`` and the search effort until the recall's lower bound reaches this.
    if_missed : {"error", "warn"}, default="error"
        What to do about a target that cannot be met.
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
        If the search does not fit ``memory_limit``.
    ConvergenceError
        If ``recall_target`` is not met.

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
    searched = (n_neighbors, metric, algorithm, eps, recall_target, if_missed, random_state)
    request = GraphRequest(*searched, n_partitions, parse_bytes(memory_limit))
    return _checked_graph(X, request, representation, scratch or Scratch())


def _checked_graph(
    X: Any, request: GraphRequest, representation: str, scratch: Scratch
) -> KNNGraph:
    """Check the parameters of `knn_graph` and the data, and build the graph."""
    request.check()
    n_components = check_representation(representation, request.metric)
    blocks = RowBlocks.from_any(X, scratch=scratch)
    check_n_neighbors(request.n_neighbors, blocks.n_samples)
    if request.metric == "euclidean":
        blocks.refuse_below(LEAST_DISTANCE, "distances are stored in float32")
    if blocks.n_samples >= 2**31:
        raise InputError(f"X has {blocks.n_samples:,} rows; a graph takes fewer than 2^31.")
    if n_components is None:
        return _stored_graph(blocks, request, scratch, representation="raw")
    passes, working = blocks.passes, scratch.child(scratch.unique("representation"))
    try:
        rows, explained, _ = principal_rows(blocks, n_components, request.random_state, working)
        details = {"representation": representation, "explained_variance": explained}
        graph = _stored_graph(rows, request, scratch, **details)
        blocks.check_unchanged()
    finally:
        working.close()
    over_components = {"passes_over_components": graph.details["passes"]}
    details = {**graph.details, "passes": blocks.passes - passes, **over_components}
    return replace(graph, details=details)


def _stored_graph(
    rows: RowBlocks, request: GraphRequest, scratch: Scratch, **details: Any
) -> KNNGraph:
    """Build the graph of checked rows."""
    built = build_graph(rows, request, scratch)
    rows.check_unchanged()
    return KNNGraph(
        built.indices,
        built.distances,
        built.partitions,
        request.metric,
        "exact" if built.exact else "pynndescent",
        built.n_partitions,
        built.recall,
        scratch,
        {**details, **built.details},
    )


def missed_neighbors(graph: KNNGraph) -> list[str]:
    """Return a warning, which is also logged, if the graph misses many neighbors; else none."""
    recall = graph.recall_
    if recall.value >= GOOD_RECALL:
        return []
    seconds = sum(graph.details["seconds"].values())
    most = sum(MORE_EFFORT**step for step in range(1, ATTEMPTS))
    note = (
        f"The graph has {recall.value:.0%} of the true neighbors ({recall.n_rows:,} rows checked). "
        f"Set graph.recall_target to {GOOD_RECALL} or more: the search is repeated, each time half "
        f"as wide again, until it finds them; this one took {seconds:.0f} s, all of them take at "
        f"most {most:.0f} times as long. Data without groups, or of many dimensions, need it most."
    )
    logger.warning(note)
    return [note]
