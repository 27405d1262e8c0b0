"""``P = D^-1 W`` in storage: W in memory where it fits, and read piece by piece where not.

Either way its rows are in an order that keeps neighbors near, of which there are two: by levels of
the graph within partitions, and by partitions alone, which takes less memory to make.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.lib import format as npy

from bigfs.graph import AffinityMatrix, connected_components
from bigfs.runtime.execute import map_reduce, run_tasks
from bigfs.spectral.kernels import compiled_products
from bigfs.spectral.problem import check_rows
from bigfs.spectral.thin import fill_of, inverse, level_order
from bigfs.store.location import (
    Location,
    as_location,
    is_remote,
    new_file,
    read_into,
    write_from,
)
from bigfs.store.pages import open_own
from bigfs.store.scratch import ArrayRef, Scratch, block_bounds

# Rows of W that are read at a time.
PIECE_ROWS = 2**16
# Entries in order that are put together at a time.
SLICE_ENTRIES = 2**23
# What `StoredGraph.describe` tells beside addresses of arrays.
_DESCRIBED = ("ordered", "in_memory", "fill")
# The arrays of the file of W in order.
_INDPTR, _DEGREES, _PLACE, _INDICES, _WEIGHTS = range(5)


@dataclass(frozen=True)
class Storage:
    """The way that a task holds W and vectors."""

    in_memory: bool  # all of W; otherwise it is read piece by piece for each product
    order: Literal["levels", "partitions", "none"]  # what a task can make; none: W is read as it is
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
    in_memory: bool = False  # whether a task holds that file
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
        return {**refs, **{name: getattr(self, name) for name in _DESCRIBED}}

    @classmethod
    def open(cls, W: AffinityMatrix, stored: dict[str, Any]) -> StoredGraph:
        """Return the graph that was stored."""
        labels, volumes = (ArrayRef.at(stored[name]) for name in ("labels", "volumes"))
        return cls(W, labels, volumes, **{name: stored[name] for name in _DESCRIBED})


def store_graph(W: AffinityMatrix, scratch: Scratch, storage: Storage) -> StoredGraph:
    """Check a graph and store what products with it need.

    Parameters
    ----------
    W : AffinityMatrix
    scratch : Scratch
        Gets the components of the rows, and W in a better order.
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
    return replace(graph, ordered=path, in_memory=storage.in_memory, fill=fill)


def _volumes_task(
    bounds: tuple[int, int], W: AffinityMatrix, labels: ArrayRef, n_connected: int
) -> np.ndarray:
    """Check some rows; return the sums of their degrees by component."""
    start, stop = bounds
    indptr, degrees = W.indptr.read(start, stop + 1), W.degrees.read(start, stop)
    weights = W.data.read(int(indptr[0]), int(indptr[-1]))
    check_rows(indptr - indptr[0], weights, degrees, np.arange(start, stop))
    return np.bincount(labels.read(start, stop), degrees, n_connected)


def _order_task(folder: str, W: AffinityMatrix, kind: str) -> tuple[str, int]:
    """Store W in an order that keeps neighbors near; return the file, and the fill."""
    order, fill = np.arange(W.n_samples, dtype=np.int32), -1
    if kind == "levels":
        order, fill = _levels(W)
    if W.partitions is not None:
        order = order[np.argsort(W.partitions.load()[order], kind="stable")]
    path = as_location(folder) / f"ordered-{secrets.randbits(62):016x}"
    with new_file(path) as file:
        _write_ordered(file, W, order)
    return str(path), fill


def _levels(W: AffinityMatrix) -> tuple[np.ndarray, int]:
    """Return the order of the rows by levels, and the fill of W's factor in it."""
    from scipy.sparse import csr_array

    indptr, indices = _pointers(W), W.indices.load()
    # Only the pattern counts.
    ones = np.broadcast_to(np.ones(1, np.int8), len(indices))
    order = level_order(csr_array((ones, indices, indptr), shape=(W.n_samples,) * 2))
    return order, fill_of(indptr, indices, order)


