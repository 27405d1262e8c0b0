"""The affinity matrix of a finished graph, one that an AnnData has in ``obsp``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.core.cost import Step
from bigfs.core.errors import InputError
from bigfs.core.text import FROM_0
from bigfs.graph.affinity import AffinityMatrix, store_affinity
from bigfs.graph.cost import affinity_steps, graph_block_rows
from bigfs.graph.representation import rows_left_out
from bigfs.store.csr import CSRSource
from bigfs.store.formats.parts import PARTS, CSRParts
from bigfs.store.scratch import ArrayRef, Scratch

StoredGraph: TypeAlias = CSRParts | CSRSource
# Values of a chunk of a graph in memory, as it is written for the tasks.
_PART_VALUES = 2**18


def mean_neighbors(graph: StoredGraph) -> int:
    """Return the stored entries of a row on average, rounded up."""
    return max(1, -(-graph.n_entries // graph.n_samples))


@dataclass(frozen=True)
class _StoredEdges:
    """The edges of a finished graph between the rows of the data."""

    graph: CSRParts  # of all rows of the AnnData
    # Of shape (n_samples,), int64, or None: the rows that the data have; None: all.
    kept: ArrayRef | None
    # Of shape (n_all,), int64, or None: where each row of the AnnData is among them, -1: left out.
    places: ArrayRef | None

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return heads, tails and values of the edges that leave rows start to stop."""
        rows = np.arange(start, stop) if self.kept is None else self.kept.read(start, stop)
        first = int(rows[0])
        strip = self.graph.read_entries(first, int(rows[-1]) + 1)
        strip.sum_duplicates()
        if self.kept is not None:
            strip = strip[rows - first]
        heads = np.repeat(np.arange(start, stop), np.diff(strip.indptr))
        tails, values = strip.indices, strip.data.astype(np.float64)
        bad = ~((values >= 0) & (values < np.inf))
        if bad.any():
            i = int(bad.argmax())
            raise InputError(
                f"{self.graph.uri}: row {rows[heads[i] - start]}, column {tails[i]} is "
                f"{values[i]}. Weights and distances must be finite and not negative. {FROM_0}"
            )
        if self.places is not None:
            tails = self.places.take(tails)
        among = (tails >= 0) & (tails != heads)
        return heads[among], tails[among], values[among]


def finished_affinity(
    graph: StoredGraph, blocks: RowBlocks, *, weight: str, sigma: float | None, scratch: Scratch
) -> AffinityMatrix:
    """Return the affinity matrix of a finished graph, stored by row blocks.

    Parameters
    ----------
    graph : CSRParts or CSRSource
        A square matrix in CSR form, finite and not negative; its diagonal is left out. One in
        memory goes through scratch, where tasks can read it.
    blocks : RowBlocks of shape (n_samples, n_features)
        The data: the rows that they leave out leave the graph, too.
    weight : {"stored", "binary", "heat"}
        The values; 1; of values that are distances ``exp(-d^2 / sigma)``.
    sigma : float or None
        Of the heat kernel. None: of every edge its own, with the largest stored distance of a row
        in the place of the distance to the last of its neighbors.
    scratch : Scratch
        Gets the matrix.

    Returns
    -------
    W : AffinityMatrix
        ``max(W, W')`` where the stored matrix is not symmetric.

    Raises
    ------
    InputError
        If it is no such matrix, is not of the rows of the data, or a row has no edge.
    """
    dropped = rows_left_out(graph, blocks)
    size = blocks.n_samples, graph_block_rows(mean_neighbors(graph))
    with scratch.temporary("weights") as working:
        kept = places = None
        if len(dropped):
            of_data = np.delete(np.arange(graph.n_samples), dropped)
            kept = working.put("kept", of_data)
            place = np.full(graph.n_samples, -1)
            place[of_data] = np.arange(len(of_data))
            places = working.put("places", place)
        edges = _StoredEdges(_shared(graph, working), kept, places)
        complaint = f": {graph.uri} has no edge with a positive weight there. Remove isolated rows."
        return store_affinity(edges, weight, sigma, size, scratch, complaint)


def finished_steps(graph: StoredGraph, weight: str) -> tuple[Step, ...]:
    """Return the steps of `finished_affinity`: those of affinities, of the largest strip."""
    mean = mean_neighbors(graph)
    rows = min(graph_block_rows(mean), graph.n_samples)
    largest = -(-graph.block_entries(rows) // rows)
    n_rows = -(-graph.n_samples * mean // largest)  # as many entries, at so many a row
    return tuple(affinity_steps(max(n_rows, rows), largest, weight))


def _shared(graph: StoredGraph, scratch: Scratch) -> CSRParts:
    """Return a graph that every process can read: one in memory is written."""
    if isinstance(graph, CSRParts):
        return graph
    from bigfs.store.formats.zarr_array import open_parts  # loads zarr

    for name, part in zip(PARTS, graph.parts, strict=True):
        scratch.put(name, part, _PART_VALUES)
    shape = (graph.n_samples, graph.n_features)
    return CSRParts(partial(open_parts, str(scratch.path)), shape, graph.uri)
