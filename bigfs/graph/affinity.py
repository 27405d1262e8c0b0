"""From neighbors to the affinity matrix W: weights, the union of both directions, degrees."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.core.checks import check_choice
from bigfs.core.errors import InputError
from bigfs.core.memory import check_fits
from bigfs.core.text import FROM_0
from bigfs.core.units import parse_bytes
from bigfs.graph.knn import KNNGraph
from bigfs.graph.products import EdgeProducts, edge_products
from bigfs.graph.symmetrize import ENTRY_CHUNK, SymmetricCSR, symmetrize
from bigfs.runtime.execute import run_tasks
from bigfs.store.location import Location, as_location
from bigfs.store.scratch import ArrayRef, Scratch

logger = logging.getLogger("bigfs")

WEIGHTS = ("binary", "heat", "dot", "cosine")
# Rows whose neighbor distances the default width is the median of.
_WIDTH_ROWS = 10_000
# The least heat weight under a given width: below it a row would leave the graph.
LEAST_HEAT = 1e-6

_COMPLAINTS = {
    "binary": ".",
    "heat": ".",
    "dot": ": its dot products with its neighbors are zero or negative. Use weight 'binary', "
    "'heat' or 'cosine', or data that are not negative.",
    "cosine": ": its cosines with its neighbors are zero or negative. Use weight 'binary' or "
    "'heat', or data that are not negative.",
}


@dataclass(frozen=True)
class AffinityMatrix:
    """A symmetric affinity matrix with zero diagonal, stored in CSR form.

    Attributes
    ----------
    data : ArrayRef of shape (nnz,), float64
    indices : ArrayRef of shape (nnz,), int32
        Columns, ascending in each row.
    indptr : ArrayRef of shape (n_samples + 1,), int64
    degrees : ArrayRef of shape (n_samples,), float64
        Row sums, all positive.
    weight : str
        How edges are weighted.
    sigma_ : float or None
        Width of the heat kernel that was given; None: each edge has its own, or weights are
        not heat.
    scratch : Scratch
        Keeps the stored arrays alive.
    partitions : ArrayRef of shape (n_samples,), int32, or None
        Rows of one number have most of their edges among themselves. None: not known.
    """

    data: ArrayRef
    indices: ArrayRef
    indptr: ArrayRef
    degrees: ArrayRef
    weight: str
    sigma_: float | None
    scratch: Scratch
    partitions: ArrayRef | None = None

    @property
    def n_samples(self) -> int:
        """Rows and columns."""
        return self.degrees.shape[0]

    @property
    def nnz(self) -> int:
        """Stored entries: every edge twice."""
        return self.data.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix in memory."""
        return self.data.nbytes + self.indices.nbytes + self.indptr.nbytes

    def load(self, memory_limit: int | str | None = None) -> Any:
        """Return the matrix as scipy CSR.

        Parameters
        ----------
        memory_limit : int or str or None, default=None
            Refuse if the matrix does not fit a process of this size. None: do not ask.

        Raises
        ------
        MemoryLimitError
            If it does not fit.
        """
        from scipy.sparse import csr_array

        if memory_limit is not None:
            check_fits("affinity", self.nbytes, parse_bytes(memory_limit), "W in memory")
        indptr = self.indptr.load()
        if self.nnz < 2**31:
            indptr = indptr.astype(np.int32)
        shape = (self.n_samples, self.n_samples)
        return csr_array((self.data.load(), self.indices.load(), indptr), shape=shape)

    def describe(self) -> dict[str, Any]:
        """Return the metadata that `open` needs beside the arrays, as JSON values."""
        return {"weight": self.weight, "sigma": self.sigma_}

    @classmethod
    def open(
        cls, path: str | Location, stored: dict[str, Any], partitions: ArrayRef | None = None
    ) -> AffinityMatrix:
        """Return the matrix that was stored in a folder."""
        names = ("data", "indices", "indptr", "degrees")
        refs = {name: ArrayRef.at(as_location(path) / name) for name in names}
        return cls(
            **refs,
            weight=stored["weight"],
            sigma_=stored["sigma"],
            scratch=Scratch(path),
            partitions=partitions,
        )


@dataclass(frozen=True)
class _EdgeContext:
    """Everything a task needs to weigh the edges of its rows."""

    indices: ArrayRef
    distances: ArrayRef
    weight: str
    sigma: float | None
    scales: ArrayRef | None
    products: EdgeProducts | None


