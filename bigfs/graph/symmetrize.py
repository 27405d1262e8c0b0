"""The affinity matrix W in storage: directed edges to symmetric CSR, by row blocks; its components.

Edges are transposed by the shuffle.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from bigfs.core.errors import InputError, RowError
from bigfs.core.memory import check_fits
from bigfs.core.text import FROM_0
from bigfs.core.units import parse_bytes
from bigfs.graph.shuffle import Receipt, Runs, commit_runs, write_run
from bigfs.runtime.execute import run_tasks
from bigfs.store.location import Location, as_location
from bigfs.store.scratch import ArrayRef, Kept, Scratch, block_bounds

# Lower bound on a heat weight with a given width: without it a row might lose all its edges.
LEAST_HEAT = 1e-6
# Entries per chunk of the stored matrix: 16 MB of weights.
ENTRY_CHUNK = 2 * 1024**2
# Edges of a graph read at a time while its connected components are found.
_EDGES = 2**20


class Edges(Protocol):
    """Directed edges as tasks read them; pickles to a few hundred bytes."""

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return heads, tails and values of the edges from rows start to stop."""
        ...


@dataclass(frozen=True)
class AffinityMatrix(Kept):
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
        Name of the edge weighting.
    sigma_ : float or None
        Width of the heat kernel if it was given. None: each edge has its own width, or weights
        are not heat.
    scratch : Scratch
        Keeps the stored arrays alive.
    partitions : ArrayRef of shape (n_samples,), int32, or None
        Rows with the same number have most of their edges among themselves. None: not known.
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
        """Number of rows and columns."""
        return self.degrees.shape[0]

    @property
    def nnz(self) -> int:
        """Number of stored entries: two for every edge."""
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
            Raise if the matrix does not fit a process of this size. None: no check.

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

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the row pointers (from 0), columns and weights of rows ``start`` to ``stop``."""
        indptr = self.indptr.read(start, stop + 1)
        first, last = int(indptr[0]), int(indptr[-1])
        return indptr - first, self.indices.read(first, last), self.data.read(first, last)

    @classmethod
    def store(cls, W: Any, degrees: np.ndarray, scratch: Scratch) -> AffinityMatrix:
        """Store a scipy CSR matrix with its row sums."""
        arrays = {
            "data": W.data.astype(np.float64, copy=False),
            "indices": W.indices.astype(np.int32, copy=False),
            "indptr": W.indptr.astype(np.int64),
            "degrees": degrees,
        }
        refs = {name: scratch.put(name, array, ENTRY_CHUNK) for name, array in arrays.items()}
        return cls(**refs, weight="given", sigma_=None, scratch=scratch)

    def describe(self) -> dict[str, Any]:
        """Return the metadata that `open` needs in addition to the arrays, as JSON values."""
        return {"weight": self.weight, "sigma": self.sigma_}

    @classmethod
    def open(
        cls, path: str | Location, stored: dict[str, Any], partitions: ArrayRef | None = None
    ) -> AffinityMatrix:
        """Return the matrix that was stored in a folder."""
        names = ("data", "indices", "indptr", "degrees")
        data, indices, indptr, degrees = (ArrayRef.at(as_location(path) / name) for name in names)
        about = (stored["weight"], stored["sigma"], Scratch(path), partitions)
        return cls(data, indices, indptr, degrees, *about)


def union_rows(
    rows: np.ndarray, columns: np.ndarray, weights: np.ndarray, n_rows: int, n_columns: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return entries as CSR rows: duplicates merged, zeros dropped, columns sorted.

    Parameters
    ----------
    rows, columns : ndarray of shape (n_entries,), int
        Row numbers, relative to the first row of the block.
    weights : ndarray of shape (n_entries,), float64
        The larger of two entries at the same position is kept.
    n_rows, n_columns : int

    Returns
    -------
    columns, weights, counts : ndarray
        ``counts`` of shape (n_rows,): entries per row.
    """
    keys = rows.astype(np.int64) * n_columns + columns
    order = np.lexsort((-weights, keys))
    keys, weights = keys[order], weights[order]
    keep = weights != 0
    keep[1:] &= keys[1:] != keys[:-1]
    keys, weights = keys[keep], weights[keep]
    counts = np.bincount(keys // n_columns, minlength=n_rows)
    return (keys % n_columns).astype(np.int32), weights, counts


def store_affinity(
    edges: Edges,
    weight: str,
    sigma: float | None,
    size: tuple[int, int],
    scratch: Scratch,
    complaint: str,
    partitions: ArrayRef | None = None,
) -> AffinityMatrix:
    """Weigh edges and store the union with their reverses, ``W = max(W, W')``.

    Parameters
    ----------
    edges : Edges
        Edges with their values: distances if the weight is "heat".
    weight : str
        "binary", "heat" of distances, or another name: the values themselves are the weights.
    sigma : float or None
        Width of the heat kernel. None: each edge has its own.
    size : tuple of (int, int)
        Number of rows of the matrix, and of each of its blocks.
    scratch : Scratch
        Receives ``data``, ``indices``, ``indptr`` and ``degrees``.
    complaint : str
        Continuation of the InputError message for a row without positive degree.
    partitions : ArrayRef or None, default=None
        As in `AffinityMatrix`.
    """
    (n_samples, rows), bounds, scales = size, block_bounds(*size), None
    with scratch.temporary("symmetrize") as working:
        if weight == "heat" and sigma is None:
            scales = working.create("scales", (n_samples,), np.float64, rows)
            run_tasks(_write_scales, bounds, edges, scales, label="scales")
        counts = working.create("counts", (n_samples,), np.int64, rows)
        degrees = scratch.create("degrees", (n_samples,), np.float64, rows)
        union = _Union(edges, weight, sigma, scales, n_samples, rows, counts, degrees, complaint)
        with working.temporary("reverses") as folder:
            shared = (len(bounds), str(folder.path))
            receipts = run_tasks(union.write_reverses, bounds, *shared, label="transpose")
            reverses = commit_runs(working, str(folder.path), receipts)
            entries = str(working.child("entries").path)
            receipts = run_tasks(union.write_entries, bounds, reverses, entries, label="union")
        pieces = commit_runs(working, entries, receipts)
        starts = np.cumsum([0, *(int(receipt.offsets[-1]) for receipt in receipts)])
        where = working.put("starts", starts)
        # The blocks' entries are copied into arrays in which every chunk has a single writer.
        chunks = block_bounds(int(starts[-1]), ENTRY_CHUNK)
        data = scratch.create("data", (chunks[-1][1],), np.float64, ENTRY_CHUNK)
        indices = scratch.create("indices", (chunks[-1][1],), np.int32, ENTRY_CHUNK)
        indptr = scratch.create("indptr", (n_samples + 1,), np.int64, rows)
        run_tasks(_copy_entries, chunks, pieces, where, data, indices, label="matrix")
        blocks = block_bounds(n_samples + 1, rows)
        run_tasks(union.write_indptr, blocks, where, indptr, label="row pointers")
    return AffinityMatrix(data, indices, indptr, degrees, weight, sigma, scratch, partitions)


def _write_scales(bounds: tuple[int, int], edges: Edges, scales: ArrayRef) -> None:
    """Write the largest distance from each row to a neighbor; 0 for a row without edges."""
    heads, _, distances = edges.read(*bounds)
    largest = np.zeros(bounds[1] - bounds[0])
    np.maximum.at(largest, heads - bounds[0], distances)
    scales.write(bounds[0], largest)


@dataclass(frozen=True)
class _Union:
    """The union of edges with their reverses; its methods are tasks on a block of rows."""

    edges: Edges
    weight: str
    sigma: float | None
    # Of shape (n_samples,), float64: largest distance in each row; None if not used.
    scales: ArrayRef | None
    n_samples: int
    rows: int  # of a block
    counts: ArrayRef  # receives the number of entries of each row
    degrees: ArrayRef
    complaint: str

    def _weighed(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return heads, tails and weights of the edges from rows start to stop."""
        heads, tails, values = self.edges.read(start, stop)
        if self.weight == "binary":
            return heads, tails, np.ones(len(tails))
        if self.weight != "heat":
            return heads, tails, values
        if self.scales is None:
            return heads, tails, np.maximum(np.exp(-(values**2) / self.sigma), LEAST_HEAT)
        widths = self.scales.read(start, stop)[heads - start]
        widths = np.maximum(widths, self.scales.take(tails))
        # Duplicate rows have width 0.
        return heads, tails, np.exp(-((values / np.where(widths > 0, widths, 1.0)) ** 2))

    def write_reverses(self, bounds: tuple[int, int], n_blocks: int, folder: str) -> Receipt:
        """Send every edge to the block of its tail."""
        heads, tails, weights = self._weighed(*bounds)
        row, column = (ends.astype(np.int32, copy=False) for ends in (tails, heads))
        values = {"row": row, "column": column, "weight": weights}
        return write_run(folder, bounds[0] // self.rows, tails // self.rows, n_blocks, values)

    def write_entries(self, bounds: tuple[int, int], reverses: Runs, folder: str) -> Receipt:
        """Merge a block's edges with their reverses from other blocks, and sum its degrees."""
        start, stop = bounds
        edges = self._weighed(start, stop)
        others = reverses.read(start // self.rows, "row", "column", "weight")
        heads, tails, weights = (np.concatenate(pair) for pair in zip(edges, others, strict=True))
        heads -= start
        columns, weights, per_row = union_rows(heads, tails, weights, stop - start, self.n_samples)
        degree = np.bincount(np.repeat(np.arange(stop - start), per_row), weights, stop - start)
        if not (degree > 0).all():
            bad = int(np.argmin(degree > 0))
            raise RowError(
                f"Row {start + bad} of the graph has degree {degree[bad]:.3g}{self.complaint} "
                f"{FROM_0}"
            )
        self.counts.write(start, per_row.astype(np.int64))
        self.degrees.write(start, degree)
        values = {"column": columns, "weight": weights}
        targets = np.zeros(len(columns), dtype=np.int64)
        return write_run(folder, start // self.rows, targets, 1, values)

    def write_indptr(self, bounds: tuple[int, int], where: ArrayRef, indptr: ArrayRef) -> None:
        """Write the row pointers of one block: entries before it, then running sums."""
        start, stop = bounds
        before = int(where.load()[start // self.rows])
        per_row = self.counts.read(start, min(stop, self.n_samples))
        sums = before + np.concatenate([[0], np.cumsum(per_row)])
        indptr.write(start, sums[: stop - start])


def _copy_entries(
    bounds: tuple[int, int], pieces: Runs, where: ArrayRef, data: ArrayRef, indices: ArrayRef
) -> None:
    """Fill one chunk of the matrix from the blocks it spans."""
    start, stop = bounds
    starts = where.load()
    first = int(np.searchsorted(starts, start, side="right")) - 1
    last = int(np.searchsorted(starts, stop, side="left"))
    spans = enumerate(pairwise(starts[first : last + 1].tolist()), start=first)
    ranges = [(block, max(start, a) - a, min(stop, b) - a) for block, (a, b) in spans]
    columns, weights = pieces.read_ranges(ranges, "column", "weight")
    indices.write(start, columns)
    data.write(start, weights)


def affinity_from_csr(W: Any, *, scratch: Scratch | None = None) -> AffinityMatrix:
    """Check an affinity matrix in memory and store it.

    Parameters
    ----------
    W : scipy sparse matrix of shape (n_samples, n_samples)
        Symmetric, with zero diagonal and positive row sums.
    scratch : Scratch or None, default=None
        Where W is stored. None: a temporary folder that is deleted together with the result.

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
    if W.dtype.kind not in "fiub":
        raise InputError(f"graph has dtype {W.dtype}: weights must be real numbers.")
    W = csr_array(W, dtype=np.float64, copy=True)
    W.sum_duplicates()
    bad = ~(np.isfinite(W.data) & (W.data >= 0))
    if bad.any():
        place = int(bad.argmax())
        row = int(np.searchsorted(W.indptr, place, side="right")) - 1
        shown = "NaN" if np.isnan(W.data[place]) else f"{W.data[place]:g}"
        raise InputError(
            f"row {row} of the graph has a weight of {shown}: weights must be finite and not "
            f"negative. {FROM_0}"
        )
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
    return AffinityMatrix.store(W, degrees, scratch or Scratch())


def connected_components(
    W: AffinityMatrix, *, scratch: Scratch | None = None
) -> tuple[int, ArrayRef]:
    """Return the number of connected components, and the component of each row.

    One task joins the edges, a part at a time, into a forest; it holds one number per row and some
    edges, never the whole graph.

    Parameters
    ----------
    W : AffinityMatrix
    scratch : Scratch or None, default=None
        Where the labels are stored. None: with the graph.

    Returns
    -------
    n_components : int
    labels : ArrayRef of shape (n_samples,), int32
        Components are numbered by their first row.
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
    """Return the roots of rows, shortening their paths."""
    roots = parent[rows]
    while ((above := parent[roots]) != roots).any():
        roots = parent[above]
    parent[rows] = roots
    return roots


def _join(parent: np.ndarray, heads: np.ndarray, tails: np.ndarray) -> None:
    """Unite the trees of both ends of every edge under the smallest root."""
    from scipy.sparse import csgraph, csr_array

    a, b = _find(parent, heads), _find(parent, tails)
    apart = a != b
    if not apart.any():
        return
    roots, places = np.unique([a[apart], b[apart]], return_inverse=True)
    ends = places.reshape(2, -1)
    ones = np.ones(ends.shape[1], dtype=np.int8)
    links = csr_array((ones, tuple(ends)), shape=(len(roots), len(roots)))
    _, together = csgraph.connected_components(links, directed=False)
    _, smallest = np.unique(together, return_index=True)  # roots are ascending
    parent[roots] = roots[smallest][together]
