"""The estimator of LaplacianScore."""

from __future__ import annotations

from bigfs.core.memory import DEFAULT_MEMORY_LIMIT
from bigfs.selectors.base import BaseSelector, NumberOfFeatures


class LaplacianScore(BaseSelector):
    """Keep the features that are smoothest on the neighbor graph.

    Parameters
    ----------
    n_features_to_select : int, "auto", dict or None, default=None
        How many features to keep; None keeps half of them, "auto"
        as many as a curve says; a dict says which curve, as in a pipeline.
    n_neighbors : int, default=5
        Neighbors of each row in the graph.
    weight : {"binary", "heat", "dot", "cosine"}, default="binary"
        Weights of the graph's edges.
    sigma : float, "median" or None, default=None
        Heat-kernel width in ``exp(-|x_i - x_j|^2 / sigma)``, at least 1e-6. None: each edge its
        own, ``max(s_i, s_j)^2`` with s the distance to the last neighbor.
    metric : {"euclidean", "cosine", "correlation"}, default="euclidean"
        Distance between rows.
    preprocess : {"auto", "none", "standardize", "rescale", "minmax", "unit_norm", "log1p", \
"normalize_total", "normalize_log1p"}, default="auto"
        Applied while reading.
    missing : {"error", "mean", "zero", "drop_rows"}, default="error"
        NaN: refused with its place, replaced by the mean of its feature or by zero, or its row
        left out. `transform` keeps NaN.
    random_state : int or None, default=0
        Seed of everything random.
    memory_limit : int or str, default="4 GiB"
        Resident size promised for one worker process.
    verbose : int, default=1
        Progress is shown after two seconds; 0: none.

    Attributes
    ----------
    scores_ : ndarray of shape (n_features,), float64
        The Laplacian score, negated: larger is better. Constant features get the lowest.
    row_mask_ : ndarray of shape (n_rows,), bool
        Only with ``missing="drop_rows"``, or of data that were opened or stored without some rows:
        which were used.
    ranking_ : ndarray of shape (n_features,), int64
        Feature indices, best first; ties go to the lower index, constant features come last.

    Notes
    -----
    Implements the score of section 3 of [1]_, ``f'Lf / f'Df`` after removing the D-weighted
    mean, with ``f'Lf`` summed as ``w_ij (f_i - f_j)^2`` over edges. Cost beyond the graph: each
    block is read once, and again by the blocks that have edges into it.

    References
    ----------
    .. [1] X. He, D. Cai, P. Niyogi, "Laplacian score for feature selection", NIPS 18, 2005.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from bigfs import LaplacianScore
    >>> LaplacianScore(n_features_to_select=2).fit_transform(load_iris().data).shape
    (150, 2)
    """

    def __init__(
        self,
        n_features_to_select: NumberOfFeatures = None,
        *,
        n_neighbors: int = 5,
        weight: str = "binary",
        sigma: float | str | None = None,
        metric: str = "euclidean",
        preprocess: str = "auto",
        missing: str = "error",
        random_state: int | None = 0,
        memory_limit: int | str = DEFAULT_MEMORY_LIMIT,
        verbose: int = 1,
    ) -> None:
        self._keep(locals())
