"""The estimator of LFS."""

from __future__ import annotations

from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.selectors.base import LabelingSelector
from bigfs.selectors.clusters import ClusterRule, label_all
from bigfs.store.scratch import ArrayRef


class LFS(LabelingSelector):
    """Localized feature selection: each cluster keeps its own feature subset.

    Clusters the rows by k-means on all features. Then, cluster by cluster, it tries to drop one
    or several features: the rows are clustered again without them, and every cluster whose new
    version is more separable from the others, with penalties for overlap and gaps, is replaced
    by it.

    Parameters
    ----------
    n_features_to_select : int, "auto", dict or None, default=None
        Number of features that are selected globally (`get_support`, `transform`). None keeps
        the features that any cluster keeps; "auto" chooses the number from a curve; a dict
        selects the curve, as in a pipeline.
    n_clusters : int or "auto", default=8
        Number of clusters, in [1, 60].
    alpha, beta : float, default=4.0
        Penalty weights for rows in several clusters and for rows in no cluster; the paper uses 1
        and 1, and for iris 1 and 6.
    tie_width : float, default=2.0
        A loss of separability within this many standard errors is a tie, in which fewer features
        are preferred. 0: the paper's rule, by which every difference counts. See Notes.
    drop : {"auto", "one", "many"}, default="auto"
        "one" tries to drop each feature alone, as in the paper. "many" ranks a cluster's features
        by its separability in each feature alone, and tries to drop the lowest quarter, half of
        that, and so on down to one. "auto": "many" if there are more than 40 features, because
        trying each one then takes minutes.
    init : "k-means++" or array-like, default="k-means++"
        Initial clusters: the best of ``n_init`` searches; centroids of shape
        (n_clusters, n_features), in units of the preprocessed data; or labels of shape
        (n_samples,), whose class means are the centroids.
    n_init : int, default=10
        Number of searches from k-means++, each on at most 5,000 rows.
    sample_size : int or None, default=None
        Number of random rows to search on; all rows are labeled at the end. None: all rows up to
        20,000, or fewer (down to 1,250) if ``memory_limit`` requires it.
    unassigned : {"nearest", "leave"}, default="nearest"
        Rows in no cluster get the label of the nearest one by eq. (20), or the label -1.
    max_iter : int, default=100
        Maximum number of k-means iterations for a candidate.
    tol : float, default=1e-3
        A candidate's k-means stops when its centers move by at most this share of their extent.

    Attributes
    ----------
    feature_subsets_ : list of ndarray of int64
        Indices of the features that each cluster keeps.
    labels_ : ndarray (zarr array where X was stored) of shape (n_samples,), int32
        Cluster of each row; for a row in several clusters, the nearest by eq. (20).
    membership_ : ndarray (zarr array where X was stored) of shape (n_samples, n_clusters), bool
        Membership of each row in each cluster: a row may be in several clusters or in none.
    cluster_centers_ : ndarray of shape (n_clusters, n_features), float64
        Means of the members among the searched rows, in units of the preprocessed data.
    scores_ : ndarray of shape (n_features,), float64
        Fraction of rows whose cluster keeps the feature.
    ranking_ : ndarray of shape (n_features,), int64
        Feature indices, best first; ties are ordered by the separability of the clusters in the
        feature alone; constant features come last.
    trace_ : list of dict
        The accepted replacements: cluster, features dropped, log ratio with its standard error,
        overlap and unassigned share. If a step has several replacements, the last two are those
        of each replacement alone.
    evidence_ : float or None
        Goodness of fit of the solution (BIC), in nats relative to no clusters; restarts are
        compared by it. None if a label has fewer than two rows.
    n_rows_ : int
        Number of rows that the search used.
    n_iter_ : int
        Number of rounds over the clusters.
    n_passes_ : int
        Number of passes over X.

    See Also
    --------
    GFSKMeans : One subset for all clusters.

    Notes
    -----
    Clusters are compared by eqs. (13) to (18) of [1]_: each cluster of the solution with the
    cluster of the candidate clustering that overlaps it most (figure 2 taken literally), if the
    candidate has fewer features. A rise of overlap or gaps counts against the new cluster
    (eqs. 17 and 18 are printed with the opposite sign). Equal members are a tie. Otherwise a loss
    is compared with the standard error of the log ratio, from a jackknife that leaves out each of
    20 groups of rows in turn, with fixed memberships. With few rows per feature (wine: 178 rows)
    the errors are wide and relevant features are dropped; ``tie_width=0`` then does better. If
    the covariance of a cluster is singular, all four terms are ratios of traces. Constant
    features are dropped first. With ``drop="many"`` the largest acceptable group of features is
    dropped; a loss is a tie only if, in each of these features, the normal distribution of the
    cluster's rows does not differ from that of all rows (BIC), and clusters with at most 10 rows
    per feature are compared by ratios of traces.

    The variance in eq. (20) is the mean variance of the features that a cluster keeps.

    Cost: three passes: moments, the rows to search on, and the labels of all rows, from which
    ``scores_``, ``evidence_`` and the order of ties follow. Each search is a task in a single
    process. Its memory grows with rows * n_features, and with n_features^2 as long as there are
    enough rows for a covariance.

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
