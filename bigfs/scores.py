"""What a selector returns: a score for every feature and the order that follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bigfs.core.errors import InputError, NumericalError


@dataclass(frozen=True)
class FeatureScores:
    """Scores of all features; refused if a number in them is not finite.

    Attributes
    ----------
    scores : ndarray of shape (n_features,), float64
        Larger is better.
    ranking : ndarray of shape (n_features,), int64
        Feature indices, best first; ties go to the lower index, constant features come last.
    details : dict
        What else the method has to say: coefficients, counts, resolved settings.
    supports : ndarray of shape (n_sizes * (n_sizes + 1) / 2,) or None
        For methods whose order depends on how many features are selected: the selections of
        1, 2, ..., n_sizes features, ascending, one behind the other.
    constant : ndarray of shape (n_features,), bool, or None
        Features that are equal in all rows; None where the method has put them last itself.
    """

    scores: np.ndarray
    ranking: np.ndarray
    details: dict[str, Any] = field(default_factory=dict)
    supports: np.ndarray | None = None
    constant: np.ndarray | None = None

    def __post_init__(self) -> None:
        """Raise NumericalError if a score, or a number of the details, is not finite."""
        for name, value in {"scores": self.scores, **self.details}.items():
            values = getattr(value, "data", value) if hasattr(value, "indptr") else value
            if not isinstance(values, (float, np.ndarray)) or np.asarray(values).dtype.kind != "f":
                continue
            bad = ~np.isfinite(values)
            if bad.any():
                raise NumericalError(
                    f"The result is not finite: {int(bad.sum())} of {bad.size} values of '{name}' "
                    "are NaN or infinite. Nothing was stored. Bring the features to one scale, "
                    "for instance with preprocess 'standardize'; if that does not help, please "
                    "report it with the data's range."
                )

    @classmethod
    def from_scores(
        cls,
        scores: np.ndarray,
        *,
        constant: np.ndarray | None = None,
        supports: np.ndarray | None = None,
        **details: Any,
    ) -> FeatureScores:
        """Rank the features by score, best first, ties by index.

        Parameters
        ----------
        scores : ndarray of shape (n_features,)
        constant : ndarray of shape (n_features,), bool, or None
            Features that are equal in all rows. They rank behind all others, and their scores
            are lowered to the lowest of the others where they are above it.
        supports : ndarray or None
        **details : object
        """
        scores = np.array(scores, dtype=np.float64)
        if constant is None:
            constant = np.zeros(len(scores), dtype=bool)
        lowest = scores[~constant].min(initial=np.inf)
        scores[constant] = np.minimum(scores[constant], lowest)
        return cls(scores, rank(scores, constant), details, supports, constant)

    def support(self, n_features_to_select: int) -> np.ndarray:
        """Return the indices of the best features in ascending order."""
        return support_of(self.ranking, self.supports, n_features_to_select)


def rank(scores: np.ndarray, constant: np.ndarray) -> np.ndarray:
    """Return the features by score, best first, ties by index, constant features last."""
    return np.lexsort((np.arange(len(scores)), -scores, constant)).astype(np.int64)


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
