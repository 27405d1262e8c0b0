"""The estimators of M3FS and maximum margin clustering."""

from __future__ import annotations

from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.selectors.base import LabelingSelector
from bigfs.selectors.m3fs.rounds import label_rows
from bigfs.store.scratch import ArrayRef


class MarginSelector(LabelingSelector):
    """Base of M3FS and maximum margin clustering; their rule also labels new rows.

    Parameters
    ----------
    n_clusters : int or "auto", default=2
        Number of clusters, at least 2.
    C : float, default=10.0
        Weight of the mean loss ``max(0, 1 - margin)``.
    sample_size : int or None, default=None
        Number of rows to learn on, drawn at random; the others are labeled in one pass. None:
        all rows.
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

    Looks for clusters that a linear rule separates with a large margin while using few features,
    and requires the rule to be smooth on the neighbor graph. Every feature gets a weight sigma in
    [0, 1]; the weights sum to the number of features to select.

    Parameters
    ----------
    n_features_to_select : int, "auto", dict or None, default=None
        m, the number of features to keep and the sum of sigma. None keeps half of them; "auto"
        chooses the number from a curve; a dict selects the curve, as in a pipeline.
    smoothness : float, default=1.0
        The paper's lambda, times n: the weight of ``f'Ln f / n``. 0: no graph in the objective.
    balance : float or None, default=0.1
        The paper's l over n: upper bound of the absolute mean decision value (two clusters), or
        of the difference between the means of two clusters' values. None: no bound.
    graph : {"knn", "full"}, default="knn"
        Pairs that enter the smoothness: neighbors, or all pairs, as in the paper (at most 50,000
        rows: the cost is quadratic). Starts use neighbors.
    sigma : float, "median" or None, default=None
        Width of the heat weights ``exp(-|x_i - x_j|^2 / sigma)``, the paper's ``2 rho^2``. None:
        a width per edge, ``max(s_i, s_j)^2`` with s the distance to the last neighbor; for all
        pairs the squared median neighbor distance.
    preprocess : {"rescale", "standardize", "auto", "none", "minmax", "unit_norm", "log1p", \
"normalize_total", "normalize_log1p"}, default="rescale"
        Applied while reading. The decision values scale with the features, and so does the effect
        of C. The default "rescale" subtracts the means and divides all features by one number,
        the root of the mean variance of those that vary. It suits features that share a unit,
        such as pixels; otherwise use "standardize".
    fit_intercept : bool, default=True
        Fit an intercept for every cluster (the paper has one for two clusters, none for more).
    init : {"auto", "kmeans", "spectral"} or array-like of shape (n_samples,), default="auto"
        Starts: k-means on the rows, ``n_init`` times ("kmeans"); k-means on several numbers of
        eigenvectors of the graph ("spectral"); both ("auto"); or labels below ``n_clusters``.
    criterion : {"likelihood", "objective"}, default="likelihood"
        Choice among the starts that converged and kept all clusters: the one whose clusters
        describe the rows best, each as a Gaussian with its own covariance (on at most 10,000
        rows); or the one with the smallest objective, which favors clusters of equal size. With
        the likelihood, only a few starts are run if each takes long. See Notes.
    nesting : {"clusters_outside", "planes_outside"}, default="clusters_outside"
        "clusters_outside" draws planes until none is violated before any row changes its
        cluster; "planes_outside" is the paper's order, in which rows move while the set of
        planes is still small. See Notes.

    Attributes
    ----------
    scores_ : ndarray of shape (n_features,), float64
        sigma, rounded to six decimals: in [0, 1], with sum ``n_features_to_select``.
    ranking_ : ndarray of shape (n_features,), int64
        Feature indices, best first; ties go to the lower index, constant features come last. The
        order depends on m: fit again for another number of features.
    labels_ : ndarray (zarr array where X was stored) of shape (n_samples,), int32
        Cluster of every row.
    coef_ : ndarray of shape (n_features, 1 or n_clusters), float64
        v, in units of the preprocessed features; one column for two clusters.
    intercept_ : ndarray of shape (1 or n_clusters,), float64
    objective_ : float
        Last value of ``objective_history_``; like it a lower bound.
    objective_history_ : ndarray of shape (n_iter,), float64
        Objective after each round. It rises with new planes and falls with a change of the
        clusters. It is a lower bound of the objective for the clusters that the planes were drawn
        for; ``labels_`` may be one change later, if that change no longer lowered the objective.
    violation_history_ : ndarray of shape (n_iter,), float64
        Violation after each round.
    slack_ : float
        xi, the part of the objective that is left for the mean loss; a lower bound of it.
    violation_ : float
        Certificate: the mean loss under the final clusters minus xi, at most epsilon if converged.
    n_planes_, n_cccp_steps_, n_iter_ : int
        Number of planes drawn, of changes of the clusters, and of rounds. A round is a pass,
        either for the solution of a cone program or for new clusters.
    smoothness_term_ : float
        ``smoothness * f'Ln f / n``.
    gap_ : float
        Relative duality gap of the last cone program.
    converged_ : bool
        True if the chosen start converged within ``max_iter`` rounds.
    starts_ : list of dict
        Every start that was run, with its objective, loss, likelihood, cluster sizes and counts.
    start_labels_ : ndarray (zarr array where X was stored) of shape (n_learned, n_starts), uint8
        Final clusters of each start, on the rows that were learned from.
    chosen_start_ : str
        Name of the chosen start.
    sigma_ : float or None
        Width of the heat weights; None if every edge has its own.
    n_passes_ : int
        Number of passes over X.

    See Also
    --------
    MaximumMarginClustering : The same without selection and smoothness.

    Notes
    -----
    Implements [1]_ (its X is our X')::

        min  1/2 sum_k |v_k|^2 / sigma_k + (C / n) sum_i xi_i + (smoothness / n) sum_p f_p'Ln f_p
        s.t. f_z - f_r >= 1 - xi_i for every row, its cluster z and every other r

    with f = Xv + b. C and smoothness multiply means over the rows, so that neither depends on n
    or on ``sample_size``. X is read once for each cone program, for all starts together; the size
    of the programs does not depend on n.

    In the paper's nesting the planes are the outer loop. While there are few planes the clusters
    drift: with two clusters they end where the objective is low, whatever the start; with more,
    clusters are lost. With the clusters in the outer loop, a start is refined rather than
    replaced: with many features, the starts that describe the rows best initially also do so at
    the end. With more than two clusters and more than 4,096 unknowns (features, and the
    intercept, times clusters), a start takes long; then only the three starts that describe the
    rows best are run, unless `criterion` is "objective".

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
    """Find clusters that a linear rule on all features separates with the largest margin.

    Features are ranked by the norms of the rule's coefficients.

    Parameters
    ----------
    n_features_to_select : int, "auto", dict or None, default=None
        Number of features to keep. None keeps half of them; "auto" chooses the number from a
        curve; a dict selects the curve, as in a pipeline. The clusters do not depend on it.
    balance : float or None, default=0.1
        Upper bound of the absolute mean decision value (two clusters), or of the difference
        between the means of two clusters' values. None: no bound.
    preprocess : {"rescale", "standardize", "auto", "none", "minmax", "unit_norm", "log1p", \
"normalize_total", "normalize_log1p"}, default="rescale"
        Applied while reading, as in `M3FS`.
    init : "kmeans" or array-like of shape (n_samples,), default="kmeans"
        Start: k-means on the rows, or labels below ``n_clusters``.
    n_init : int, default=3
        Number of restarts of k-means; the one with the smallest objective is kept.
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
    Solves problem (1) of [1]_ with the cutting planes of M3FS: sigma = 1 and lambda = 0. It only
    clusters and selects nothing: the clusters are those of `M3FS` with all features, no
    smoothness, and the same start and nesting.

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
