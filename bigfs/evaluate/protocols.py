"""Repetitions of k-means as the papers run them."""

from __future__ import annotations

import numpy as np

from bigfs.core.threads import single_thread
from bigfs.evaluate.metrics import clustering_accuracy, normalized_mutual_info, rand_index


def kmeans_scores(
    X: np.ndarray,
    y: np.ndarray,
    *,
    n_clusters: int,
    n_init: int,
    seed: int,
    init: str = "k-means++",
) -> tuple[float, float, float]:
    """Return (NMI, ACC, Rand index) of the best of ``n_init`` runs of k-means by inertia.

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
        found = model.fit(X).labels_
    return normalized_mutual_info(y, found), clustering_accuracy(y, found), rand_index(y, found)
