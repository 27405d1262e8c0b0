"""The Laplacian score is SPEC's ``phi2``."""

from __future__ import annotations

from bigfs.config import Selection
from bigfs.core.cost import Shape
from bigfs.selectors.spec.strategies import EdgeScores


def choose(shape: Shape, selection: Selection) -> EdgeScores:
    """Return the only strategy."""
    return EdgeScores(shape, selection, "phi2")
