"""The stage of the components that the graph compares rows by: principal ones, or stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bigfs.config.sections import GraphConfig
from bigfs.core.cost import Shape, StageCost, Step
from bigfs.graph.representation import (
    content_of_member,
    copy_representation,
    gram_serves,
    open_member,
    principal_rows,
    principal_steps,
)
from bigfs.stages.stage import Inputs, Stage
from bigfs.stages.sums import store_gram
from bigfs.store.scratch import Scratch


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

    return Stage("components", 2, settings, choose, sparse=True)


def representation_stage(graph: GraphConfig, **depends: Any) -> Stage:
    """Return the stage that brings in the array of ``obsm`` that the graph's rows are compared by.

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
        """Return the cost of the copy, which this process makes."""
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
    gram: bool  # whether they are those of the Gram matrix, which is kept

    def cost(self) -> StageCost:
        """Return the cost of the passes, and the size of the projected rows."""
        stored = 4 * self.shape.n_samples * self.n_components
        directions = 16 * self.shape.n_features * (self.n_components + 10)
        if self.gram:
            directions = 8 * self.shape.n_features**2
        steps = principal_steps(self.shape, self.n_components, self.gram)
        return StageCost(steps, stored + directions, stored)

    def run(self, inputs: Inputs, out: Scratch) -> None:
        """Store the projected rows, and the share of the variance that they hold."""
        blocks = inputs.blocks
        before = blocks.passes
        _, explained, products = principal_rows(
            blocks, self.n_components, self.random_state, out, check=True, gram=self.gram
        )
        if products is not None:
            store_gram(products, out)
        out.describe(explained_variance=explained, passes=blocks.passes - before)
