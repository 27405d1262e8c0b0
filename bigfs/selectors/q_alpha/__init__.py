"""Q-alpha: feature weights under which the data have the clearest spectrum."""

from __future__ import annotations

from pydantic import Field

from bigfs.config.fields import CountOrAuto, PositiveInt, Section, Tolerance
from bigfs.selectors.method import Method, needs_eigengap


class QAlphaParameters(Section):
    """Q-alpha feature weights (Wolf, Shashua, JMLR 2005)."""

    n_clusters: CountOrAuto = Field(
        8, description="Leading eigenvalues that count; auto: clusters by the graph's eigengap."
    )
    max_iter: PositiveInt = Field(100, description="Most iterations; they need no pass.")
    tol: Tolerance = Field(1e-8, description="Stop when no weight changes by more.")


METHOD = Method(
    "q_alpha",
    "QAlpha",
    __name__,
    QAlphaParameters,
    title="Q-alpha",
    needs=needs_eigengap,
    scale_free=True,
)
