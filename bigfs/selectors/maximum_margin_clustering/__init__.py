"""Maximum margin clustering: M3FS with every weight at 1 and no smoothness."""

from __future__ import annotations

from bigfs.selectors.m3fs import MarginParameters
from bigfs.selectors.method import Bound, Method, needs_eigengap


class MaximumMarginClusteringParameters(MarginParameters):
    """Maximum margin clustering (Zhao, Kwok, Wang, Zhang, CVPR 2009, section 2)."""


def _needs(parameters: MaximumMarginClusteringParameters) -> tuple[str, ...]:
    """Return the stages of all rows; a sample has stages of its own."""
    return needs_eigengap(parameters) if parameters.sample_size is None else ()


METHOD = Method(
    "maximum_margin_clustering",
    "MaximumMarginClustering",
    __name__,
    MaximumMarginClusteringParameters,
    title="maximum margin clustering",
    needs=_needs,
    starts=("kmeans",),
    bounds=(Bound("n_clusters", "n_samples", 1, 2), Bound("sample_size", "n_samples")),
)
