"""``P = D^-1 W`` in storage: W in memory if it fits, otherwise read piece by piece.

In both cases its rows are in an order that keeps neighbors near each other. There are two such
orders: by levels of the graph within partitions, and by partitions alone, which needs less memory
to compute.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bigfs.graph import AffinityMatrix, connected_components
from bigfs.runtime.execute import map_reduce, run_tasks
from bigfs.spectral.kernels import compiled_products
from bigfs.spectral.problem import check_rows
from bigfs.spectral.thin import fill_of, inverse, level_order
from bigfs.store.location import as_location, is_remote
from bigfs.store.scratch import ArrayRef, Scratch, block_bounds

# Rows of W that are read at a time.
PIECE_ROWS = 2**16
# Sorted entries that are assembled at a time, and number of chunks in which they are stored.
SLICE_ENTRIES, _SLICE_CHUNKS = 2**23, 4


@dataclass(frozen=True)
class Storage:
    """Layout in which a task holds W and vectors."""

    in_memory: bool  # True if all of W is held; otherwise it is read in pieces for each product
    order: str  # order that a task can compute: "levels", "partitions"; "none": W is read as stored
    row_bytes: int  # bytes of a row of a panel of vectors
    room: int  # upper bound on the bytes of a task, by its cost


@dataclass(frozen=True)
class StoredGraph:
    """Addresses of W and of data derived from it."""

    W: AffinityMatrix
    labels: ArrayRef  # of shape (n_samples,), int32: connected components, by their first row
    volumes: ArrayRef  # of shape (n_connected,), float64: sums of degrees
    # Folder of W with its rows in an order that keeps neighbors near; "": W is read as stored.
    in_order: str = ""
    in_memory: bool = False  # True if a task holds W in that order
    fill: int = -1  # entries of its Cholesky factor in an order by levels; -1: too many, or unknown

    @property
    def n_samples(self) -> int:
        """Number of rows of the graph."""
        return self.W.n_samples

    @property
    def n_connected(self) -> int:
        """Number of connected components."""
        return self.volumes.shape[0]

    def describe(self) -> dict[str, Any]:
        """Return the metadata that `open` needs in addition to W, as JSON values."""
        return {k: getattr(v, "path", v) for k, v in vars(self).items() if k != "W"}

    @classmethod
    def open(cls, W: AffinityMatrix, stored: dict[str, Any]) -> StoredGraph:
        """Return the stored graph."""
        refs = {name: ArrayRef.at(stored[name]) for name in ("labels", "volumes")}
        return cls(W, **{**stored, **refs})


def store_graph(W: AffinityMatrix, scratch: Scratch, storage: Storage) -> StoredGraph:
    """Check a graph and store the data that products with it need.

    Parameters
    ----------
    W : AffinityMatrix
    scratch : Scratch
        Receives the components of the rows, and W in a better order.
    storage : Storage

    Raises
    ------
    InputError
        If a weight is negative or a degree is not positive.
    """
    n_connected, labels = connected_components(W, scratch=scratch)
    pieces = block_bounds(W.n_samples, PIECE_ROWS)
    sums = map_reduce(_volumes_task, pieces, np.add, W, labels, n_connected, label="volumes")
    graph = StoredGraph(W, labels, scratch.put("volumes", sums))
    if storage.order == "none":
        return graph
    shared = (W, storage.order)
    [(path, fill)] = run_tasks(_order_task, [str(scratch.path)], *shared, label="order of rows")
    return replace(graph, in_order=path, in_memory=storage.in_memory, fill=fill)


def _volumes_task(
    bounds: tuple[int, int], W: AffinityMatrix, labels: ArrayRef, n_connected: int
) -> np.ndarray:
    """Check some rows; return the sums of their degrees by component."""
    start, stop = bounds
    indptr, degrees = W.indptr.read(start, stop + 1), W.degrees.read(start, stop)
    weights = W.data.read(int(indptr[0]), int(indptr[-1]))
    check_rows(indptr - indptr[0], weights, degrees, start)
    return np.bincount(labels.read(start, stop), degrees, n_connected)


def _order_task(folder: str, W: AffinityMatrix, kind: str) -> tuple[str, int]:
    """Store W in an order that keeps neighbors near; return the folder, and the fill."""
    from scipy.sparse import csr_array

    n, indptr = W.n_samples, W.indptr.load()
    order, fill = np.arange(n, dtype=np.int32), -1
    if W.nnz < 2**31:  # smaller dtype
        indptr = indptr.astype(np.int32)
    if kind == "levels":
        indices = W.indices.load()
        # Only the sparsity pattern is needed.
        ones = np.broadcast_to(np.ones(1, np.int8), len(indices))
        order = level_order(csr_array((ones, indices, indptr), shape=(n, n)))
        fill = fill_of(indptr, indices, order)
        del indices  # free memory before W is sorted
    if W.partitions is not None:
        order = order[np.argsort(W.partitions.load()[order], kind="stable")]
    scratch = Scratch(folder)
    ordered = scratch.child(scratch.unique("ordered"))
    _write_ordered(ordered, W, indptr, order)
    return str(ordered.path), fill


def _write_ordered(
    scratch: Scratch, W: AffinityMatrix, indptr: np.ndarray, order: np.ndarray
) -> None:
    """Store the arrays of W with its rows reordered, and the position of each row."""
    place, starts = inverse(order), np.zeros_like(indptr)
    np.cumsum(np.diff(indptr)[order], out=starts[1:])
    scratch.put("indptr", starts)
    scratch.put("degrees", W.degrees.load()[order])
    scratch.put("place", place)
    for name in ("indices",) if W.weight == "binary" else ("indices", "data"):
        source, chunk = getattr(W, name), -(-SLICE_ENTRIES // _SLICE_CHUNKS)
        out = scratch.create(name, (W.nnz,), source.dtype, chunk)
        for begin, end in block_bounds(W.nnz, chunk * _SLICE_CHUNKS):
            first = int(np.searchsorted(starts, begin, side="right")) - 1
            last = int(np.searchsorted(starts, end, side="left"))
            values = _slice(source, (indptr, place, starts), (first, last))
            values = values[begin - starts[first] : end - starts[first]]
            out.write(begin, place[values] if name == "indices" else values)


def _slice(source: ArrayRef, layout: tuple[np.ndarray, ...], bounds: tuple[int, int]) -> np.ndarray:
    """Return the entries of consecutive reordered rows, by reading all of W piece by piece.

    ``layout`` holds the row pointers of W, the new positions of its rows, and the row pointers in
    the new order.
    """
    (indptr, place, starts), (start, stop) = layout, bounds
    values = np.empty(int(starts[stop] - starts[start]), source.dtype)
    for first, last in block_bounds(len(place), PIECE_ROWS):
        rows = first + np.flatnonzero((start <= place[first:last]) & (place[first:last] < stop))
        if len(rows):
            piece = source.read(int(indptr[first]), int(indptr[last]))
            lengths = indptr[rows + 1] - indptr[rows]
            there = _spans(starts[place[rows]] - starts[start], lengths)
            values[there] = piece[_spans(indptr[rows] - indptr[first], lengths)]
    return values


def _spans(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the concatenation of ranges, each given by its begin and length."""
    ends = np.cumsum(lengths)
    return np.repeat(begins - (ends - lengths), lengths) + np.arange(int(lengths.sum()))


