"""UDFS: features of a sparse projection that is discriminative in every neighborhood."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bigfs.config.fields import (
    CountOrAuto,
    NotNegative,
    PositiveFloat,
    PositiveInt,
    Section,
    Tolerance,
)
from bigfs.selectors.method import Bound, Method, needs_eigengap, needs_graph


class UDFSParameters(Section):
    """Unsupervised discriminative feature selection (Yang et al., IJCAI 2011)."""

    n_clusters: CountOrAuto = Field(
        8, description="Columns of the projection; auto: clusters by the graph's eigengap."
    )
    gamma: NotNegative | None = Field(
        None, description="Weight of the penalty that empties features. null: see sparsity."
    )
    sparsity: PositiveFloat = Field(
        0.03,
        description="The penalty as a share of what a feature scatters in neighborhoods, the mean "
        "over all; used where gamma is null.",
    )
    ridge: PositiveFloat = Field(
        0.3,
        description="Added to the products of each neighborhood's samples (lambda), in squared "
        "units.",
    )
    unit: Literal["rms", "none"] = Field(
        "rms",
        description="What ridge counts in: values over the root mean squared distance of samples "
        "from their mean; a given gamma counts per sample. none: values as they are, and gamma for "
        "all samples, as in the paper.",
    )
    max_iter: PositiveInt = Field(30, description="Most iterations; they need no pass.")
    tol: Tolerance = Field(
        1e-5, description="Stop when the objective changes by less than this share."
    )


METHOD = Method(
    "udfs",
    "UDFS",
    __name__,
    UDFSParameters,
    # The graph of the neighborhoods is also the one that "auto" chooses by.
    needs=lambda parameters: needs_eigengap(parameters) or needs_graph(parameters),
    bounds=(Bound("n_clusters", "n_features"),),
    neighbor_lists=True,
)
