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


@dataclass(frozen=True)
class Protocol:
    """Settings of the evaluation of a selection."""

    n_clusters: int  # clusters k-means looks for
    n_repetitions: int = 20  # runs of k-means, each with a seed of its own, that are averaged
    n_init: int = 10  # starts within each run; the best by inertia counts
    # One of "k-means++", "random": ``random`` takes rows as centers, as the papers do.
    init: str = "k-means++"
    nearest_neighbor: bool = True  # whether the leave-one-out 1-NN error is computed
    random_state: int = 0


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
    init : {"k-means++", "random"}, default="k-means++"
        ``random`` takes rows as centers, as the papers do.
    """
    from sklearn.cluster import KMeans

    model = KMeans(n_clusters, init=init, n_init=n_init, random_state=seed)
    # scikit-learn brings its OpenMP along: the limit is set once it is loaded.
    with single_thread():
        labels = model.fit(X).labels_
    return clustering_scores(y, labels)
