"""What a selector returns: a score for every feature and the order that follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bigfs.core.errors import InputError


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
    supports : ndarray of shape (n_sizes * (n_sizes + 1) / 2,) or None
        For methods whose order depends on how many features are selected: the selections of
        1, 2, ..., n_sizes features, ascending, one behind the other.
    """

    scores: np.ndarray
    ranking: np.ndarray
    details: dict[str, Any] = field(default_factory=dict)
    supports: np.ndarray | None = None

    @classmethod
    def from_scores(
        cls, scores: np.ndarray, *, supports: np.ndarray | None = None, **details: Any
    ) -> FeatureScores:
        """Rank the features by score, best first, ties by index."""
        scores = np.asarray(scores, dtype=np.float64)
        return cls(scores, np.argsort(-scores, kind="stable").astype(np.int64), details, supports)

    def support(self, n_features_to_select: int) -> np.ndarray:
        """Return the indices of the best features in ascending order."""
        return support_of(self.ranking, self.supports, n_features_to_select)


def support_of(ranking: np.ndarray, supports: np.ndarray | None, n_selected: int) -> np.ndarray:
    """Return the indices of the selected features in ascending order.

    Parameters
    ----------
    ranking : ndarray of shape (n_features,)
        Best first; used for sizes that ``supports`` does not hold.
    supports : ndarray or None
        As in `FeatureScores`.
    n_selected : int
    """
    start = n_selected * (n_selected - 1) // 2
    if supports is not None and start + n_selected <= len(supports):
        return supports[start : start + n_selected].astype(np.int64)
    return np.sort(ranking[:n_selected])


def check_n_selected(owner: str, n_selected: int | None, n_features: int) -> int:
    """Return the number of features to keep; None means half of them.

    Raises
    ------
    InputError
        If it is not an int in [1, n_features].
    """
    if n_selected is None:
        return max(1, n_features // 2)
    whole = isinstance(n_selected, (int, np.integer)) and not isinstance(n_selected, bool)
    if not whole or not 1 <= n_selected <= n_features:
        raise InputError(
            f"{owner}: n_features_to_select must be an int in [1, {n_features}], since X has "
            f"{n_features} features. Got {n_selected!r}."
        )
    return int(n_selected)
