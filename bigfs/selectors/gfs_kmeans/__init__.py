"""GFS-k-means: one feature subset for all clusters, by backward search around k-means."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from bigfs.config.fields import NotNegative, PositiveInt, Section, Start, count_or_auto
from bigfs.core.errors import InputError
from bigfs.selectors.method import Bound, Method, needs_eigengap

# With at most this many features, "auto" drops them one at a time; with more, such a search takes
# minutes.
_FEW_FEATURES = 40


class GFSKMeansParameters(Section):
    """Global feature selection around k-means (Dy, Brodley, JMLR 2004), backward.

    Attributes
    ----------
    n_clusters
        Number of groups expected in the data. auto: number at the last clear gap of a neighbor
        graph's eigenvalues, or 8 or more if no gap is clear.
    init
        Start: the best of n_init searches from k-means++, or labels as in evaluate.labels,
        from 0 to n_clusters - 1.
    drop
        Features to drop at a time. one: each feature is tried, as in the paper; many: the
        quarter with the lowest separability, or fewer; auto: many if there are more than 40.
    n_init
        Searches from k-means++, each on at most 5,000 samples.
    sample_size
        Rows to search on; all are labeled at the end. null: all up to 20,000, or fewer
        if memory_limit requires it.
    max_iter
        Maximum number of k-means iterations for a candidate.
    tol
        k-means stops when the centers move by at most this share of their extent.
    """

    # The memberships of a row are stored as bits of a 64-bit integer, hence at most 60 clusters.
    n_clusters: count_or_auto(1, 60) = 8  # type: ignore[valid-type]
    init: Start = "k-means++"
    drop: Literal["auto", "one", "many"] = "auto"
    n_init: PositiveInt = 10
    sample_size: Annotated[int, Field(ge=4)] | None = None
    max_iter: PositiveInt = 100
    tol: NotNegative = 1e-3

    @model_validator(mode="after")
    def _a_sample_has_two_rows_for_a_cluster(self) -> GFSKMeansParameters:
        if self.n_clusters != "auto":
            self.check_sample_size(self.n_clusters)
        return self

    def check_sample_size(self, n_clusters: int) -> None:
        """Raise InputError if the sample is too small for ``n_clusters`` clusters."""
        if self.sample_size is not None and self.sample_size < 2 * n_clusters:
            raise InputError(
                f"sample_size must be at least {2 * n_clusters}, twice the number of clusters. "
                f"Got {self.sample_size}."
            )

    def drops_many(self, n_features: int) -> bool:
        """Return True if several features are dropped at a time."""
        return self.drop == "many" or (self.drop == "auto" and n_features > _FEW_FEATURES)


METHOD = Method(
    "gfs_kmeans",
    "GFSKMeans",
    __name__,
    GFSKMeansParameters,
    choose_by="GlobalSearch",
    needs=needs_eigengap,
    starts=("k-means++",),
    finds_number=True,
    bounds=(Bound("n_clusters", "n_samples"),),
)
