"""The regression of eigenvectors on features: what its strategies have in common."""

from __future__ import annotations

from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.config import Selection
from bigfs.selectors.mcfs import METHOD
from bigfs.selectors.method import Strategy
from bigfs.spectral.choice import largest_count
from bigfs.spectral.embedding import SpectralEmbedding
from bigfs.stages.stage import Inputs
from bigfs.stages.sums import read_gram, store_gram
from bigfs.store.scratch import Scratch


def n_targets_of(selection: Selection) -> int:
    """Return how many eigenvectors are regressed; the most that "auto" keeps."""
    return largest_count(METHOD.n_components(selection.parameters))


class Regression(Strategy):
    """A regression of the eigenvectors on all features."""

    @property
    def n_targets(self) -> int:
        """Largest number of eigenvectors."""
        return n_targets_of(self.selection)

    @property
    def n_selected(self) -> int:
        """Size of the active set at which a path stops."""
        return self.selection.n_features_to_select

    def _gram(
        self, blocks: RowBlocks, spectral: SpectralEmbedding, kept: Scratch | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return ``X'X``, ``X'Y``, what is constant, and the means of Y, from one pass.

        The folder ``kept`` gets ``X'X`` for an update, which reads it by `add_rows`.
        """
        gram = blocks.gram(spectral.embedding_ref, label="regression")
        if kept is not None:
            store_gram(gram, kept)
        constant = gram.gram.diagonal() <= 0
        centered = self.parameters.fit_intercept
        matrix, cross = (gram.gram, gram.xty) if centered else gram.uncentered()
        return matrix, cross, constant, gram.y_mean


def add_rows(inputs: Inputs) -> None:
    """Let the blocks begin with the Gram matrix that a run of the first rows kept, if there is."""
    if inputs.former is not None and inputs.base is not None:
        blocks = inputs.blocks
        blocks.former_gram = read_gram(inputs.former, inputs.base.n_samples)
        blocks.keeps_gram = blocks.former_gram is not None


def about_eigenvectors(spectral: SpectralEmbedding) -> dict[str, Any]:
    """Return the details of the eigenvectors for the result."""
    return {
        "n_clusters": len(spectral.eigenvalues),
        "eigenvalues": spectral.eigenvalues,
        "residuals": spectral.residuals,
        "spectrum": spectral.spectrum,
        "n_connected_components": spectral.n_connected_components,
    }
