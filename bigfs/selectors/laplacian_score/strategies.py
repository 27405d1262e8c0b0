"""The Laplacian score is SPEC's ``phi2``."""

from __future__ import annotations

from bigfs.config import Selection
from bigfs.core.cost import Shape
from bigfs.selectors.spec.strategies import EdgeScores, edge_scores


def choose(shape: Shape, selection: Selection) -> EdgeScores:
    """Return the only strategy."""
    return edge_scores(shape, selection, "phi2")
