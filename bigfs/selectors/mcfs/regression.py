"""The regression of eigenvectors on features: what its strategies have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.core.cost import Shape, StageCost
from bigfs.selectors.mcfs import MCFSParameters
from bigfs.spectral.embedding import SpectralEmbedding


@dataclass(frozen=True)
class Regression(ABC):
    """A regression of the eigenvectors on all features.

    Attributes
    ----------
    shape : Shape
    parameters : MCFSParameters
    n_targets : int
        Eigenvectors; the most that "auto" keeps.
    n_selected : int
        Size of the active set at which a path stops.
    memory_limit : int
        Resident size promised for one worker process, in bytes.
    """

    shape: Shape
    parameters: MCFSParameters
    n_targets: int
    n_selected: int
    memory_limit: int

    @abstractmethod
    def cost(self) -> StageCost:
        """Return what the passes and the paths take."""

    def _gram(
        self, blocks: RowBlocks, spectral: SpectralEmbedding
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return ``X'X``, ``X'Y``, what is constant, and the means of Y, from one pass."""
        gram = blocks.gram(spectral.embedding_ref, label="regression")
        constant = gram.gram.diagonal() <= 0
        centered = self.parameters.fit_intercept
        matrix, cross = (gram.gram, gram.xty) if centered else gram.uncentered()
        return matrix, cross, constant, gram.y_mean


def about_eigenvectors(spectral: SpectralEmbedding) -> dict[str, Any]:
    """Return what a result says of its eigenvectors."""
    return {
        "n_clusters": len(spectral.eigenvalues),
        "eigenvalues": spectral.eigenvalues,
        "residuals": spectral.residuals,
        "spectrum": spectral.spectrum,
        "n_connected_components": spectral.n_connected_components,
    }
