"""Neighbor graphs of data larger than memory, and their affinity matrices."""

from bigfs.graph.affinity import affinity
from bigfs.graph.build import knn_graph
from bigfs.graph.knn import KNNGraph
from bigfs.graph.symmetrize import AffinityMatrix, affinity_from_csr, connected_components

__all__ = [
    "AffinityMatrix",
    "KNNGraph",
    "affinity",
    "affinity_from_csr",
    "connected_components",
    "knn_graph",
]
