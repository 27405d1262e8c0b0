"""LFS: localized feature selection, with a feature subset for each cluster."""

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
        Penalty weight for samples in several clusters; 1 in the paper.
    beta
        Penalty weight for samples in no cluster; 1 or 6 in the paper.
    tie_width
        Losses within this many standard errors are ties, in which fewer features are
        preferred. 0: the paper's rule, better for few samples.
    unassigned
        Samples of no cluster: assign the nearest cluster, or leave them unassigned (-1).
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
