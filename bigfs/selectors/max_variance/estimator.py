"""The estimator of MaxVariance."""

from __future__ import annotations

from bigfs.selectors.base import BaseSelector, NumberOfFeatures


class MaxVariance(BaseSelector):
    """Keep the features of largest variance.

    Parameters
    ----------
    n_features_to_select : int, "auto", dict or None, default=None
        How many features to keep; None keeps half of them, "auto"
        as many as a curve says; a dict says which curve, as in a pipeline.
    preprocess : {"auto", "none", "standardize", "rescale", "minmax", "unit_norm", "log1p", \
"normalize_total", "normalize_log1p"}, default="auto"
        Applied while reading.
    missing : {"error", "mean", "zero", "drop_rows"}, default="error"
        NaN: refused with its place, replaced by the mean of its feature or by zero, or its row
        left out. `transform` keeps NaN.
    verbose : int, default=1
        Progress is shown after two seconds; 0: none.

    Attributes
    ----------
    scores_ : ndarray of shape (n_features,), float64
        Variance of each feature, divisor n.
    row_mask_ : ndarray of shape (n_rows,), bool
        Only with ``missing="drop_rows"``, or of data that were opened or stored without some rows:
        which were used.
    ranking_ : ndarray of shape (n_features,), int64
        Feature indices, best first; ties go to the lower index, constant features come last.

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
