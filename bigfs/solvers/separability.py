"""Separability of clusters in feature subsets, from counts, means and covariances.

Implements the criteria of localized feature selection (Li, Dong, Hua 2008) and of the global method
it builds on (Dy, Brodley 2004). Leading axes are batches, such as candidates or jackknife
replicates.
"""

from __future__ import annotations

import numpy as np

# A correlation matrix whose smallest squared pivot is below this is considered singular.
SINGULAR_PIVOT = 1e-10
# A variance of at most this share of the squared mean is the rounding error of equal values.
ROUNDING = 1e-12
# Decimals to which log ratios and evidences are rounded: candidates often differ only by rounding.
DIGITS = 8
# Lower bound of a feature's variance within a cluster, as a share of its total variance.
_VARIANCE_FLOOR = 1e-4


def covariance(counts: np.ndarray, sums: np.ndarray, products: np.ndarray) -> np.ndarray:
    """Return covariances (divisor n) of shape (..., d, d) from counts, sums and products.

    The variance of equal values is set to exactly zero, without rounding errors.
    """
    n = np.maximum(np.asarray(counts, dtype=np.float64), 1)[..., None]
    mean = sums / n
    within = products / n[..., None] - mean[..., :, None] * mean[..., None, :]
    variances = np.einsum("...ii->...i", within)  # a view
    variances[variances <= ROUNDING * mean**2] = 0.0
    return within


