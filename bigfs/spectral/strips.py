"""The filter on strips: a few columns of all rows, so that many products are one task.

Chebyshev's recurrence takes every column by itself. Where W and two buffers of a few columns fit
a task, the task reads them once and multiplies many times: no rows of other blocks, and no files
between the products. The sums over all columns stay on row blocks (`bigfs.spectral.rowblocks`).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib import format as npy

from bigfs.spectral.chebyshev import near_order
from bigfs.spectral.kernels import RowKernel, aligned
from bigfs.spectral.problem import tiles
from bigfs.spectral.rowblocks import GraphBlockReader, StoredIterate, write_arrays, write_values
from bigfs.spectral.rowgraph import RowGraph, load_arrays
from bigfs.spectral.rowloop import CACHE_LINE
from bigfs.store.location import Location, as_location, new_file, read_into

# Multiplications of one task, about half a minute: what a worker that dies costs.
_MULTIPLICATIONS = 2e10
_LEAST_PRODUCTS = 4
# Lengths of a strip's row, the best first: rows of less than a cache line are read with others.
ROW_BYTES = (CACHE_LINE, CACHE_LINE // 2, CACHE_LINE // 4)
# Measured: what a row takes while the order of all rows is looked for.
_ORDER_BYTES = 64


@dataclass(frozen=True)
class Strips:
    """Vectors within the filter, in storage: a file for each strip."""

    folder: str
    step: int  # tells iterates of one folder apart
    dtype: str
    # Tuple of (panel, first, last): columns of the source's panels that every strip has.
    columns: tuple[tuple[int, int, int], ...]
    done: int  # products behind it
    attempts: tuple[int, ...] = ()  # the attempt that counts, by strip

    def path(self, strip: int, attempt: int) -> Location:
        """Return where an attempt of a strip is."""
        return as_location(self.folder) / f"s-{self.step:06d}-{strip:05d}-{attempt:016x}"

    def remove(self) -> None:
        """Delete the files."""
        for strip, attempt in enumerate(self.attempts):
            self.path(strip, attempt).unlink(missing_ok=True)

    def rows(self, strip: int, out: np.ndarray, first_row: int) -> None:
        """Fill an array with consecutive rows of a strip's file: newest vectors, then those before.

        Parameters
        ----------
        strip : int
        out : ndarray of shape (n_rows, width)
        first_row : int
            In [0, 2 n_samples): rows of the vectors before follow those of the newest.
        """
        with self.path(strip, self.attempts[strip]).open("rb", buffering=0) as file:
            read_into(file, first_row * out.shape[1] * out.itemsize, out)


def strip_columns(source: StoredIterate, row_bytes: int) -> tuple[tuple[int, int, int], ...]:
    """Return the strips of an iterate: (panel, first column, one past the last).

    A row of a strip is ``row_bytes`` long: a cache line at most, as the products read rows in no
    order.
    """
    most = row_bytes // np.dtype(source.dtype).itemsize
    return tuple(
        (panel, first, min(first + most, source.widths[panel]))
        for panel in source.panels
        for first in range(0, source.widths[panel], most)
    )


def strip_count(n_columns: int, row_bytes: int) -> int:
    """Return the approximate number of strips for vectors in float32."""
    return -(-4 * n_columns // row_bytes)


def strip_bytes(n_samples: int, n_entries: int, row_bytes: int, *, binary: bool) -> int:
    """Return the bytes of a task: W and its order while that is made, or W and two buffers.

    Parameters
    ----------
    n_samples, n_entries : int
        Rows and stored entries of W.
    row_bytes : int
        Of a row of a strip.
    binary : bool
        Whether weights are all one: then they are left out.
    """
    needed = n_entries * (4 if binary else 12) + n_samples * max(_ORDER_BYTES, 2 * row_bytes + 16)
    # A block while it is read or written.
    return needed + needed // 16


def widest_strip(n_samples: int, n_entries: int, room: int, *, binary: bool) -> int:
    """Return the bytes of a row of the widest strips that fit; 0 if none do."""
    for row_bytes in ROW_BYTES:
        if strip_bytes(n_samples, n_entries, row_bytes, binary=binary) <= room:
            return row_bytes
    return 0


def products_of_a_task(nnz: int, dtype: str, row_bytes: int) -> int:
    """Return how many products one task does, between two commits."""
    columns = row_bytes // np.dtype(dtype).itemsize
    return max(_LEAST_PRODUCTS, int(_MULTIPLICATIONS / (nnz * columns)))


@dataclass(frozen=True)
class WholeGraph:
    """Address of all of W with its rows in an order that keeps neighbors near."""

    folder: str
    attempt: int

    def load(self) -> tuple[RowKernel, np.ndarray]:
        """Return the product with all rows of P, and the places of the blocks' rows."""
        path = whole_path(self.folder, self.attempt)
        indptr, degrees, place, indices, weights = load_arrays(path)
        return RowKernel((indptr, indices, weights), degrees, 1), place


def whole_path(folder: str, attempt: int) -> Location:
    """Return where an attempt is."""
    return as_location(folder) / f"whole-{attempt:016x}"


