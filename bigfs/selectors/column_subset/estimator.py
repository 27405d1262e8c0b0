"""The estimator of ColumnSubset, and what it shares with PivotedQR."""

from __future__ import annotations

from bigfs.core.memory import DEFAULT_MEMORY_LIMIT
from bigfs.selectors.base import BaseSelector, NumberOfFeatures


class PickingSelector(BaseSelector):
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

    Cost: one pass, then ``O(n_features^2)`` a pick on the client. Wide data, whose Gram matrix does
    not fit, are sketched: every row is added with random signs to eight of ``max(4
    n_features_to_select, 1000)`` rows, in one pass, and the picks are those of the sketch. They
    explain about as much as the exact ones (50 of USPS 81.6 % of the variance instead of 81.5, of
    5,000 x 2,000 made values 89.0 instead of 89.2), but are largely others. What they explain is
    measured by a second pass. Data of fewer rows than that are not sketched, and exact.

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

    def __init__(
        self,
        n_features_to_select: NumberOfFeatures = None,
        *,
        preprocess: str = "auto",
        missing: str = "error",
        random_state: int | None = 0,
        memory_limit: int | str = DEFAULT_MEMORY_LIMIT,
        verbose: int = 1,
    ) -> None:
        self._keep(locals())