def _pointers(W: AffinityMatrix) -> np.ndarray:
    """Return where the rows of W begin, in the smallest type."""
    indptr = W.indptr.load()
    return indptr.astype(np.int32) if W.nnz < 2**31 else indptr


def _weights(W: AffinityMatrix, begin: int = 0, end: int | None = None) -> np.ndarray:
    """Read weights: a single one if all are 1, float32 if that is exact."""
    if W.weight == "binary":
        return np.ones(1, np.float32)
    weights = W.data.read(begin, W.nnz if end is None else end)
    if (weights == 1.0).all():
        return np.ones(1, np.float32)
    single = weights.astype(np.float32)
    return single if (single == weights).all() else weights


def _weight_type(W: AffinityMatrix) -> type | None:
    """Return a type that holds all weights; None if all are 1."""
    if W.weight == "binary":
        return None
    parts = (_weights(W, *bounds) for bounds in block_bounds(W.nnz, SLICE_ENTRIES))
    kinds = {(part.dtype.itemsize, bool((part == 1).all())) for part in parts}
    if all(is_one for _, is_one in kinds):
        return None
    return np.float32 if all(size == 4 for size, _ in kinds) else np.float64


def _write_ordered(file: Any, W: AffinityMatrix, order: np.ndarray) -> None:
    """Write ``indptr, degrees, place, indices, weights`` of W in an order of its rows."""
    place, indptr = inverse(order), _pointers(W)
    starts = np.zeros_like(indptr)
    np.cumsum(np.diff(indptr)[order], out=starts[1:])
    npy.write_array(file, starts)
    npy.write_array(file, W.degrees.load()[order])
    npy.write_array(file, place)
    rows = max(1, SLICE_ENTRIES * len(order) // W.nnz)

    def parts(dtype: Any, read: Callable[[int, int], np.ndarray]) -> Iterator[np.ndarray]:
        for bounds in block_bounds(len(order), rows):
            yield _slice((indptr, place, starts), bounds, dtype, read)

    indices = parts(place.dtype, lambda *part: place[W.indices.read(*part)])
    _write_parts(file, place.dtype, W.nnz, indices)
    kind = _weight_type(W)
    if kind is None:
        npy.write_array(file, np.ones(1, np.float32))
    else:
        weights = parts(kind, lambda *p: np.broadcast_to(_weights(W, *p), p[1] - p[0]))
        _write_parts(file, np.dtype(kind), W.nnz, weights)


def _slice(
    layout: tuple[np.ndarray, np.ndarray, np.ndarray],
    bounds: tuple[int, int],
    dtype: Any,
    read: Callable[[int, int], np.ndarray],
) -> np.ndarray:
    """Return the entries of consecutive rows in order, found by reading all of W piece by piece.

    ``layout`` are where the rows of W begin, their places in order, and where they begin there.
    """
    (indptr, place, starts), (start, stop) = layout, bounds
    values = np.empty(int(starts[stop] - starts[start]), dtype)
    for first, last in block_bounds(len(place), PIECE_ROWS):
        rows = first + np.flatnonzero((start <= place[first:last]) & (place[first:last] < stop))
        if len(rows):
            piece, lengths = (
                read(int(indptr[first]), int(indptr[last])),
                indptr[rows + 1] - indptr[rows],
            )
            there = _spans(starts[place[rows]] - starts[start], lengths)
            values[there] = piece[_spans(indptr[rows] - indptr[first], lengths)]
    return values


def _spans(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the numbers from each begin on, as many as its length."""
    ends = np.cumsum(lengths)
    return np.repeat(begins - (ends - lengths), lengths) + np.arange(int(lengths.sum()))


def _write_parts(file: Any, dtype: np.dtype[Any], count: int, parts: Iterable[np.ndarray]) -> None:
    """Write an array of ``count`` values that comes in parts, as `numpy.save` would."""
    kind = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
    npy.write_array_header_1_0(file, kind)
    for part in parts:
        write_from(file, part)


class _OrderedFile:
    """A file that `_write_ordered` wrote: W in order, of which some rows are read at a time."""

    def __init__(self, path: Location) -> None:
        self._path = path
        self._arrays: list[tuple[int, int, np.dtype[Any]]] = []  # begin, values, type of each
        with open_own(path) as file:
            for _ in range(5):
                npy.read_magic(file)
                (count,), _, dtype = npy.read_array_header_1_0(file)
                self._arrays.append((file.tell(), count, dtype))
                file.seek(count * dtype.itemsize, os.SEEK_CUR)
        with open_own(path, buffering=0) as file:
            self._indptr, self.place = (self._read(file, i, 0, None) for i in (_INDPTR, _PLACE))

    def _read(self, file: Any, number: int, start: int, stop: int | None) -> np.ndarray:
        """Read values of an array: to its end if that comes first."""
        begin, count, dtype = self._arrays[number]
        values = np.empty((count if stop is None else min(stop, count)) - start, dtype)
        read_into(file, begin + start * dtype.itemsize, values)
        return values

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""
        return self._indptr.nbytes + self.place.nbytes

    def pieces(self, n_rows: int) -> Iterator[tuple[int, tuple[np.ndarray, ...]]]:
        """Yield as `Transition.pieces` does, so many rows at a time."""
        is_alike = self._arrays[_WEIGHTS][1] == 1
        with open_own(self._path, buffering=0) as file:
            for start, stop in block_bounds(len(self.place), n_rows):
                begin, end = int(self._indptr[start]), int(self._indptr[stop])
                pointers = self._indptr[start : stop + 1] - self._indptr[start]
                indices = self._read(file, _INDICES, begin, end)
                weights = self._read(file, _WEIGHTS, *((0, 1) if is_alike else (begin, end)))
                degrees = self._read(file, _DEGREES, start, stop)
                yield start, (pointers, indices, weights, degrees)


class Transition:
    """``P`` as an operator on blocks of vectors that have all rows.

    Parameters
    ----------
    graph : StoredGraph
    """

    def __init__(self, graph: StoredGraph) -> None:
        self._W, self.n_samples = graph.W, graph.n_samples
        self._ordered: _OrderedFile | None = None
        if graph.ordered:
            path = as_location(graph.ordered)
            if is_remote(path) and not graph.in_memory:  # read once, not for each product
                self._folder = Scratch()  # goes with this object
                near = Path(str(self._folder.path)) / "W"
                with open_own(path) as source, near.open("wb") as copy:
                    shutil.copyfileobj(source, copy, 2**22)
                path = near
            self._ordered = _OrderedFile(path)
        # Where each row of the graph is in the block; None: in its own place.
        self.place = None if self._ordered is None else self._ordered.place
        self._held: list[tuple[int, tuple[np.ndarray, ...]]] = []
        if self._ordered is not None and graph.in_memory:
            self._held = list(self._ordered.pieces(self.n_samples))
        self._step, self._gather = compiled_products()

    @property
    def nbytes(self) -> int:
        """Bytes that are held of W, or of the places of its rows."""
        places = 0 if self._ordered is None else self._ordered.nbytes
        return places + sum(part.nbytes for _, csr in self._held for part in csr)

    def pieces(self) -> Iterator[tuple[int, tuple[np.ndarray, ...]]]:
        """Yield the first row of each piece, and ``indptr, indices, weights, degrees``."""
        if self._held:
            yield from self._held
        elif self._ordered is not None:
            yield from self._ordered.pieces(PIECE_ROWS)
        else:
            for start, stop in block_bounds(self.n_samples, PIECE_ROWS):
                yield start, self._read(start, stop)

    def _read(self, start: int, stop: int) -> tuple[np.ndarray, ...]:
        """Read consecutive rows of the graph."""
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
        indptr, indices, weights, degrees = self._read(start, stop)
        if self.place is not None:
            indices = self.place[indices]
        self._gather(indptr, indices, weights, degrees, X, np.arange(stop - start), out)
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
