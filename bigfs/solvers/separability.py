"""Separability of a cluster in a feature subset, from counts, means and covariances.

The criteria of localized feature selection (Li, Dong, Hua 2008) and of the global one they start
from (Dy, Brodley 2004). Projecting on a subset is slicing; leading axes are batches, such as the
replicates of a jackknife.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg.blas import dsymm
from scipy.linalg.lapack import dpotrf, dpotri, dpstrf

# A correlation matrix whose smallest squared pivot is below this counts as singular.
SINGULAR_PIVOT = 1e-10
# Where the other features leave at least this share of every variance unexplained, a covariance is
# far from singular, and its inverse has more digits than count.
CLEAR = 1e-6
# A variance below this share of the mean square is what rounding leaves of equal values.
ROUNDING = 1e-12
# Digits of a log ratio or of evidence that count: candidates often are equal but for rounding.
DIGITS = 8
# A feature's variance in a cluster is not taken for smaller than this share of its total one.
_VARIANCE_FLOOR = 1e-4


@dataclass
class ClusterSums:
    """Sufficient statistics of k clusters, about a common origin; overlaps are allowed."""

    counts: np.ndarray  # of shape (n_clusters,), float64
    sums: np.ndarray  # of shape (n_clusters, n_features), float64
    # Of shape (n_clusters, n_features, n_features), float64: sums of ``x x'``; of rows in memory
    # (n_clusters, n_features): sums of squares.
    products: np.ndarray

    @property
    def means(self) -> np.ndarray:
        """Means, shape (n_clusters, n_features); those of empty clusters are the origin."""
        return self.sums / np.maximum(self.counts, 1)[:, None]

    @property
    def variances(self) -> np.ndarray:
        """Variances (divisor n), shape (n_clusters, n_features)."""
        single = self.products.ndim == 2
        squares = self.products if single else np.diagonal(self.products, axis1=1, axis2=2)
        return variance(self.counts, self.sums, squares)


def covariance(counts: np.ndarray, sums: np.ndarray, products: np.ndarray) -> np.ndarray:
    """Return covariances (divisor n) of shape (..., d, d) from counts, sums and products.

    The variance of equal values is zero, whatever rounding leaves of it.
    """
    n = np.maximum(np.asarray(counts, dtype=np.float64), 1)[..., None]
    mean = sums / n
    within = products / n[..., None] - mean[..., :, None] * mean[..., None, :]
    variance = np.einsum("...ii->...i", within)  # a view
    variance[variance <= ROUNDING * mean**2] = 0.0
    return within


def variance(counts: np.ndarray, sums: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """Return the diagonals of `covariance`, shape (..., d), from sums of squares."""
    n = np.maximum(np.asarray(counts, dtype=np.float64), 1)[..., None]
    mean = sums / n
    variances = squares / n - mean**2
    return np.where(variances <= ROUNDING * mean**2, 0.0, variances)


def is_singular(within: np.ndarray, count: float, subset: np.ndarray) -> bool:
    """Say whether a covariance of so many rows is singular in a subset, or too near to be.

    Of several covariances, shape (..., d, d): whether any of them is.
    """
    within = within[..., subset[:, None], subset]
    variance = np.diagonal(within, axis1=-2, axis2=-1)
    if count <= len(subset) or not (variance > 0).all():
        return True
    scale = 1 / np.sqrt(variance)
    matrices = (within * scale[..., :, None] * scale[..., None, :]).reshape(-1, *within.shape[-2:])
    # The largest pivot first: the last one is then as small as the least eigenvalue, nearly.
    return any(dpstrf(matrix, tol=SINGULAR_PIVOT)[2] < len(subset) for matrix in matrices)


def log_separability(
    counts: np.ndarray, means: np.ndarray, within: np.ndarray, use_trace: bool
) -> np.ndarray:
    """Return ``log tr(S_w^-1 S_b)``, eq. (7), or ``log(tr S_b / tr S_w)``, eq. (5).

    Parameters
    ----------
    counts : ndarray of shape (..., n_clusters)
        Weights ``pi_i`` are counts divided by their sum: clusters may overlap.
    means : ndarray of shape (..., n_clusters, n_subset)
        In the subset.
    within : ndarray of shape (..., n_subset, n_subset); with traces (..., n_subset)
        Covariance of the cluster that is looked at, or the pooled one; with traces its diagonal.
    use_trace : bool
        Use the ratio of traces.

    Returns
    -------
    value : ndarray of shape (...,)
        NaN where the cluster has no extent in the subset, -inf where all means are equal.
    """
    share = counts / counts.sum(axis=-1, keepdims=True)
    away = means - (share[..., None] * means).sum(axis=-2, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        if use_trace:
            extent = within.sum(axis=-1)
            between = (share[..., None] * away**2).sum(axis=(-2, -1))
            return np.log(between / np.where(extent > 0, extent, np.nan))
        columns = np.swapaxes(away, -1, -2)
        try:
            solved = np.linalg.solve(within, columns)
        except np.linalg.LinAlgError:  # a jackknife replicate may be singular where all is not
            return np.full(share.shape[:-1], np.nan)
        return np.log((share * (columns * solved).sum(axis=-2)).sum(axis=-1))


def log_separability_without_each(
    counts: np.ndarray, means: np.ndarray, within: np.ndarray
) -> tuple[float, np.ndarray] | None:
    """Return the log of eq. (7) in a subset, and without each feature in turn, by one inverse.

    Parameters
    ----------
    counts, means, within
        As in `log_separability`, of one cluster.

    Returns
    -------
    logs : tuple of (float, ndarray of shape (n_subset,)) or None
        None where the covariance is singular, or so near to it that digits are lost.
    """
    variances = within.diagonal()
    if not (variances > 0).all():
        return None
    scale = 1 / np.sqrt(variances)
    factor, failed = dpotrf((within * scale * scale[:, None]).T, overwrite_a=True)
    if failed:
        return None
    inverse, failed = dpotri(factor, overwrite_c=True)
    own = inverse.diagonal()
    # The share of a feature's variance that the others do not explain is one over it.
    if failed or not (own <= 1 / CLEAR).all():
        return None
    share = counts / counts.sum()
    away = (means - share @ means) * scale
    solved = dsymm(1.0, inverse, away.T).T
    value = float(share @ (away * solved).sum(axis=1))
    rest = value - share @ solved**2 / own
    if not (value > 0 and (rest > CLEAR * value).all()):
        return None
    return float(np.log(value)), np.log(rest)


def feature_separability(
    counts: np.ndarray, means: np.ndarray, variances: np.ndarray
) -> np.ndarray:
    """Return the variance between clusters over that within, of each feature alone.

    Parameters
    ----------
    counts : ndarray of shape (n_clusters,)
    means : ndarray of shape (n_clusters, n_features)
        About the data's origin.
    variances : ndarray of shape (n_features,)
        Within the cluster that is looked at, or pooled.
    """
    share = counts / counts.sum()
    between = share @ (means - share @ means) ** 2
    # Equal means differ by rounding.
    between[between <= ROUNDING * (share @ means**2)] = 0.0
    # Where nothing varies within, all that is between counts.
    within = np.maximum(variances, ROUNDING * between)
    return np.divide(between, within, out=np.zeros_like(between), where=within > 0)


def pair_separability(
    counts: np.ndarray,
    means: np.ndarray,
    within: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    use_trace: bool,
) -> np.ndarray:
    """Return the log of NV, eqs. (13) and (14): the criterion on two subsets, multiplied.

    Parameters
    ----------
    counts, means, within
        As in `log_separability`, over all features.
    first, second : ndarray of int
        Indices of the features of the two subsets.
    use_trace : bool
    """
    total = np.zeros(counts.shape[:-1])
    for subset in (first, second):
        if use_trace:
            sliced = np.diagonal(within, axis1=-2, axis2=-1)[..., subset]
        else:
            sliced = within[..., subset[:, None], subset]
        total = total + log_separability(counts, means[..., subset], sliced, use_trace)
    return total


def overlap_measure(shared: np.ndarray) -> np.ndarray:
    """Return O of eq. (15) over ordered pairs, shape (...,).

    Parameters
    ----------
    shared : ndarray of shape (..., n_clusters, n_clusters)
        Rows that two clusters share; sizes on the diagonal.
    """
    sizes = np.diagonal(shared, axis1=-2, axis2=-1)
    mean = (sizes[..., :, None] + sizes[..., None, :]) / 2
    share = np.divide(shared, mean, out=np.zeros_like(mean), where=mean > 0)
    return np.asarray(share.sum(axis=(-2, -1)) - np.trace(share, axis1=-2, axis2=-1))


def without_each(parts: np.ndarray) -> np.ndarray:
    """Return the totals without each part in turn, along the first axis.

    The others are added up: taking a part from the total would leave rounding where nothing is.
    """
    totals = np.zeros_like(parts)
    np.cumsum(parts[:-1], axis=0, out=totals[1:])
    totals[:-1] += np.cumsum(parts[:0:-1], axis=0)[::-1]
    return totals


def jackknife_error(replicates: np.ndarray) -> float:
    """Return the delete-a-group jackknife standard error of replicates of shape (n_groups,)."""
    n_groups = len(replicates)
    spread = float(((replicates - replicates.mean()) ** 2).sum())
    return float(np.sqrt((n_groups - 1) / n_groups * spread))


def tells_cluster(
    count: float, means: np.ndarray, variances: np.ndarray, total: np.ndarray, n: float
) -> np.ndarray:
    """Say of features whether a cluster's rows have another normal law than all rows (BIC).

    Parameters
    ----------
    count : float
        Rows of the cluster.
    means, variances : ndarray of shape (n_some,)
        Of the cluster, about the mean of all rows.
    total : ndarray of shape (n_some,)
        Variances of all rows.
    n : float
        All rows.
    """
    varies = total > 0  # a constant feature tells nothing
    total = np.where(varies, total, 1.0)
    within = np.where(varies, np.maximum(variances, _VARIANCE_FLOOR * total), 1.0)
    gain = count / 2 * (np.log(total / within) + (within + means**2) / total - 1)
    return np.asarray(gain > np.log(n))  # two parameters


def evidence(
    counts: np.ndarray, variances: np.ndarray, total: np.ndarray, subsets: np.ndarray
) -> float:
    """Return how much better a localized clustering describes the rows than no clusters do.

    The log likelihood of each row under its cluster's own normal law in the features the cluster
    keeps, against the law of all rows in them, less the price of the labels and of the parameters
    (BIC). It compares solutions whose clusters keep different numbers of features.

    Parameters
    ----------
    counts : ndarray of shape (n_clusters,)
        Rows of each label.
    variances : ndarray of shape (n_clusters, n_features)
        Within each label.
    total : ndarray of shape (n_features,)
        Variances of all rows.
    subsets : ndarray of shape (n_clusters, n_features), bool
    """
    n, value = counts.sum(), 0.0
    for count, variance, subset in zip(counts, variances, subsets, strict=True):
        if count < 2:
            return -np.inf
        kept = np.maximum(variance[subset], _VARIANCE_FLOOR * total[subset])
        value += count * (0.5 * np.log(total[subset] / kept).sum() + np.log(count / n))
    return float(value - subsets.sum() * np.log(n))
