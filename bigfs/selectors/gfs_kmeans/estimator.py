"""The estimator of GFS-k-means."""

from __future__ import annotations

from typing import Any

from bigfs.selectors.base import ClusterMixin, SeededSelector


class GFSKMeans(ClusterMixin, SeededSelector):
    """Global feature selection around k-means, backward.

    Clusters the rows by k-means on all features, then again without each feature in turn, or
    without several, and drops those without which the clusters are most separate, as long as they
    are no less separate than before: `LFS` with one subset for all clusters.

    Parameters
    ----------
    n_features_to_select : int, "auto", dict or None, default=None
        How many features to keep; None keeps those at which the search
        stops, "auto" as many as a curve says; a dict says which curve, as in a pipeline.
    n_clusters : int or "auto", default=8
        Number of clusters, in [1, 60].
    init : "k-means++" or array-like, default="k-means++"
        Where the clusters begin: the best of ``n_init`` searches on at most 5,000 rows;
        centroids of shape (n_clusters, n_features); or labels of shape (n_samples,).
    n_init : int, default=10
        Searches from k-means++, each on at most 5,000 rows.
    sample_size : int or None, default=None
        Random rows to search on; all are labeled at the end. None: all rows up to 20,000, or
        fewer (down to 1,250) where ``memory_limit`` asks for it.
    drop : {"auto", "one", "many"}, default="auto"
        Try without each feature, as the paper does; or without the quarter of the features in
        which alone the clusters are least separate, half of that, and so on down to one, of which
        the most go that may. "auto": many if there are more than 40 features.
    max_iter : int, default=100
        Most iterations of k-means for a candidate.
    tol : float, default=1e-3
        A candidate's k-means stops when its centers move less than this share of their extent.

    Attributes
    ----------
    scores_ : ndarray of shape (n_features,), float64
        1 for what is kept at the end, below it in the order of dropping, first dropped least.
    ranking_ : ndarray of shape (n_features,), int64
        Feature indices, best first; of equal ones that in which alone the clusters are the more
        separate; constant features come last.
    support_ : ndarray of shape (n_features,), bool
        The subset at which the search stopped.
    labels_ : ndarray (zarr array where X was stored) of shape (n_samples,), int32
    cluster_centers_ : ndarray of shape (n_clusters, n_features), float64
    dropped_ : ndarray of int64
        Features in the order in which they went.
    evidence_ : float or None
        How well the solution describes the rows, in nats above no clusters at all (BIC); restarts
        are compared by it. None if a label has fewer than two rows.
    n_rows_ : int
        Rows that were searched.
    n_iter_ : int
        Subsets that were kept, each smaller than the one before.
    n_passes_ : int
        Passes over X.

    See Also
    --------
    LFS : A subset for each cluster.

    Notes
    -----
    The criterion is ``tr(S_w^-1 S_b)`` with cross-projection [1]_: clusters of both subsets are
    valued in both, and the products are compared. The search goes backward and not forward, as
    in [2]_. S_w is the covariance of all rows less S_b, so no pass beyond k-means is needed.
    The criterion does not depend on the scale of a feature: where features are zero in all but a
    few rows, such as pixels at the border, these rows are the most separate clusters, and the
    features that are kept can be worse than features at random (``tests/bench/README.md``).

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
