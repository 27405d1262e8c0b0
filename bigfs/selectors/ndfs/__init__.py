"""NDFS: spectral clustering with non-negative indicators and l2,1-regression on the features."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

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
    """Non-negative discriminative feature selection (Li, Yang, Liu, Zhou, Lu, AAAI 2012)."""

    n_clusters: CountOrAuto = Field(
        8,
        description="Number of groups expected in the data; auto: the last clear gap of the "
        "graph's eigenvalues, or 8 or more.",
    )
    alpha: NotNegative = Field(
        1.0, description="Weight of the regression on the features against the graph."
    )
    beta: PositiveFloat | None = Field(
        None, description="Weight of the penalty that empties features. null: see sparsity."
    )
    sparsity: Fraction = Field(
        0.2,
        description="The penalty as a share of the least one that empties all features; used "
        "where beta is null.",
    )
    unit: Literal["rms", "none"] = Field(
        "rms",
        description="rms: a given beta counts in values over the root mean squared distance of "
        "samples from their mean, and the regression has an intercept. none: values as they are, "
        "without an intercept, as in the paper.",
    )
    gamma: PositiveFloat = Field(10.0, description="Weight of the clusters' orthogonality.")
    update: Literal["safe", "printed"] = Field(
        "safe", description="Update whose objective never rises, or the paper's eq. (15)."
    )
    init: Start = Field(
        "spectral",
        description="Start: k-means on the graph's eigenvectors (spectral), or labels as in "
        "evaluate.labels, from 0 to n_clusters - 1.",
    )
    max_iter: PositiveInt = Field(30, description="Most iterations, each a pass over the data.")
    tol: Tolerance = Field(
        1e-5, description="Stop when the objective changes by less than this share."
    )

    @property
    def takes_eigenvectors(self) -> bool:
        """True if it starts from the graph's eigenvectors."""
        return isinstance(self.init, str) and self.init == "spectral"

    @model_validator(mode="after")
    def _auto_needs_eigenvalues(self) -> NDFSParameters:
        if self.n_clusters == "auto" and not self.takes_eigenvectors:
            raise ValueError(
                "n_clusters 'auto' is chosen from the eigenvalues of init 'spectral'; give the "
                "number of clusters that the labels have"
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
    sparse="large",  # conjugate gradients take more passes than a factor of the dense form
    explains=lambda details: ("cluster", details["coef"]),
)
