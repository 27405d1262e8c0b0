"""The Laplacian of a stored affinity matrix by row blocks, and its connected components."""

from __future__ import annotations

from typing import Any

import numpy as np

from bigfs.core.memory import DEFAULT_MEMORY_LIMIT, check_fits
from bigfs.core.units import parse_bytes
from bigfs.graph.affinity import AffinityMatrix
from bigfs.graph.knn import KNNGraph
from bigfs.runtime.execute import run_tasks
from bigfs.store.chunking import block_bounds
from bigfs.store.scratch import ArrayRef, Scratch

# Edges of a graph read at a time.
_EDGES = 2**20


def laplacian_rows(W: AffinityMatrix, start: int, stop: int, *, normalized: bool = True) -> Any:
    """Return rows ``start`` to ``stop`` of the Laplacian, reading those rows of W only.

    Parameters
    ----------
    W : AffinityMatrix
    start, stop : int
    normalized : bool, default=True
        ``I - D^-1/2 W D^-1/2``; otherwise ``D - W``.

    Returns
    -------
    rows : csr_array of shape (stop - start, n_samples), float64
    """
    from scipy.sparse import csr_array, eye_array

    indptr = W.indptr.read(start, stop + 1)
    first, last = int(indptr[0]), int(indptr[-1])
    columns, weights = W.indices.read(first, last), W.data.read(first, last)
    degrees = W.degrees.read(start, stop)
    diagonal = degrees
    if normalized:
        heads = np.repeat(degrees, np.diff(indptr))
        weights = weights / np.sqrt(heads * W.degrees.take(columns))
        diagonal = np.ones(stop - start)
    shape = (stop - start, W.n_samples)
    rows = csr_array((weights, columns, indptr - first), shape=shape)
    return csr_array(eye_array(*shape, k=start).multiply(diagonal[:, None]) - rows)


def connected_components(
    graph: KNNGraph | AffinityMatrix,
    *,
    memory_limit: int | str = DEFAULT_MEMORY_LIMIT,
    scratch: Scratch | None = None,
) -> tuple[int, ArrayRef]:
    """Return the number of connected components, and each row's, edges taken both ways.

    One task joins the edges block by block into a forest; it holds one number per row and some
    edges, never the graph.

    Parameters
    ----------
    graph : KNNGraph or AffinityMatrix
    memory_limit : int or str, default="4 GiB"
    scratch : Scratch or None, default=None
        Where the labels are stored. None: beside the graph.

    Returns
    -------
    n_components : int
    labels : ArrayRef of shape (n_samples,), int32
        Numbered by their first row.

    Raises
    ------
    MemoryLimitError
        If one number per row does not fit.
    """
    n = graph.n_samples
    check_fits("components", 24 * n + 64 * _EDGES, parse_bytes(memory_limit), f"{n:,} labels")
    scratch = scratch or graph.scratch
    labels = scratch.create(scratch.unique("components"), (n,), np.int32)
    [count] = run_tasks(_components_task, [_edges_of(graph)], labels, label="components")
    return int(count), labels


def _edges_of(graph: KNNGraph | AffinityMatrix) -> tuple[ArrayRef, ArrayRef | None]:
    """Return the addresses that edges are read from: neighbors, or columns and row pointers."""
    if isinstance(graph, KNNGraph):
        return graph.indices_ref, None
    return graph.indices, graph.indptr


def _components_task(edges: tuple[ArrayRef, ArrayRef | None], labels: ArrayRef) -> int:
    """Join all edges; the root of a tree is its smallest row."""
    columns, indptr = edges
    n = labels.shape[0]
    parent = np.arange(n, dtype=np.int32)
    if indptr is None:
        degree = columns.shape[1]
        for start, stop in block_bounds(n, max(1, _EDGES // degree)):
            tails = columns.read(start, stop)
            _join(parent, np.repeat(np.arange(start, stop, dtype=np.int32), degree), tails.ravel())
    else:
        pointers = indptr.load()
        for first, last in block_bounds(columns.shape[0], _EDGES):
            places = np.arange(first, last)
            heads = np.searchsorted(pointers, places, side="right").astype(np.int32) - 1
            _join(parent, heads, columns.read(first, last))
    roots = _find(parent, np.arange(n, dtype=np.int32))
    numbers, component_of_row = np.unique(roots, return_inverse=True)
    labels.write(0, component_of_row.astype(np.int32))
    return len(numbers)


def _find(parent: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the roots of rows, halving the paths on the way."""
    roots = parent[rows]
    while True:
        above = parent[roots]
        if np.array_equal(above, roots):
            parent[rows] = roots
            return roots
        roots = parent[above]


def _join(parent: np.ndarray, heads: np.ndarray, tails: np.ndarray) -> None:
    """Unite the trees of both ends of every edge under the smallest root."""
    from scipy.sparse import csgraph, csr_array

    a, b = _find(parent, heads), _find(parent, tails)
    apart = a != b
    if not apart.any():
        return
    roots, places = np.unique(np.concatenate([a[apart], b[apart]]), return_inverse=True)
    count = len(places) // 2
    ones = np.ones(count, dtype=np.int8)
    links = csr_array((ones, (places[:count], places[count:])), shape=(len(roots), len(roots)))
    _, together = csgraph.connected_components(links, directed=False)
    smallest = np.full(together.max() + 1, np.iinfo(np.int32).max, dtype=np.int32)
    np.minimum.at(smallest, together, roots)
    parent[roots] = smallest[together]
