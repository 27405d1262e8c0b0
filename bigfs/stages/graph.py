"""The graph stage, and the stage of the components by which it compares rows.

A finished graph, stored in ``obsp`` of an AnnData, replaces the search.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.config.sections import GraphConfig
from bigfs.core.cost import Shape, StageCost, Step
from bigfs.core.errors import InputError, MemoryLimitError
from bigfs.core.paths import plain_name
from bigfs.core.text import FROM_0
from bigfs.graph import AffinityMatrix, affinity, knn_graph
from bigfs.graph.build import missed_neighbors
from bigfs.graph.cost import affinity_steps, graph_block_rows, graph_cost
from bigfs.graph.distinct import COPIED_SHARE, count_copied, without_copies
from bigfs.graph.knn import KNNGraph
from bigfs.graph.representation import (
    check_representation,
    content_of_member,
    copy_representation,
    gram_serves,
    open_member,
    open_principal,
    principal_rows,
    principal_shape,
    principal_steps,
    recall_of_all,
    rows_left_out,
)
from bigfs.graph.symmetrize import store_affinity
from bigfs.graph.update import update_graph
from bigfs.stages.stage import Inputs, Stage
from bigfs.stages.sums import store_gram
from bigfs.store.csr import CSRSource
from bigfs.store.formats.parts import PARTS, CSRParts
from bigfs.store.location import Location, copy_tree
from bigfs.store.scratch import ArrayRef, Scratch, read_attributes

logger = logging.getLogger("bigfs")

# Settings of the edges only: the neighbors do not depend on them.
_WEIGHTS = frozenset({"weight", "sigma"})
StoredGraph: TypeAlias = CSRParts | CSRSource
# Values per chunk of an in-memory graph that is written for the tasks.
_PART_VALUES = 2**18


def graph_stage(
    settings: GraphConfig,
    *,
    random_state: int,
    memory_limit: int,
    remote: bool = False,
    fewer_neighbors: bool = False,
    **depends: Any,
) -> Stage:
    """Return the graph stage.

    If ``settings.representation`` is principal components, their stage comes before. For a finished
    graph of ``obsp`` only the weights are computed.

    Parameters
    ----------
    settings : GraphConfig
    random_state : int
    memory_limit : int
        Resident size promised for one worker process, in bytes.
    remote : bool, default=False
        True if the stages are stored in a bucket.
    fewer_neighbors : bool, default=False
        If True, rows get all others as neighbors if these are fewer than ``n_neighbors``.
    **depends
        Settings of the data that the stage reads.
    """
    common = {**depends, "random_state": random_state, "memory_limit": memory_limit}
    if settings.representation == "auto":  # of data about which nothing is known
        settings = settings.model_copy(update={"representation": "raw"})

    if settings.is_finished:
        given = {**settings.model_dump(), **common, "content": content_of_member(settings)}
        return Stage("graph", 9, given, lambda shape: Finished(settings), sparse=True)

    def choose(shape: Shape) -> GraphStrategy:
        most = shape.n_samples - 1
        fewer = fewer_neighbors and settings.n_neighbors > most
        used = settings.model_copy(update={"n_neighbors": most}) if fewer else settings
        return GraphStrategy(shape, used, random_state, memory_limit, remote)

    of_components = n_components_of(settings) is not None  # they change with new rows
    depends = {**settings.model_dump(), **common}
    updates = not of_components
    return Stage(
        "graph", 13, depends, choose, sparse=of_components, updates=updates, finishing=_WEIGHTS
    )


def n_components_of(settings: GraphConfig) -> int | None:
    """Return the number of components by which the graph compares rows; None for all features."""
    if settings.representation == "auto" or settings.is_finished:
        return None
    if settings.of_annotated:
        return open_member(settings).n_features
    return check_representation(settings.representation, settings.metric)


@dataclass(frozen=True)
class GraphStrategy:
    """Partitions of the rows, each searched on its own; then the weights of the edges.

    Attributes are those of `graph_stage`; ``shape`` is the shape of the data.
    """

    shape: Shape
    settings: GraphConfig
    random_state: int
    memory_limit: int
    remote: bool

    def cost(self) -> StageCost:
        """Return the cost of the neighbors and of the matrix."""
        shape, n_components = self.shape, n_components_of(self.settings)
        if n_components is not None:
            shape = principal_shape(shape, n_components)
        cost = graph_cost(shape, self.settings, self.memory_limit, self.remote)
        if n_components is None:
            return cost
        # Passes over the components are not passes over X.
        return replace(cost, steps=tuple(replace(step, passes=0) for step in cost.steps))

    def run(self, inputs: Inputs, out: Scratch) -> None:
        """Store the neighbors, and the affinity matrix in a subfolder."""
        if inputs.neighbors is not None:
            graph = _copied_neighbors(inputs.neighbors, out)
        else:
            graph = self._updated(inputs, out) or self._neighbors(inputs, out)
        settings = self.settings
        W = affinity(
            graph,
            weight=settings.weight,
            sigma=settings.sigma,
            blocks=inputs.blocks,
            scratch=out.child("affinity"),
        )
        out.describe(
            graph=graph.describe(),
            affinity=W.describe(),
            notes=[*graph.details.get("notes", []), *missed_neighbors(graph)],
        )

    def _updated(self, inputs: Inputs, out: Scratch) -> KNNGraph | None:
        """Return the graph updated from that of the first rows; None if it must be rebuilt."""
        if inputs.former is None or inputs.base is None:
            return None
        former = KNNGraph.open(inputs.former, read_attributes(inputs.former)["graph"])
        why = f"the graph of {inputs.base.run} was built on distinct rows only"
        if "n_distinct" not in former.details:
            try:
                limits = {"memory_limit": self.memory_limit, "random_state": self.random_state}
                graph = update_graph(inputs.blocks, former, **limits, scratch=out)
            except MemoryLimitError as error:
                why = str(error)
            else:
                recall, n_copied = graph.recall_, count_copied(graph)
                is_near = recall.value >= inputs.base.least_recall
                is_near &= recall.low >= (self.settings.recall_target or 0.0)
                if is_near and n_copied <= COPIED_SHARE * graph.n_samples:
                    return graph
                why = f"the updated graph has {graph.recall_}, and {n_copied:,} rows whose "
                why += "neighbors are all duplicates"
                out.remove(graph.indices_ref, graph.distances_ref, graph.partitions_ref)
        logger.warning("the graph is rebuilt instead of updated: %s", why)
        return None

    def _neighbors(self, inputs: Inputs, out: Scratch) -> KNNGraph:
        settings = self.settings.model_dump(exclude={*_WEIGHTS, "representation"})
        settings |= {"memory_limit": self.memory_limit, "random_state": self.random_state}
        n_components = n_components_of(self.settings)
        if n_components is None:
            graph = knn_graph(inputs.blocks, **settings, scratch=out)
            return without_copies(graph, inputs.blocks, out, **settings)
        path = inputs.finished["components"]
        rows, about = open_principal(path, inputs.blocks.scratch), read_attributes(path)
        graph = without_copies(knn_graph(rows, **settings, scratch=out), rows, out, **settings)
        of_all, notes = recall_of_all(graph.indices_ref, path), graph.details.get("notes", [])
        if of_all is not None:
            note = (
                f"Neighbors are computed from {n_components} principal components: they include "
                f"{of_all.value:.0%} of the nearest rows in all features ({of_all.n_rows:,} rows "
                "checked). graph.representation: raw uses all features."
            )
            logger.info(note)
            notes = [*notes, note]
        details = {
            **graph.details,
            "notes": notes,
            **({} if of_all is None else {"recall_of_all_features": of_all.as_dict()}),
            "representation": self.settings.representation,
            **{name: about[name] for name in ("explained_variance",) if name in about},
            "passes": 0,
            "passes_over_components": graph.details["passes"],
        }
        return replace(graph, details=details)


@dataclass(frozen=True)
class Finished:
    """The weights of a finished graph of ``obsp``; attributes are those of `graph_stage`."""

    settings: GraphConfig

    def cost(self) -> StageCost:
        """Return the cost of the matrix."""
        graph = open_member(self.settings)
        steps = finished_steps(graph, self.settings.weight)
        # The matrix with at most two entries per edge; before that, entries and reverses in
        # transit, and a copy of an in-memory graph.
        stored = 24 * graph.n_entries + 28 * graph.n_samples
        return StageCost(steps, 60 * graph.n_entries + stored, stored)

    def run(self, inputs: Inputs, out: Scratch) -> None:
        """Store the affinity matrix."""
        uri = self.settings.representation
        W = finished_affinity(self.settings, inputs.blocks, out.child("affinity"))
        note = (
            f"The graph is {uri} with {W.nnz // 2:,} edges, {W.nnz / W.n_samples:.1f} per row; "
            f"weight: {self.settings.weight}."
        )
        out.describe(graph={"finished": uri}, affinity=W.describe(), notes=[note], passes=0)


def _copied_neighbors(path: Location, out: Scratch) -> KNNGraph:
    """Copy the neighbors of another graph stage that differs only in the weights."""
    stored = read_attributes(path)["graph"]
    for name in (*stored["arrays"], "partitions", *stored.get("kept", [])):
        copy_tree(path / plain_name(name, path), out.path / name)
    return KNNGraph.open(out.path, stored)


def components_stage(
    n_components: int, *, random_state: int, memory_limit: int, **depends: Any
) -> Stage:
    """Return the stage of the principal components.

    Parameters
    ----------
    n_components : int
    random_state : int
    memory_limit : int
    **depends
        Settings of the data that the stage reads.
    """
    seeds = {"random_state": random_state, "memory_limit": memory_limit}
    settings = {**depends, "n_components": n_components, **seeds}

    def choose(shape: Shape) -> Components:
        return Components(shape, n_components, random_state, gram_serves(shape, memory_limit))

    return Stage("components", 5, settings, choose, sparse=True)


def representation_stage(graph: GraphConfig, **depends: Any) -> Stage:
    """Return the stage that copies the array of ``obsm`` by which the graph compares rows.

    Parameters
    ----------
    graph : GraphConfig
    **depends
        Settings of the data that the stage reads.
    """
    settings = {**depends, "uri": graph.representation, "content": content_of_member(graph)}
    return Stage("components", 1, settings, lambda shape: Stored(shape, graph), sparse=True)


@dataclass(frozen=True)
class Stored:
    """A copy of an array of ``obsm``; attributes are those of `representation_stage`."""

    shape: Shape
    graph: GraphConfig

    def cost(self) -> StageCost:
        """Return the cost of the copy, which the client makes."""
        row_bytes = 4 * open_member(self.graph).n_features
        step = Step("rows of the representation", 8 * self.shape.rows * row_bytes, by_client=True)
        stored = self.shape.n_samples * row_bytes
        return StageCost((step,), stored, stored)

    def run(self, inputs: Inputs, out: Scratch) -> None:
        """Store the rows."""
        copy_representation(open_member(self.graph), inputs.blocks, out)
        out.describe(passes=0)


@dataclass(frozen=True)
class Components:
    """Principal components; attributes are those of `components_stage`."""

    shape: Shape
    n_components: int
    random_state: int
    gram: bool  # True if they are computed from the Gram matrix, which is stored

    def cost(self) -> StageCost:
        """Return the cost of the passes, and the size of the projected rows."""
        stored = 4 * self.shape.n_samples * self.n_components
        directions = 16 * self.shape.n_features * (self.n_components + 10)
        if self.gram:
            directions = 8 * self.shape.n_features**2
        steps = principal_steps(self.shape, self.n_components, self.gram)
        return StageCost(steps, stored + directions, stored, at_most=not self.gram)

    def run(self, inputs: Inputs, out: Scratch) -> None:
        """Store the projected rows, and the share of the variance that they explain."""
        blocks = inputs.blocks
        before = blocks.passes
        _, explained, products = principal_rows(
            blocks, self.n_components, self.random_state, out, check=True, gram=self.gram
        )
        if products is not None:
            store_gram(products, out)
        out.describe(explained_variance=explained, passes=blocks.passes - before)


def mean_neighbors(graph: StoredGraph) -> int:
    """Return the average number of stored entries per row, rounded up."""
    return max(1, -(-graph.n_entries // graph.n_samples))


@dataclass(frozen=True)
class _StoredEdges:
    """The edges of a finished graph between the rows of the data."""

    graph: CSRParts  # graph of all rows of the AnnData
    # Of shape (n_samples,), int64, or None: the rows that the data contain; None: all.
    kept: ArrayRef | None
    # Of shape (n_all,), int64, or None: position of each row of the AnnData in the data, -1 if it
    # is left out.
    places: ArrayRef | None

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return heads, tails and values of the edges from rows start to stop."""
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


