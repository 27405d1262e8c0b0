"""UDFS: features of a sparse projection that is discriminative in every neighborhood."""

from __future__ import annotations

from typing import Literal

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
    """Unsupervised discriminative feature selection (Yang et al., IJCAI 2011).

    Attributes
    ----------
    n_clusters
        Number of columns of the projection; auto: number of clusters by the graph's eigengap.
    gamma
        Weight of the penalty that sets features to zero. null: see sparsity.
    sparsity
        The penalty as a share of the mean scatter of a feature within neighborhoods; used if
        gamma is null.
    ridge
        Added to the products of each neighborhood's samples (lambda), in squared units.
    unit
        Unit of ridge. rms: the root mean squared distance of samples from their mean; a given
        gamma is then per sample. none: values as they are, and gamma for all samples, as in
        the paper.
    max_iter
        Maximum number of iterations; they need no pass.
    tol
        Stop when the relative change of the objective is at most this.
    """

    n_clusters: CountOrAuto = 8
    gamma: NotNegative | None = None
    sparsity: PositiveFloat = 0.03
    ridge: PositiveFloat = 0.3
    unit: Literal["rms", "none"] = "rms"
    max_iter: PositiveInt = 30
    tol: Tolerance = 1e-5


METHOD = Method(
    "udfs",
    "UDFS",
    __name__,
    UDFSParameters,
    # "auto" chooses the number of clusters from the same graph as the neighborhoods.
    needs=lambda parameters: needs_eigengap(parameters) or needs_graph(parameters),
    bounds=(Bound("n_clusters", "n_features"),),
    neighbor_lists=True,
)
