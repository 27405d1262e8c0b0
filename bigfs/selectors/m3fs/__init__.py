"""M3FS: features that separate clusters with a large margin, smoothly on the neighbor graph.

Maximum margin clustering is the special case with all weights fixed at 1 and no smoothness.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from bigfs.config.fields import (
    NotNegative,
    PositiveFloat,
    PositiveInt,
    Section,
    Start,
    Tolerance,
    count_or_auto,
)
from bigfs.selectors.method import Bound, Method, needs_eigengap

MAX_CLUSTERS = 254
# Spectral starts: numbers of eigenvectors, relative to the number of clusters.
EXTRA_EIGENVECTORS = (-1, 0, 1, 3)


class MarginParameters(Section):
    """Parameters that M3FS and maximum margin clustering share.

    Attributes
    ----------
    n_clusters
        Number of groups expected in the data. auto: number at the last clear gap of the graph's
        eigenvalues, or 8 or more if no gap is clear.
    C
        Weight of the loss against the margin.
    balance
        Upper bound of the absolute mean decision value (two clusters), or of the difference
        between the means of two clusters' values. null: no bound.
    epsilon
        Upper bound of the violation of any plane at the end.
    fit_intercept
        Fit an intercept for every cluster.
    init
        Start: k-means (kmeans), or labels as in evaluate.labels, from 0 to n_clusters - 1.
    n_init
        Number of restarts of k-means.
    nesting
        Outer loop; planes_outside is the paper's.
    sample_size
        Number of samples to learn on; the others are labeled at the end. null: all.
    max_iter
        Maximum number of cone programs per start, each with a pass over the data.
    tol
        The clusters have converged when the relative decrease of the objective is at most this.
    """

    n_clusters: count_or_auto(2, MAX_CLUSTERS) = 2  # type: ignore[valid-type]
    C: PositiveFloat = 10.0
    balance: NotNegative | None = 0.1
    epsilon: PositiveFloat = 0.01
    fit_intercept: bool = True
    init: Start = "kmeans"
    n_init: PositiveInt = 3
    nesting: Literal["clusters_outside", "planes_outside"] = "planes_outside"
    sample_size: Annotated[int, Field(ge=2)] | None = None
    max_iter: PositiveInt = 1000
    tol: Tolerance = 0.01

    @model_validator(mode="after")
    def _clusters_fit_the_sample(self) -> MarginParameters:
        size = self.sample_size
        if size is not None and isinstance(self.n_clusters, int) and self.n_clusters >= size:
            raise ValueError(
                f"n_clusters must be below sample_size, which is {size}. Got {self.n_clusters}"
            )
        return self


class M3FSParameters(MarginParameters):
    """Manifold-based maximum margin feature selection (Zhao, Kwok, Wang, Zhang, CVPR 2009).

    Attributes
    ----------
    smoothness
        Weight of smoothness on the graph, per sample; the paper's lambda.
    graph
        Pairs that enter the smoothness: neighbors, or all (few samples only).
    init
        Start: k-means (kmeans), k-means on the graph's eigenvectors (spectral), both
        (auto), or labels as in evaluate.labels, from 0 to n_clusters - 1.
    criterion
        Choice of the start: the one whose clusters describe the samples best, each as a
        Gaussian, or the one with the smallest objective.
    nesting
        Outer loop; planes_outside is the paper's.
    """

    smoothness: NotNegative = 1.0
    graph: Literal["knn", "full"] = "knn"
    init: Start = "auto"
    criterion: Literal["likelihood", "objective"] = "likelihood"
    nesting: Literal["clusters_outside", "planes_outside"] = "clusters_outside"

    def starts_at(self, kind: Literal["kmeans", "spectral"]) -> bool:
        """Return True if the starts include k-means on the rows, or on the eigenvectors."""
        return isinstance(self.init, str) and self.init in ("auto", kind)


def n_eigenvectors(n_clusters: int | str) -> int | str:
    """Return the number of eigenvectors for the spectral starts; "auto" is returned unchanged."""
    return n_clusters if isinstance(n_clusters, str) else n_clusters + max(EXTRA_EIGENVECTORS)


def _needs(parameters: M3FSParameters) -> tuple[str, ...]:
    """Return the stages needed on all rows; a sample has its own stages."""
    if parameters.sample_size is not None:
        return ()
    if parameters.starts_at("spectral") or parameters.n_clusters == "auto":
        return ("graph", "spectral")
    return ("graph",) if parameters.smoothness else ()


def _reads(parameters: M3FSParameters) -> tuple[str, ...]:
    """Return the configuration sections that are read.

    A sample reads the graph section, too, for its own graph.
    """
    return _needs(parameters) if "spectral" in _needs(parameters) else ("graph",)


M3FS = Method(
    "m3fs",
    "M3FS",
    __name__,
    M3FSParameters,
    needs=_needs,
    reads=_reads,
    graph_defaults={"weight": "heat"},
    n_components=lambda parameters: n_eigenvectors(parameters.n_clusters),
    starts=("auto", "kmeans", "spectral"),
    neighbor_lists=True,
    bounds=(Bound("n_clusters", "n_samples", 1, 2), Bound("sample_size", "n_samples")),
    one_fit_up_to=lambda parameters: 0,
)


class MaximumMarginClusteringParameters(MarginParameters):
    """Maximum margin clustering (Zhao, Kwok, Wang, Zhang, CVPR 2009, section 2)."""


def _needs_of_clustering(parameters: MaximumMarginClusteringParameters) -> tuple[str, ...]:
    """Return the stages needed on all rows; a sample has its own stages."""
    return needs_eigengap(parameters) if parameters.sample_size is None else ()


MAXIMUM_MARGIN_CLUSTERING = Method(
    "maximum_margin_clustering",
    "MaximumMarginClustering",
    __name__,
    MaximumMarginClusteringParameters,
    title="maximum margin clustering",
    choose_by="choose_clustering",
    needs=_needs_of_clustering,
    starts=("kmeans",),
    bounds=(Bound("n_clusters", "n_samples", 1, 2), Bound("sample_size", "n_samples")),
)
