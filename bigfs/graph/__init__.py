"""Neighbor graphs of data larger than memory, and their affinity matrices."""

from bigfs.graph.affinity import AffinityMatrix, affinity, affinity_from_csr
from bigfs.graph.knn import KNNGraph, knn_graph

__all__ = ["AffinityMatrix", "KNNGraph", "affinity", "affinity_from_csr", "knn_graph"]
