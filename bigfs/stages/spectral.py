"""The spectral stage: eigenvectors of the graph."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from bigfs.config.sections import GraphConfig, SpectralConfig
from bigfs.core.cost import Shape, StageCost
from bigfs.spectral.choice import spectral_cost
from bigfs.spectral.embedding import Resume, SpectralEmbedding, spectral_embedding
from bigfs.stages.stage import Inputs, Stage
from bigfs.store.scratch import Scratch

logger = logging.getLogger("bigfs")


def spectral_stage(
    settings: SpectralConfig,
    n_components: int | str,
    graph: GraphConfig,
    *,
    random_state: int,
    memory_limit: int,
) -> Stage:
    """Return the spectral stage.

    Parameters
    ----------
    settings : SpectralConfig
    n_components : int or "auto"
    graph : GraphConfig
        Of the graph stage.
    random_state : int
    memory_limit : int
        Resident size promised for one worker process, in bytes.
    """
    common: dict[str, Any] = {
        "n_components": n_components,
        "random_state": random_state,
        "memory_limit": memory_limit,
    }
    return Stage(
        "spectral",
        16,
        {**settings.model_dump(), **common},
        lambda shape: SpectralStrategy(shape, settings, graph, **_within(common, shape)),
        sparse=True,  # it does not read the data
        updates=True,
    )


def _within(common: dict[str, Any], shape: Shape) -> dict[str, Any]:
    """Limit the number of eigenvectors to those that exist."""
    wanted = common["n_components"]
    if isinstance(wanted, str):
        return common
    return {**common, "n_components": min(wanted, shape.n_samples - 1)}


@dataclass(frozen=True)
class SpectralStrategy:
    """Eigenvectors by the solver that fits; attributes are those of `spectral_stage`."""

    shape: Shape
    settings: SpectralConfig
    graph: GraphConfig
    n_components: int | str
    random_state: int
    memory_limit: int

    def cost(self) -> StageCost:
        """Return the cost of the solver."""
        return spectral_cost(
            self.shape.n_samples,
            self.graph.n_neighbors,
            self.n_components,
            self.memory_limit,
            solver=self.settings.solver,
            weight=self.graph.weight,
        )

    def run(self, inputs: Inputs, out: Scratch) -> None:
        """Store the eigenvectors with their residuals and notes."""
        start, tol = None, self.settings.tol
        if inputs.former is not None and inputs.base is not None:
            start = SpectralEmbedding.open(inputs.former)
            tol = max(tol, inputs.base.most_residual) if start.n_guards else tol
        embedding = spectral_embedding(
            inputs.affinity,
            self.n_components,
            solver=self.settings.solver,
            tol=tol,
            random_state=self.random_state,
            memory_limit=self.memory_limit,
            scratch=out,
            chunk_rows=inputs.blocks.rows,
            resume=Resume(inputs.checkpoint, start, inputs.keeps_start),
        )
        notes = embedding.notes()
        for note in notes:
            logger.info(note)
        out.describe(**embedding.describe(), notes=notes)
