"""Methods based on sums of one pass: SPEC, the Laplacian score, the variance, Q-alpha.

RandomSelection, the chance baseline, needs a pass to find the constant features.
"""

from __future__ import annotations

from typing import Literal

from bigfs.config.fields import CountOrAuto, PositiveInt, Section, Tolerance
from bigfs.selectors.method import Method, needs_eigengap, needs_graph


class QAlphaParameters(Section):
    """Q-alpha feature weights (Wolf, Shashua, JMLR 2005).

    Attributes
    ----------
    n_clusters
        Number of leading eigenvalues that are used; auto: number of clusters by the graph's
        eigengap.
    max_iter
        Maximum number of iterations; they need no pass.
    tol
        Stop when no weight changes by more than this.
    """

    n_clusters: CountOrAuto = 8
    max_iter: PositiveInt = 100
    tol: Tolerance = 1e-8


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
    """Spectral feature selection (Zhao, Liu, ICML 2007).

    Attributes
    ----------
    ranking
        Ranking function of the paper; phi2 is the Laplacian score.
    """

    ranking: Literal["phi1", "phi2", "phi3"] = "phi2"


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
    """Random features: the baseline for every other method.

    Attributes
    ----------
    n_draws
        Number of rankings drawn; the first is the result's.
    """

    n_draws: PositiveInt = 10


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
