"""The estimators of M3FS and maximum margin clustering."""

from __future__ import annotations

from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.selectors.base import LabelingSelector
from bigfs.selectors.m3fs.rounds import label_rows
from bigfs.store.scratch import ArrayRef


class MarginSelector(LabelingSelector):
    """Base of M3FS and maximum margin clustering, whose rule also labels new rows.

    Parameters
    ----------
    n_clusters : int or "auto", default=2
        Number of clusters, at least 2.
    C : float, default=10.0
        Weight of the mean loss ``max(0, 1 - margin)``.
    sample_size : int or None, default=None
        Rows to learn on, drawn at random; the others are labeled in one pass. None: all.
    """

    n_clusters: int | str = 2
    C: float = 10.0
    balance: float | None = 0.1
    epsilon: float = 0.01
    preprocess: str = "rescale"
    fit_intercept: bool = True
    init: Any = "kmeans"
    n_init: int = 3
    nesting: str = "planes_outside"
    sample_size: int | None = None
    max_iter: int = 1000
    tol: float = 0.01

    def _write_labels(self, blocks: RowBlocks, labels: ArrayRef) -> None:
        label_rows(blocks, np.vstack([self.coef_, self.intercept_])[None], labels)


class M3FS(MarginSelector):
    """Manifold-based maximum margin feature selection.

    Looks for clusters that a linear rule separates with a large margin while it uses few
    features, and asks the rule to be smooth on the neighbor graph. Every feature gets a weight
    sigma in [0, 1]; they sum to the number of features to select.

    Parameters
    ----------
    n_features_to_select : int, "auto", dict or None, default=None
        m, how many features to keep and the sum of sigma; None keeps half of them, "auto"
        as many as a curve says; a dict says which curve, as in a pipeline.
    smoothness : float, default=1.0
        The paper's lambda, times n: the weight of ``f'Ln f / n``. 0: no graph in the objective.
    balance : float or None, default=0.1
        The paper's l over n: the largest mean decision value (two clusters), or difference
        between the means of two clusters' values. None: no bound.
    graph : {"knn", "full"}, default="knn"
        Which pairs smoothness counts: neighbors, or all of them, as in the paper (at most 50,000
        rows: the work is quadratic). Starts use neighbors.
    sigma : float, "median" or None, default=None
        Width of the heat weights ``exp(-|x_i - x_j|^2 / sigma)``, the paper's ``2 rho^2``. None:
        each edge its own, ``max(s_i, s_j)^2`` with s the distance to the last neighbor; for all
        pairs the squared median neighbor distance.
    preprocess : {"rescale", "standardize", "auto", "none", "minmax", "unit_norm", "log1p", \
"normalize_total", "normalize_log1p"}, default="rescale"
        Applied while reading. The decision values scale with the features, and so does what C
        means. The default "rescale" divides all features by one number: right where they share a
        unit, as pixels do; else "standardize".
    fit_intercept : bool, default=True
        An intercept for every cluster (the paper has one for two clusters, none for more).
    init : {"auto", "kmeans", "spectral"} or array-like of shape (n_samples,), default="auto"
        Where to begin: k-means on the rows, ``n_init`` times; k-means on the graph's
        eigenvectors, of several numbers of them; both; or labels below ``n_clusters``.
    criterion : {"likelihood", "objective"}, default="likelihood"
        Which start to believe, of those that converged and kept all clusters: the one whose
        clusters describe the rows best, each as a Gaussian with a covariance of its own (on at
        most 10,000 rows); or the one of the least objective, which prefers even halves. With
        the likelihood, few starts are run where each takes long. See Notes.
    nesting : {"clusters_outside", "planes_outside"}, default="clusters_outside"
        Planes are drawn until none is violated before any row changes its cluster; or the
        paper's order, in which rows move while the set of planes is still small. See Notes.

    Attributes
    ----------
    scores_ : ndarray of shape (n_features,), float64
        sigma, to six decimals: in [0, 1], with sum ``n_features_to_select``.
    ranking_ : ndarray of shape (n_features,), int64
        Feature indices, best first; ties go to the lower index, constant features come last. The
        order depends on m: for another number of features fit again.
    labels_ : ndarray (zarr array where X was stored) of shape (n_samples,), int32
        Cluster of every row.
    coef_ : ndarray of shape (n_features, 1 or n_clusters), float64
        v, in units of the preprocessed features; one column for two clusters.
    intercept_ : ndarray of shape (1 or n_clusters,), float64
    objective_ : float
        The last of ``objective_history_``: a lower bound too, as ``slack_`` is of the mean loss.
    objective_history_ : ndarray of shape (n_iter,), float64
        After each round: rises with planes, falls with a change of the clusters. A lower bound
        of what the clusters allow for which the planes were drawn; ``labels_`` may be one change
        later, where the objective fell no more.
    violation_history_ : ndarray of shape (n_iter,), float64
    slack_ : float
        xi: what the objective leaves for the mean loss.
    violation_ : float
        The certificate: mean loss under the final clusters beyond xi, at most epsilon.
    n_planes_, n_cccp_steps_, n_iter_ : int
        Planes drawn, changes of the clusters, rounds: each a pass for a solution of a cone
        program, or for new clusters.
    smoothness_term_ : float
        ``smoothness * f'Ln f / n``.
    gap_ : float
        Relative gap of the last cone program.
    converged_ : bool
    starts_ : list of dict
        Every start that was run, with its objective, loss, likelihood, sizes of its clusters and
        counts.
    start_labels_ : ndarray (zarr array where X was stored) of shape (n_learned, n_starts), uint8
        Where each start ended, on the rows that were learned from.
    chosen_start_ : str
    sigma_ : float or None
        Width of the heat weights; None where every edge has its own.
    n_passes_ : int
        Passes over X.

    See Also
    --------
    MaximumMarginClustering : The same without selection and smoothness.

    Notes
    -----
    Implements [1]_ (its X is our X')::

        min  1/2 sum_k |v_k|^2 / sigma_k + (C / n) sum_i xi_i + (smoothness / n) sum_p f_p'Ln f_p
        s.t. f_z - f_r >= 1 - xi_i for every row, its cluster z and every other r

    with f = Xv + b. C and smoothness multiply means over the rows, so that neither depends on n,
    nor on ``sample_size``. X is read once for each cone program, for all starts together; the
    programs have a size that does not depend on n.

    In the paper's nesting the planes are the outer loop. While they are few the clusters drift:
    with two clusters they end where the objective is low, whatever the start; with more they
    lose clusters. With the clusters outside, a start is refined rather than replaced: of many
    features, the starts that describe the rows best in the beginning do so in the end. With more
    than two clusters and more than 4,096 unknowns (features, and the intercept, times clusters),
    where a start takes long, only the three that do are run, unless `criterion` is "objective".

    References
    ----------
    .. [1] B. Zhao, J. Kwok, F. Wang, C. Zhang, "Unsupervised maximum margin feature selection
       with manifold regularization", CVPR 2009.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from bigfs import M3FS
    >>> X, y = load_digits(n_class=2, return_X_y=True)
    >>> M3FS(n_features_to_select=10, n_clusters=2).fit_transform(X).shape
    (360, 10)
    """

    smoothness: float = 1.0
    n_neighbors: int = 5
    graph: str = "knn"
    sigma: float | str | None = None
    init: Any = "auto"
    criterion: str = "likelihood"
    nesting: str = "clusters_outside"


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
