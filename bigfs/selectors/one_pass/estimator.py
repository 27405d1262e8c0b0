"""The estimators of Q-alpha, SPEC, the Laplacian score, MaxVariance and RandomSelection."""

from __future__ import annotations

from bigfs.selectors.base import GraphSelector, MethodSelector, SeededSelector


class QAlpha(SeededSelector):
    """Keep the features whose weighted outer products have the clearest clusters.

    Parameters
    ----------
    n_clusters : int or "auto", default=8
        Number of leading eigenvalues of the samples' affinity that are used, limited by its rank.
    preprocess : {"auto", "none", "standardize", "rescale", "minmax", "unit_norm", "log1p", \
"normalize_total", "normalize_log1p"}, default="auto"
        Applied while reading. Columns are centered and scaled to norm one afterwards.
    random_state : int or None, default=0
        Seed; only the choice of the number of clusters with "auto" is random.

    Attributes
    ----------
    scores_ : ndarray of shape (n_features,), float64
        The weight alpha of each feature, larger is better; the vector has norm one. Constant
        features get the lowest score.
    n_iter_ : int
        Number of iterations.
    converged_ : bool
        True if the weights converged within ``tol``.
    objective_ : ndarray of shape (n_iter,), float64
        The maximized sum of squares at each iteration.
    n_clusters_ : int
        With "auto", the chosen number.
    spectrum_ : ndarray, float64
        With "auto", the eigenvalues of the graph by which the number was chosen.

    Notes
    -----
    Implements the algorithm of section 4 of [1]_ (standard power-embedded Q-alpha). With ``m_i``
    the values of feature i, centered and scaled to norm one, ``A = sum_i alpha_i m_i m_i'`` and Q
    with ``n_clusters`` orthonormal columns, it maximizes ``tr(Q'A'A Q)`` by::

        G_ij = (m_i'm_j) (m_i'QQ'm_j),   alpha = leading eigenvector of G,   Q = qr(A Q)

    The paper starts from an arbitrary Q; here Q starts from the leading principal components, so
    nothing is random. Non-negative weights are favored but not enforced. The paper's choice is
    the default: of eight combinations of feature scaling and ``n_clusters``, none is as good as
    random features on the mean of 15 data sets (``tests/bench/README.md``). The method prefers
    blocks of redundant features.

    The method uses only inner products of features. Cost: one pass over X for the Gram matrix,
    then ``O(n_features^3)`` once and ``O(n_features^2 n_clusters)`` per iteration on the client,
    in five matrices of n_features^2. If there are fewer rows than features, the client holds the
    rows instead, and only multiplies by G.

    References
    ----------
    .. [1] L. Wolf, A. Shashua, "Feature selection for unsupervised and supervised inference:
       the emergence of sparsity in a weight-based approach", Journal of Machine Learning
       Research 6, 2005.
    """

    n_clusters: int | str = 8
    max_iter: int = 100
    tol: float = 1e-8


