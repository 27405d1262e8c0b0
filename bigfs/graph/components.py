"""The connected components of a stored affinity matrix."""

from __future__ import annotations

import numpy as np

from bigfs.graph.symmetrize import AffinityMatrix
from bigfs.runtime.execute import run_tasks
from bigfs.store.chunking import block_bounds
from bigfs.store.scratch import ArrayRef, Scratch

# Edges of a graph read at a time.
_EDGES = 2**20


def connected_components(
    W: AffinityMatrix, *, scratch: Scratch | None = None
) -> tuple[int, ArrayRef]:
    """Return the number of connected components, and that of each row.

    One task joins the edges part by part into a forest; it holds one number per row and some
    edges, never the graph.

    Parameters
    ----------
    W : AffinityMatrix
    scratch : Scratch or None, default=None
        Where the labels are stored. None: beside the graph.

    Returns
    -------
    n_components : int
    labels : ArrayRef of shape (n_samples,), int32
        Numbered by their first row.
    """
    scratch = scratch or W.scratch
    labels = scratch.create(scratch.unique("components"), (W.n_samples,), np.int32)
    [count] = run_tasks(_components_task, [W], labels, label="components")
    return int(count), labels


def _components_task(W: AffinityMatrix, labels: ArrayRef) -> int:
    """Join all edges; the root of a tree is its smallest row."""
    parent, pointers = np.arange(W.n_samples, dtype=np.int32), W.indptr.load()
    for first, last in block_bounds(W.nnz, _EDGES):
        places = np.arange(first, last)
        heads = np.searchsorted(pointers, places, side="right").astype(np.int32) - 1
        _join(parent, heads, W.indices.read(first, last))
    del pointers
    rows = np.arange(W.n_samples, dtype=np.int32)
    roots = _find(parent, rows)
    numbers = np.cumsum(roots == rows, dtype=np.int32)
    labels.write(0, numbers[roots] - 1)
    return int(numbers[-1])


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
