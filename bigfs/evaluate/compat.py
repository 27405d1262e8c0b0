"""The only use of dask-ml: its k-means.

dask-ml is little maintained; nothing else imports it, and a test shows it right on the installed
versions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# dask-ml's k-means++ holds all rows in one task; k-means|| is its form for many.
_INITS = {"k-means++": "k-means||", "random": "random"}


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
        First centers; ``k-means++`` becomes k-means||, its form for many rows.
    n_init : int, default=1
        Starts; the best by inertia counts.
    random_state : int, default=0

    Returns
    -------
    labels : ndarray of shape (n_samples,), int32
    inertia : float
    """
    from dask_ml.cluster import KMeans

    first = _INITS[init] if isinstance(init, str) else init
    best: Any = None
    for start in range(n_init):
        seed = int(np.random.SeedSequence([random_state, start]).generate_state(1)[0])
        model = KMeans(n_clusters, init=first, random_state=seed).fit(X)
        if best is None or model.inertia_ < best.inertia_:
            best = model
    return np.asarray(best.labels_), float(best.inertia_)