class SPEC(GraphSelector):
    """Keep the features that vary slowly along the graph's spectrum.

    Parameters
    ----------
    ranking : {"phi1", "phi2", "phi3"}, default="phi2"
        Ranking function. See Notes.

    Attributes
    ----------
    scores_ : ndarray of shape (n_features,), float64
        Scores, larger is better: ``phi1`` and ``phi2`` are negated. Constant features get the
        lowest score.

    Notes
    -----
    Implements the functions of section 3.2 of [1]_, with ``h = D^1/2 f`` scaled to norm one,
    ``Ln`` the normalized Laplacian with eigenvalues in ascending order, and ``xi_1 = D^1/2 1``
    scaled to norm one::

        phi1 = h'Ln h
        phi2 = h'Ln h / (1 - (h'xi_1)^2)
        phi3 = sum_{j >= 2} (2 - lambda_j) (h'xi_j)^2

    Small values are good for the first two (with the identity as the paper's cut-off function of
    the spectrum), large values for the third. ``phi2`` is the Laplacian score. No eigenvector is
    computed: the sum over all of them is ``phi3 = h'(2I - Ln)h - 2 (h'xi_1)^2 = (2 s - f'Lf) /
    f'Df``, with s the sum of D-weighted squared deviations of f, which is free of cancellation.
    In a graph with several components the eigenvalue 0 is repeated; only ``xi_1`` is left out, so
    that the differences between components count with the full weight 2, whatever basis of that
    eigenspace is used. ``phi1`` and ``phi3`` change when a constant is added to a feature:
    ``phi3`` measures the spread relative to the mean. For features with a D-weighted mean of zero
    all three give the same order. The paper uses a complete graph, bigfs a nearest-neighbor
    graph. Constant features, with ``phi1 = 0``, are ranked last here.

    The paper has no default. ``phi2`` is the default here, because it does not change when a
    constant is added to a feature: on seven data sets, unscaled and scaled to [0, 1], k-means on
    its features had a higher NMI than on those of ``phi3`` in 13 of 14 cases (USPS 47 against
    21 %; tests/bench/bench_baselines.py).

    Cost beyond the graph: each block is read once, and again by the blocks that have edges into
    it.

    References
    ----------
    .. [1] Z. Zhao, H. Liu, "Spectral feature selection for supervised and unsupervised
       learning", ICML 2007, doi:10.1145/1273496.1273641.
    """

    ranking: str = "phi2"


class LaplacianScore(GraphSelector):
    """Keep the features that are smoothest on the neighbor graph.

    Attributes
    ----------
    scores_ : ndarray of shape (n_features,), float64
        The negated Laplacian score: larger is better. Constant features get the lowest score.

    Notes
    -----
    Implements the score of section 3 of [1]_, ``f'Lf / f'Df`` after removing the D-weighted
    mean, with ``f'Lf`` summed as ``w_ij (f_i - f_j)^2`` over edges. Cost beyond the graph: each
    block is read once, and again by the blocks that have edges into it.

    References
    ----------
    .. [1] X. He, D. Cai, P. Niyogi, "Laplacian score for feature selection", NIPS 18, 2005.
    """


class MaxVariance(MethodSelector):
    """Keep the features with the largest variance.

    Attributes
    ----------
    scores_ : ndarray of shape (n_features,), float64
        Variance of each feature, with divisor n.

    Notes
    -----
    The baseline of section 4 of [1]_. Cost: one pass over X.

    References
    ----------
    .. [1] D. Cai, C. Zhang, X. He, "Unsupervised feature selection for multi-cluster data",
       KDD 2010, doi:10.1145/1835804.1835848.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from bigfs import MaxVariance
    >>> MaxVariance(n_features_to_select=2).fit(load_iris().data).ranking_
    array([2, 0, 3, 1])
    """


class RandomSelection(SeededSelector):
    """Keep features at random.

    A method is useful only as far as it is better than this baseline. `bigfs.compare` reports it
    for every number of features.

    Parameters
    ----------
    n_draws : int, default=10
        Number of rankings to draw.
    random_state : int or None, default=0
        Seed of the draws.

    Attributes
    ----------
    scores_ : ndarray of shape (n_features,), float64
        Uniform random numbers of the first draw.
    ranking_ : ndarray of shape (n_features,), int64
        Feature indices of the first draw, best first; constant features come last.
    draws_ : ndarray of shape (n_draws, n_features), int64
        The ranking of each draw. The first rows do not depend on ``n_draws``; ``redundancy``
        changes the ranking, not the draws.

    Notes
    -----
    All orders of the features that are not constant are equally likely. Cost: one pass over X, to
    find the constant features.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from bigfs import RandomSelection
    >>> RandomSelection(n_features_to_select=2, n_draws=3).fit(load_iris().data).draws_.shape
    (3, 4)
    """

    n_draws: int = 10
