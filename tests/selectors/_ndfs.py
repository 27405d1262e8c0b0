"""NDFS on blocks, a graph and a start that are given, as no fit or run can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bigfs.blocks import RowBlocks
from bigfs.config import Selection
from bigfs.core.memory import DEFAULT_MEMORY_LIMIT
from bigfs.graph import AffinityMatrix
from bigfs.selectors.ndfs.strategies import NDFSStrategy, choose
from bigfs.selectors.registry import selection_model
from bigfs.spectral.embedding import SpectralEmbedding
from bigfs.stages.scores import FeatureScores
from bigfs.stages.stage import Inputs
from bigfs.store.location import Location


@dataclass
class Given(Inputs):
    """A graph and an embedding that no stage has stored."""

    W: AffinityMatrix | None = None
    embedding: SpectralEmbedding | None = None

    @property
    def affinity(self) -> AffinityMatrix:
        assert self.W is not None
        return self.W

    @property
    def spectral(self) -> SpectralEmbedding:
        assert self.embedding is not None
        return self.embedding


def selection(
    memory_limit: int | str = DEFAULT_MEMORY_LIMIT, n_neighbors: int = 5, **parameters: Any
) -> Selection:
    """Return the settings of NDFS with these parameters."""
    return selection_model()(
        method="ndfs",
        n_features_to_select=1,
        memory_limit=memory_limit,
        graph={"n_neighbors": n_neighbors},
        ndfs=parameters,
    )


def ndfs_scores(
    blocks: RowBlocks,
    W: AffinityMatrix,
    start: Any,
    n_clusters: int | str,
    *,
    strategy: type[NDFSStrategy] | None = None,
    checkpoint: Location | None = None,
    memory_limit: int | str = DEFAULT_MEMORY_LIMIT,
    **parameters: Any,
) -> FeatureScores:
    """Run a strategy of NDFS in the paper's form; None: the one that is chosen.

    ``start`` is an embedding, labels, or F.
    """
    parameters = {"beta": 1.0, "unit": "none", **parameters}
    is_embedding = isinstance(start, SpectralEmbedding)
    settings = selection(
        memory_limit,
        n_clusters=n_clusters,
        init="spectral" if is_embedding else start,
        **parameters,
    )
    shape = blocks.layout
    chosen = choose(shape, settings) if strategy is None else strategy(shape, settings)
    embedding = start if is_embedding else None
    inputs = Given(blocks, checkpoint=checkpoint, W=W, embedding=embedding)
    scratch = blocks.scratch
    return chosen.run(inputs, scratch.child(scratch.unique("result")))
