"""The estimator of maximum margin clustering."""

from __future__ import annotations

from typing import Any

from bigfs.core.memory import DEFAULT_MEMORY_LIMIT
from bigfs.selectors.base import NumberOfFeatures
from bigfs.selectors.m3fs.estimator import MarginSelector


class MaximumMarginClustering(MarginSelector):
    """Clusters that a linear rule on all features separates with the largest margin.

    Features are ranked by the norms of the rule's coefficients.

    Parameters
    ----------
    n_features_to_select : int, "auto", dict or None, default=None
        How many features to keep; None keeps half of them, "auto"
        as many as a curve says; a dict says which curve, as in a pipeline. The
        clusters do not depend on it.
    balance : float or None, default=0.1
        Largest mean decision value (two clusters), or difference between the means of two
        clusters' values. None: no bound.
    preprocess : {"rescale", "standardize", "auto", "none", "minmax", "unit_norm", "log1p", \
"normalize_total", "normalize_log1p"}, default="rescale"
        Applied while reading, as in `M3FS`.
    fit_intercept : bool, default=True
        An intercept for every cluster.
    init : "kmeans" or array-like of shape (n_samples,), default="kmeans"
        Where to begin: k-means on the rows, or labels below ``n_clusters``.
    n_init : int, default=3
        Restarts of k-means; the least objective is kept.
    nesting : {"clusters_outside", "planes_outside"}, default="planes_outside"
        As in `M3FS`; the paper's order is the default here.

    Attributes
    ----------
    scores_ : ndarray of shape (n_features,), float64
        Norms of the rows of ``coef_``.
    labels_ : ndarray (zarr array where X was stored) of shape (n_samples,), int32
    coef_, intercept_, objective_, violation_, n_planes_, starts_ and others
        As in `M3FS`.

    Notes
    -----
    Problem (1) of [1]_ with the cutting planes of M3FS: sigma = 1 and lambda = 0. It clusters and
    selects nothing: the clusters are those of `M3FS` with all features, no smoothness, this start
    and this nesting.

    References
    ----------
    .. [1] B. Zhao, J. Kwok, F. Wang, C. Zhang, "Unsupervised maximum margin feature selection
       with manifold regularization", CVPR 2009, section 2.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from bigfs import MaximumMarginClustering
    >>> X, y = load_digits(n_class=2, return_X_y=True)
    >>> MaximumMarginClustering(n_clusters=2).fit(X).labels_.shape
    (360,)
    """

    def __init__(
        self,
        n_features_to_select: NumberOfFeatures = None,
        *,
        n_clusters: int | str = 2,
        C: float = 10.0,
        balance: float | None = 0.1,
        epsilon: float = 0.01,
        preprocess: str = "rescale",
        missing: str = "error",
        fit_intercept: bool = True,
        init: Any = "kmeans",
        n_init: int = 3,
        nesting: str = "planes_outside",
        sample_size: int | None = None,
        max_iter: int = 1000,
        tol: float = 0.01,
        random_state: int | None = 0,
        memory_limit: int | str = DEFAULT_MEMORY_LIMIT,
        verbose: int = 1,
    ) -> None:
        self._keep(locals())
