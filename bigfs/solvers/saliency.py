"""EM step for a Gaussian mixture with feature saliency, on rows in memory.

Features are standardized: each has mean 0 and variance 1 over all rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

LOG_2PI = float(np.log(2 * np.pi))
# Means and variances are updated only if the sum of the relevances exceeds this number of rows.
_LEAST_MASS = 1e-8
# An excess of rows over a number of parameters up to this value is treated as zero. If all
# responsibilities are 0 or 1, the sums are whole numbers, and rounding errors would decide.
_EXCESS = 1e-6
# Number of entries of the relevances in memory at once.
_TILE = 2**21


@dataclass(frozen=True)
class Mixture:
    """Parameters of a mixture; features with a saliency of zero have been removed."""

    weights: np.ndarray  # of shape (n_clusters,), float64: alpha
    # theta, of shape (n_clusters, n_live), float64: mean and variance of a feature within a
    # component, if it is relevant.
    mean: np.ndarray
    variance: np.ndarray
    # lambda, of shape (n_live,), float64: mean and variance of a feature if it is not relevant.
    common_mean: np.ndarray
    common_variance: np.ndarray
    saliency: np.ndarray  # of shape (n_live,), float64: rho, in (0, 1]
    live: np.ndarray  # of shape (n_live,), int64: indices of these features

    def without(self, component: int) -> Mixture:
        """Return the mixture without a component; the other weights are rescaled to sum to 1."""
        weights = np.delete(self.weights, component)
        return replace(
            self,
            weights=weights / weights.sum(),
            mean=np.delete(self.mean, component, axis=0),
            variance=np.delete(self.variance, component, axis=0),
        )


@dataclass
class Expectations:
    """Sums over rows of the results of the E-step."""

    log_likelihood: float  # of the live features
    # Of shape (n_clusters,), float64: expected number of rows of each component, the sums of w.
    rows: np.ndarray
    relevant: np.ndarray  # of shape (3, n_clusters, n_live), float64: sums of u, u z and u z^2
    # Of shape (3, n_live), float64: sums of v, v z and v z^2, also over the components.
    common: np.ndarray

    def add(self, other: Expectations) -> Expectations:
        """Add the sums over other rows, in place."""
        self.log_likelihood += other.log_likelihood
        self.rows += other.rows
        self.relevant += other.relevant
        self.common += other.common
        return self


def tile_rows(mixture: Mixture) -> int:
    """Return the number of rows that the E-step processes at a time."""
    return max(16, _TILE // max(1, mixture.mean.size))


def expectation(Z: np.ndarray, mixture: Mixture) -> tuple[Expectations, np.ndarray]:
    """Return the sums of the E-step over the given rows, and each row's most likely component.

    With ``a = rho p(z | theta_j)`` and ``b = (1 - rho) q(z | lambda)``, u is ``w a / (a + b)`` and
    v is ``w - u``, where w is proportional to alpha times the product of ``a + b`` over the
    features. All are computed from ``log a - log b``, a polynomial of degree 2 in z.

    Parameters
    ----------
    Z : ndarray of shape (n_rows, n_live), float64
        Standardized rows; a few tiles at most.
    mixture : Mixture

    Returns
    -------
    sums : Expectations
    labels : ndarray of shape (n_rows,), int32
    """
    squares = Z**2
    pure = mixture.saliency == 1
    # For a feature that is always relevant b is zero: q is used in its place and cancels.
    absent = np.where(pure, 0.0, np.log1p(-np.where(pure, 0.0, mixture.saliency)))
    common = _log_normal(Z, squares, mixture.common_mean, mixture.common_variance, absent)
    k = len(mixture.weights)
    scores = np.empty((len(Z), k))
    relevance = np.empty((k, *Z.shape))
    for j in range(k):
        gap = _log_normal(
            Z, squares, mixture.mean[j], mixture.variance[j], np.log(mixture.saliency)
        )
        gap -= common
        tail = np.exp(-np.abs(gap))
        relevance[j] = np.where(gap >= 0, 1.0, tail) / (1 + tail)
        relevance[j][:, pure] = 1.0
        rise = np.maximum(gap, 0.0) + np.log1p(tail)
        rise[:, pure] = gap[:, pure]
        scores[:, j] = np.log(mixture.weights[j]) + rise.sum(axis=1)
    top = scores.max(axis=1)
    shares = np.exp(scores - top[:, None])
    total = shares.sum(axis=1)
    shares /= total[:, None]
    relevant = np.empty((3, k, Z.shape[1]))
    for j, share in enumerate(shares.T):
        relevant[0, j] = share @ relevance[j]
        relevant[1, j] = share @ (relevance[j] * Z)
        relevant[2, j] = share @ (relevance[j] * squares)
    everything = np.stack([np.full(Z.shape[1], float(len(Z))), Z.sum(axis=0), squares.sum(axis=0)])
    level = float((top + np.log(total)).sum() + common.sum())
    sums = Expectations(level, shares.sum(axis=0), relevant, everything - relevant.sum(axis=1))
    return sums, scores.argmax(axis=1).astype(np.int32)


def _log_normal(
    Z: np.ndarray,
    squares: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    log_share: np.ndarray,
) -> np.ndarray:
    """Return the log density of every entry plus ``log_share``."""
    constant = log_share - 0.5 * (LOG_2PI + np.log(variance) + mean**2 / variance)
    out = squares * (-0.5 / variance)
    out += Z * (mean / variance)
    out += constant
    return np.asarray(out)


def maximization(
    sums: Expectations, mixture: Mixture, min_clusters: int, least_variance: float
) -> Mixture:
    """Return the parameters of the M-step, which may remove components and features.

    The weight of a component is proportional to the excess of its number of rows over half its
    number of parameters. If this is zero for several components, only the weakest is removed and
    the others get weights proportional to their rows, because its rows may save them. The weakest
    is also removed if no feature would be left, since a feature needs more relevant rows than
    there are components.
    """
    k, d = mixture.mean.shape
    rows = sums.rows
    kept = np.arange(k)
    inside = _beyond(sums.relevant[0].sum(axis=0), k)
    is_lost = not inside.any() and not (mixture.saliency == 1).any()
    if k > min_clusters and (is_lost or rows.min() - d <= _EXCESS):
        kept = np.delete(kept, rows.argmin())
    exceed = rows[kept] - d
    weights = exceed if (exceed > _EXCESS).all() else rows[kept]
    weights = np.maximum(weights, np.finfo(np.float64).tiny)
    mean, variance = _moments(
        sums.relevant[:, kept], mixture.mean[kept], mixture.variance[kept], least_variance
    )
    common = _moments(sums.common, mixture.common_mean, mixture.common_variance, least_variance)
    outside = _beyond(sums.common[0], 1)
    either = inside + outside
    is_known = (either > 0) & (not is_lost or k <= min_clusters)
    saliency = np.where(is_known, inside / np.where(is_known, either, 1), mixture.saliency)
    # A saliency of 1 stays 1; the common density is no longer used then.
    pure = (saliency == 1) | (mixture.saliency == 1)
    saliency[pure] = 1.0
    live = saliency > 0
    return Mixture(
        weights / weights.sum(),
        mean[:, live],
        variance[:, live],
        np.where(pure, 0.0, common[0])[live],
        np.where(pure, 1.0, common[1])[live],
        saliency[live],
        mixture.live[live],
    )


def _beyond(mass: np.ndarray, n_parameters: int) -> np.ndarray:
    """Return the excess of ``mass`` over the number of parameters, or zero if there is none."""
    exceed = mass - n_parameters
    return np.where(exceed > _EXCESS, exceed, 0.0)


def _moments(
    sums: np.ndarray, mean: np.ndarray, variance: np.ndarray, least_variance: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return means and variances from weighted sums; the former ones if there is no weight."""
    enough = sums[0] > _LEAST_MASS
    mass = np.where(enough, sums[0], 1.0)
    new_mean = sums[1] / mass
    spread = np.maximum(sums[2] / mass - new_mean**2, least_variance)
    return np.where(enough, new_mean, mean), np.where(enough, spread, variance)


