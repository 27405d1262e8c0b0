"""The estimators that pick one feature after the other."""

from __future__ import annotations

from bigfs.selectors.base import SeededSelector


class PickingSelector(SeededSelector):
    """Base of the selectors that pick one feature after the other.

    Parameters
    ----------
    preprocess : {"auto", "none", "standardize", "rescale", "minmax", "unit_norm", "log1p", \
"normalize_total", "normalize_log1p"}, default="auto"
        Applied while reading. Columns are centered afterwards.
    random_state : int or None, default=0
        Seed of the sketch of wide data; nothing else is random.

    Raises
    ------
    InputError
        If the data or a parameter cannot be used.
    MemoryLimitError
        If not even a sketch fits ``memory_limit``.
    """


class ColumnSubset(PickingSelector):
    """Keep the features from which all others can be computed best, by linear regression.

    Greedy column subset selection: each pick is the feature that explains most of what those
    before it leave of the data. It needs neither a graph nor clusters, and one pass. The unit of
    the features counts: bring them to one scale where they have several.

    Attributes
    ----------
    scores_ : ndarray of shape (n_features,), float64
        Share of the variance that each pick explained beyond those before it, or that of the pick
        before it where that is less; of the others what they would still add. Decreases along
        `ranking_`.
    ranking_ : ndarray of shape (n_features,), int64
        Picks in their order, then the others by what they would still add; ties go to the lower
        index, constant features come last.
    explained_variance_ratio_ : ndarray of shape (n_picks,), float64
        Share of the variance of all features that each pick explained beyond those before it;
        summed up, that of each number of features. Fewer than ``n_features_to_select`` where
        these explain everything.
    n_sketch_rows_ : int
        Rows of the sketch of wide data; 0: none was needed, and the picks are exact.

    See Also
    --------
    PivotedQR : Picks the feature of largest residual norm.

    Notes
    -----
    Minimizes ``|X - P_S X|_F^2`` over the next feature of S, with X centered and ``P_S`` the
    projection on the columns S [1]_, [2]_. With ``E = X - P_S X`` the pick is the largest
    ``|E'E_j|^2 / |E_j|^2``, from the Gram matrix alone; `bigfs.solvers.greedy` has the recursion.
    The path is nested: ``support(m)`` is what a fit with m features would select, for every m up
    to ``n_features_to_select``.

    Cost: one pass, then ``O(n_features^2)`` a pick on the client, by products of matrices for
    groups of picks. Data of fewer rows than features, where these fit, are held as they are, as CSR
    if they are mostly zeros: a pick takes two products with them. Other wide data, whose Gram
    matrix does not fit, are sketched: every row is added with random signs to eight of ``max(4
    n_features_to_select, 1000)`` rows, in one pass, and the picks are those of the sketch. They
    explain about as much as the exact ones (50 of USPS 81.6 % of the variance instead of 81.5, of
    5,000 x 2,000 made values 89.0 instead of 89.2), but are largely others. What they explain is
    measured by a second pass.

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
    """Keep the features that are farthest from what those before them span.

    QR decomposition with column pivoting of the centered data, or of the loadings of their
    leading principal components: then the picks are where sensors are placed best to reconstruct
    these components. It needs neither a graph nor clusters, and one pass. The unit of the
    features counts: bring them to one scale where they have several.

    Parameters
    ----------
    n_components : int or None, default=None
        Leading principal components whose loadings are decomposed instead of the data. There are
        no more picks than components: what follows them is in the order of the index.

    Attributes
    ----------
    scores_ : ndarray of shape (n_features,), float64
        Squared residual norm of each pick when it was picked, of the others after the last pick, as
        shares of the sum of all squared norms. Decreases along `ranking_`.
    ranking_ : ndarray of shape (n_features,), int64
        Picks in their order, then the others by their residual norm; ties go to the lower index,
        constant features come last.
    pivots_ : ndarray of shape (n_certain,), float64
        Residual norm of each pick: the absolute diagonal of R. (Of a sketch, about that.)
    n_certain_ : int
        Picks whose order is certain: those with a squared pivot above 1e-13 of the first. Behind
        them the order would be that of rounding errors, and the path ends.
    n_sketch_rows_ : int
        Rows of the sketch of wide data; 0: none was needed, and the picks are exact.

    See Also
    --------
    ColumnSubset : Picks the feature that explains most of all others.

    Notes
    -----
    The algorithm of [1]_: each pick is the column of largest norm after projection on the
    complement of those before it. It runs as pivoted Cholesky of ``X'X`` (X centered),
    whose pivots are squares: those of LAPACK's ``geqp3`` on X, as far as `n_certain_`. With
    ``n_components`` p the decomposed matrix is ``V'``, with V the p leading eigenvectors of ``X'X``
    as columns [2]_. The path is nested: ``support(m)`` is what a fit with m features would select,
    for every m up to ``n_features_to_select``.

    Cost: one pass, then ``O(n_features n_picks)`` a pick on the client. Wide data, whose Gram
    matrix does not fit, are sketched as by `ColumnSubset`.

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
