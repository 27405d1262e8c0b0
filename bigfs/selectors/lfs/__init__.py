"""LFS: localized feature selection, a feature subset for each cluster."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from bigfs.config.fields import NotNegative
from bigfs.core.errors import InputError
from bigfs.selectors.gfs_kmeans import GFSKMeansParameters
from bigfs.selectors.method import Bound, Method, needs_eigengap


class LFSParameters(GFSKMeansParameters):
    """Localized feature selection (Li, Dong, Hua, Pattern Recognition Letters 2008)."""

    alpha: NotNegative = Field(
        4.0, description="Price of samples in several clusters; 1 in the paper."
    )
    beta: NotNegative = Field(
        4.0, description="Price of samples in no cluster; 1 or 6 in the paper."
    )
    tie_width: NotNegative = Field(
        2.0,
        description="Losses within this many standard errors are ties, which fewer features win. "
        "0: the paper's rule, better where samples are few.",
    )
    sample_size: Annotated[int, Field(ge=4)] | None = Field(
        None, description="Search on so many samples and label all at the end. null: on all."
    )
    unassigned: Literal["nearest", "leave"] = Field(
        "nearest", description="Samples of no cluster: take the nearest, or leave them (-1)."
    )

    @model_validator(mode="after")
    def _a_sample_has_two_rows_for_a_cluster(self) -> LFSParameters:
        if self.n_clusters != "auto":
            self.check_sample_size(self.n_clusters)
        return self

    def check_sample_size(self, n_clusters: int) -> None:
        """Raise InputError if the sample is too small for so many clusters."""
        if self.sample_size is not None and self.sample_size < 2 * n_clusters:
            raise InputError(
                f"sample_size must be at least {2 * n_clusters}, twice the number of clusters. "
                f"Got {self.sample_size}."
            )


METHOD = Method(
    "lfs",
    "LFS",
    __name__,
    LFSParameters,
    needs=needs_eigengap,
    starts=("k-means++",),
    bounds=(Bound("n_clusters", "n_samples"),),
    explains=lambda details: ("cluster", details["feature_masks"].T.astype(bool)),
)
