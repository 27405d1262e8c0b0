"""Pass over redundant features, and include given features in any case, for every method.

The features are considered in the order of the method's ranking. A feature is passed over if its
absolute correlation with a kept feature is above the limit, or if it is too close to a kept feature
on the axis of the features, such as wavelengths. This continues until the number of features to
select is reached. Each pass over the data gives the products of a group of leading columns; most
selections need one pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.blocks.kernels import (
    PartialGram,
    as_dense,
    block_gram,
    complete_gram,
    correlations_of,
    merge_gram,
)
from bigfs.blocks.rowblocks import fold_parts
from bigfs.config import Selection
from bigfs.core.cost import Shape, StageCost, Step, loop_seconds, pass_over, product_seconds
from bigfs.core.errors import InputError
from bigfs.core.memory import task_budget
from bigfs.core.units import MIB
from bigfs.stages.scores import FeatureScores, falling
from bigfs.store.columns import Roles, as_number
from bigfs.store.source import Source

# Features examined in addition to twice the number selected; values of a piece of a block.
_MORE, _PIECE = 100, 2**20


@dataclass(frozen=True)
class Redundancy:
    """Rule that keeps or passes over the features of a ranking, by the correlations among them."""

    shape: Shape
    limit: float  # upper limit of the absolute correlation
    n_selected: int
    memory_limit: int
    least_gap: float = 0.0  # smallest gap between features, whose names are numbers

    @classmethod
    def of(cls, selection: Selection, shape: Shape, n_selected: int) -> Redundancy | None:
        """Return the rule for a selection of ``n_selected`` features, or None if there is none."""
        limit, gap = selection.redundancy, selection.least_gap
        if limit is None and gap is None:
            return None
        # No correlation exceeds 2, so this limit has no effect.
        return cls(shape, limit or 2.0, n_selected, selection.memory_limit, gap or 0.0)

    @property
    def at_once(self) -> int:
        """Number of features whose products one pass computes, including those already kept."""
        each = 8 * (fold_parts(self.shape.n_blocks) + 2)
        room = math.isqrt(max(0, task_budget(self.memory_limit) // 2) // each)
        wanted = max(self.n_selected + 1, min(2 * self.n_selected + _MORE, room))
        return min(self.shape.n_features, wanted)

    def step(self) -> Step:
        """Return the cost of one pass; more are needed if most features are redundant."""
        sums = 8 * (fold_parts(self.shape.n_blocks) + 2) * self.at_once**2
        what = f"correlations of {self.at_once:,} leading features"
        rate = product_seconds if self.shape.n_entries is None else loop_seconds
        seconds = rate(self.shape.n_samples, self.at_once, self.at_once)
        return pass_over(self.shape, what, sums + 4 * 8 * _PIECE + MIB, seconds=seconds)

    def applied(
        self, result: FeatureScores, blocks: RowBlocks, taken: Sequence[int] = ()
    ) -> FeatureScores:
        """Return a result whose ranking begins with the features that are kept.

        Features that are passed over are ranked after all other features that vary, and before
        constant ones. The detail ``redundant_with`` gives, for each of them, the kept feature it
        is most correlated with, or the closest one on the axis if their gap is too small; it is -1
        for all other features.

        Parameters
        ----------
        result : FeatureScores
            Its ranking begins with the features in ``taken``.
        blocks : RowBlocks of shape (n_samples, n_features)
        taken : sequence of int, default=()
            Features that are kept in any case.
        """
        ranking, m = result.ranking, self.n_selected
        constant = np.zeros(len(ranking), bool) if result.constant is None else result.constant
        level, redundant_with = constant.copy(), np.full(len(ranking), -1)
        first = np.isin(ranking, result.support(m))
        waiting = np.concatenate([ranking[first], ranking[~first]]).tolist()
        kept: list[int] = []
        numbers = numbers_of(blocks.source) if self.least_gap else range(len(ranking))
        axis = np.array(numbers, dtype=np.float64)
        while len(kept) < m and waiting:
            n_new = self.at_once - len(kept)
            group, waiting = [*kept, *waiting[:n_new]], waiting[n_new:]
            correlations = correlations_among(blocks, group)
            places = list(range(len(kept)))
            for place in range(len(kept), len(group)):
                of_kept = correlations[place, places]
                gaps = np.abs(axis[[group[p] for p in places]] - axis[group[place]])
                if len(places) == m:
                    break
                if group[place] in taken:
                    places.append(place)
                elif not correlations[place, place]:
                    level[group[place]] = True
                elif gaps.min(initial=np.inf) < self.least_gap:
                    redundant_with[group[place]] = group[places[int(gaps.argmin())]]
                elif of_kept.max(initial=0.0) > self.limit:
                    redundant_with[group[place]] = group[places[int(of_kept.argmax())]]
                else:
                    places.append(place)
            kept = [group[place] for place in places]
        passed_over = redundant_with[ranking] >= 0
        others = ranking[~passed_over & ~np.isin(ranking, kept)]
        parts = (kept, others[~level[others]], ranking[passed_over], others[level[others]])
        notes = list(result.notes)
        if len(kept) < m:
            notes.append(
                f"{self._names()}: only {len(kept)} features have {self._what()} all better ones; "
                "larger selections continue with the best features that were passed over."
            )
        ranking = np.concatenate(parts).astype(np.int64)
        return replace(
            result,
            scores=falling(result.scores, result.ranking, ranking),
            ranking=ranking,
            supports=None,
            details={**result.details, "redundant_with": redundant_with},
            notes=tuple(notes),
        )

    def _names(self) -> str:
        """Return the names of the settings that are used, for messages."""
        given = {"least_gap": self.least_gap, "redundancy": self.limit <= 1}
        return " and ".join(name for name, is_given in given.items() if is_given)

    def _what(self) -> str:
        """Return the condition that kept features fulfill, in words."""
        gap = [f"a gap of at least {self.least_gap:g} to"] if self.least_gap else []
        if self.limit <= 1:
            gap.append(f"an absolute correlation of at most {self.limit:g} with")
        return " and ".join(gap)


def included(source: Source, names: Sequence[str] | None) -> list[int]:
    """Return the indices of the features that are selected in any case.

    Parameters
    ----------
    source : Source
    names : sequence of str or None
        Names, globs or ranges. None: no features.

    Raises
    ------
    InputError
        If a name matches no feature.
    """
    if not names:
        return []
    known = source.feature_names or [str(j) for j in range(source.n_features)]
    return Roles(tuple(names)).features(known, f"include: {source.uri}")


def with_included(result: FeatureScores, features: list[int]) -> FeatureScores:
    """Return a result with the given features first, in the order in which they are ranked."""
    if not features:
        return result
    first, scores = np.isin(result.ranking, features), result.scores.copy()
    scores[features] = scores.max()  # so that no feature ranked after them has a higher score
    ranking = np.concatenate([result.ranking[first], result.ranking[~first]])
    return replace(result, scores=scores, ranking=ranking, supports=None)


def numbers_of(source: Source) -> list[float]:
    """Return the names of the features, such as wavelengths, as numbers.

    Raises
    ------
    InputError
        If a name is not a number.
    """
    names = source.feature_names or [str(j) for j in range(source.n_features)]
    other = next((name for name in names if as_number(name) is None), None)
    if other is not None:
        raise InputError(
            f"least_gap needs features whose names are numbers, such as wavelengths. {source.uri} "
            f"has {other!r}; leave it out (input.columns), or set least_gap to null."
        )
    return [number for name in names if (number := as_number(name)) is not None]


def passed_over(
    result: FeatureScores, blocks: RowBlocks, selection: Selection, redundancy: Redundancy | None
) -> FeatureScores:
    """Return a result that ranks included features first and passes over redundant ones."""
    taken = included(blocks.source, selection.include)
    result = with_included(result, taken)
    return result if redundancy is None else redundancy.applied(result, blocks, taken)


def with_redundancy(cost: StageCost, redundancy: Redundancy | None) -> StageCost:
    """Return the cost of a stage with that of passing over redundant features, if it does so."""
    return cost if redundancy is None else replace(cost, steps=(*cost.steps, redundancy.step()))


def correlations_among(blocks: RowBlocks, features: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return the absolute correlations of the given columns from one pass; 0 for constant ones."""
    columns = np.array(features, dtype=np.int64)
    total = blocks.reduce(_products, merge_gram, columns, label="redundancy")
    return correlations_of(complete_gram(total, len(columns)).gram)


def _products(X: Any, first_row: int, columns: np.ndarray) -> PartialGram:
    """Return the centered products of the given columns of a dense or CSR block.

    The block is processed in pieces of rows.
    """
    step, parts = max(1, _PIECE // len(columns)), []
    for begin in range(0, X.shape[0], step):
        rows = as_dense(X[begin : begin + step][:, columns])
        parts.append(block_gram(np.ascontiguousarray(rows), None))
        if len(parts) == 2:
            parts = [merge_gram(*parts)]
    return parts[0]
