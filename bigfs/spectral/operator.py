"""``P = D^-1 W`` in storage: W in memory where it fits, and read piece by piece where not."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.lib import format as npy

from bigfs.graph import AffinityMatrix, connected_components
from bigfs.runtime.execute import map_reduce, run_tasks
from bigfs.spectral.kernels import compiled_products
from bigfs.spectral.problem import TILE_ROWS, check_rows
from bigfs.spectral.thin import fill_of, inverse, level_order
from bigfs.store.chunking import block_bounds
from bigfs.store.location import as_location, new_file, write_from
from bigfs.store.pages import open_own
from bigfs.store.scratch import ArrayRef, Scratch

# Rows of W that are read at a time.
_PIECE_ROWS = 2**16


@dataclass(frozen=True)
class Storage:
    """The way that a task holds W and vectors."""

    in_memory: bool  # all of W; otherwise it is read piece by piece for each product
    row_bytes: int  # of a row of a panel of vectors
    room: int  # bytes that a task takes at most, by its cost


@dataclass(frozen=True)
class StoredGraph:
    """Addresses of W and of what was found out about it."""

    W: AffinityMatrix
    labels: ArrayRef  # of shape (n_samples,), int32: connected components, by their first row
    volumes: ArrayRef  # of shape (n_connected,), float64: sums of degrees
    # File of W with its rows in an order that keeps neighbors near; "": W is read as it is.
    ordered: str = ""
    fill: int = -1  # entries of its Cholesky factor in an order by levels; -1: too many

    @property
    def n_samples(self) -> int:
        """Rows of the graph."""
        return self.W.n_samples

    @property
    def n_connected(self) -> int:
        """Connected components."""
        return self.volumes.shape[0]

    def describe(self) -> dict[str, Any]:
        """Return what `open` needs beside W, as JSON values."""
        refs = {name: getattr(self, name).path for name in ("labels", "volumes")}
        return {**refs, "ordered": self.ordered, "fill": self.fill}

    @classmethod
    def open(cls, W: AffinityMatrix, stored: dict[str, Any]) -> StoredGraph:
        """Return the graph that was stored."""
        refs = {name: ArrayRef.at(stored[name]) for name in ("labels", "volumes")}
        return cls(W, **refs, ordered=stored["ordered"], fill=stored["fill"])


def store_graph(W: AffinityMatrix, scratch: Scratch, *, in_memory: bool) -> StoredGraph:
    """Check a graph and store what products with it need.

    Parameters
    ----------
    W : AffinityMatrix
    scratch : Scratch
        Gets the components of the rows and, where W fits a task, W in a better order.
    in_memory : bool
        Whether it does.

    Raises
    ------
    InputError
        If a weight is negative or a degree is not positive.
    """
    n_connected, labels = connected_components(W, scratch=scratch)
    pieces = block_bounds(W.n_samples, _PIECE_ROWS)
    sums = map_reduce(_volumes_task, pieces, np.add, W, labels, n_connected, label="volumes")
    graph = StoredGraph(W, labels, scratch.put("volumes", sums))
    if not in_memory:
        return graph
    [(path, fill)] = run_tasks(_order_task, [str(scratch.path)], W, label="order of rows")
    return replace(graph, ordered=path, fill=fill)


def _volumes_task(
    bounds: tuple[int, int], W: AffinityMatrix, labels: ArrayRef, n_connected: int
) -> np.ndarray:
    """Check some rows; return the sums of their degrees by component."""
    start, stop = bounds
    indptr, degrees = W.indptr.read(start, stop + 1), W.degrees.read(start, stop)
    weights = W.data.read(int(indptr[0]), int(indptr[-1]))
    check_rows(indptr - indptr[0], weights, degrees, np.arange(start, stop))
    return np.bincount(labels.read(start, stop), degrees, n_connected)


def _order_task(folder: str, W: AffinityMatrix) -> tuple[str, int]:
    """Store W in an order that keeps neighbors near; return the file, and the fill."""
    from scipy.sparse import csr_array

    indptr, indices = W.indptr.load(), W.indices.load()
    if W.nnz < 2**31:
        indptr = indptr.astype(np.int32)
    # Only the pattern counts.
    ones = np.broadcast_to(np.ones(1, np.int8), len(indices))
    by_levels = level_order(csr_array((ones, indices, indptr), shape=(W.n_samples,) * 2))
    place = inverse(by_levels)
    fill = fill_of(indptr, indices, by_levels)
    order = by_levels
    if W.partitions is not None:
        order = by_levels[np.argsort(W.partitions.load()[by_levels], kind="stable")]
        place = inverse(order)
    weights = _weights(W)
    path = as_location(folder) / f"ordered-{secrets.randbits(62):016x}"
    with new_file(path) as file:
        _write_ordered(file, (indptr, indices, weights, W.degrees.load()), order, place)
    return str(path), fill


def _weights(W: AffinityMatrix, begin: int = 0, end: int | None = None) -> np.ndarray:
    """Read weights: a single one if all are 1, float32 if that is exact."""
    if W.weight == "binary":
        return np.ones(1, np.float32)
    weights = W.data.read(begin, W.nnz if end is None else end)
    if (weights == 1.0).all():
        return np.ones(1, np.float32)
    single = weights.astype(np.float32)
    return single if (single == weights).all() else weights


def _write_ordered(
    file: Any, rows: tuple[np.ndarray, ...], order: np.ndarray, place: np.ndarray
) -> None:
    """Write ``indptr, degrees, place, indices, weights`` of W in an order of its rows."""
    indptr, indices, weights, degrees = rows
    begins, lengths = indptr[order], np.diff(indptr)[order]
    ends = np.cumsum(lengths, dtype=indptr.dtype)

    def entries() -> Iterator[np.ndarray]:
        """Yield where the entries of the rows are, a few rows at a time."""
        for start, stop in block_bounds(len(order), TILE_ROWS):
            first = ends[start:stop] - lengths[start:stop]
            shifts = np.repeat(begins[start:stop] - first, lengths[start:stop])
            yield shifts + np.arange(first[0], ends[stop - 1], dtype=indptr.dtype)

    npy.write_array(file, np.concatenate([np.zeros(1, indptr.dtype), ends]))
    npy.write_array(file, degrees[order])
    npy.write_array(file, place)
    _write_parts(file, place.dtype, len(indices), (place[indices[e]] for e in entries()))
    if len(weights) < len(indices):
        npy.write_array(file, weights)
    else:
        _write_parts(file, weights.dtype, len(weights), (weights[e] for e in entries()))


def _write_parts(file: Any, dtype: np.dtype[Any], count: int, parts: Iterable[np.ndarray]) -> None:
    """Write an array of ``count`` values that comes in parts, as `numpy.save` would."""
    kind = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
    npy.write_array_header_1_0(file, kind)
    for part in parts:
        write_from(file, part)


class Transition:
    """``P`` as an operator on blocks of vectors that have all rows.

    Parameters
    ----------
    graph : StoredGraph
    """

    def __init__(self, graph: StoredGraph) -> None:
        self._W, self.n_samples = graph.W, graph.n_samples
        self._held: tuple[np.ndarray, ...] | None = None
        # Where each row of the graph is in the block; None: in its own place.
        self.place: np.ndarray | None = None
        if graph.ordered:
            with open_own(as_location(graph.ordered)) as file:
                arrays = [npy.read_array(file, allow_pickle=False) for _ in range(5)]
            indptr, degrees, self.place, indices, weights = arrays
            self._held = (indptr, indices, weights, degrees)
        self._step, self._gather = compiled_products()

    def pieces(self) -> Iterator[tuple[int, tuple[np.ndarray, ...]]]:
        """Yield the first row of each piece, and ``indptr, indices, weights, degrees``."""
        if self._held is not None:
            yield 0, self._held
            return
        for start, stop in block_bounds(self.n_samples, _PIECE_ROWS):
            yield start, self._read(start, stop)

    def _read(self, start: int, stop: int) -> tuple[np.ndarray, ...]:
        indptr = self._W.indptr.read(start, stop + 1)
        begin, end = int(indptr[0]), int(indptr[-1])
        indices, degrees = self._W.indices.read(begin, end), self._W.degrees.read(start, stop)
        return indptr - begin, indices, _weights(self._W, begin, end), degrees

    def where(self, start: int, stop: int) -> Any:
        """Return where consecutive rows of the graph are in the block, as an index."""
        return slice(start, stop) if self.place is None else self.place[start:stop]

    def step(self, X: np.ndarray, Y: np.ndarray, a: float, b: float, c: float) -> None:
        """Compute ``Y <- a P X + b X + c Y`` in place; Y is not read where c is 0."""
        scalars = tuple(X.dtype.type(value) for value in (a, b, c))
        for first, csr in self.pieces():
            self._step(*csr, X, Y, first, *scalars)

    def product(self, X: np.ndarray, start: int, stop: int) -> np.ndarray:
        """Return ``P X`` at consecutive rows of the graph, float64."""
        out = np.empty((stop - start, X.shape[1]))
        if self._held is not None and self.place is not None:
            self._gather(*self._held, X, self.place[start:stop], out)
        else:
            self._gather(*self._read(start, stop), X, np.arange(stop - start), out)
        return out

    def smooth(self, X: np.ndarray, is_new: np.ndarray, sweeps: int) -> None:
        """Make each row that is new, or joined to a new one, the mean of its neighbors.

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