def variance(counts: np.ndarray, sums: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """Return the diagonals of `covariance`, shape (..., d), from sums of squares."""
    n = np.maximum(np.asarray(counts, dtype=np.float64), 1)[..., None]
    mean = sums / n
    variances = squares / n - mean**2
    return np.where(variances <= ROUNDING * mean**2, 0.0, variances)


def is_singular(within: np.ndarray, count: float, subset: np.ndarray) -> bool:
    """Return True if a covariance of ``count`` rows is singular or nearly singular in a subset.

    For several covariances, of shape (..., d, d), return True if any of them is.
    """
    from scipy.linalg.lapack import dpstrf

    within = within[..., subset[:, None], subset]
    variances = np.diagonal(within, axis1=-2, axis2=-1)
    if count <= len(subset) or not (variances > 0).all():
        return True
    scale = 1 / np.sqrt(variances)
    matrices = (within * scale[..., :, None] * scale[..., None, :]).reshape(-1, *within.shape[-2:])
    # With pivoting, the last pivot is almost as small as the smallest eigenvalue.
    return any(dpstrf(matrix, tol=SINGULAR_PIVOT)[2] < len(subset) for matrix in matrices)


def log_separability(
    counts: np.ndarray, means: np.ndarray, within: np.ndarray, subset: np.ndarray
) -> np.ndarray:
    """Return ``log tr(S_w^-1 S_b)``, eq. (7), or ``log(tr S_b / tr S_w)``, eq. (5), in a subset.

    Parameters
    ----------
    counts : ndarray of shape (..., n_clusters)
        Row counts. The weights ``pi_i`` are counts divided by their sum, as clusters may overlap.
    means : ndarray of shape (..., n_clusters, n_features)
    within : ndarray of shape (..., n_features, n_features) or (..., n_features)
        Covariance S_w of a cluster, or the pooled covariance; or its diagonal, in which case traces
        are used. It has the same leading axes as ``means``.
    subset : ndarray of shape (..., n_features), bool
        Mask of the features; it may have leading axes of its own.

    Returns
    -------
    values : ndarray of shape (...,)
        NaN if the cluster has no variance in the subset, -inf if all means are equal.
    """
    share = counts / counts.sum(axis=-1, keepdims=True)
    away = means - (share[..., None] * means).sum(axis=-2, keepdims=True)
    away = away * subset[..., None, :]
    with np.errstate(divide="ignore", invalid="ignore"):
        if within.ndim < means.ndim:
            extent = (within * subset).sum(axis=-1)
            between = (share[..., None] * away**2).sum(axis=(-2, -1))
            return np.asarray(np.log(between / np.where(extent > 0, extent, np.nan)))
        # Features outside the subset are decoupled from those in it.
        inner = np.where(subset[..., :, None] & subset[..., None, :], within, 0.0)
        inner = inner + ~subset[..., None] * np.eye(subset.shape[-1])
        try:
            solved = np.linalg.solve(inner, np.swapaxes(away, -1, -2))
        except np.linalg.LinAlgError:  # a jackknife replicate may be singular
            return np.full(inner.shape[:-2], np.nan)
        traces = (np.swapaxes(away, -1, -2) * solved).sum(axis=-2)
        return np.asarray(np.log((share * traces).sum(axis=-1)))


def feature_separability(
    counts: np.ndarray, means: np.ndarray, variances: np.ndarray
) -> np.ndarray:
    """Return the ratio of the variance between clusters to that within, for each feature alone.

    Parameters
    ----------
    counts : ndarray of shape (n_clusters,)
    means : ndarray of shape (n_clusters, n_features)
        Cluster means, relative to the origin of the data.
    variances : ndarray of shape (n_features,)
        Variances within the cluster of interest, or pooled.
    """
    share = counts / counts.sum()
    between = share @ (means - share @ means) ** 2
    # Equal means may differ by rounding errors.
    between[between <= ROUNDING * (share @ means**2)] = 0.0
    # If there is no variance within, the ratio is large but finite.
    within = np.maximum(variances, ROUNDING * between)
    return np.divide(between, within, out=np.zeros_like(between), where=within > 0)


def overlap_measure(shared: np.ndarray) -> np.ndarray:
    """Return O of eq. (15) over ordered pairs, shape (...,).

    Parameters
    ----------
    shared : ndarray of shape (..., n_clusters, n_clusters)
        Numbers of rows that two clusters share, with the cluster sizes on the diagonal.
    """
    sizes = np.diagonal(shared, axis1=-2, axis2=-1)
    mean = (sizes[..., :, None] + sizes[..., None, :]) / 2
    share = np.divide(shared, mean, out=np.zeros_like(mean), where=mean > 0)
    return np.asarray(share.sum(axis=(-2, -1)) - np.trace(share, axis1=-2, axis2=-1))


def without_each(parts: np.ndarray) -> np.ndarray:
    """Return the totals without each part in turn, along the first axis.

    The other parts are summed: subtracting a part from the total would cause cancellation.
    """
    totals = np.zeros_like(parts)
    np.cumsum(parts[:-1], axis=0, out=totals[1:])
    totals[:-1] += np.cumsum(parts[:0:-1], axis=0)[::-1]
    return totals


def jackknife_error(replicates: np.ndarray) -> float:
    """Return the delete-a-group jackknife standard error; NaN if a replicate is not finite."""
    if not np.isfinite(replicates).all():
        return float("nan")
    n_groups = len(replicates)
    spread = float(((replicates - replicates.mean()) ** 2).sum())
    return float(np.sqrt((n_groups - 1) / n_groups * spread))


def tells_cluster(
    counts: np.ndarray, means: np.ndarray, variances: np.ndarray, total: np.ndarray, n: float
) -> np.ndarray:
    """Return the features in which a cluster's normal distribution differs from that of all rows.

    Distributions differ if BIC prefers separate means and variances.

    Parameters
    ----------
    counts : ndarray of shape (n_clusters,)
    means, variances : ndarray of shape (n_clusters, n_features)
        Means of the clusters relative to the mean of all rows, and their variances.
    total : ndarray of shape (n_features,)
        Variances of all rows.
    n : float
        Number of all rows.

    Returns
    -------
    tells : ndarray of shape (n_clusters, n_features), bool
    """
    varies = total > 0  # constant features are never informative
    total = np.where(varies, total, 1.0)
    within = np.where(varies, np.maximum(variances, _VARIANCE_FLOOR * total), 1.0)
    gain = counts[:, None] / 2 * (np.log(total / within) + (within + means**2) / total - 1)
    return np.asarray(gain > np.log(n))  # the BIC penalty of two parameters


def evidence(
    counts: np.ndarray, variances: np.ndarray, total: np.ndarray, subsets: np.ndarray
) -> float:
    """Return the evidence for a localized clustering compared with no clusters (BIC), in nats.

    This is the log-likelihood of each row under the normal distribution of its cluster, in the
    features that the cluster keeps, minus that under the distribution of all rows in these
    features, minus the penalties for the labels and for the parameters. It can compare solutions
    whose clusters keep different numbers of features.

    Parameters
    ----------
    counts : ndarray of shape (n_clusters,)
        Number of rows of each label.
    variances : ndarray of shape (n_clusters, n_features)
        Variances within each label.
    total : ndarray of shape (n_features,)
        Variances of all rows.
    subsets : ndarray of shape (n_clusters, n_features), bool
        Features that each cluster keeps.

    Returns
    -------
    evidence : float
        -inf if a label has fewer than two rows.
    """
    n, value = counts.sum(), 0.0
    for count, variance, subset in zip(counts, variances, subsets, strict=True):
        if count < 2:
            return -np.inf
        kept = np.maximum(variance[subset], _VARIANCE_FLOOR * total[subset])
        value += count * (0.5 * np.log(total[subset] / kept).sum() + np.log(count / n))
    return float(value - subsets.sum() * np.log(n))