def affinity(
    graph: KNNGraph,
    weight: str = "binary",
    *,
    sigma: float | str | None = None,
    blocks: RowBlocks | None = None,
    scratch: Scratch | None = None,
) -> AffinityMatrix:
    """Return the affinity matrix of a neighbor graph, stored by row blocks.

    An edge exists if either end lists the other. Nothing of its size is in any one process.

    Parameters
    ----------
    graph : KNNGraph
    weight : {"binary", "heat", "dot", "cosine"}, default="binary"
        1; ``exp(-d^2 / sigma)`` with d the graph's distance; ``x'y``; the cosine of x and y.
    sigma : float, "median" or None, default=None
        Width of the heat kernel, in units of squared distance; weights are at least 1e-6.
        "median": the squared median positive neighbor distance (of 10,000 rows spread over the
        data). None: of every edge its own, ``max(s_i, s_j)^2`` with s_i the distance of row i to
        the last of its neighbors [1]_, so that weights lie between ``exp(-1)`` and 1.
    blocks : RowBlocks or None, default=None
        The data, for ``dot`` and ``cosine``.
    scratch : Scratch or None, default=None
        Where W is stored. None: beside the graph.

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
    zero, such as a row of zeros, keeps its nearest neighbor with the least positive weight of the
    graph. Entries that vanish are dropped. Cost: the edges go through scratch once.
    One width for all edges leaves rows alone that are farther from all others than most: they
    hold the eigenvectors then. The paper's width is a product, ``s_i s_j``, which can be as small
    as one likes beside ``d^2``; the larger of both cannot. Copies (s_i = 0) have weight 1.

    References
    ----------
    .. [1] L. Zelnik-Manor, P. Perona, "Self-tuning spectral clustering", NIPS 2004.
    """
    check_weight(weight, sigma, graph.metric)
    scratch = scratch or graph.scratch.child(graph.scratch.unique("affinity"))
    working = scratch.child(scratch.unique("weights"))
    try:
        scales = products = width = None
        if weight == "heat" and sigma is None:
            scales = working.create(
                "scales", (graph.n_samples,), np.float64, graph.indices_ref.chunk_rows
            )
            run_tasks(_write_scales, graph.row_bounds, graph.distances_ref, scales, label="scales")
        elif weight == "heat":
            width = default_sigma(graph) if isinstance(sigma, str) else sigma
            _warn_of_far_rows(graph, width)
        if weight in ("dot", "cosine"):
            products = _products(graph, weight, blocks, working)
        context = _EdgeContext(
            graph.indices_ref, graph.distances_ref, weight, width, scales, products
        )
        stored = symmetrize(
            _weighted_edges,
            context,
            graph.n_samples,
            graph.indices_ref.chunk_rows,
            scratch,
            _COMPLAINTS[weight],
        )
    finally:
        working.close()
    return _matrix(stored, weight, width, scratch, graph.partitions_ref)


def _products(
    graph: KNNGraph, weight: str, blocks: RowBlocks | None, working: Scratch
) -> EdgeProducts:
    """Return the products along the edges, and warn of rows that are similar to no neighbor."""
    if graph.details.get("representation", "raw") != "raw":
        raise InputError(
            f"weight '{weight}' compares the features themselves, so the graph must use them too. "
            "Set representation to 'raw', or weight to 'binary' or 'heat'."
        )
    if blocks is None:
        raise InputError(f"weight '{weight}' needs the data: pass blocks.")
    products = edge_products(blocks, graph.indices_ref, weight, working)
    if products.n_unlike and products.least > 0:
        logger.warning(
            "%d of %d rows have weight 0 to all their neighbors under weight '%s': they are zero "
            "in every feature, or in all that their neighbors are not. Each keeps its nearest "
            "neighbor with the least positive weight of the graph, %.3g.",
            products.n_unlike, graph.n_samples, weight, products.least,
        )  # fmt: skip
    return products


def _matrix(
    stored: SymmetricCSR,
    weight: str,
    sigma: float | None,
    scratch: Scratch,
    partitions: ArrayRef,
) -> AffinityMatrix:
    return AffinityMatrix(
        stored.data,
        stored.indices,
        stored.indptr,
        stored.degrees,
        weight,
        sigma,
        scratch,
        partitions,
    )


def affinity_from_csr(W: Any, *, scratch: Scratch | None = None) -> AffinityMatrix:
    """Check an affinity matrix in memory and store it.

    Parameters
    ----------
    W : scipy sparse matrix of shape (n_samples, n_samples)
        Symmetric, zero diagonal, positive row sums.
    scratch : Scratch or None, default=None
        None: a temporary folder that lives with the result.

    Raises
    ------
    InputError
        If W is not such a matrix.
    """
    from scipy.sparse import csr_array, issparse

    if not issparse(W) or W.shape[0] != W.shape[1] or W.shape[0] < 2:
        raise InputError(
            "graph must be an AffinityMatrix, a KNNGraph or a square scipy sparse matrix. "
            f"Got {type(W).__name__} of shape {getattr(W, 'shape', None)}."
        )
    W = csr_array(W, dtype=np.float64, copy=True)
    W.sum_duplicates()
    if not np.isfinite(W.data).all():
        raise InputError("graph holds NaN or infinity: every weight must be finite.")
    if abs(W - W.T).max() > 0:
        raise InputError("graph is not symmetric. Pass W.maximum(W.T).")
    if W.diagonal().any():
        raise InputError("graph has entries on its diagonal: set them to zero.")
    W.eliminate_zeros()
    degrees = W.sum(axis=1)
    if not (degrees > 0).all():
        row = int(np.argmin(degrees > 0))
        raise InputError(
            f"graph: row {row} has degree {degrees[row]:.3g}; every degree must be positive. "
            f"Remove isolated rows. {FROM_0}"
        )
    scratch = scratch or Scratch()
    data = scratch.create("data", W.data.shape, np.float64, ENTRY_CHUNK)
    data.write(0, W.data)
    indices = scratch.create("indices", W.indices.shape, np.int32, ENTRY_CHUNK)
    indices.write(0, W.indices.astype(np.int32))
    return AffinityMatrix(
        data,
        indices,
        scratch.put("indptr", W.indptr.astype(np.int64)),
        scratch.put("degrees", degrees),
        "given",
        None,
        scratch,
    )


