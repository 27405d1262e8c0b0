"""The estimator of LFS."""

from __future__ import annotations

from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.selectors.base import LabelingSelector
from bigfs.selectors.clusters import ClusterRule, label_all
from bigfs.store.scratch import ArrayRef


class LFS(LabelingSelector):
    """Localized feature selection: clusters that keep each a feature subset of its own.

    Clusters the rows by k-means on all features; then tries, cluster by cluster, what happens
    without one feature, or several: the rows are clustered again, and every cluster whose new
    version is more separate from the others, overlap and gaps weighed in, is replaced by it.

    Parameters
    ----------
    n_features_to_select : int, "auto", dict or None, default=None
        Length of the one list (`get_support`, `transform`); None keeps what any cluster
        keeps, "auto" as many as a curve says; a dict says which curve, as in a pipeline.
    n_clusters : int or "auto", default=8
        Number of clusters, in [1, 60].
    alpha, beta : float, default=4.0
        Price of rows in several clusters and of rows in none; the paper has 1 and 1, and 1 and 6
        for iris.
    tie_width : float, default=2.0
        A loss of separability within this many standard errors is a tie, which fewer features
        win. 0: the paper's rule, in which every difference counts. See Notes.
    drop : {"auto", "one", "many"}, default="auto"
        Try without each feature, as the paper does; or without the quarter of a cluster's features
        in which alone it is least separate, half of that, and so on down to one. "auto": many if
        there are more than 40 features, where trying each takes minutes.
    init : "k-means++" or array-like, default="k-means++"
        Where the clusters begin: the best of ``n_init`` searches; centroids of shape
        (n_clusters, n_features), in units of the preprocessed data; or labels of shape
        (n_samples,), whose class means are taken.
    n_init : int, default=10
        Searches from k-means++, each on at most 5,000 rows.
    sample_size : int or None, default=None
        Random rows to search on; all are labeled at the end. None: all rows up to 20,000, or
        fewer (down to 1,250) where ``memory_limit`` asks for it.
    unassigned : {"nearest", "leave"}, default="nearest"
        Rows of no cluster take the nearest by eq. (20), or the label -1.
    max_iter : int, default=100
        Most iterations of k-means for a candidate.
    tol : float, default=1e-3
        A candidate's k-means stops when its centers move less than this share of their extent.

    Attributes
    ----------
    feature_subsets_ : list of ndarray of int64
        Indices of the features that each cluster keeps.
    labels_ : ndarray (zarr array where X was stored) of shape (n_samples,), int32
        Of several clusters a row belongs to, the nearest by eq. (20).
    membership_ : ndarray (zarr array where X was stored) of shape (n_samples, n_clusters), bool
        Overlaps and gaps.
    cluster_centers_ : ndarray of shape (n_clusters, n_features), float64
        Means of the members among the rows that were searched, in units of the preprocessed data.
    scores_ : ndarray of shape (n_features,), float64
        Fraction of rows whose cluster keeps the feature.
    ranking_ : ndarray of shape (n_features,), int64
        Feature indices, best first; of equal ones that in which alone the clusters are the more
        separate; constant features come last.
    trace_ : list of dict
        The accepted replacements: cluster, features dropped, log ratio with its standard error,
        overlap and unassigned share with this one alone, where a round has several.
    evidence_ : float or None
        How well the solution describes the rows, in nats above no clusters at all (BIC); restarts
        are compared by it. None if a label has fewer than two rows.
    n_rows_ : int
        Rows that were searched.
    n_iter_ : int
        Rounds over the clusters.
    n_passes_ : int
        Passes over X.

    See Also
    --------
    GFSKMeans : One subset for all clusters.

    Notes
    -----
    Clusters are compared by eqs. (13) to (18) of [1]_, every one of a candidate clustering with
    the one it overlaps most (figure 2 read to the letter), if the candidate has fewer features.
    A rise of overlap or gaps counts against the new cluster (eqs. 17 and 18 print the other
    sign). Equal members are a tie. Otherwise the standard error of the log ratio decides: a
    jackknife that leaves out each of 20 groups of rows in turn, memberships fixed. With few rows
    per feature (wine: 178 rows) errors are wide and features go that matter; ``tie_width=0`` then
    does better. Where the covariance of a cluster is singular, all four terms are ratios of traces.
    Features that never vary are dropped first. With ``drop="many"`` the most features go that may;
    a loss is a tie only if in none of them the cluster's rows have another normal law than all rows
    (BIC), and clusters with less than 10 rows a feature are compared by ratios of traces.

    The variance in eq. (20) is the mean one of the features a cluster keeps.

    Cost: three passes: moments, the rows to search on, and the labels of all rows, from which
    ``scores_``, ``evidence_`` and the order of equal features follow. A search is a task of one
    process, whose memory grows with rows * n_features, and with n_features^2 as far as there are
    rows enough for a covariance.

    References
    ----------
    .. [1] Y. Li, M. Dong, J. Hua, "Localized feature selection for clustering", Pattern
       Recognition Letters 29, 2008, doi:10.1016/j.patrec.2007.08.012.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from bigfs import LFS
    >>> X, y = load_iris(return_X_y=True)
    >>> found = LFS(n_clusters=3, alpha=1, beta=6, tie_width=1, init=y).fit(X)
    >>> [subset.tolist() for subset in found.feature_subsets_]
    [[3], [2, 3], [2, 3]]
    """

    n_clusters: int | str = 8
    alpha: float = 4.0
    beta: float = 4.0
    tie_width: float = 2.0
    drop: str = "auto"
    init: Any = "k-means++"
    n_init: int = 10
    sample_size: int | None = None
    unassigned: str = "nearest"
    max_iter: int = 100
    tol: float = 1e-3

    def fit(self, X: Any, y: Any = None) -> LFS:
        """Find the clusters and their features; see `BaseSelector.fit`."""
        super().fit(X, y)
        if self.n_features_to_select is None:
            self.n_features_to_select_ = int((self.scores_ > 0).sum())
        self.feature_subsets_ = [np.flatnonzero(mask) for mask in self.feature_masks_]
        return self

    def _write_labels(self, blocks: RowBlocks, labels: ArrayRef) -> None:
        rule = ClusterRule(
            self.origin_, self.rule_centers_, self.rule_masks_,
            np.arange(len(self.rule_members_)), self.rule_members_,
            self.cluster_centers_ - self.origin_, self.feature_masks_, self.variances_,
        )  # fmt: skip
        label_all(blocks, rule, self.unassigned == "leave", labels)
