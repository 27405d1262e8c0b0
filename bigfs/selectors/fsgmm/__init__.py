"""FSGMM: a Gaussian mixture that learns which features distinguish its components."""

from __future__ import annotations

from pydantic import model_validator

from bigfs.config.fields import PositiveInt, Section, Share, Tolerance
from bigfs.selectors.method import Bound, Method


class FSGMMParameters(Section):
    """Mixture of Gaussians with feature saliency (Law, Figueiredo, Jain, TPAMI 2004).

    Attributes
    ----------
    n_clusters
        Components at the start.
    min_clusters
        Smallest number of components tried; equal to n_clusters: the number is fixed.
    max_iter
        Maximum number of EM steps, each a pass over the data.
    tol
        The smallest component is removed when the relative change of the message length is at
        most this.
    least_variance
        Lower bound of a feature's variance within a component, as a share of its variance over
        all rows.
    """

    n_clusters: PositiveInt = 30
    min_clusters: PositiveInt = 1
    max_iter: PositiveInt = 500
    tol: Tolerance = 1e-5

    least_variance: Share = 0.3

    @model_validator(mode="after")
    def _fewest_is_no_more_than_at_the_start(self) -> FSGMMParameters:
        if self.min_clusters > self.n_clusters:
            raise ValueError(
                f"min_clusters must be at most n_clusters, which is {self.n_clusters}. "
                f"Got {self.min_clusters}"
            )
        return self


METHOD = Method(
    "fsgmm",
    "FSGMM",
    __name__,
    FSGMMParameters,
    choose_by="MixtureFit",
    bounds=(Bound("n_clusters", "n_samples"),),
    scale_free=True,
)
