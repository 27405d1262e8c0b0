"""k-means according to the papers' protocols, and its agreement with known classes.

For large data, k-means of dask-ml is used. Since dask-ml is little maintained, it is imported only
here, and a test verifies it with the installed versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bigfs.core.threads import single_thread
from bigfs.evaluate.metrics import (
    adjusted_rand_index,
    clustering_accuracy,
    majority_label_error,
    normalized_mutual_info,
    rand_index,
)
from bigfs.graph.recall import sample_rows

# With more features than this, distances between rows are mostly noise.
MANY_FEATURES = 100
# Upper bounds of the number of rows, and of their values, in the random sample from which k-means++
# picks initial centers. k-means||, the variant for many rows, picks other centers, so that scores
# would depend on whether the data fit in memory.
_FIRST_ROWS, _FIRST_VALUES = 10_000, 2**23


def are_many(width: int, n_components: int | None) -> bool:
    """Return True if ``width`` features are evaluated by their first principal components."""
    return n_components is not None and width > max(MANY_FEATURES, n_components)


@dataclass(frozen=True)
class Protocol:
    """Settings of the evaluation of a selection."""

    n_clusters: int  # number of clusters of k-means
    n_repetitions: int = 20  # runs of k-means, with different seeds, whose scores are averaged
    n_init: int = 1  # initializations within each run; the one with the lowest inertia counts
    # "k-means++" or "random", which uses random rows as initial centers, as the papers do.
    init: str = "k-means++"
    nearest_neighbor: bool = True  # whether the leave-one-out 1-NN error is computed
    # Number of principal components by which more than `MANY_FEATURES` features are evaluated.
    # None: always evaluate by the features themselves.
    n_components: int | None = None
    random_state: int = 0

    def by_components(self, width: int) -> bool:
        """Return True if ``width`` features are evaluated by their principal components."""
        return are_many(width, self.n_components)


def clustering_scores(y: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return NMI, ACC, Rand index, adjusted Rand index and majority accuracy of a clustering.

    Parameters
    ----------
    y, labels : ndarray of shape (n_samples,)
        Known classes, and the clusters.

    Returns
    -------
    scores : dict
        ``nmi`` (max normalization), ``acc`` (one-to-one), ``rand``, ``adjusted_rand`` and
        ``majority`` (each cluster labeled by its majority); larger is better.
    """
    return {
        "nmi": normalized_mutual_info(y, labels),
        "acc": clustering_accuracy(y, labels),
        "rand": rand_index(y, labels),
        "adjusted_rand": adjusted_rand_index(y, labels),
        "majority": 1.0 - majority_label_error(y, labels),
    }


def count_distinct(X: np.ndarray, most: int) -> int:
    """Return the number of distinct rows, but at most ``most``."""
    for some in (X[: 8 * most], X):  # the first rows are usually sufficient
        n_distinct = len(np.unique(some, axis=0))
        if n_distinct >= most:
            return most
    return n_distinct


def kmeans_scores(
    X: np.ndarray,
    y: np.ndarray,
    *,
    n_clusters: int,
    n_init: int,
    seed: int,
    init: str = "k-means++",
) -> dict[str, float]:
    """Return `clustering_scores` of the best of ``n_init`` runs of k-means by inertia.

    Parameters
    ----------
    X : ndarray of shape (n_samples, n_features)
    y : ndarray of shape (n_samples,)
        Known classes.
    n_clusters, n_init, seed : int
        The number of clusters is reduced to that of distinct rows if there are fewer.
    init : {"k-means++", "random"}, default="k-means++"
        Initial centers; ``random`` uses random rows, as the papers do.
    """
    from sklearn.cluster import KMeans

    # With more clusters than distinct rows, scikit-learn warns and leaves clusters empty.
    n_clusters = count_distinct(X, n_clusters)
    model = KMeans(n_clusters, init=init, n_init=n_init, random_state=seed)
    # scikit-learn loads its own OpenMP library, so the limit is set after the import.
    with single_thread():
        labels = model.fit(X).labels_
    return clustering_scores(y, labels)


def dask_kmeans(
    X: Any, n_clusters: int, *, init: str = "k-means++", n_init: int = 1, random_state: int = 0
) -> tuple[np.ndarray, float]:
    """Cluster the rows of a Dask array with dask-ml, keeping the best of several initializations.

    The centers depend on the chunks of X, so this is for evaluation only.

    Parameters
    ----------
    X : dask.array.Array of shape (n_samples, n_features)
        Chunked along the rows.
    n_clusters : int
    init : {"k-means++", "random"} or ndarray of shape (n_clusters, n_features)
        Initial centers; ``k-means++`` picks them from a random sample of at most 10,000 rows.
    n_init : int, default=1
        Number of initializations; the one with the lowest inertia counts.
    random_state : int, default=0

    Returns
    -------
    labels : ndarray of shape (n_samples,), int32
    inertia : float
    """
    from dask_ml.cluster import KMeans
    from sklearn.cluster import kmeans_plusplus

    def fitted(seed: int) -> Any:
        first = init
        if isinstance(init, str) and init == "k-means++":
            count = max(n_clusters, min(_FIRST_ROWS, _FIRST_VALUES // X.shape[1]))
            sample = np.asarray(X[sample_rows(len(X), seed, count, "k-means++")].compute())
            first = kmeans_plusplus(sample, n_clusters, random_state=seed)[0]
        return KMeans(n_clusters, init=first, random_state=seed).fit(X)

    sequences = (np.random.SeedSequence([random_state, start]) for start in range(n_init))
    seeds = (int(sequence.generate_state(1)[0]) for sequence in sequences)
    best = min(map(fitted, seeds), key=lambda model: model.inertia_)
    return np.asarray(best.labels_), float(best.inertia_)