def check_weight(weight: str, sigma: float | str | None, metric: str) -> None:
    """Raise InputError for weights that are unknown or do not belong together."""
    check_choice("weight", weight, WEIGHTS)
    is_number = sigma is not None and not isinstance(sigma, str)
    fits = 0 < float(sigma or 0) < np.inf if is_number else sigma in (None, "median")
    if not fits or (sigma is not None and weight != "heat"):
        raise InputError(
            "sigma must be a positive number, 'median', or None for a width of every edge, and "
            f"belongs to weight 'heat'. Got {sigma!r} with weight '{weight}'."
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
    sampled = run_tasks(
        _sample_distances, graph.row_bounds, graph.distances_ref, stride, label="kernel width"
    )
    distances = np.concatenate(sampled)
    positive = distances[distances > 0]
    if not len(positive):
        raise InputError("sigma cannot be chosen: all neighbors are at distance zero. Give sigma.")
    return float(np.median(positive.astype(np.float64)) ** 2)


def _write_scales(bounds: tuple[int, int], distances: ArrayRef, scales: ArrayRef) -> None:
    """Write the distance of each row to the last of its neighbors."""
    scales.write(bounds[0], distances.read(*bounds)[:, -1].astype(np.float64))


def _warn_of_far_rows(graph: KNNGraph, sigma: float | None) -> None:
    """Say how many rows have weights that a given width would let vanish."""
    reach = np.sqrt(-np.log(LEAST_HEAT) * (sigma or 1.0))
    n_far = sum(run_tasks(_count_far, graph.row_bounds, graph.distances_ref, reach, label="scales"))
    if n_far:
        logger.warning(
            "%d of %d rows have neighbors at which exp(-distance^2 / sigma) is below %g with sigma "
            "%.3g: these weights are raised to it. Leave sigma unset: then every edge has a width "
            "of its own.",
            n_far, graph.n_samples, LEAST_HEAT, sigma,
        )  # fmt: skip


def _count_far(bounds: tuple[int, int], distances: ArrayRef, reach: float) -> int:
    """Return how many rows have a neighbor beyond the reach."""
    return int((distances.read(*bounds)[:, -1] > reach).sum())


def _sample_distances(bounds: tuple[int, int], distances: ArrayRef, stride: int) -> np.ndarray:
    """Return the distances of every stride-th row, counted from row 0."""
    start, stop = bounds
    return distances.read(start, stop)[-start % stride :: stride].ravel()


def _weighted_edges(
    start: int, stop: int, context: _EdgeContext
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return heads, tails and weights of the edges that leave rows start to stop."""
    tails = context.indices.read(start, stop)
    heads = np.repeat(np.arange(start, stop), tails.shape[1])
    tails = tails.ravel()
    if context.weight == "binary":
        return heads, tails, np.ones(len(tails))
    if context.products is None:
        distances = context.distances.read(start, stop).ravel().astype(np.float64)
        widths = None
        if context.scales is not None:
            widths = np.repeat(context.scales.read(start, stop), len(heads) // (stop - start))
            widths = np.maximum(widths, context.scales.take(tails))
        return heads, tails, heat_weights(distances, context.sigma, widths)
    weights = context.products.values.read(start, stop)
    # A row that is similar to none of its neighbors keeps the nearest one.
    weights[~weights.any(axis=1), 0] = context.products.least
    return heads, tails, weights.ravel()


def heat_weights(
    distances: np.ndarray, sigma: float | None, widths: np.ndarray | None
) -> np.ndarray:
    """Return the heat weights of edges, by one width or by those of the edges.

    Parameters
    ----------
    distances : ndarray of shape (n_edges,), float64
    sigma : float or None
        ``exp(-d^2 / sigma)``, at least 1e-6.
    widths : ndarray of shape (n_edges,), float64, or None
        ``exp(-(d / width)^2)`` where no ``sigma`` is given; copies have width 0.
    """
    if sigma is not None:
        return np.maximum(np.exp(-(distances**2) / sigma), LEAST_HEAT)
    assert widths is not None
    return np.asarray(np.exp(-((distances / np.where(widths > 0, widths, 1.0)) ** 2)))
