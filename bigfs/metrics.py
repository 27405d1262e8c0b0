"""Metrics for clusterings and selections."""

from bigfs.evaluate.metrics import (
    Overlap,
    adjusted_rand_index,
    clustering_accuracy,
    confusion_matrix,
    majority_label_error,
    nearest_neighbor_error,
    normalized_mutual_info,
    rand_index,
    redundancy,
    selection_overlap,
)

__all__ = [
    "Overlap",
    "adjusted_rand_index",
    "clustering_accuracy",
    "confusion_matrix",
    "majority_label_error",
    "nearest_neighbor_error",
    "normalized_mutual_info",
    "rand_index",
    "redundancy",
    "selection_overlap",
]
