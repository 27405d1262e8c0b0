"""The number of clusters from the eigengap, for methods that have no eigenvectors of their own."""

from __future__ import annotations

from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.graph import KNNGraph, knn_graph
from bigfs.selectors.costs import EIGENGAP_NEIGHBORS
from bigfs.spectral.embedding import spectral_embedding


def known_n_clusters(n_clusters: Any, least: int = 2) -> Any:
    """Return the number that settings can be checked with before "auto" is chosen."""
    return least if isinstance(n_clusters, str) and n_clusters == "auto" else n_clusters


def chosen_n_clusters(
    n_clusters: Any,
    blocks: RowBlocks,
    *,
    random_state: int,
    memory_limit: int | str,
    graph: KNNGraph | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Return the number of clusters, and what the result says of how it was chosen.

    Parameters
    ----------
    n_clusters : int or "auto"
        A number is returned as it is. "auto": where the eigenvalues of the graph of the 5 nearest
        neighbors, or of the one given, have their largest relative gap
        (`bigfs.spectral.choice.suggest_n_clusters`).
    blocks : RowBlocks of shape (n_samples, n_features)
    random_state : int
    memory_limit : int or str
        Resident size promised for one worker process.
    graph : KNNGraph or None, default=None

    Returns
    -------
    n_clusters : object
    details : dict
        ``n_clusters`` and ``spectrum``, the eigenvalues; empty if a number was given.
    """
    if not isinstance(n_clusters, str) or n_clusters != "auto":
        return n_clusters, {}
    scratch = blocks.scratch.child(blocks.scratch.unique("eigengap"))
    if graph is None:
        graph = knn_graph(
            blocks,
            min(EIGENGAP_NEIGHBORS, blocks.n_samples - 1),
            memory_limit=memory_limit,
            random_state=random_state,
        )
    found = spectral_embedding(
        graph, "auto", random_state=random_state, memory_limit=memory_limit, scratch=scratch
    )
    n_clusters, spectrum = len(found.eigenvalues), np.array(found.spectrum)
    scratch.close()
    return n_clusters, {"n_clusters": n_clusters, "spectrum": spectrum}
