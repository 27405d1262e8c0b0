"""K-means as the papers run it, and the agreement of its clusters with known classes.

Of large data it is that of dask-ml, which is little maintained: nothing else imports it, and a test
shows it right on the installed versions.
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

# Distances of rows in more features than these are mostly noise.
MANY_FEATURES = 100
# Rows drawn at random, and values in them, among which k-means++ finds first centers. k-means||,
# its form for many rows, starts elsewhere, and figures would depend on what fits in memory.
_FIRST_ROWS, _FIRST_VALUES = 10_000, 2**23


def are_many(width: int, n_components: int | None) -> bool:
    """Return whether so many features are judged by their first principal components."""
    return n_components is not None and width > max(MANY_FEATURES, n_components)


@dataclass(frozen=True)
class Protocol:
    """Settings of the evaluation of a selection."""

    n_clusters: int  # clusters k-means looks for
    n_repetitions: int = 20  # runs of k-means, each with a seed of its own, that are averaged
    n_init: int = 1  # starts within each run; the best by inertia counts
    # One of "k-means++", "random": ``random`` takes rows as centers, as the papers do.
    init: str = "k-means++"
    nearest_neighbor: bool = True  # whether the leave-one-out 1-NN error is computed
    # Principal components that more than `MANY_FEATURES` are judged by; None: always the features.
    n_components: int | None = None
    random_state: int = 0

    def by_components(self, width: int) -> bool:
        """Return whether ``width`` features are judged by their principal components."""
        return are_many(width, self.n_components)


def clustering_scores(y: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return NMI, ACC, Rand, adjusted Rand index and majority accuracy of a clustering.

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
    """Return how many rows differ, or ``most`` if there are as many."""
    for some in (X[: 8 * most], X):  # the first rows tell, as a rule
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
        Fewer clusters where fewer rows differ.
    init : {"k-means++", "random"}, default="k-means++"
        ``random`` takes rows as centers, as the papers do.
    """
    from sklearn.cluster import KMeans

    # With more clusters than distinct rows it warns, and leaves the others empty.
    n_clusters = count_distinct(X, n_clusters)
    model = KMeans(n_clusters, init=init, n_init=n_init, random_state=seed)
    # scikit-learn brings its OpenMP along: the limit is set once it is loaded.
    with single_thread():
        labels = model.fit(X).labels_
    return clustering_scores(y, labels)


def dask_kmeans(
    X: Any, n_clusters: int, *, init: str = "k-means++", n_init: int = 1, random_state: int = 0
) -> tuple[np.ndarray, float]:
    """Cluster the rows of a Dask array with dask-ml, the best of several starts.

    The centers depend on the chunks of X: for evaluation only.

    Parameters
    ----------
    X : dask.array.Array of shape (n_samples, n_features)
        Chunked along the rows.
    n_clusters : int
    init : {"k-means++", "random"} or ndarray of shape (n_clusters, n_features)
        First centers; ``k-means++`` takes them from a sample of 10,000 rows.
    n_init : int, default=1
        Starts; the best by inertia counts.
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
