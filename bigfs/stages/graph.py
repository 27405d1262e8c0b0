"""The graph stage: nearest neighbors and the affinity matrix of their edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bigfs.config.sections import GraphConfig
from bigfs.core.cost import Shape, StageCost
from bigfs.core.paths import plain_name
from bigfs.graph import affinity, knn_graph
from bigfs.graph.cost import graph_cost
from bigfs.graph.distinct import without_copies
from bigfs.graph.knn import KNNGraph, missed_neighbors
from bigfs.stages.stage import Inputs, Stage
from bigfs.store.location import Location, copy_tree
from bigfs.store.scratch import Scratch, read_attributes

# Settings of the edges only: neighbors do not depend on them.
WEIGHTS = ("weight", "sigma")


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

    Parameters
    ----------
    settings : GraphConfig
    random_state : int
    memory_limit : int
        Resident size promised for one worker process, in bytes.
    remote : bool, default=False
        Whether the stages are kept in a bucket.
    fewer_neighbors : bool, default=False
        Whether each row takes all others where there are fewer of them than ``n_neighbors``.
    **depends
        Settings of the data that the stage reads.
    """
    common = {**depends, "random_state": random_state, "memory_limit": memory_limit}

    def choose(shape: Shape) -> GraphStrategy:
        most = shape.n_samples - 1
        fewer = fewer_neighbors and settings.n_neighbors > most
        used = settings.model_copy(update={"n_neighbors": most}) if fewer else settings
        return GraphStrategy(shape, used, random_state, memory_limit, remote)

    return Stage("graph", 6, {**settings.model_dump(), **common}, choose)


@dataclass(frozen=True)
class GraphStrategy:
    """Partitions of the rows, each searched on its own; then the weights of the edges.

    Attributes are those of `graph_stage`; ``shape`` is that of the data.
    """

    shape: Shape
    settings: GraphConfig
    random_state: int
    memory_limit: int
    remote: bool

    def cost(self) -> StageCost:
        """Return the cost of the neighbors and of the matrix."""
        settings = self.settings
        return graph_cost(
            self.shape,
            settings.n_neighbors,
            self.memory_limit,
            algorithm=settings.algorithm,
            representation=settings.representation,
            metric=settings.metric,
            recall_target=settings.recall_target,
            weight=settings.weight,
            remote=self.remote,
        )

    def run(self, inputs: Inputs, out: Scratch) -> None:
        """Store the neighbors, and the affinity matrix below them."""
        if inputs.neighbors is not None:
            graph = _copied_neighbors(inputs.neighbors, out)
        else:
            graph = self._neighbors(inputs, out)
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
            measured_peak_bytes=graph.details["measured_peak_bytes"],
            notes=[*graph.details.get("notes", []), *missed_neighbors(graph)],
        )

    def _neighbors(self, inputs: Inputs, out: Scratch) -> KNNGraph:
        settings = self.settings.model_dump(exclude=set(WEIGHTS))
        settings |= {"memory_limit": self.memory_limit, "random_state": self.random_state}
        graph = knn_graph(inputs.blocks, **settings, scratch=out)
        return without_copies(graph, inputs.blocks, out, **settings)


def _copied_neighbors(path: Location, out: Scratch) -> KNNGraph:
    """Copy the neighbors of another graph stage; only the weights differ."""
    stored = read_attributes(path)["graph"]
    for name in (*stored["arrays"], "partitions"):
        copy_tree(path / plain_name(name, path), out.path / name)
    return KNNGraph.open(out.path, stored)
