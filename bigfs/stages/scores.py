"""Scores of all features and the ranking that follows from them, in memory and stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse

from bigfs.core.errors import InputError, NumericalError, check_count
from bigfs.store.location import Location
from bigfs.store.scratch import ArrayRef, Scratch, read_attributes

# Names of the arrays of a CSR matrix.
_CSR = ("data", "indices", "indptr")


@dataclass(frozen=True)
class FeatureScores:
    """Scores of all features; construction raises if any of them is not finite.

    Attributes
    ----------
    scores : ndarray of shape (n_features,), float64
        Larger is better.
    ranking : ndarray of shape (n_features,), int64
        Feature indices, best first; ties go to the lower index, constant features come last.
    details : dict
        Other results of the method: coefficients, counts, resolved settings. An `ArrayRef` is an
        array with a row for every sample.
    supports : ndarray of shape (n_sizes * (n_sizes + 1) / 2,) or None
        For methods whose order depends on the number of selected features: the selections of
        1, 2, ..., n_sizes features, each ascending, concatenated.
    constant : ndarray of shape (n_features,), bool, or None
        Features that are equal in all rows, which rank last. None: not known here.
    notes : tuple of str
        Sentences on peculiarities of the data; they are not stored here.
    """

    scores: np.ndarray
    ranking: np.ndarray
    details: dict[str, Any] = field(default_factory=dict)
    supports: np.ndarray | None = None
    constant: np.ndarray | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise NumericalError if a score, or a number in the details, is not finite."""
        for name, value in {"scores": self.scores, **self.details}.items():
            values = getattr(value, "data", value) if hasattr(value, "indptr") else value
            if not isinstance(values, (float, np.ndarray)) or np.asarray(values).dtype.kind != "f":
                continue
            bad = ~np.isfinite(values)
            if bad.any():
                raise NumericalError(
                    f"The result is not finite: {int(bad.sum())} of {bad.size} values of '{name}' "
                    "are NaN or infinite. Nothing was stored. Scale the features, for instance "
                    "with preprocess 'standardize'; if that does not help, please report this "
                    "with the range of the data."
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
            Features that are equal in all rows. They rank after all others, and their scores are
            lowered to the lowest of the others if they are above it.
        supports : ndarray or None
        **details : object
        """
        scores = np.array(scores, dtype=np.float64)
        if constant is None:
            constant = np.zeros(len(scores), dtype=bool)
        lowest = scores[~constant].min(initial=np.inf)
        scores[constant] = np.minimum(scores[constant], lowest)
        return cls(scores, rank(scores, constant), details, supports, constant)

    @classmethod
    def from_path(
        cls,
        order: list[int],
        gains: np.ndarray,
        left: np.ndarray,
        *,
        constant: np.ndarray,
        **details: Any,
    ) -> FeatureScores:
        """Rank the features by a path: its picks in order, then the others by their possible gain.

        Parameters
        ----------
        order : list of int
            The picks, in order.
        gains : ndarray of shape (n_picks,)
            Gain of each pick. Scores are the running minimum of the gains, since later gains of a
            path may be larger.
        left : ndarray of shape (n_features,)
            Gain that each feature would add to the picks; 0 for the picks.
        constant : ndarray of shape (n_features,), bool
            Features that are equal in all rows.
        **details : object
        """
        least = np.minimum.accumulate(np.maximum(gains, 0.0))
        scores = np.minimum(left, least[-1] if len(least) else np.inf)
        picked = np.zeros(len(left), dtype=bool)
        picked[order] = True
        others = rank(scores, constant)
        scores[order] = least
        ranking = np.concatenate([np.array(order, dtype=np.int64), others[~picked[others]]])
        return cls(scores, ranking, details, constant=constant)

    def support(self, n_features_to_select: int) -> np.ndarray:
        """Return the indices of the best features in ascending order."""
        return support_of(self.ranking, self.supports, n_features_to_select)

    def selections(self, n_features_to_select: int) -> list[np.ndarray]:
        """Return the selections to evaluate: the only one, or that of each random ranking."""
        draws = self.details.get("draws")
        if draws is None:
            return [self.support(n_features_to_select)]
        return [support_of(draw, None, n_features_to_select) for draw in draws]

    def store(self, out: Scratch, **about: Any) -> None:
        """Write everything into a folder, except arrays with a row per sample, already stored.

        Parameters
        ----------
        out : Scratch
        **about
            JSON values to store with the scores.
        """
        arrays = {"scores": self.scores, "ranking": self.ranking}
        if self.supports is not None:
            arrays["supports"] = self.supports
        if own := {"scores", "ranking", "supports"} & self.details.keys():
            raise AssertionError(f"names of details are reserved for results: {sorted(own)}")
        sparse, row_arrays, values = [], [], {}
        for name, value in self.details.items():
            if isinstance(value, np.ndarray):
                arrays[name] = value
            elif issparse(value):
                sparse.append(name)
                arrays |= {f"{name}_{part}": getattr(value, part) for part in _CSR}
            elif isinstance(value, ArrayRef):
                row_arrays.append(name)
            else:
                values[name] = value
        for name, array in arrays.items():
            out.put(name, array)
        stored = {"arrays": list(arrays), "sparse": sparse, "row_arrays": row_arrays}
        out.describe(**about, details=values, **stored)

    @classmethod
    def open(cls, path: Location) -> FeatureScores:
        """Read the scores stored in a folder; arrays with a row for every sample are not loaded.

        Raises
        ------
        InputError
            If an earlier version of bigfs wrote them.
        """
        about = read_attributes(path)
        if "row_arrays" not in about:
            raise InputError(
                f"{path} was written by an earlier version of bigfs. Run it again: only this "
                "stage and the following ones are redone."
            )
        arrays = {name: ArrayRef.at(path / name).load() for name in about["arrays"]}
        scores, ranking = arrays.pop("scores"), arrays.pop("ranking")
        supports = arrays.pop("supports", None)
        details: dict[str, Any] = {**about["details"]}
        for name in about["sparse"]:
            parts = tuple(arrays.pop(f"{name}_{part}") for part in _CSR)
            details[name] = csr_array(parts, shape=(len(parts[2]) - 1, len(scores)))
        details |= arrays
        details |= {name: ArrayRef.at(path / name) for name in about["row_arrays"]}
        return cls(scores, ranking, details, supports)


def rank(scores: np.ndarray, constant: np.ndarray, *others: np.ndarray) -> np.ndarray:
    """Return the features by score, best first, constant features last.

    Ties are broken by ``others``, one after the other, and then by index. Scores that differ only
    in their last 12 bits are ties: otherwise rounding would order them, differently for another
    unit of the data.
    """
    worse = [-rounded(values) for values in (*others[::-1], scores)]
    return np.lexsort([np.arange(len(scores)), *worse, constant]).astype(np.int64)


def rounded(scores: np.ndarray) -> np.ndarray:
    """Return scores rounded to drop their last 12 bits."""
    fraction, exponent = np.frexp(scores)
    return np.asarray(np.ldexp(np.round(np.ldexp(fraction, 41)), exponent - 41))


def support_of(ranking: np.ndarray, supports: np.ndarray | None, n_selected: int) -> np.ndarray:
    """Return the indices of the selected features in ascending order.

    Parameters
    ----------
    ranking : ndarray of shape (n_features,)
        Best first; used for sizes that ``supports`` does not contain.
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
    reason = f"since X has {n_features} features"
    if isinstance(n_selected, float) and 0 < n_selected < 1:
        reason += f"; that share of them is {max(1, round(n_selected * n_features))}"
    return check_count(f"{owner}: n_features_to_select", n_selected, n_features, reason)


def falling(scores: np.ndarray, ranking: np.ndarray, reordered: np.ndarray) -> np.ndarray:
    """Return scores that never increase along a reordered ranking, if they did not before.

    A feature that others are moved ahead of, because it is redundant with one of them or because
    fewer features are selected, must not have a higher score than they have: each score is lowered
    to the minimum of those before it. Ties, as defined by `rank`, are unchanged, and so are all
    scores of a method that does not rank by them (``highly_variable`` with batches).
    """
    along = rounded(scores[ranking])
    if (along[1:] > along[:-1]).any():
        return scores
    lowered = np.empty_like(scores)
    lowered[reordered] = np.minimum.accumulate(scores[reordered])
    return np.where(rounded(lowered) == rounded(scores), scores, lowered)
