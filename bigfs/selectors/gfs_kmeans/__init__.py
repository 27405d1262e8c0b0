"""GFS-k-means: one feature subset for all clusters, by backward search around k-means."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bigfs.config.fields import NotNegative, PositiveInt, Section, Start, count_or_auto
from bigfs.selectors.method import Bound, Method, needs_eigengap

# Up to so many features they are dropped one at a time where nothing else is asked for: beyond, a
# search takes minutes.
_FEW_FEATURES = 40


class GFSKMeansParameters(Section):
    """Global feature selection around k-means (Dy, Brodley, JMLR 2004), backward."""

    # A row's memberships are the bits of one number, and most of its 64 are enough.
    n_clusters: count_or_auto(1, 60) = Field(  # type: ignore[valid-type]
        8,
        description="Number of groups expected in the data; auto: the last clear gap of a neighbor "
        "graph's eigenvalues, or 8 or more.",
    )
    init: Start = Field(
        "k-means++",
        description="Start: the best of n_init searches from k-means++, or labels as in "
        "evaluate.labels, from 0 to n_clusters - 1.",
    )
    drop: Literal["auto", "one", "many"] = Field(
        "auto",
        description="Features to try without at a time: each one, as the paper does; or many: the "
        "least separate quarter of them, or fewer. auto: many if there are more than 40.",
    )
    n_init: PositiveInt = Field(10, description="Searches from k-means++, on 5,000 samples each.")
    max_iter: PositiveInt = Field(100, description="Most iterations of k-means for a candidate.")
    tol: NotNegative = Field(
        1e-3, description="k-means stops when centers move less than this share of their extent."
    )

    def drops_many(self, n_features: int) -> bool:
        """Say whether several of so many features are dropped at a time."""
        return self.drop == "many" or (self.drop == "auto" and n_features > _FEW_FEATURES)


METHOD = Method(
    "gfs_kmeans",
    "GFSKMeans",
    __name__,
    GFSKMeansParameters,
    needs=needs_eigengap,
    starts=("k-means++",),
    bounds=(Bound("n_clusters", "n_samples"),),
)
