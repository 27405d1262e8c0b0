"""SPEC and the Laplacian score: features that agree with the spectrum of the neighbor graph."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bigfs.config.fields import Section
from bigfs.selectors.method import Method, needs_graph


class SPECParameters(Section):
    """Spectral feature selection (Zhao, Liu, ICML 2007)."""

    ranking: Literal["phi1", "phi2", "phi3"] = Field(
        "phi2", description="Ranking function of the paper; phi2 is the Laplacian score."
    )


SPEC = Method("spec", "SPEC", __name__, SPECParameters, needs=needs_graph, sparse=True)
LAPLACIAN_SCORE = Method(
    "laplacian_score", "LaplacianScore", __name__, needs=needs_graph, sparse=True
)
