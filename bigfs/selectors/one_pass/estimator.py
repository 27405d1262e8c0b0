"""The estimators of Q-alpha, SPEC, the Laplacian score, MaxVariance and RandomSelection."""

from __future__ import annotations

from bigfs.selectors.base import GraphSelector, MethodSelector, SeededSelector


class QAlpha(SeededSelector):
    """Keep the features whose weighted outer products have the clearest clusters.

    Parameters
    ----------
    n_clusters : int or "auto", default=8
        How many leading eigenvalues of the samples' affinity count; at most the rank does.
    preprocess : {"auto", "none", "standardize", "rescale", "minmax", "unit_norm", "log1p", \
"normalize_total", "normalize_log1p"}, default="auto"
        Applied while reading. Columns are centered and scaled to norm one afterwards.
    random_state : int or None, default=0
        Seed of everything random: only the choice of "auto" is.

    Attributes
    ----------
    scores_ : ndarray of shape (n_features,), float64
        The weight alpha of each feature, larger is better; together of norm one. Constant
        features get the lowest.
    n_iter_ : int
        Iterations made.
    converged_ : bool
        Whether the weights settled within ``tol``.
    objective_ : ndarray of shape (n_iter,), float64
        The sum of squares that is maximized, as each iteration sees it.
    n_clusters_ : int
        With "auto", the number that was chosen.
    spectrum_ : ndarray, float64
        With "auto", the eigenvalues of the graph that it was chosen among.

    Notes
    -----
    The algorithm of section 4 of [1]_ (its standard power-embedded Q-alpha). With ``m_i`` the
    values of feature i, centered and of norm one, ``A = sum_i alpha_i m_i m_i'`` and Q of
    ``n_clusters`` orthonormal columns it maximizes ``tr(Q'A'A Q)`` by::

        G_ij = (m_i'm_j) (m_i'QQ'm_j),   alpha = leading eigenvector of G,   Q = qr(A Q)

    Where the paper starts from any Q, ours is that of the leading principal components: nothing
    is random. Weights that are not negative are favored but not enforced. Of eight ways to scale
    features and to choose ``n_clusters`` none is as good on the mean of 15 data sets as features
    drawn at random (``tests/bench/README.md``), so the paper's is the default: the method prefers
    blocks of features that repeat each other. Only inner products of
    features enter: cost is one pass over X for the Gram matrix, then ``O(n_features^3)`` once
    and ``O(n_features^2 n_clusters)`` per iteration on the client, in five matrices of
    n_features^2. Where there are fewer rows than features the client holds the rows instead, and
    only multiplies by G.

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
        Larger is better: ``phi1`` and ``phi2`` negated. Constant features get the lowest.

    Notes
    -----
    The functions of section 3.2 of [1]_, with ``h = D^1/2 f`` of norm one, ``Ln`` the normalized
    Laplacian, its eigenvalues rising and ``xi_1 = D^1/2 1`` of norm one::

        phi1 = h'Ln h
        phi2 = h'Ln h / (1 - (h'xi_1)^2)
        phi3 = sum_{j >= 2} (2 - lambda_j) (h'xi_j)^2

    Small is good for the first two (of the paper's cut-off functions of the spectrum, the
    identity), large for the third. ``phi2`` is the Laplacian score. No eigenvector is computed:
    over all of them ``phi3 = h'(2I - Ln)h - 2 (h'xi_1)^2 = (2 s - f'Lf) / f'Df`` with s the
    D-weighted squared deviations of f, free of cancellation. In a graph of several parts the
    eigenvalue 0 repeats; only ``xi_1`` is left out, so that what tells the parts apart counts
    with the full weight 2, whatever basis is taken of that eigenspace. ``phi1`` and ``phi3``
    change when a constant is added to a feature: ``phi3`` counts its spread against its mean.
    For features without a D-weighted mean all three give one order. The paper builds its graph
    of all pairs; ours is that of the nearest neighbors. A constant feature, of ``phi1 = 0``, is
    put last here. The paper names no default; ``phi2`` is ours, since a constant added to a
    feature does not change it: on seven sets, as they are and scaled to [0, 1], k-means on its
    features had the higher NMI than on those of ``phi3`` in 13 of 14 cases (USPS 47 against 21 %;
    tests/bench/bench_baselines.py). Cost beyond the graph: each block is read once, and again by
    the blocks that have edges into it.

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
        The Laplacian score, negated: larger is better. Constant features get the lowest.

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
    """Keep the features of largest variance.

    Attributes
    ----------
    scores_ : ndarray of shape (n_features,), float64
        Variance of each feature, divisor n.

    Notes
    -----
    Cost: one pass over X. The baseline of section 4 of [1]_.

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

    What a method finds counts only as far as it is better than this. `bigfs.compare` has a row
    of it for every number of features.

    Parameters
    ----------
    n_draws : int, default=10
        How many rankings are drawn.
    random_state : int or None, default=0
        Seed of the draws.

    Attributes
    ----------
    scores_ : ndarray of shape (n_features,), float64
        Uniform random numbers, those of the first draw.
    ranking_ : ndarray of shape (n_features,), int64
        Feature indices of the first draw, best first; constant features come last.
    draws_ : ndarray of shape (n_draws, n_features), int64
        The ranking of each draw. The first rows do not depend on ``n_draws``; ``redundancy``
        changes the ranking, not the draws.

    Notes
    -----
    Every order of the features that are not constant is as likely as any other. Cost: one pass
    over X, to find the constant ones.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from bigfs import RandomSelection
    >>> RandomSelection(n_features_to_select=2, n_draws=3).fit(load_iris().data).draws_.shape
    (3, 4)
    """

    n_draws: int = 10
