"""HighlyVariable, dense and feature by feature (Stuart et al. 2019; Townes et al. 2019)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd


def standardized_variances(X: np.ndarray, batches: np.ndarray, trend: Any) -> np.ndarray:
    """Return the score of every feature in every batch, (n_batches, n_features).

    ``trend(mean, variance)`` returns the deviation that is expected of each feature.
    """
    results = []
    for batch in np.unique(batches):
        rows = X[batches == batch].astype(np.float64)
        n = len(rows)
        mean, variance = rows.mean(axis=0), rows.var(axis=0, ddof=1)
        sigma = trend(mean, variance)
        scores = []
        for j in range(rows.shape[1]):
            clipped = np.minimum(rows[:, j], mean[j] + sigma[j] * np.sqrt(n))
            total = n * mean[j] ** 2 + (clipped**2).sum() - 2 * mean[j] * clipped.sum()
            scores.append(total / ((n - 1) * sigma[j] ** 2))
        results.append(scores)
    return np.array(results)


def selected(scores: np.ndarray, m: int, flavor: str) -> np.ndarray:
    """Return the m best features by a table, as scanpy orders it.

    Of equal scores, which rounding should not tell apart, NumPy's default sort decides.
    """
    ranks = np.argsort(np.argsort(-np.round(scores, 10), axis=1), axis=1).astype(float)
    ranks[ranks >= m] = np.nan
    table = pd.DataFrame(
        {
            "rank": [np.nan if np.isnan(c).all() else np.nanmedian(c) for c in ranks.T],
            "batches": (~np.isnan(ranks)).sum(axis=0),
        }
    )
    by = (["rank", "batches"], [True, False])
    if flavor == "seurat_v3_paper":
        by = (["batches", "rank"], [False, True])
    ordered = table.sort_values(by[0], ascending=by[1], na_position="last", kind="stable")
    return ordered.index[:m].to_numpy()


def deviance(X: np.ndarray) -> np.ndarray:
    """Return the binomial deviance of every feature, row by row."""
    X = X.astype(np.float64)
    shares = X.sum(axis=0) / X.sum()
    values = np.zeros(X.shape[1])
    for row in X:
        n = row.sum()
        for j, x in enumerate(row):
            if x > 0:
                values[j] += 2 * x * np.log(x / (n * shares[j]))
            if n - x > 0:
                values[j] += 2 * (n - x) * np.log((n - x) / (n * (1 - shares[j])))
    return values
