"""Thin blocks of vectors as files of row blocks, and the tasks that turn one into the next.

A file holds one block's rows, panel by panel: its own rows, then copies of those that other
blocks need, in the order they need them. Every attempt of a task writes a file of its own, and
a `StoredIterate` names the attempts that count: nothing else is ever read.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from bigfs.core.seeds import rng
from bigfs.graph.shuffle import Receipt, write_run
from bigfs.spectral.chebyshev import members
from bigfs.spectral.components import PIVOT_TIE, SIGN_TIE
from bigfs.spectral.kernels import RowKernel, aligned
from bigfs.spectral.problem import tiles
from bigfs.spectral.rowgraph import Edges, RowGraph
from bigfs.store.location import Location, as_location, new_file, read_into
from bigfs.store.scratch import ArrayRef


@dataclass(frozen=True)
class StoredIterate:
    """Vectors z in storage."""

    folder: str
    step: int  # tells iterates of one folder apart
    dtype: str
    widths: tuple[int, ...]  # columns of every panel in the files
    panels: tuple[int, ...]  # the panels that belong to this iterate
    attempts: tuple[int, ...] = ()  # the attempt that counts, by block

    @property
    def width(self) -> int:
        """Number of vectors."""
        return sum(self.widths[panel] for panel in self.panels)

    @property
    def own_widths(self) -> tuple[int, ...]:
        """Columns of the panels that belong to this iterate."""
        return tuple(self.widths[panel] for panel in self.panels)

    def path(self, block: int, attempt: int) -> Location:
        """Return where an attempt of a block is."""
        return as_location(self.folder) / f"z-{self.step:06d}-{block:05d}-{attempt:016x}"

    def with_attempts(self, attempts: Iterable[int]) -> StoredIterate:
        """Return the iterate whose files are those attempts, one by block."""
        return replace(self, attempts=tuple(attempts))

    def remove(self) -> None:
        """Delete the files."""
        for block, attempt in enumerate(self.attempts):
            self.path(block, attempt).unlink(missing_ok=True)


class GraphBlockReader:
    """One block of a graph with what a task reads for it; counts the bytes of other blocks.

    Parameters
    ----------
    graph : RowGraph
    block : int
    """

    def __init__(self, graph: RowGraph, block: int) -> None:
        self.graph, self.block = graph, block
        self.n_rows, self.n_copied = graph.extent(block)
        self.fetched_bytes = 0

    @cached_property
    def edges(self) -> Edges:
        """The block's rows of W."""
        return self.graph.edges(self.block)

    @cached_property
    def links(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows that the block receives and sends."""
        return self.graph.links(self.block)

    @cached_property
    def kernel(self) -> RowKernel:
        """The product with the block's rows of P."""
        edges = self.edges
        return RowKernel((edges.indptr, edges.indices, edges.weights), edges.degrees, 1)

    def own(self, iterate: StoredIterate, panel: int) -> np.ndarray:
        """Read the block's own rows of a panel."""
        out = np.empty((self.n_rows, iterate.widths[panel]), iterate.dtype)
        path = iterate.path(self.block, iterate.attempts[self.block])
        with path.open("rb", buffering=0) as file:
            read_into(file, _begin(iterate, panel, self.n_rows + self.n_copied), out)
        return out

    def rows(self, *iterates: StoredIterate) -> np.ndarray:
        """Read the block's own rows of all panels, side by side, float64."""
        parts = [self.own(iterate, panel) for iterate in iterates for panel in iterate.panels]
        return np.hstack(parts, dtype=np.float64) if parts else np.zeros((self.n_rows, 0))

    def wide(self, iterate: StoredIterate, panel: int) -> np.ndarray:
        """Read own rows and the halo of a panel: what a product takes."""
        received = self.links[1]
        shape = (self.n_rows + int(received[:, 2].sum()), iterate.widths[panel])
        out = aligned(shape, iterate.dtype)
        out[: self.n_rows] = self.own(iterate, panel)
        filled = self.n_rows
        for owner, first, count in received.tolist():
            rows, copied = self.graph.extent(owner)
            begin = _begin(iterate, panel, rows + copied) + (rows + first) * out[:1].nbytes
            part = out[filled : filled + count]
            with iterate.path(owner, iterate.attempts[owner]).open("rb", buffering=0) as file:
                read_into(file, begin, part)
            filled += count
            self.fetched_bytes += part.nbytes
        return out

    def write(self, target: StoredIterate, panels: Sequence[np.ndarray]) -> int:
        """Write the block of an iterate; return the attempt."""
        attempt, given = secrets.randbits(62), self.links[0]
        parts = (
            np.ascontiguousarray(part, target.dtype)
            for panel in panels
            for part in (panel, panel[given])
        )
        write_arrays(target.path(self.block, attempt), parts)
        return attempt


def write_arrays(path: Location, arrays: Iterable[np.ndarray]) -> None:
    """Write the bytes of contiguous arrays one after the other; nothing is left of a failure."""
    with new_file(path) as file:
        for array in arrays:
            write_values(file, array)


def write_values(file: Any, array: np.ndarray) -> None:
    """Write the bytes of a contiguous array to an open file."""
    view = array.reshape(-1).view(np.uint8).data
    while len(view):
        view = view[file.write(view) :]


def _begin(iterate: StoredIterate, panel: int, rows: int) -> int:
    """Return where a panel begins in a file of so many rows."""
    return sum(iterate.widths[:panel]) * rows * np.dtype(iterate.dtype).itemsize


def start_task(
    block: int, graph: RowGraph, target: StoredIterate, random_state: int, name: str
) -> int:
    """Draw the start of a block's rows: ``D^-1/2`` times normal."""
    reader, generator = GraphBlockReader(graph, block), rng(random_state, name, block)
    root = np.sqrt(reader.edges.degrees)[:, None]
    shapes = [(reader.n_rows, width) for width in target.widths]
    return reader.write(target, [generator.standard_normal(shape) / root for shape in shapes])


def product_task(
    block: int,
    graph: RowGraph,
    source: StoredIterate,
    before: StoredIterate | None,
    target: StoredIterate,
    scalars: tuple[float, float, float],
) -> tuple[int, int]:
    """Store ``a P Z + b Z + c Z_before``; return the attempt and the bytes of other blocks."""
    reader, results = GraphBlockReader(graph, block), []
    for place, panel in enumerate(source.panels):
        X = reader.wide(source, panel)
        if before is None:
            Y = np.empty((reader.n_rows, X.shape[1]), X.dtype)
        else:
            Y = reader.own(before, before.panels[place])
        reader.kernel.step(X, Y, *scalars)
        results.append(Y)
    return reader.write(target, results), reader.fetched_bytes


@dataclass(frozen=True)
class Change:
    """Changes that `change_task` makes to the rows z of an iterate, in this order."""

    # Of shape (n_connected, width) or None: subtracted from the rows of each component.
    means: ArrayRef | None = None
    locked: tuple[StoredIterate, ...] = ()
    # Of shape (n_locked, width) or None: ``locked @ shares`` is subtracted.
    shares: ArrayRef | None = None
    turn: ArrayRef | None = None  # of shape (width, new_width) or None: rows are multiplied with it
    # Of shape (n_connected, n_known) or None: columns put before all others, constant on each
    # component.
    levels: ArrayRef | None = None


def change_task(
    block: int,
    graph: RowGraph,
    target: StoredIterate,
    sources: tuple[StoredIterate, ...],
    change: Change,
) -> int:
    """Store the changed rows of some iterates side by side; return the attempt."""
    reader = GraphBlockReader(graph, block)
    z, locked = reader.rows(*sources), reader.rows(*change.locked)
    if change.means is not None:
        z -= change.means.load()[reader.edges.labels]
    if change.shares is not None and locked.size:
        z -= locked @ change.shares.load()
    if change.turn is not None:
        z = z @ change.turn.load()
    if change.levels is not None:
        z = np.hstack([change.levels.load()[reader.edges.labels], z])
    edges = np.cumsum(target.widths)[:-1]
    return reader.write(target, np.split(z[:, : sum(target.widths)], edges, axis=1))


def shares_task(
    block: int,
    graph: RowGraph,
    sources: tuple[StoredIterate, ...],
    locked: tuple[StoredIterate, ...],
) -> np.ndarray:
    """Return the components' sums ``1'DZ`` and, below, the shares ``locked'DZ``."""
    reader = GraphBlockReader(graph, block)
    edges, z = reader.edges, reader.rows(*sources)
    sums = members(edges.degrees, edges.labels, graph.n_connected) @ z
    z *= edges.degrees[:, None]
    return np.vstack([sums, reader.rows(*locked).T @ z])


def grams_task(block: int, graph: RowGraph, iterate: StoredIterate) -> np.ndarray:
    """Return ``Z'DZ``, ``Z'DPZ`` and the diagonal matrix of ``(PZ)'DPZ``."""
    reader = GraphBlockReader(graph, block)
    z, product = reader.rows(iterate), _products(reader, iterate)
    degrees, sums = reader.edges.degrees[:, None], np.zeros((3, z.shape[1], z.shape[1]))
    for start, stop in tiles(len(z)):
        part, image = z[start:stop], product[start:stop].astype(np.float64)
        weighted = degrees[start:stop] * part
        sums[0] += part.T @ weighted
        sums[1] += weighted.T @ image
        image *= image
        sums[2] += np.diag((degrees[start:stop] * image).sum(axis=0))
    return sums


def squares_task(block: int, graph: RowGraph, iterate: StoredIterate, mu: np.ndarray) -> np.ndarray:
    """Return the squared residuals of a block's rows."""
    reader = GraphBlockReader(graph, block)
    z, product = reader.rows(iterate), _products(reader, iterate)
    degrees, total = reader.edges.degrees, np.zeros(z.shape[1])
    for start, stop in tiles(len(z)):
        gap = product[start:stop] - mu * z[start:stop]
        gap *= gap
        total += degrees[start:stop] @ gap
    return total


def _products(reader: GraphBlockReader, iterate: StoredIterate) -> np.ndarray:
    """Return the block's rows of ``P Z``."""
    out = np.empty((reader.n_rows, iterate.width), iterate.dtype)
    first = 0
    for panel in iterate.panels:
        X = reader.wide(iterate, panel)
        out[:, first : first + X.shape[1]] = reader.kernel.product(X, 0, reader.n_rows)
        first += X.shape[1]
    return out


@dataclass(frozen=True)
class Measure:
    """Columns among which the largest entry is searched."""

    columns: tuple[int, int]
    # None: the size of every entry. Otherwise the rows' squared norm, weighted with D, beyond the
    # span of these columns.
    turn: np.ndarray | None = None

    @property
    def tie(self) -> float:
        """The share of the largest that counts as equal to it."""
        return SIGN_TIE if self.turn is None else PIVOT_TIE

    def sizes(
        self, reader: GraphBlockReader, iterate: StoredIterate
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return rows, and the sizes of what is compared, a column each."""
        rows = reader.rows(iterate)[:, slice(*self.columns)]
        if self.turn is None:
            return rows, np.abs(rows)
        rows = rows * np.sqrt(reader.edges.degrees)[:, None]
        left = np.einsum("ij,ij->i", rows, rows) - ((rows @ self.turn) ** 2).sum(axis=1)
        return rows, left[:, None]


def largest_task(
    block: int, graph: RowGraph, iterate: StoredIterate, measure: Measure
) -> np.ndarray:
    """Return the largest size of each column."""
    _, sizes = measure.sizes(GraphBlockReader(graph, block), iterate)
    return sizes.max(axis=0)


def first_task(
    block: int, graph: RowGraph, iterate: StoredIterate, measure: Measure, largest: np.ndarray
) -> list[tuple[int, np.ndarray]]:
    """Return, by column, the first row of the graph that is as large, as (number, row)."""
    reader = GraphBlockReader(graph, block)
    rows, sizes = measure.sizes(reader, iterate)
    firsts = []
    for size, most in zip(sizes.T, largest, strict=True):
        ids = np.where(size >= (1.0 - measure.tie) * most, reader.edges.ids, graph.n_samples)
        place = int(ids.argmin())
        firsts.append((int(ids[place]), rows[place]))
    return firsts


def earlier(
    a: list[tuple[int, np.ndarray]], b: list[tuple[int, np.ndarray]]
) -> list[tuple[int, np.ndarray]]:
    """Combine two results of `first_task`."""
    return [min(pair, key=lambda candidate: candidate[0]) for pair in zip(a, b, strict=True)]


def send_task(
    block: int, graph: RowGraph, iterate: StoredIterate, signs: np.ndarray, rows: int, folder: str
) -> Receipt:
    """Send a block's rows to the chunks of the embedding."""
    reader = GraphBlockReader(graph, block)
    ids = reader.edges.ids
    values = {"row": ids, "values": reader.rows(iterate) * signs}
    return write_run(folder, block, ids // rows, -(-graph.n_samples // rows), values)


def place_task(chunk: int, runs: Any, out: ArrayRef) -> np.ndarray:
    """Write one chunk of the embedding; return the sums of its columns' squares."""
    start = chunk * out.chunk_rows
    ids, values = runs.read(chunk, "row", "values")
    rows = np.empty_like(values)
    rows[ids - start] = values
    out.write(start, rows)
    return np.einsum("ij,ij->j", rows, rows)


def select(iterate: StoredIterate, first: int, last: int | None = None) -> StoredIterate:
    """Return some of an iterate's panels."""
    return replace(iterate, panels=iterate.panels[first:last])
