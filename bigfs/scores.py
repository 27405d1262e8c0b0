"""What a selector returns: a score for every feature and the order that follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class FeatureScores:
    """Scores of all features.

    Attributes
    ----------
    scores : ndarray of shape (n_features,), float64
        Larger is better.
    ranking : ndarray of shape (n_features,), int64
        Feature indices, best first; ties go to the lower index.
    details : dict
        What else the method has to say: coefficients, counts, resolved settings.
    """

    scores: np.ndarray
    ranking: np.ndarray
    details: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_scores(cls, scores: np.ndarray, **details: Any) -> FeatureScores:
        """Rank the features by score, best first, ties by index."""
        scores = np.asarray(scores, dtype=np.float64)
        return cls(scores, np.argsort(-scores, kind="stable").astype(np.int64), details)

    def support(self, n_features_to_select: int) -> np.ndarray:
        """Return the indices of the best features in ascending order."""
        return np.sort(self.ranking[:n_features_to_select])