def _rows_of(W: AffinityMatrix, start: int, stop: int) -> tuple[np.ndarray, ...]:
    """Read ``indptr, indices, weights, degrees`` of consecutive rows; one weight if all are 1."""
    indptr = W.indptr.read(start, stop + 1)
    begin, end = int(indptr[0]), int(indptr[-1])
    weights = np.ones(1) if W.weight == "binary" else W.data.read(begin, end)
    return indptr - begin, W.indices.read(begin, end), weights, W.degrees.read(start, stop)


def _copied(ref: ArrayRef, name: str, folder: Scratch) -> ArrayRef:
    """Copy an array to another folder, a chunk at a time."""
    copy = folder.create(name, ref.shape, ref.dtype, ref.chunk_rows)
    for start, stop in block_bounds(ref.shape[0], ref.chunk_rows):
        copy.write(start, ref.read(start, stop))
    return copy


class Transition:
    """``P`` as an operator on blocks of vectors that contain all rows.

    Parameters
    ----------
    graph : StoredGraph
    """

    def __init__(self, graph: StoredGraph) -> None:
        self._W = self._near = graph.W
        # Position in the block of each row of the graph; None: the same position.
        self.place: np.ndarray | None = None
        self._held: list[tuple[int, tuple[np.ndarray, ...]]] = []
        if graph.in_order:
            folder = as_location(graph.in_order)
            names = ["indptr", "degrees", "indices", "data"][: 3 + (graph.W.weight != "binary")]
            refs: dict[str, Any] = {name: ArrayRef.at(folder / name) for name in names}
            if is_remote(graph.in_order) and not graph.in_memory:
                # Download once, not for each product.
                self._folder = Scratch()  # deleted with this object
                refs = {name: _copied(ref, name, self._folder) for name, ref in refs.items()}
            self.place = ArrayRef.at(folder / "place").load()
            self._near = replace(graph.W, **refs)
            if graph.in_memory:
                self._held = [(0, _rows_of(self._near, 0, graph.n_samples))]
        self._step, self._gather = compiled_products()

    @property
    def nbytes(self) -> int:
        """Bytes held of W and of the positions of its rows."""
        places = 0 if self.place is None else self.place.nbytes
        return places + sum(part.nbytes for _, csr in self._held for part in csr)

    def pieces(self) -> Iterator[tuple[int, tuple[np.ndarray, ...]]]:
        """Yield the first row of each piece, and ``indptr, indices, weights, degrees``."""
        if self._held:
            yield from self._held
        else:
            for start, stop in block_bounds(self._W.n_samples, PIECE_ROWS):
                yield start, _rows_of(self._near, start, stop)

    def where(self, start: int, stop: int) -> Any:
        """Return an index of the positions in the block of consecutive rows of the graph."""
        return slice(start, stop) if self.place is None else self.place[start:stop]

    def step(self, X: np.ndarray, Y: np.ndarray, a: float, b: float, c: float) -> None:
        """Compute ``Y <- a P X + b X + c Y`` in place; Y is not read if c is 0."""
        scalars = tuple(X.dtype.type(value) for value in (a, b, c))
        for first, csr in self.pieces():
            self._step(*csr, X, Y, first, *scalars)

    def product(self, X: np.ndarray, start: int, stop: int) -> np.ndarray:
        """Return the rows start to stop of ``P X``, in the graph's order, float64."""
        out = np.empty((stop - start, X.shape[1]))
        indptr, indices, weights, degrees = _rows_of(self._W, start, stop)
        if self.place is not None:
            indices = self.place[indices]
        self._gather(indptr, indices, weights, degrees, X, np.arange(stop - start), out)
        return out

    def smooth(self, X: np.ndarray, is_new: np.ndarray, sweeps: int) -> None:
        """Replace each row that is new, or adjacent to a new one, by the mean of its neighbors.

        ``is_new`` is of shape (n_samples,), bool, in the order of the block.
        """
        for _ in range(sweeps):
            means = []
            for first, (indptr, indices, weights, degrees) in self.pieces():
                heads = np.repeat(np.arange(len(degrees)), np.diff(indptr))
                joined = is_new[first : first + len(degrees)].copy()
                joined[heads[is_new[indices]]] = True
                rows = np.flatnonzero(joined)
                out = np.empty((len(rows), X.shape[1]))
                self._gather(indptr, indices, weights, degrees, X, rows, out)
                means.append((first + rows, out))
            for rows, out in means:
                X[rows] = out