def message_length(
    log_likelihood: float, mixture: Mixture, n_samples: int, n_features: int
) -> float:
    """Return the message length of a mixture, eq. (15) of Law et al., in nats.

    Parameters
    ----------
    log_likelihood : float
        Log-likelihood of the live features.
    mixture : Mixture
    n_samples : int
    n_features : int
        Number of features including those with a saliency of zero, which are standard normal.
    """
    k, d = mixture.mean.shape
    dead = -0.5 * n_samples * (LOG_2PI + 1) * (n_features - d)
    mixed = mixture.saliency[mixture.saliency < 1]
    return (
        -(log_likelihood + dead)
        + 0.5 * (k + n_features) * float(np.log(n_samples))
        + d * float(np.log(n_samples * mixture.weights).sum())
        + k * float(np.log(mixture.saliency).sum())
        + float(np.log(n_samples * (1 - mixed)).sum())
        + (n_features - d) * float(np.log(n_samples))
    )


def information(mixture: Mixture) -> np.ndarray:
    """Return the divergence of the components from all rows, per live feature, in nats.

    This is the weighted mean of the divergences of the components' densities from the standard
    normal density.
    """
    gap = 0.5 * (mixture.variance + mixture.mean**2 - 1 - np.log(mixture.variance))
    return np.asarray(mixture.weights @ gap)
