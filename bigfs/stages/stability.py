"""Stability of a selection, from fits on samples of the rows: stored, and as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bigfs.solvers.agreement import (
    Agreement,
    agreement_of_all,
    agreement_of_pairs,
    difference_limit,
    rarely_selected_bound,
    stability_of,
    step_of,
)
from bigfs.stages.scores import support_of


@dataclass(frozen=True)
class Stability:
    """Selections of fits on samples; samples 2i and 2i + 1 are a pair without a common row.

    Attributes
    ----------
    frequencies : ndarray of shape (n_features,), float64
        Share of the fits that select each feature.
    rankings : ndarray of shape (2 * n_pairs, n_features), int32
        Ranking of each fit, best first.
    pair_agreements : ndarray of shape (n_pairs,), float64
        See `bigfs.solvers.agreement.agreement_of_pairs`.
    agreement : Agreement
        Agreement of all fits.
    n_selected : int
        Number of features that a fit selects.
    sample_size : int
        Number of rows of a fit.
    shared_rows : float
        Share of the rows that a pair uses; 0 if no row is in two pairs.
    fit_supports : ndarray of shape (2 * n_pairs, n_sizes * (n_sizes + 1) / 2) or None
        The fits' selections of 1, 2, ... features, as in `FeatureScores`; None for methods whose
        selections are the first features of their rankings.
    included : ndarray of shape (n_included,), int64, or None
        Features that every fit selects anyway. They are excluded from all agreements, which they
        would raise.
    """

    frequencies: np.ndarray
    rankings: np.ndarray
    pair_agreements: np.ndarray
    agreement: Agreement
    n_selected: int
    sample_size: int
    shared_rows: float
    fit_supports: np.ndarray | None = None
    included: np.ndarray | None = None

    @classmethod
    def of_fits(
        cls,
        n_selected: int,
        rankings: np.ndarray,
        supports: np.ndarray | None,
        sample_size: int,
        shared_rows: float,
        included: np.ndarray | None = None,
    ) -> Stability:
        """Return the stability of selections of ``n_selected`` features; see the attributes."""
        masks = _masks(n_selected, rankings, supports)
        free = _without(masks, included)
        return cls(
            masks.mean(axis=0),
            rankings,
            agreement_of_pairs(free),
            agreement_of_all(free),
            n_selected,
            sample_size,
            shared_rows,
            supports,
            included,
        )

    def at(self, n_selected: int) -> Stability:
        """Return the stability of the same fits for another number of features."""
        if n_selected == self.n_selected:
            return self
        fits = (self.rankings, self.fit_supports, self.sample_size, self.shared_rows)
        return Stability.of_fits(n_selected, *fits, self.included)

    def as_details(self) -> dict[str, Any]:
        """Return everything as details of `FeatureScores`."""
        value = self.agreement
        kept = {name: getattr(self, name) for name in self.__dataclass_fields__}
        kept["agreement"] = [value.value, value.low, value.high]
        return {name: value for name, value in kept.items() if value is not None}

    @classmethod
    def from_details(cls, details: dict[str, Any]) -> Stability:
        """Return the object that `as_details` wrote."""
        kept = {name: details[name] for name in cls.__dataclass_fields__ if name in details}
        return cls(**{**kept, "agreement": Agreement(*kept["agreement"])})

    @property
    def n_fits(self) -> int:
        """Number of fits."""
        return len(self.rankings)

    @property
    def _free(self) -> tuple[int, int]:
        """Number of features that a fit chooses, and of candidates, without those included."""
        n_included = 0 if self.included is None else len(self.included)
        return max(0, self.n_selected - n_included), len(self.frequencies) - n_included

    @property
    def _step(self) -> float:
        return step_of(*self._free)

    @property
    def _chance(self) -> float:
        """Expected share of a selection that two have in common by chance."""
        m, d = self._free
        return (self.n_selected - m + m * m / d) / self.n_selected

    @property
    def stability(self) -> Agreement:
        """Mean agreement within pairs, with its interval."""
        return stability_of(self.pair_agreements, self.shared_rows, self._step)

    def curves(self, sizes: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return the stability of selections of other numbers of features, and standard errors.

        Parameters
        ----------
        sizes : ndarray of shape (n_sizes,), int

        Returns
        -------
        values, errors : dict of str to ndarray of shape (n_sizes,), float64
            As in `Curves`: ``stability`` and ``in_common``.
        """
        (m, d), fits = self._free, (self.rankings, self.fit_supports)
        masks = (_without(_masks(size, *fits), self.included) for size in sizes.tolist())
        pairs = np.array([agreement_of_pairs(free) for free in masks])
        statistics = pairs.mean(axis=1), pairs.std(axis=1) / np.sqrt(pairs.shape[1])
        chosen = np.maximum(sizes - (self.n_selected - m), 0)
        varying = chosen * (1 - chosen / d) / d
        values, errors = (
            {"stability": shares, "in_common": shares * varying} for shares in statistics
        )
        return values, errors

    def stable_features(self, threshold: float) -> np.ndarray:
        """Return the features with at least the given selection frequency, ascending."""
        return np.flatnonzero(self.frequencies >= threshold)

    def bound(self, threshold: float) -> float:
        """Return the bound on rarely selected features among `stable_features`."""
        return rarely_selected_bound(*self._free, threshold)

    def in_common(self, agreement: float) -> float:
        """Return the share of a selection that two have in common, given their agreement."""
        return self._chance + agreement * (1 - self._chance)

    def lowest_of_another(self) -> float:
        """Return the agreement that two further samples fall below in only 2.5 % of cases."""
        return difference_limit(self.pair_agreements, self._step)

    def share_line(self) -> str:
        """Return the share of features that two samples have in common, as text."""
        stability = self.stability
        value, low, high = (
            100 * self.in_common(a) for a in (stability.value, stability.low, stability.high)
        )
        if self.n_fits == 2:
            return f"{value:.0f} % (one pair: no interval)"
        return f"{value:.0f} % ({max(low, 0.0):.0f} to {high:.0f} %)"

    def lines(self, threshold: float) -> list[str]:
        """Return sentences on the reliability of the selection."""
        value, stable = self.stability, self.stable_features(threshold)
        others = "" if self.included is None else " besides the included ones"
        if self.included is not None:
            stable = np.setdiff1d(stable, self.included)
        n_stable, bound = len(stable), self.bound(threshold)
        interval = f" (95 %: {value.low:.2f} to {value.high:.2f})" if self.n_fits > 2 else ""
        rare = f"at most {bound:.2g} of these are expected to be rarely selected"
        if bound >= n_stable:
            rare = f"the bound on rarely selected ones among them, {bound:.3g}, is not informative"
        return [
            f"{self.n_fits} fits on {self.sample_size:,} rows each: two samples without a common "
            f"row share {self.share_line()} of their {self.n_selected} features; "
            f"{100 * self._chance:.0f} % by chance",
            f"stability {value.value:.2f}{interval}, agreement of all fits "
            f"{self.agreement.value:.2f}",
            f"{n_stable} features{others} are in at least {100 * threshold:.0f} % of the fits; "
            f"{rare}",
        ]


def _masks(n_selected: int, rankings: np.ndarray, supports: np.ndarray | None) -> np.ndarray:
    """Return the selections of ``n_selected`` features, shape (n_fits, n_features), bool."""
    masks = np.zeros(rankings.shape, dtype=bool)
    for i, (mask, ranking) in enumerate(zip(masks, rankings, strict=True)):
        mask[support_of(ranking, None if supports is None else supports[i], n_selected)] = True
    return masks


def _without(masks: np.ndarray, included: np.ndarray | None) -> np.ndarray:
    """Return selections without the columns of features that are included anyway."""
    return masks if included is None else np.delete(masks, included, axis=1)
