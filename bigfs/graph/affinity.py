"""From neighbors to the affinity matrix W: weights, the union of both directions, degrees."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.core.errors import InputError, check_choice
from bigfs.graph.edges import edge_products
from bigfs.graph.knn import KNNGraph
from bigfs.graph.recall import scattered_rows
from bigfs.graph.symmetrize import LEAST_HEAT, AffinityMatrix, store_affinity
from bigfs.runtime.execute import run_tasks
from bigfs.store.scratch import ArrayRef, Scratch

logger = logging.getLogger("bigfs")

WEIGHTS = ("binary", "heat", "dot", "cosine")
# Number of rows whose neighbor distances determine the median width.
_WIDTH_ROWS = 10_000

_COMPLAINTS = {
    "binary": ".",
    "heat": ".",
    "dot": ": its dot products with its neighbors are zero or negative. Use weight 'binary', "
    "'heat' or 'cosine', or non-negative data.",
    "cosine": ": its cosines with its neighbors are zero or negative. Use weight 'binary' or "
    "'heat', or non-negative data.",
}


@dataclass(frozen=True)
class NeighborEdges:
    """The edges of a neighbor graph, from every row to each of its neighbors."""

    indices: ArrayRef
    values: ArrayRef | None  # of the same shape: distances or products; None: not needed
    least: float = 0.0  # first value of a row whose values are all zero

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return heads, tails and values of the edges from rows start to stop."""
        tails = self.indices.read(start, stop)
        heads = np.repeat(np.arange(start, stop), tails.shape[1])
        if self.values is None:
            return heads, tails.ravel(), np.ones(len(heads))
        values = self.values.read(start, stop).astype(np.float64, copy=False)
        # A row that is similar to none of its neighbors keeps its nearest one.
        values[~values.any(axis=1), 0] = self.least
        return heads, tails.ravel(), values.ravel()


def affinity(
    graph: KNNGraph,
    weight: str = "binary",
    *,
    sigma: float | str | None = None,
    blocks: RowBlocks | None = None,
    scratch: Scratch | None = None,
) -> AffinityMatrix:
    """Return the affinity matrix of a neighbor graph, stored by row blocks.

    An edge exists if either end lists the other. No process ever holds the whole matrix.

    Parameters
    ----------
    graph : KNNGraph
    weight : {"binary", "heat", "dot", "cosine"}, default="binary"
        Weight of an edge: 1; ``exp(-d^2 / sigma)`` with d the graph's distance; ``x'y``; the
        cosine of x and y.
    sigma : float, "median" or None, default=None
        Width of the heat kernel, in units of squared distance; weights are at least 1e-6.
        "median": the squared median positive neighbor distance (of 10,000 rows spread over the
        data). None: each edge has its own, ``max(s_i, s_j)^2`` with s_i the distance from row i to
        its last neighbor [1]_, so that weights lie between ``exp(-1)`` and 1.
    blocks : RowBlocks or None, default=None
        The data; needed for ``dot`` and ``cosine``.
    scratch : Scratch or None, default=None
        Where W is stored. None: in a subfolder of the graph's.

    Returns
    -------
    W : AffinityMatrix

    Raises
    ------
    InputError
        If a parameter is out of range, or a degree is zero or negative.

    Notes
    -----
    Dot products and cosines are computed from the rows, in float64: each block is read once, and
    again by the blocks that have edges into it. A row whose products with all its neighbors are
    zero, such as a row of zeros, keeps its nearest neighbor, with the least positive weight of the
    graph. Entries that vanish are dropped. Cost: the edges go through scratch once.

    A single width for all edges isolates rows that are farther from all others than most; they
    then dominate the eigenvectors. The paper's width is a product, ``s_i s_j``, which can be
    arbitrarily small compared with ``d^2``; the larger of both squares cannot. Duplicate rows
    (s_i = 0) have weight 1.

    References
    ----------
    .. [1] L. Zelnik-Manor, P. Perona, "Self-tuning spectral clustering", NIPS 2004.
    """
    check_weight(weight, sigma, graph.metric)
    scratch = scratch or graph.scratch.child(graph.scratch.unique("affinity"))
    with scratch.temporary("weights") as working:
        width = default_sigma(graph) if isinstance(sigma, str) else sigma
        edges = NeighborEdges(graph.indices_ref, None)
        if weight == "heat":
            edges = NeighborEdges(graph.indices_ref, graph.distances_ref)
            if width is not None:
                _warn_of_far_rows(graph, width)
        elif weight != "binary":
            products = _products(graph, weight, blocks, working)
            edges = NeighborEdges(graph.indices_ref, *products)
        size, complaint = (graph.n_samples, graph.indices_ref.chunk_rows), _COMPLAINTS[weight]
        return store_affinity(edges, weight, width, size, scratch, complaint, graph.partitions_ref)


