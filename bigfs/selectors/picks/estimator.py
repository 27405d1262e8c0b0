"""The estimators of the greedy methods ColumnSubset and PivotedQR."""

from __future__ import annotations

from bigfs.selectors.base import SeededSelector


class PickingSelector(SeededSelector):
    """Base of the selectors that pick one feature at a time.

    Parameters
    ----------
    preprocess : {"auto", "none", "standardize", "rescale", "minmax", "unit_norm", "log1p", \
"normalize_total", "normalize_log1p"}, default="auto"
        Applied while reading. Columns are centered afterwards.
    random_state : int or None, default=0
        Seed of the sketch that is used for wide data; nothing else is random.

    Raises
    ------
    InputError
        If the data or a parameter cannot be used.
    MemoryLimitError
        If even a sketch does not fit in ``memory_limit``.
    """


class ColumnSubset(PickingSelector):
    """Keep the features that best predict all others by linear regression.

    Greedy column subset selection: each pick is the feature that explains most of the data's
    residual after the previous picks. It needs neither a graph nor clusters, and a single pass.
    The result depends on the units of the features: bring them to a common scale if they differ.

    Attributes
    ----------
    scores_ : ndarray of shape (n_features,), float64
        For a pick, the share of the variance that it explained in addition to the previous picks,
        lowered to the score of the previous pick if that is smaller; for the other features, the
        share that they would still add. Non-increasing along `ranking_`.
    ranking_ : ndarray of shape (n_features,), int64
        Picks in their order, then the other features by the share that they would still add; ties
        go to the lower index, constant features come last.
    explained_variance_ratio_ : ndarray of shape (n_picks,), float64
        Share of the variance of all features that each pick explained in addition to the previous
        ones; the cumulative sum is the share for each number of features. There are fewer than
        ``n_features_to_select`` entries if fewer features explain everything.
    n_sketch_rows_ : int
        Number of rows of the sketch for wide data; 0 if none was needed and the picks are exact.

    See Also
    --------
    PivotedQR : Picks the feature with the largest residual norm.

    Notes
    -----
    Minimizes ``|X - P_S X|_F^2`` over the next feature of S, with X centered and ``P_S`` the
    projection onto the columns S [1]_, [2]_. With ``E = X - P_S X``, the pick is the feature j
    with the largest ``|E'E_j|^2 / |E_j|^2``, which follows from the Gram matrix alone;
    `bigfs.solvers.greedy` describes the recursion. The path is nested: ``support(m)`` equals the
    selection of a fit with m features, for every m up to ``n_features_to_select``.

    Cost: one pass, then ``O(n_features^2)`` per pick on the client, as matrix products for groups
    of picks. If there are fewer rows than features and they fit in memory, the client holds the
    rows, in CSR form if they are mostly zeros: a pick takes two products with them. Other wide
    data, whose Gram matrix does not fit, are sketched: in one pass every row is added with random
    signs to eight of ``max(4 n_features_to_select, 1000)`` rows, and the picks are those of the
    sketch. They explain about as much as the exact picks (50 features of USPS explain 81.6 % of
    the variance instead of 81.5 %, of 5,000 x 2,000 simulated values 89.0 % instead of 89.2 %),
    but are largely different features. The explained variance is measured in a second pass.

    References
    ----------
    .. [1] A. K. Farahat, A. Ghodsi, M. S. Kamel, "An efficient greedy method for unsupervised
       feature selection", ICDM 2011, doi:10.1109/ICDM.2011.22.
    .. [2] L. Puggini, S. McLoone, "Forward selection component analysis: algorithms and
       applications", IEEE Transactions on Pattern Analysis and Machine Intelligence 39, 2017,
       doi:10.1109/TPAMI.2017.2648792.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from bigfs import ColumnSubset
    >>> selector = ColumnSubset(n_features_to_select=2).fit(load_iris().data)
    >>> selector.ranking_
    array([2, 0, 1, 3])
    >>> selector.explained_variance_ratio_.round(3)
    array([0.921, 0.048])
    """


class PivotedQR(PickingSelector):
    """Keep the features that are farthest from the span of the previous picks.

    QR decomposition with column pivoting of the centered data, or of the loadings of their
    leading principal components; in the latter case the picks are good sensor locations for
    reconstructing these components. It needs neither a graph nor clusters, and a single pass.
    The result depends on the units of the features: bring them to a common scale if they differ.

    Parameters
    ----------
    n_components : int or None, default=None
        Number of leading principal components whose loadings are decomposed instead of the data.
        There are at most as many picks as components; the remaining features are ranked by
        index.

    Attributes
    ----------
    scores_ : ndarray of shape (n_features,), float64
        Squared residual norm, of a pick when it was picked, of the other features after the last
        pick, as shares of the sum of all squared norms. Non-increasing along `ranking_`.
    ranking_ : ndarray of shape (n_features,), int64
        Picks in their order, then the other features by their residual norm; ties go to the lower
        index, constant features come last.
    pivots_ : ndarray of shape (n_certain,), float64
        Residual norm of each pick, the absolute diagonal of R; approximate for a sketch.
    n_certain_ : int
        Number of picks whose order is certain: those with a squared pivot above 1e-13 of the
        first. Beyond them rounding errors would determine the order, so the path ends.
    n_sketch_rows_ : int
        Number of rows of the sketch for wide data; 0 if none was needed and the picks are exact.

    See Also
    --------
    ColumnSubset : Picks the feature that explains most of all others.

    Notes
    -----
    Implements the algorithm of [1]_: each pick is the column with the largest norm after
    projection onto the orthogonal complement of the previous picks. It is computed by pivoted
    Cholesky of ``X'X`` (X centered), whose pivots are the squares of those of LAPACK's ``geqp3``
    on X, up to `n_certain_`. With p = ``n_components``, the decomposed matrix is ``V'``, where
    the columns of V are the p leading eigenvectors of ``X'X`` [2]_. The path is nested:
    ``support(m)`` equals the selection of a fit with m features, for every m up to
    ``n_features_to_select``.

    Cost: one pass, then ``O(n_features n_picks)`` per pick on the client. Wide data whose Gram
    matrix does not fit in memory are sketched as in `ColumnSubset`.

    References
    ----------
    .. [1] P. Businger, G. H. Golub, "Linear least squares solutions by Householder
       transformations", Numerische Mathematik 7, 1965, doi:10.1007/BF01436084.
    .. [2] K. Manohar, B. W. Brunton, J. N. Kutz, S. L. Brunton, "Data-driven sparse sensor
       placement for reconstruction", IEEE Control Systems Magazine 38, 2018,
       doi:10.1109/MCS.2018.2810460.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from bigfs import PivotedQR
    >>> PivotedQR(n_features_to_select=2).fit(load_iris().data).ranking_
    array([2, 0, 1, 3])
    """

    n_components: int | None = None
