"""The estimator of MaxVariance."""

from __future__ import annotations

from bigfs.selectors.base import BaseSelector, NumberOfFeatures


class MaxVariance(BaseSelector):
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

    def __init__(
        self,
        n_features_to_select: NumberOfFeatures = None,
        *,
        preprocess: str = "auto",
        missing: str = "error",
        verbose: int = 1,
    ) -> None:
        self._keep(locals())
