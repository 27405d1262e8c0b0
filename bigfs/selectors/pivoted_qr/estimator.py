"""The estimator of PivotedQR."""

from __future__ import annotations

from bigfs.core.memory import DEFAULT_MEMORY_LIMIT
from bigfs.selectors.base import NumberOfFeatures
from bigfs.selectors.column_subset.estimator import PickingSelector


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

    def __init__(
        self,
        n_features_to_select: NumberOfFeatures = None,
        *,
        n_components: int | None = None,
        preprocess: str = "auto",
        missing: str = "error",
        random_state: int | None = 0,
        memory_limit: int | str = DEFAULT_MEMORY_LIMIT,
        verbose: int = 1,
    ) -> None:
        self._keep(locals())
