"""The estimator of HighlyVariable."""

from __future__ import annotations

from typing import Any

from bigfs.selectors.base import MethodSelector


class HighlyVariable(MethodSelector):
    """Keep the features of count data that vary more than others with the same mean.

    Expects raw counts, such as cells by genes, dense or sparse, not normalized or centered
    values. Sparse data stay sparse.

    Parameters
    ----------
    n_features_to_select : int, "auto", dict or None, default=None
        m, the number of features to keep. None keeps half of them; "auto" chooses the number
        from a curve; a dict selects the curve, as in a pipeline.
    flavor : {"seurat_v3", "seurat_v3_paper", "deviance"}, default="seurat_v3"
        "seurat_v3": variance of the clipped values over that of a trend [1]_; batches are
        combined by median rank. "seurat_v3_paper": the same scores; batches are combined by the
        number in which a feature is among the m best, then by median rank. "deviance": deviance
        of the counts from a constant share of each row's total [2]_.
    batch_key : array-like of shape (n_samples,), str or None, default=None
        Batch of each row, or a file of labels; batches are scored separately. None: one batch.
    preprocess : {"auto", "none", "standardize", "rescale", "minmax", "unit_norm", "log1p", \
"normalize_total", "normalize_log1p"}, default="auto"
        Applied while reading; keep the default, because the method needs raw counts.

    Attributes
    ----------
    scores_ : ndarray of shape (n_features,), float64
        Mean over batches of the standardized variance, or sum over batches of the deviance.
    ranking_ : ndarray of shape (n_features,), int64
        Feature indices, best first; constant features come last. With batches, only ranks below
        m enter, so that another number of features needs a separate fit. Ties within a batch
        are ordered by NumPy's default sort, as in scanpy; their order depends on the type of
        processor.
    means_, variances_ : ndarray of shape (n_features,), float64
        Means and variances over all rows; variances have divisor n - 1.
    n_batches_ : ndarray of shape (n_features,), int64
        Number of batches in which a feature is among the m best (not with "deviance").

    Raises
    ------
    InputError
        If a value is negative, a batch is too small to fit a trend, or scikit-misc, whose loess
        fits the trend, is not installed (``pip install 'bigfs[anndata]'``; "deviance" does not
        need it).

    Notes
    -----
    With N rows, mean mu_j and variance s_j^2 (divisor N - 1), the trend is a local quadratic
    regression (span 0.3) of log10 s_j^2 on log10 mu_j over the features that vary, and sigma_j
    is the standard deviation that it predicts. The score is
    ``sum_i (min(x_ij, mu_j + sigma_j sqrt(N)) - mu_j)^2 / ((N - 1) sigma_j^2)``, as in Seurat 3
    and in scanpy; 0 for constant features.

    The deviance is ``2 [sum_i x log(x/n_i) + (n_i - x) log((n_i - x)/n_i)] - 2 [c log p +
    (T - c) log(1 - p)]``, where n_i is the total of row i, c the total of the feature, T the
    total of all values, and p = c/T.

    Cost: one or two passes over X; one for "deviance".

    References
    ----------
    .. [1] T. Stuart et al., "Comprehensive integration of single-cell data", Cell 177, 2019,
       doi:10.1016/j.cell.2019.05.031.
    .. [2] F. W. Townes, S. C. Hicks, M. J. Aryee, R. A. Irizarry, "Feature selection and
       dimension reduction for single-cell RNA-Seq based on a multinomial model", Genome Biology
       20, 2019, doi:10.1186/s13059-019-1861-6.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from bigfs import HighlyVariable
    >>> selector = HighlyVariable(n_features_to_select=3, flavor="deviance")
    >>> selector.fit(load_digits().data).ranking_[:3]
    array([42, 43, 34])
    """

    flavor: str = "seurat_v3"
    batch_key: Any = None

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn that values must not be negative."""
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        return tags
