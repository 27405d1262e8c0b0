"""NDFS: spectral clustering with non-negative indicators and l2,1-regression on the features."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from bigfs.config.fields import (
    CountOrAuto,
    Fraction,
    NotNegative,
    PositiveFloat,
    PositiveInt,
    Section,
    Start,
    Tolerance,
)
from bigfs.selectors.method import Bound, Method, needs_eigenvectors, needs_graph


class NDFSParameters(Section):
    """Non-negative discriminative feature selection (Li, Yang, Liu, Zhou, Lu, AAAI 2012).

    Attributes
    ----------
    n_clusters
        Number of groups expected in the data. auto: number at the last clear gap of the graph's
        eigenvalues, or 8 or more if no gap is clear.
    alpha
        Weight of the regression on the features relative to the graph.
    beta
        Weight of the penalty that sets features to zero. null: see sparsity.
    sparsity
        The penalty as a share of the smallest one that sets all features to zero; used if beta
        is null.
    unit
        rms: a given beta applies to values divided by the root mean squared distance of samples
        from their mean, and the regression has an intercept. none: values as they are,
        without an intercept, as in the paper.
    gamma
        Weight of the clusters' orthogonality.
    update
        safe: an update that never increases the objective; printed: the paper's eq. (15).
    init
        Start: k-means on the graph's eigenvectors (spectral), or labels as in
        evaluate.labels, from 0 to n_clusters - 1.
    max_iter
        Maximum number of iterations, each a pass over the data.
    tol
        Stop when the relative change of the objective is at most this.
    """

    n_clusters: CountOrAuto = 8
    alpha: NotNegative = 1.0
    beta: PositiveFloat | None = None
    sparsity: Fraction = 0.2
    unit: Literal["rms", "none"] = "rms"
    gamma: PositiveFloat = 10.0
    update: Literal["safe", "printed"] = "safe"
    init: Start = "spectral"
    max_iter: PositiveInt = 30
    tol: Tolerance = 1e-5

    @property
    def takes_eigenvectors(self) -> bool:
        """True if it starts from the graph's eigenvectors."""
        return isinstance(self.init, str) and self.init == "spectral"

    @model_validator(mode="after")
    def _auto_needs_eigenvalues(self) -> NDFSParameters:
        if self.n_clusters == "auto" and not self.takes_eigenvectors:
            raise ValueError(
                "n_clusters 'auto' needs init 'spectral', whose eigenvalues determine the number; "
                "set n_clusters to the number of clusters in init"
            )
        return self


def _needs(parameters: NDFSParameters) -> tuple[str, ...]:
    return (needs_eigenvectors if parameters.takes_eigenvectors else needs_graph)(parameters)


METHOD = Method(
    "ndfs",
    "NDFS",
    __name__,
    NDFSParameters,
    needs=_needs,
    graph_defaults={"weight": "heat"},
    starts=("spectral",),
    bounds=(Bound("n_clusters", "n_samples", 1),),
    sparse="large",  # CSR blocks are solved by conjugate gradients, with more passes than Cholesky
    explains=lambda details: ("cluster", details["coef"]),
)