def _products(
    graph: KNNGraph, weight: str, blocks: RowBlocks | None, working: Scratch
) -> tuple[ArrayRef, float]:
    """Return products along the edges and the least, and warn of rows similar to no neighbor."""
    if graph.details.get("representation", "raw") != "raw":
        raise InputError(
            f"weight '{weight}' compares the features themselves, so the graph must use them too. "
            "Set representation to 'raw', or weight to 'binary' or 'heat'."
        )
    if blocks is None:
        raise InputError(f"weight '{weight}' needs the data: pass blocks.")
    values, least, n_unlike = edge_products(blocks, graph.indices_ref, weight, working)
    if n_unlike and least > 0:
        logger.warning(
            "%d of %d rows have weight 0 to all their neighbors under weight '%s': they are zero "
            "in every feature in which a neighbor is nonzero. Each keeps its nearest neighbor, "
            "with the smallest positive weight of the graph, %.3g.",
            n_unlike, graph.n_samples, weight, least,
        )  # fmt: skip
    return values, least


def check_weight(weight: str, sigma: float | str | None, metric: str) -> None:
    """Raise InputError for an unknown weight, or a weight, sigma and metric that do not fit."""
    check_choice("weight", weight, WEIGHTS)
    is_number = sigma is not None and not isinstance(sigma, str)
    fits = 0 < float(sigma or 0) < np.inf if is_number else sigma in (None, "median")
    if not fits or (sigma is not None and weight != "heat"):
        raise InputError(
            "sigma must be a positive number, 'median', or None (each edge has its own width), and "
            f"applies to weight 'heat' only. Got {sigma!r} with weight '{weight}'."
        )
    if metric == "correlation" and weight in ("dot", "cosine"):
        raise InputError(
            f"weight '{weight}' needs metric 'euclidean' or 'cosine', since correlations do not "
            "give dot products. Got metric 'correlation'."
        )


def default_sigma(graph: KNNGraph) -> float:
    """Return the squared median of the positive neighbor distances of 10,000 spread rows.

    Raises
    ------
    InputError
        If all of them are zero.
    """
    stride = -(-graph.n_samples // _WIDTH_ROWS)
    distances = scattered_rows(range(0, graph.n_samples, stride), graph.distances_ref)
    positive = distances[distances > 0]
    if not len(positive):
        raise InputError("sigma cannot be chosen: all neighbors are at distance zero. Set sigma.")
    return float(np.median(positive.astype(np.float64)) ** 2)


def _warn_of_far_rows(graph: KNNGraph, sigma: float) -> None:
    """Warn of rows with weights that would vanish with the given width."""
    reach = np.sqrt(-np.log(LEAST_HEAT) * sigma)
    n_far = count_beyond(graph, float(reach))
    if n_far:
        logger.warning(
            "%d of %d rows have neighbors at which exp(-distance^2 / sigma) is below %g with sigma "
            "%.3g: these weights are raised to this value. Leave sigma unset to give every edge "
            "its own width.",
            n_far, graph.n_samples, LEAST_HEAT, sigma,
        )  # fmt: skip


def count_beyond(graph: KNNGraph, reach: float) -> int:
    """Return how many rows have a neighbor farther away than ``reach``."""
    return sum(run_tasks(_count_beyond, graph.row_bounds, graph.distances_ref, reach, label="far"))


def _count_beyond(bounds: tuple[int, int], distances: ArrayRef, reach: float) -> int:
    return int((distances.read(*bounds)[:, -1] > reach).sum())