def whole_task(folder: str, graph: RowGraph) -> int:
    """Store W in the order of the strips; return the attempt."""
    indptr, indices, weights, degrees = _load_graph(graph)
    order = _order(graph, indptr, indices)
    place = np.empty_like(order)
    place[order] = np.arange(len(order), dtype=order.dtype)
    begins, lengths = indptr[order], np.diff(indptr)[order]
    ends = np.cumsum(lengths, dtype=indptr.dtype)

    def entries() -> Iterator[np.ndarray]:
        """Yield where the entries of the rows are, a few rows at a time."""
        for start, stop in tiles(len(order)):
            first = ends[start:stop] - lengths[start:stop]
            shifts = np.repeat(begins[start:stop] - first, lengths[start:stop])
            yield shifts + np.arange(first[0], ends[stop - 1], dtype=indptr.dtype)

    attempt = secrets.randbits(62)
    with new_file(whole_path(folder, attempt)) as file:
        npy.write_array(file, np.concatenate([np.zeros(1, indptr.dtype), ends]))
        npy.write_array(file, degrees[order])
        npy.write_array(file, place)
        _write_parts(file, indices.dtype, len(indices), (place[indices[e]] for e in entries()))
        if len(weights) < len(indices):
            npy.write_array(file, weights)
        else:
            _write_parts(file, weights.dtype, len(weights), (weights[e] for e in entries()))
    return attempt


def _order(graph: RowGraph, indptr: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Return the rows in an order that keeps neighbors near, blocks one after the other."""
    from scipy.sparse import csr_array

    sizes = [graph.extent(block)[0] for block in range(graph.n_blocks)]
    # Only the pattern counts.
    ones = np.broadcast_to(np.ones(1, np.int8), len(indices))
    W = csr_array((ones, indices, indptr), shape=(graph.n_samples,) * 2)
    return near_order(W, np.repeat(np.arange(graph.n_blocks, dtype=np.int32), sizes))


def _write_parts(file: Any, dtype: np.dtype[Any], count: int, parts: Iterable[np.ndarray]) -> None:
    """Write an array of ``count`` values that comes in parts, as `numpy.save` would."""
    kind = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
    npy.write_array_header_1_0(file, kind)
    for part in parts:
        write_values(file, part.astype(dtype, copy=False))


def strip_task(
    strip: int,
    graph: RowGraph,
    whole: WholeGraph,
    source: StoredIterate,
    state: Strips | None,
    target: Strips,
    steps: Sequence[tuple[float, float, float]],
    is_last: bool,
) -> int:
    """Do some steps of the recurrence for a strip; return the attempt.

    Begins with a strip of ``source``, or where ``state`` ended.
    """
    panel, first, last = target.columns[strip]
    kernel, place = whole.load()
    bounds = [graph.bounds(block) for block in range(graph.n_blocks)]
    shape = (graph.n_samples, last - first)
    X, Y = aligned(shape, target.dtype), aligned(shape, target.dtype)
    for block, (start, stop) in enumerate(bounds):
        if state is None:
            rows = GraphBlockReader(graph, block).own(source, panel)[:, first:last]
            X[place[start:stop]] = rows
        else:
            rows = np.empty((stop - start, last - first), target.dtype)
            for vectors, offset in ((X, 0), (Y, graph.n_samples)):
                state.rows(strip, rows, offset + start)
                vectors[place[start:stop]] = rows
    for scalars in steps:
        kernel.step(X, Y, *scalars)
        X, Y = Y, X
    attempt = secrets.randbits(62)
    kept = (X,) if is_last else (X, Y)
    parts = (vectors[place[start:stop]] for vectors in kept for start, stop in bounds)
    write_arrays(target.path(strip, attempt), parts)
    return attempt


def _load_graph(graph: RowGraph) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return W and its degrees in the order of the blocks; weights that are all one only once."""
    pointer = np.int32 if graph.nnz < 2**31 else np.int64
    indptr, degrees = np.zeros(graph.n_samples + 1, pointer), np.empty(graph.n_samples)
    indices, weights = np.empty(graph.nnz, np.int32), np.ones(1, np.float32)
    filled = 0
    for block in range(graph.n_blocks):
        (start, stop), edges = graph.bounds(block), graph.edges(block)
        end = filled + len(edges.indices)
        if len(weights) < graph.nnz and (edges.weights != 1).any():
            weights = np.ones(graph.nnz, edges.weights.dtype)
        if len(weights) == graph.nnz:
            # Blocks choose their type each for itself: one that needs float64 decides for all.
            kind = np.promote_types(weights.dtype, edges.weights.dtype)
            weights = weights.astype(kind, copy=False)
            weights[filled:end] = edges.weights
        columns = np.concatenate([np.arange(start, stop, dtype=np.int32), graph.halo(block)])
        np.take(columns, edges.indices, out=indices[filled:end])
        indptr[start + 1 : stop + 1] = filled + edges.indptr[1:]
        degrees[start:stop] = edges.degrees
        filled = end
    return indptr, indices, weights, degrees


def regroup_task(block: int, graph: RowGraph, target: StoredIterate, strips: Strips) -> int:
    """Bring a block's rows of all strips into one file of panels; return the attempt."""
    reader = GraphBlockReader(graph, block)
    start, _ = graph.bounds(block)
    panels = [np.empty((reader.n_rows, width), target.dtype) for width in target.widths]
    names = sorted({panel for panel, _, _ in strips.columns})
    for strip, (panel, first, last) in enumerate(strips.columns):
        rows = np.empty((reader.n_rows, last - first), target.dtype)
        strips.rows(strip, rows, start)
        panels[names.index(panel)][:, first:last] = rows
    return reader.write(target, panels)
