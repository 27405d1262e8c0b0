"""LFS: localized feature selection, a feature subset for each cluster."""

from __future__ import annotations

from typing import Literal

from bigfs.config.fields import NotNegative
from bigfs.selectors.gfs_kmeans import GFSKMeansParameters
from bigfs.selectors.method import Bound, Method, needs_eigengap


class LFSParameters(GFSKMeansParameters):
    """Localized feature selection (Li, Dong, Hua, Pattern Recognition Letters 2008).

    Attributes
    ----------
    alpha
        Price of samples in several clusters; 1 in the paper.
    beta
        Price of samples in no cluster; 1 or 6 in the paper.
    tie_width
        Losses within this many standard errors are ties, which fewer features win. 0: the
        paper's rule, better where samples are few.
    unassigned
        Samples of no cluster: take the nearest, or leave them (-1).
    """

    alpha: NotNegative = 4.0
    beta: NotNegative = 4.0
    tie_width: NotNegative = 2.0
    unassigned: Literal["nearest", "leave"] = "nearest"


METHOD = Method(
    "lfs",
    "LFS",
    __name__,
    LFSParameters,
    choose_by="LocalSearch",
    needs=needs_eigengap,
    starts=("k-means++",),
    finds_number=True,
    bounds=(Bound("n_clusters", "n_samples"),),
    explains=lambda details: ("cluster", details["feature_masks"].T.astype(bool)),
)
