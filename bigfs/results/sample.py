"""A sample of the rows that features were selected from, for plots that show rows."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from bigfs.core.errors import BigfsError, InputError
from bigfs.results.export import open_run_data
from bigfs.solvers.nested import explained_by
from bigfs.store.labels import load_labels
from bigfs.store.source import RandomAccessSource, Source, listed, open_matrix

if TYPE_CHECKING:
    from bigfs.results.result import Result

logger = logging.getLogger("bigfs")

# Number of rows in the sample, and of places in the data that they come from: each place costs
# reading a chunk.
_SAMPLE_ROWS = 2000
_PLACES = 4
_SAMPLE_VALUES = 2**24
# Largest number of features in the curve and the correlations.
MOST_FEATURES = 200


@dataclass(frozen=True)
class Sample:
    """A sample of rows of the data, and the quantities that plots show.

    Attributes
    ----------
    n_samples : int
        Number of rows in the data.
    rows : ndarray of shape (n_rows,), int64
        Indices of the sampled rows in the data.
    X : ndarray of shape (n_rows, n_features), float64
        Sampled rows with columns centered and scaled to unit variance; constant columns are zero.
    mean : ndarray of shape (n_features,), float64
        Mean of the untransformed values.
    order : list of int
        The first features of the ranking.
    correlation : ndarray of shape (n_shown, n_shown), float64
        Correlations of the selected features, best first.
    points : ndarray of shape (n_rows, 2), float64
        Coordinates of the rows on two components, which ``axes`` describes.
    groups : ndarray of shape (n_rows,), int64
        The cluster of each row; ``group_name`` describes the clustering.
    """

    n_samples: int
    rows: np.ndarray
    X: np.ndarray
    mean: np.ndarray
    order: list[int]
    correlation: np.ndarray
    points: np.ndarray
    groups: np.ndarray
    axes: str
    group_name: str
    features_axis: str = ""  # name and unit of the features' dimension, for data with named ones

    @cached_property
    def explained(self) -> np.ndarray:
        """Share of variance explained by regressions on the first 1, 2, ... features of ``order``.

        It is the mean over all features that vary, and only shown for results without curves.
        """
        return explained_shares(self.X, self.order)


def sample_of_result(result: Result) -> Sample:
    """Return a sample of the rows that a result was computed from."""
    source = open_run_data(result.path)
    ranges = _ranges(source.n_samples, source.n_features)
    ranking, n_selected = selected_first(result.ranking, result.selected), len(result.selected)
    known, embedding = _labels_of(result, ranges, source), _rows_of(result, "embedding", ranges)
    n_clusters = int(result.details.get("n_clusters", 1))
    return _sample(source, ranges, ranking, n_selected, known, embedding, n_clusters)


def sample_of(
    X: Any, ranking: np.ndarray, n_selected: int, labels: Any, names: list[str] | None
) -> Sample:
    """Return a sample of the rows that a selector was fitted to.

    Parameters
    ----------
    X : array-like, sparse matrix, DataFrame, path or URI
    ranking : ndarray of shape (n_features,), int64
        The selected features first.
    n_selected : int
    labels : array of shape (n_samples,) or None
        Clusters of the rows from the method.
    names : list of n_features str or None
        Names of the features; columns are matched by name if the data have names too.

    Raises
    ------
    InputError
        If the data have other features.
    """
    source = open_matrix(X)
    columns = _columns_of(source, len(ranking), names)
    n_samples = source.n_samples
    if n_samples is None:  # a sequential source of unknown length, whose rows are counted first
        n_samples = sum(len(block) for block in source.iter_blocks(_SAMPLE_ROWS))
    ranges = _ranges(n_samples, source.n_features)
    known = None
    if labels is not None and labels.shape[0] == n_samples:  # otherwise rows were left out
        parts = [np.asarray(labels[start:stop]) for start, stop in ranges]
        known = np.concatenate(parts).astype(np.int64), "clusters of the method"
    return _sample(source, ranges, ranking, n_selected, known, columns=columns)


def _columns_of(source: Source, n_features: int, names: list[str] | None) -> list[int] | None:
    """Return the positions of the features in data with column names; None if they are in order."""
    own = source.feature_names
    if names and own and own != names:
        places = {name: j for j, name in enumerate(own)}
        missing = [name for name in names if name not in places]
        if missing:
            raise InputError(
                f"X has no column {listed(missing)}, to which the selector was fitted."
            )
        return [places[name] for name in names]
    if source.n_features != n_features:
        raise InputError(
            f"X has {source.n_features:,} features, but the selector was fitted to {n_features:,}."
        )
    return None


def selected_first(ranking: np.ndarray, selected: np.ndarray) -> np.ndarray:
    """Return a ranking with the selected features first."""
    kept = np.isin(ranking, selected)
    return np.concatenate([ranking[kept], ranking[~kept]])


def _sample(
    source: Source,
    ranges: list[tuple[int, int]],
    ranking: np.ndarray,
    n_selected: int,
    known: tuple[np.ndarray, str] | None,
    embedding: np.ndarray | None = None,
    n_clusters: int = 1,
    columns: list[int] | None = None,
) -> Sample:
    """Read the rows of the given ranges and compute the quantities that plots show."""
    values = _read(source, ranges).astype(np.float64)
    values = values if columns is None else values[:, columns]
    mean = values.mean(axis=0)
    X = values - mean
    deviation = X.std(axis=0)
    varies = deviation > 1e-14 * np.abs(values).max(axis=0, initial=0.0)
    X /= np.where(varies, deviation, 1.0)
    X[:, ~varies] = 0.0
    shown = X[:, ranking[: min(n_selected, MOST_FEATURES)]]
    if embedding is not None and embedding.shape[1] > 2:
        # The first eigenvector of a connected graph is trivial.
        points, axes = embedding[:, 1:3], "eigenvectors of the graph"
    else:
        points, axes = _principal(shown), "principal components of the selected features"
    groups, group_name = known or _clustered(points if embedding is None else embedding, n_clusters)
    order = ranking[: min(MOST_FEATURES, max(1, len(X) // 3))].tolist()
    return Sample(
        source.n_samples or ranges[-1][1],
        np.concatenate([np.arange(*bounds) for bounds in ranges]),
        X,
        mean,
        order,
        shown.T @ shown / len(X),
        points,
        groups,
        axes,
        group_name,
        (source.grid or {}).get("axis", ""),
    )


def _read(source: Source, ranges: list[tuple[int, int]]) -> np.ndarray:
    """Return the rows of the given ranges; a sequential source is read in one pass."""
    if isinstance(source, RandomAccessSource):
        return np.concatenate([source.read(*bounds) for bounds in ranges])
    parts, first = [], 0
    for block in source.iter_blocks(_SAMPLE_ROWS):
        parts += [block[max(0, start - first) : max(0, stop - first)] for start, stop in ranges]
        first += len(block)
    return np.concatenate(parts)


def _ranges(n_samples: int, n_features: int) -> list[tuple[int, int]]:
    """Return the row ranges of the sample: all rows, or runs of rows at evenly spaced positions."""
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
    """Return the share of the variance of X explained by the first 1, 2, ... columns of ``order``.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_features), float64
        Centered columns of unit variance, or of zeros.
    order : list of int
        Column indices.

    Returns
    -------
    shares : ndarray of shape (n_order,), float64
        Adjusted for the number of columns (adjusted R squared), so that noise columns do not
        increase it; clipped to [0, 1].
    """
    gains = explained_by(X[:, order].T @ X, np.array(order)).sum(axis=1)
    left = 1 - np.cumsum(gains) / (float(np.einsum("ij,ij->", X, X)) or 1.0)
    used = np.cumsum(gains > 0)
    degrees = np.maximum(len(X) - 1 - used, 1)
    return np.clip(1 - left * (len(X) - 1) / degrees, 0.0, 1.0)


def _principal(X: np.ndarray) -> np.ndarray:
    """Return the first two principal components, shape (n_rows, 2); zeros for a missing one."""
    _, axes = np.linalg.eigh(X.T @ X)
    points = np.zeros((len(X), 2))
    points[:, : axes.shape[1]] = X @ axes[:, :-3:-1]
    return points


def _labels_of(
    result: Result, ranges: list[tuple[int, int]], source: RandomAccessSource
) -> tuple[np.ndarray, str] | None:
    """Return the known classes of the rows, or else the method's clusters, with a description.

    None if there are neither.
    """
    uri = (result.settings.get("evaluate") or {}).get("labels")
    if uri is not None:
        try:
            dropped, rows = list(source.dropped), source.row_dimensions
            y = load_labels(uri, source.n_samples, dropped, rows=rows)
            return np.concatenate([y[start:stop] for start, stop in ranges]), "known labels"
        except BigfsError as error:  # removed since, or relative to another working directory
            logger.warning("the plot does not show the known labels: %s", error)
    labels = _rows_of(result, "labels", ranges)
    return None if labels is None else (labels.astype(np.int64), "clusters of the method")


def _clustered(values: np.ndarray, n_clusters: int) -> tuple[np.ndarray, str]:
    """Return the groups that k-means finds in the given values, with a description."""
    n_groups = min(n_clusters, len(np.unique(values, axis=0)))
    if n_groups < 2:
        return np.zeros(len(values), dtype=np.int64), ""
    from scipy.cluster.vq import kmeans2

    _, groups = kmeans2(values, n_groups, minit="++", rng=np.random.default_rng(0))
    return groups.astype(np.int64), "groups that k-means finds in the sample"
