"""GFS-k-means: one feature subset for all clusters, by backward search around k-means."""

from __future__ import annotations

from pydantic import Field

from bigfs.config.fields import NotNegative, PositiveInt, Section, Start, count_or_auto
from bigfs.selectors.method import Bound, Method, needs_eigengap


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
    n_init: PositiveInt = Field(10, description="Searches from k-means++, on 5,000 samples each.")
    max_iter: PositiveInt = Field(100, description="Most iterations of k-means for a candidate.")
    tol: NotNegative = Field(
        1e-3, description="k-means stops when centers move less than this share of their extent."
    )


METHOD = Method(
    "gfs_kmeans",
    "GFSKMeans",
    __name__,
    GFSKMeansParameters,
    needs=needs_eigengap,
    starts=("k-means++",),
    bounds=(Bound("n_clusters", "n_samples"),),
)
