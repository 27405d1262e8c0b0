"""Methods that follow from sums of one pass: SPEC, the Laplacian score, the variance, Q-alpha.

RandomSelection, which is what chance gives, takes a pass to know the constant features.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bigfs.config.fields import CountOrAuto, PositiveInt, Section, Tolerance
from bigfs.selectors.method import Method, needs_eigengap, needs_graph


class QAlphaParameters(Section):
    """Q-alpha feature weights (Wolf, Shashua, JMLR 2005)."""

    n_clusters: CountOrAuto = Field(
        8, description="Leading eigenvalues that count; auto: clusters by the graph's eigengap."
    )
    max_iter: PositiveInt = Field(100, description="Most iterations; they need no pass.")
    tol: Tolerance = Field(1e-8, description="Stop when no weight changes by more.")


Q_ALPHA = Method(
    "q_alpha",
    "QAlpha",
    __name__,
    QAlphaParameters,
    title="Q-alpha",
    choose_by="choose_weights",
    needs=needs_eigengap,
    scale_free=True,
)


class SPECParameters(Section):
    """Spectral feature selection (Zhao, Liu, ICML 2007)."""

    ranking: Literal["phi1", "phi2", "phi3"] = Field(
        "phi2", description="Ranking function of the paper; phi2 is the Laplacian score."
    )


SPEC = Method(
    "spec",
    "SPEC",
    __name__,
    SPECParameters,
    choose_by="EdgeScores",
    needs=needs_graph,
    sparse=True,
)
LAPLACIAN_SCORE = Method(
    "laplacian_score",
    "LaplacianScore",
    __name__,
    choose_by="EdgeScores",
    needs=needs_graph,
    sparse=True,
)


class RandomSelectionParameters(Section):
    """Features at random: what every other method is held against."""

    n_draws: PositiveInt = Field(10, description="Rankings drawn; the first is the result's.")


MAX_VARIANCE = Method(
    "max_variance",
    "MaxVariance",
    __name__,
    sparse=True,
    keeps_sums=True,
    choose_by="Variances",
)
RANDOM_SELECTION = Method(
    "random_selection",
    "RandomSelection",
    __name__,
    RandomSelectionParameters,
    choose_by="Draws",
    scale_free=True,
    sparse=True,
)
