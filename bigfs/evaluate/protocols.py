"""K-means as the papers run it, and the agreement of its clusters with known classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bigfs.core.threads import single_thread
from bigfs.evaluate.metrics import (
    adjusted_rand_index,
    clustering_accuracy,
    majority_label_error,
    normalized_mutual_info,
    rand_index,
)

# Distances of rows in more features than these are mostly noise.
MANY_FEATURES = 100


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
        return self.n_components is not None and width > MANY_FEATURES


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