def finished_affinity(settings: GraphConfig, blocks: RowBlocks, scratch: Scratch) -> AffinityMatrix:
    """Return the affinity matrix of a finished graph, stored by row blocks.

    Parameters
    ----------
    settings : GraphConfig
        Its representation is a square matrix in CSR form, finite and not negative; the diagonal is
        ignored. An in-memory matrix is written to scratch, where tasks can read it. The weights are
        "stored", its values; "binary", 1; or "heat", ``exp(-d^2 / sigma)`` of values that are
        distances. Without sigma every edge has its own width, computed from the largest stored
        distance of a row instead of the distance to its last neighbor.
    blocks : RowBlocks of shape (n_samples, n_features)
        The data: rows that they leave out are also removed from the graph.
    scratch : Scratch
        Receives the matrix.

    Returns
    -------
    W : AffinityMatrix
        ``max(W, W')`` if the stored matrix is not symmetric.

    Raises
    ------
    InputError
        If it is not such a matrix, does not match the rows of the data, or a row has no edge.
    """
    graph, sigma = open_member(settings), settings.sigma
    width = None if sigma is None else float(sigma)
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
        return store_affinity(edges, settings.weight, width, size, scratch, complaint)


def finished_steps(graph: StoredGraph, weight: str) -> tuple[Step, ...]:
    """Return the steps of `finished_affinity`: of an affinity matrix, for its largest block."""
    mean = mean_neighbors(graph)
    rows = min(graph_block_rows(mean), graph.n_samples)
    largest = max(1, -(-graph.block_entries(rows) // rows))
    n_rows = -(-graph.n_samples * mean // largest)  # the same number of entries, ``largest`` a row
    return tuple(affinity_steps(max(n_rows, rows), largest, weight))


def _shared(graph: StoredGraph, scratch: Scratch) -> CSRParts:
    """Return a graph that every process can read; an in-memory graph is written to scratch."""
    if isinstance(graph, CSRParts):
        return graph
    from bigfs.store.formats.zarr_array import open_parts  # loads zarr

    for name, part in zip(PARTS, graph.parts, strict=True):
        scratch.put(name, part, _PART_VALUES)
    shape = (graph.n_samples, graph.n_features)
    return CSRParts(partial(open_parts, str(scratch.path)), shape, graph.uri)
