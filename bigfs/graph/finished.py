"""The affinity matrix of a finished graph, one that an AnnData has in ``obsp``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.core.cost import Step
from bigfs.core.errors import InputError
from bigfs.core.text import FROM_0
from bigfs.graph.affinity import AffinityMatrix, heat_weights
from bigfs.graph.cost import affinity_steps, graph_block_rows
from bigfs.graph.symmetrize import symmetrize
from bigfs.runtime.execute import run_tasks
from bigfs.store.chunking import block_bounds
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
class _Entries:
    """The descriptors by which a task weighs the edges of its rows."""

    graph: CSRParts  # of all rows of the AnnData
    # Of shape (n_samples,), int64, or None: the rows that the data have; None: all.
    kept: ArrayRef | None
    # Of shape (n_all,), int64, or None: where each row of the AnnData is among them, -1: left out.
    places: ArrayRef | None
    weight: str
    sigma: float | None
    scales: ArrayRef | None  # of shape (n_samples,), float64, or None: largest distance in each row

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return heads, tails and values of the edges that leave rows start to stop."""
        rows = np.arange(start, stop) if self.kept is None else self.kept.read(start, stop)
        first = int(rows[0])
        strip = self.graph.read_entries(first, int(rows[-1]) + 1)
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
    uri, dropped = graph.uri, np.asarray(blocks.source.dropped, dtype=np.int64)
    n_all = blocks.n_samples + len(dropped)
    if graph.n_samples != n_all:
        raise InputError(
            f"{uri} has {graph.n_samples:,} rows, and the data have {n_all:,}. It must be of the "
            "same samples."
        )
    rows = graph_block_rows(mean_neighbors(graph))
    bounds = block_bounds(blocks.n_samples, rows)
    working = scratch.child(scratch.unique("weights"))
    try:
        kept = places = None
        if len(dropped):
            of_data = np.delete(np.arange(n_all), dropped)
            kept = working.put("kept", of_data)
            place = np.full(n_all, -1)
            place[of_data] = np.arange(len(of_data))
            places = working.put("places", place)
        entries = _Entries(_shared(graph, working), kept, places, weight, sigma, None)
        if weight == "heat" and sigma is None:
            scales = working.create("scales", (blocks.n_samples,), np.float64, rows)
            run_tasks(_write_scales, bounds, entries, scales, label="scales")
            entries = replace(entries, scales=scales)
        complaint = f": {uri} has no edge with a positive weight there. Remove isolated rows."
        stored = symmetrize(_weighted, entries, blocks.n_samples, rows, scratch, complaint)
    finally:
        working.close()
    parts: dict[str, Any] = {
        name: getattr(stored, name) for name in ("data", "indices", "indptr", "degrees")
    }
    return AffinityMatrix(**parts, weight=weight, sigma_=sigma, scratch=scratch)


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
    from bigfs.store.formats.zarr_array import ZarrPlace  # loads zarr

    for name, part in zip(PARTS, graph.parts, strict=True):
        scratch.create(name, part.shape, part.dtype, _PART_VALUES).write(0, part)
    shape = (graph.n_samples, graph.n_features)
    return CSRParts(ZarrPlace(str(scratch.path)), shape, graph.uri)


def _write_scales(bounds: tuple[int, int], entries: _Entries, scales: ArrayRef) -> None:
    """Write the largest stored distance of each row; 0 for a row without any."""
    heads, _, distances = entries.read(*bounds)
    largest = np.zeros(bounds[1] - bounds[0])
    np.maximum.at(largest, heads - bounds[0], distances)
    scales.write(bounds[0], largest)


def _weighted(
    start: int, stop: int, entries: _Entries
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return heads, tails and weights of the edges that leave rows start to stop."""
    heads, tails, values = entries.read(start, stop)
    if entries.weight == "binary":
        return heads, tails, np.ones(len(tails))
    if entries.weight == "stored":
        return heads, tails, values
    widths = None
    if entries.scales is not None:
        widths = entries.scales.read(start, stop)[heads - start]
        widths = np.maximum(widths, entries.scales.take(tails))
    return heads, tails, heat_weights(values, entries.sigma, widths)
