"""MCFS: multi-cluster feature selection by spectral embedding and sparse regression."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from bigfs.config.fields import CountOrAuto, PositiveInt, Section
from bigfs.selectors.method import Bound, Method, needs_eigenvectors

# Upper bound of the number of stops that a path keeps: together they need 8 bytes times this number
# squared.
MAX_STOPS = 500


class MCFSParameters(Section):
    """Multi-cluster feature selection (Cai, Zhang, He, KDD 2010).

    Attributes
    ----------
    n_clusters
        Approximate number of groups expected in the data. auto: number at the last clear gap
        of the graph's eigenvalues, or 8 or more if no gap is clear.
    n_components
        Number of eigenvectors to regress on the features. null: n_clusters.
    regression
        omp: forward regression of all eigenvectors at once, nested for every number of
        features; lasso, as in the paper: a sparse path for each eigenvector.
    fit_intercept
        Center the features before the regressions.
    coef_scale
        Only for lasso: norm by which each eigenvector's coefficients are divided. explained:
        l2, times the square root of the share of the eigenvector that they explain; none: no
        scaling, as in the paper.
    """

    n_clusters: CountOrAuto = 8
    n_components: PositiveInt | None = None
    regression: Literal["lasso", "omp"] = "omp"
    fit_intercept: bool = True
    coef_scale: Literal["explained", "none", "l1", "l2", "max"] = "explained"

    @model_validator(mode="after")
    def _settings_go_together(self) -> MCFSParameters:
        if self.n_clusters == "auto" and self.n_components is not None:
            raise ValueError(
                "n_clusters 'auto' sets the number of eigenvectors, and n_components would "
                "override it; remove one of them"
            )
        default = type(self).model_fields["coef_scale"].default
        if self.regression == "omp" and self.coef_scale != default:
            raise ValueError(
                "coef_scale applies to regression 'lasso' only: 'omp', the default, ranks features "
                "by what each adds; remove it, or set regression to 'lasso'"
            )
        return self


METHOD = Method(
    "mcfs",
    "MCFS",
    __name__,
    MCFSParameters,
    needs=needs_eigenvectors,
    sparse=True,
    keeps_sums=True,
    n_components=lambda parameters: parameters.n_components or parameters.n_clusters,
    bounds=(Bound("n_clusters", "n_samples", 1), Bound("n_components", "n_samples", 1)),
    one_fit_up_to=lambda parameters: MAX_STOPS,
    explains=lambda details: ("eigenvector", details["coef"].toarray().T),
)
