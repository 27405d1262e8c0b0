"""Comparison of clusterings in GFS-k-means on nested subsets: the first of ordered features.

With T = L L' the correlation of all rows and ``A A'`` its part between clusters, ``S_w = T - A A'``
and ``tr(S_w^-1 S_b) = tr((I - G)^-1 G)``, where G = Y'Y and Y = L^-1 A. The first rows of Y are
those of the first features: one factor and one solution are enough for all of the subsets.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg.lapack import dpotrf, dtrtrs

from bigfs.selectors.gfs_kmeans.compare import ratios_of_traces
from bigfs.selectors.lfs.kernels import Sweep
from bigfs.solvers.separability import DIGITS, SINGULAR_PIVOT

# Returns the covariance of all rows in some features, a new array.
Covariance = Callable[[np.ndarray], np.ndarray]


def log_ratios(
    old: Sweep,
    new: Sweep,
    order: np.ndarray,
    sizes: np.ndarray,
    variances: np.ndarray,
    covariance: Covariance,
) -> np.ndarray:
    """Return the logs of the criterion of new clusters over that of the old ones.

    Clusters are valued in all of the features and in the subset of the new ones, by ratios of
    traces where a covariance within clusters is singular.

    Parameters
    ----------
    old : Sweep
        Of the present clustering.
    new : Sweep
        Of candidates, about the mean of all rows as the old one.
    order : ndarray of shape (n_kept,), int
        The features.
    sizes : ndarray of shape (n_candidates,), int
        A candidate has the first so many of the features.
    variances : ndarray of shape (n_kept,), float64
        Of all rows, in that order.
    covariance : callable
        Not asked where rows are no more than features.

    Returns
    -------
    ratios : ndarray of shape (n_candidates,), float64
        0 of the same clusters; -inf where a criterion is not defined.
    """
    n, scale = old.counts[0].sum(), 1 / np.sqrt(variances)

    def parts(sweep: Sweep) -> np.ndarray:
        """Return A' of clusterings, in units in which every variance is one."""
        weights = np.sqrt(np.maximum(sweep.counts, 1) * n)[:, :, None]
        return np.asarray(sweep.sums[:, :, order] / weights * scale)

    before, after = parts(old)[0], parts(new)
    factor, pivot = _factor(covariance, order, scale) if n > len(order) else (None, 0.0)
    ratios = np.zeros(len(sizes))
    for i, size in enumerate(sizes.tolist()):
        if np.array_equal(new.counts[i], old.counts[0]) and np.array_equal(after[i], before):
            continue
        both, logs = (after[i], before), [np.nan, np.nan]
        if factor is not None:
            logs = [_log_criteria(factor, pivot, A, size) for A in both]
        if np.isnan(logs).any():
            kept = np.arange(len(order)) < size
            units = np.square(1 / scale)
            logs = [ratios_of_traces(A[None] / scale, kept[None], units)[0] for A in both]
        ratios[i] = logs[0] - logs[1]
    known = np.isfinite(ratios)
    return np.where(known, np.round(np.where(known, ratios, 0.0), DIGITS), -np.inf)


def _factor(
    covariance: Covariance, order: np.ndarray, scale: np.ndarray
) -> tuple[np.ndarray | None, float]:
    """Return the lower factor of the correlations and its least squared pivot; None: singular."""
    correlation = covariance(order)
    correlation *= scale
    correlation *= scale[:, None]
    # Of a symmetric matrix the transpose is what LAPACK works on without a copy.
    factor, failed = dpotrf(correlation.T, lower=True, overwrite_a=True)
    if failed:
        return None, 0.0
    return factor, float(np.square(factor.diagonal()).min())


def _log_criteria(factor: np.ndarray, pivot: float, A: np.ndarray, size: int) -> float:
    """Return the logs of the criterion in all features and in the first, added; NaN: singular."""
    Y = dtrtrs(factor, A.T, lower=True)[0]
    total = 0.0
    for rows in (Y, Y[:size]):
        shares = np.linalg.eigvalsh(rows.T @ rows)
        # What the other features and the clusters leave unexplained of a variance.
        if pivot * (1 - shares[-1]) < SINGULAR_PIVOT:
            return np.nan
        total += float(np.log((shares / (1 - shares)).sum()))
    return total
