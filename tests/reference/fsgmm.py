"""FSGMM written from the paper: every a, b, u and v as an array, on standardized data."""

from __future__ import annotations

import numpy as np


def _log_normal(x: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    return -0.5 * (np.log(2 * np.pi * variance) + (x - mean) ** 2 / variance)


def _moments(
    X: np.ndarray, shares: np.ndarray, mean: np.ndarray, variance: np.ndarray, least: float
) -> tuple[np.ndarray, np.ndarray]:
    """Weighted means and variances; the old ones where there is no weight."""
    mean, variance = mean.copy(), variance.copy()
    for f, (x, share) in enumerate(zip(X.T, shares.T, strict=True)):
        if share.sum() > 1e-8:
            mean[f] = share @ x / share.sum()
            variance[f] = max(share @ (x - mean[f]) ** 2 / share.sum(), least)
    return mean, variance


def fsgmm(
    X: np.ndarray,
    start: np.ndarray,
    n_iter: int,
    min_clusters: int = 1,
    tol: float = 1e-5,
    least_variance: float = 1e-4,
) -> dict[str, np.ndarray | float]:
    """Table 1 of Law et al. 2004, one component leaving a step at most; the best mixture.

    Parameters
    ----------
    X : array of shape (n, d)
    start : rows of X that the components begin at
    n_iter : how many E-steps
    """
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    n, d = X.shape
    alpha = np.full(len(start), 1 / len(start))
    mean, var = X[start], np.ones((len(start), d))
    q_mean, q_var, rho = np.zeros(d), np.ones(d), np.full(d, 0.5)
    best: dict[str, np.ndarray | float] = {"length": np.inf}
    lengths, before = [], np.nan
    for _ in range(n_iter):
        k, live = len(alpha), rho > 0
        with np.errstate(divide="ignore"):
            a = np.log(rho) + _log_normal(X[:, None], mean, var)
            b = np.broadcast_to((np.log(1 - rho) + _log_normal(X, q_mean, q_var))[:, None], a.shape)
        c = np.logaddexp(a, b)
        scores = np.log(alpha) + c.sum(axis=2)
        evidence = np.logaddexp.reduce(scores, axis=1)
        w = np.exp(scores - evidence[:, None])
        u = w[:, :, None] * np.exp(a - c)
        v = w[:, :, None] - u
        length = -evidence.sum() + (k + d) / 2 * np.log(n)
        length += (np.log(n * np.outer(alpha, rho[live]))).sum()
        length += np.log(n * (1 - rho[rho < 1])).sum()
        lengths.append(length)
        if length < best["length"]:
            best = {"length": length, "saliency": rho, "labels": scores.argmax(axis=1), "k": k}
        if abs(before - length) <= tol * abs(length):
            if k <= min_clusters:
                break
            out = alpha.argmin()
            alpha = np.delete(alpha, out) / np.delete(alpha, out).sum()
            mean, var = np.delete(mean, out, axis=0), np.delete(var, out, axis=0)
            before = np.nan
            continue
        rows, kept = w.sum(axis=0), np.arange(k)
        if k > min_clusters and rows.min() - live.sum() <= 1e-6:
            kept = np.delete(kept, rows.argmin())
        alpha = rows[kept] - live.sum()
        alpha = alpha if (alpha > 1e-6).all() else rows[kept]
        alpha = alpha / alpha.sum()
        actual = [_moments(X, u[:, j], mean[j], var[j], least_variance) for j in kept]
        mean, var = np.array([m for m, _ in actual]), np.array([s for _, s in actual])
        q_mean, q_var = _moments(X, v.sum(axis=1), q_mean, q_var, least_variance)
        inside, outside = u.sum(axis=(0, 1)) - k, v.sum(axis=(0, 1)) - 1
        # Whole numbers where every row is all of one kind: not for rounding to decide.
        inside, outside = inside * (inside > 1e-6), outside * (outside > 1e-6)
        changed = np.where(inside + outside > 0, inside / (inside + outside), rho)
        q_mean[~(changed > 0)], q_var[~(changed > 0)] = 0, 1
        same = len(kept) == k and ((changed > 0) == live).all()
        rho, before = changed, length if same else np.nan
        if not rho.any():
            break
    return {**best, "lengths": np.array(lengths)}
