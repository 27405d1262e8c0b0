"""The estimator of GFS-k-means."""

from __future__ import annotations

from typing import Any

from bigfs.selectors.base import ClusterMixin, SeededSelector


class GFSKMeans(ClusterMixin, SeededSelector):
    """Global feature selection around k-means, backward.

    Clusters the rows by k-means on all features, then again without each feature in turn, or
    without several at a time. The features without which the clusters are most separable are
    dropped, as long as the separability does not decrease. It is `LFS` with one subset for all
    clusters.

    Parameters
    ----------
    n_features_to_select : int, "auto", dict or None, default=None
        Number of features to keep. None keeps the subset at which the search stops; "auto"
        chooses the number from a curve; a dict selects the curve, as in a pipeline.
    n_clusters : int or "auto", default=8
        Number of clusters, in [1, 60].
    init : "k-means++" or array-like, default="k-means++"
        Initial clusters: the best of ``n_init`` searches on at most 5,000 rows;
        centroids of shape (n_clusters, n_features); or labels of shape (n_samples,).
    n_init : int, default=10
        Number of searches from k-means++, each on at most 5,000 rows.
    sample_size : int or None, default=None
        Number of random rows to search on; all rows are labeled at the end. None: all rows up to
        20,000, or fewer (down to 1,250) if ``memory_limit`` requires it.
    drop : {"auto", "one", "many"}, default="auto"
        "one" tries to drop each feature alone, as in the paper. "many" ranks the features by the
        separability of the clusters in each feature alone, tries to drop the lowest quarter, half
        of that, and so on down to one, and drops the largest group that does not lower the
        criterion. "auto": "many" if there are more than 40 features.
    max_iter : int, default=100
        Maximum number of k-means iterations for a candidate.
    tol : float, default=1e-3
        A candidate's k-means stops when its centers move by at most this share of their extent.

    Attributes
    ----------
    scores_ : ndarray of shape (n_features,), float64
        1 for the features kept at the end; the others score below 1 in the order in which they
        were dropped, the first one lowest.
    ranking_ : ndarray of shape (n_features,), int64
        Feature indices, best first; ties are ordered by the separability of the clusters in the
        feature alone; constant features come last.
    support_ : ndarray of shape (n_features,), bool
        Mask of the subset at which the search stopped.
    labels_ : ndarray (zarr array where X was stored) of shape (n_samples,), int32
    cluster_centers_ : ndarray of shape (n_clusters, n_features), float64
    dropped_ : ndarray of int64
        Dropped features, in the order in which they were dropped.
    evidence_ : float or None
        Goodness of fit of the solution (BIC), in nats relative to no clusters; restarts are
        compared by it. None if a label has fewer than two rows.
    n_rows_ : int
        Number of rows that the search used.
    n_iter_ : int
        Number of accepted subsets, each smaller than the previous one.
    n_passes_ : int
        Number of passes over X.

    See Also
    --------
    LFS : One subset for each cluster.

    Notes
    -----
    The criterion is ``tr(S_w^-1 S_b)`` with cross-projection [1]_: the clusterings of two subsets
    are both evaluated in both subsets, and the products are compared. The search is a backward
    elimination, as in [2]_, not a forward selection. S_w is the covariance of all rows minus S_b,
    so no pass beyond k-means is needed. It does not depend on the scale of a feature. Where S_w is
    singular in one of the two subsets (a feature without variance within the clusters), and with
    "many" if there are at most ten rows per feature, ``tr(S_b) / tr(S_w)`` is used instead, which
    does.
    If features are zero in all but a few rows, such as pixels at the border, these rows form the
    most separable clusters, and the selected features can be worse than random ones
    (``tests/bench/README.md``).

    References
    ----------
    .. [1] J. G. Dy, C. E. Brodley, "Feature selection for unsupervised learning", Journal of
       Machine Learning Research 5, 2004.
    .. [2] Y. Li, M. Dong, J. Hua, "Localized feature selection for clustering", Pattern
       Recognition Letters 29, 2008, section 3.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from bigfs import GFSKMeans
    >>> X, y = load_iris(return_X_y=True)
    >>> GFSKMeans(n_clusters=3, init=y).fit(X).get_support(indices=True)
    array([3])
    """

    n_clusters: int | str = 8
    init: Any = "k-means++"
    n_init: int = 10
    drop: str = "auto"
    sample_size: int | None = None
    max_iter: int = 100
    tol: float = 1e-3

    def fit(self, X: Any, y: Any = None) -> GFSKMeans:
        """Find the clusters and the features; see `BaseSelector.fit`."""
        super().fit(X, y)
        if self.n_features_to_select is None:
            self.n_features_to_select_ = int(self.support_.sum())
        return self
