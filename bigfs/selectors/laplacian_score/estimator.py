"""The estimator of LaplacianScore."""

from __future__ import annotations

from bigfs.core.memory import DEFAULT_MEMORY_LIMIT
from bigfs.selectors.base import BaseSelector, NumberOfFeatures


class LaplacianScore(BaseSelector):
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

    def __init__(
        self,
        n_features_to_select: NumberOfFeatures = None,
        *,
        n_neighbors: int = 5,
        weight: str = "binary",
        sigma: float | str | None = None,
        metric: str = "euclidean",
        representation: str = "auto",
        preprocess: str = "auto",
        missing: str = "error",
        random_state: int | None = 0,
        memory_limit: int | str = DEFAULT_MEMORY_LIMIT,
        verbose: int = 1,
    ) -> None:
        self._keep(locals())
