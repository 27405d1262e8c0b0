"""The spectral stage: eigenvectors of the graph."""

from __future__ import annotations

import logging
from dataclasses import dataclass

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
        Settings of the graph stage.
    random_state : int
    memory_limit : int
        Resident size promised for one worker process, in bytes.
    """
    common = {"random_state": random_state, "memory_limit": memory_limit}
    depends = {**settings.model_dump(), "n_components": n_components, **common}

    def choose(shape: Shape) -> SpectralStrategy:
        wanted = n_components
        if not isinstance(wanted, str):
            wanted = min(wanted, shape.n_samples - 1)  # no more exist
        return SpectralStrategy(shape, settings, graph, wanted, **common)

    # It does not read the data.
    return Stage("spectral", 17, depends, choose, sparse=True, updates=True)


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
