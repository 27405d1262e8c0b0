"""The estimators of MaxVariance and RandomSelection."""

from __future__ import annotations

from bigfs.core.memory import DEFAULT_MEMORY_LIMIT
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
        redundancy: float | None = None,
        verbose: int = 1,
    ) -> None:
        self._keep(locals())


class RandomSelection(BaseSelector):
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
        The ranking of each draw. The first rows do not depend on ``n_draws``.

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

    def __init__(
        self,
        n_features_to_select: NumberOfFeatures = None,
        *,
        n_draws: int = 10,
        preprocess: str = "auto",
        missing: str = "error",
        redundancy: float | None = None,
        random_state: int | None = 0,
        memory_limit: int | str = DEFAULT_MEMORY_LIMIT,
        verbose: int = 1,
    ) -> None:
        self._keep(locals())
