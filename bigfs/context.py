"""What a stage sees, and how it opens what earlier stages stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.config import Config
from bigfs.graph import AffinityMatrix
from bigfs.graph.knn import KNNGraph
from bigfs.spectral.embedding import SpectralEmbedding
from bigfs.store.rundir import RunDirectory
from bigfs.store.scratch import ArrayRef, Scratch, read_attributes


@dataclass
class Context:
    """What a stage sees: the configuration, the run directory, and the opened data.

    ``checkpoint`` is a folder of the running stage that outlives an interrupted run;
    ``neighbors`` is a finished graph stage that differs in the weights only, if there is one.
    """

    config: Config
    directory: RunDirectory
    data_path: Path
    work: Scratch
    checkpoint: Path | None = None
    neighbors: Path | None = None
    _blocks: RowBlocks | None = field(default=None, repr=False)

    @property
    def blocks(self) -> RowBlocks:
        """The data as row blocks, opened once."""
        if self._blocks is None:
            self._blocks = RowBlocks.from_any(
                self.data_path,
                scratch=self.work,
                transform=self.config.preprocess,
                rows=self.config.blocks.rows,
            )
        return self._blocks

    @property
    def passes(self) -> int:
        """How many passes over X were made so far."""
        return 0 if self._blocks is None else self._blocks.passes

    def check_data(self) -> None:
        """Raise InputError if the data that the stage was given have changed since."""
        if self._blocks is not None:
            self._blocks.check_unchanged()

    @property
    def graph(self) -> KNNGraph:
        """The graph that its finished stage stored."""
        return open_graph(self.directory.stage_path("graph"))

    @property
    def affinity(self) -> AffinityMatrix:
        """The affinity matrix that the finished graph stage stored."""
        return open_affinity(self.directory.stage_path("graph"))

    @property
    def spectral(self) -> SpectralEmbedding:
        """The embedding that its finished stage stored."""
        return open_spectral(self.directory.stage_path("spectral"))


def open_graph(path: Path) -> KNNGraph:
    """Return the graph that a finished stage stored."""
    return KNNGraph.open(path, read_attributes(path)["graph"])


def open_affinity(path: Path) -> AffinityMatrix:
    """Return the affinity matrix that a finished stage stored."""
    return AffinityMatrix.open(
        path / "affinity", read_attributes(path)["affinity"], ArrayRef.at(path / "partitions")
    )


def open_spectral(path: Path) -> SpectralEmbedding:
    """Return the embedding that a finished stage stored."""
    stored = read_attributes(path)
    return SpectralEmbedding(
        eigenvalues=np.array(stored["eigenvalues"]),
        embedding_ref=ArrayRef.at(path / "embedding"),
        norms=np.array(stored["norms"]),
        residuals=np.array(stored["residuals"]),
        n_connected_components=stored["n_connected_components"],
        spectrum=np.array(stored["spectrum"]),
        solver=stored["solver"],
        reason=stored["reason"],
        n_products=stored["n_products"],
        n_iterations=stored["n_iterations"],
        scratch=Scratch(path),
        details=stored["details"],
    )
