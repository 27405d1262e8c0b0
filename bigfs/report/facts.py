"""Figures of a report that are measured on a sample of the rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bigfs.results.export import open_run_data
from bigfs.results.result import Result

# Rows of the sample, from this many places of the data: each costs the reading of a chunk.
_SAMPLE_ROWS = 2000
_PLACES = 4
_SAMPLE_VALUES = 2**24
# Features that the curve and the correlations go up to.
MOST_FEATURES = 200
_DEPENDENT = 1e-6


@dataclass(frozen=True)
class Facts:
    """Figures of a report."""

    n_rows: int  # rows of the sample
    # Of shape (n_curve,), float64: the share of the variance of the features, in the mean over all
    # that vary, that linear regressions on the first 1, 2, ... features of the ranking explain.
    explained: np.ndarray
    # Of shape (n_shown, n_shown), float64: of the selected features, best first.
    correlation: np.ndarray
    points: np.ndarray  # of shape (n_rows, 2), float64: the rows by two components
    groups: np.ndarray  # of shape (n_rows,), int64: the cluster of each row
    # What the components and the clusters are.
    axes: str
    group_name: str


def gather(result: Result) -> Facts:
    """Return the figures of a result, from a sample of the rows that it was made of."""
    source = open_run_data(result.path)
    ranges = _ranges(source.n_samples, source.n_features)
    sample = np.concatenate([source.read(*bounds) for bounds in ranges]).astype(np.float64)
    X = sample - sample.mean(axis=0)
    deviation = X.std(axis=0)
    varies = deviation > 1e-14 * np.abs(sample).max(axis=0, initial=0.0)
    X /= np.where(varies, deviation, 1.0)
    X[:, ~varies] = 0.0
    kept = set(result.selected.tolist())
    order = [feature for feature in result.ranking.tolist() if feature in kept]
    others = [feature for feature in result.ranking.tolist() if feature not in kept]
    shown = X[:, order[:MOST_FEATURES]]
    embedding = _rows_of(result, "embedding", ranges)
    if embedding is not None and embedding.shape[1] > 2:
        # The first eigenvector says nothing on a connected graph.
        points, axes = embedding[:, 1:3], "eigenvectors of the graph"
    else:
        points, axes = _principal(shown), "principal components of the selected features"
    groups, group_name = _groups(result, ranges, points if embedding is None else embedding)
    return Facts(
        len(X),
        explained_shares(X, (order + others)[: min(MOST_FEATURES, max(1, len(X) // 3))]),
        shown.T @ shown / len(X),
        points,
        groups,
        axes,
        group_name,
    )


def _ranges(n_samples: int, n_features: int) -> list[tuple[int, int]]:
    """Return the rows of the sample: all, or runs at evenly spaced places."""
    most = max(100, min(_SAMPLE_ROWS, _SAMPLE_VALUES // n_features))
    if n_samples <= most:
        return [(0, n_samples)]
    each = most // _PLACES
    starts = np.linspace(0, n_samples - each, _PLACES).astype(int).tolist()
    return [(start, start + each) for start in starts]


def _rows_of(result: Result, name: str, ranges: list[tuple[int, int]]) -> np.ndarray | None:
    stored = result.row_array(name)
    if stored is None:
        return None
    return np.concatenate([stored.read(*bounds) for bounds in ranges])


def explained_shares(X: np.ndarray, order: list[int]) -> np.ndarray:
    """Return the share of the variance of X that its first 1, 2, ... columns in an order explain.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_features), float64
        Centered columns of variance one, or of zeros.
    order : list of int

    Returns
    -------
    shares : ndarray of shape (n_order,), float64
        Adjusted for the number of columns (adjusted R squared), so that columns of noise add
        nothing; at least 0.
    """
    total = float(np.einsum("ij,ij->", X, X)) or 1.0
    basis = np.zeros((len(X), 0))
    gains = np.zeros(len(order))
    for i, feature in enumerate(order):
        x = X[:, feature]
        rest = x - basis @ (basis.T @ x)
        rest -= basis @ (basis.T @ rest)
        norm = float(np.linalg.norm(rest))
        if norm <= _DEPENDENT * (float(np.linalg.norm(x)) or 1.0):
            continue
        rest /= norm
        basis = np.column_stack([basis, rest])
        gains[i] = float(((rest @ X) ** 2).sum()) / total
    left = 1 - np.cumsum(gains)
    used = np.cumsum(gains > 0)
    degrees = np.maximum(len(X) - 1 - used, 1)
    return np.clip(1 - left * (len(X) - 1) / degrees, 0.0, 1.0)


def _principal(X: np.ndarray) -> np.ndarray:
    """Return the first two principal components, shape (n_rows, 2); zeros where there are none."""
    left, values, _ = np.linalg.svd(X, full_matrices=False)
    points = np.zeros((len(X), 2))
    points[:, : left.shape[1]] = (left * values)[:, :2]
    return points


def _groups(
    result: Result, ranges: list[tuple[int, int]], values: np.ndarray
) -> tuple[np.ndarray, str]:
    """Return the method's clusters of the rows, or those that k-means finds in some values."""
    labels = _rows_of(result, "labels", ranges)
    if labels is not None:
        return labels.astype(np.int64), "clusters of the method"
    n_groups = min(int(result.details.get("n_clusters", 1)), len(np.unique(values, axis=0)))
    if n_groups < 2:
        return np.zeros(len(values), dtype=np.int64), ""
    from scipy.cluster.vq import kmeans2

    _, groups = kmeans2(values, n_groups, minit="++", rng=np.random.default_rng(0))
    return groups.astype(np.int64), "groups that k-means finds in the sample"
