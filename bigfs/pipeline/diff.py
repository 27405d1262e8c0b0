"""Differences between two runs: their selections, data, settings and versions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.core.text import aligned
from bigfs.evaluate.metrics import Overlap
from bigfs.results.result import Result, open_result
from bigfs.solvers.agreement import agreement_of_pairs
from bigfs.store.columns import Roles
from bigfs.store.location import Location

_SHOWN = 10
# Settings that do not affect the selection: location, cluster, evaluation, outputs.
_NOT_OF_RESULTS = ("run", "date", "keep", "update", "cluster", "evaluate", "output", "report")


@dataclass(frozen=True)
class Moved:
    """A feature whose rank or selection differs between the two runs.

    Attributes
    ----------
    name : str
    first_rank, second_rank : int or None
        Counted from 1; None if the run has no such feature.
    """

    name: str
    first_rank: int | None
    second_rank: int | None


@dataclass(frozen=True)
class Expected:
    """The agreement expected between selections on other rows, from the stability of a run.

    Attributes
    ----------
    run : str
    sample_size : int
        Number of rows in each of its fits.
    stability, low, high : float
        Mean agreement of two selections, with its confidence interval.
    limit : float
        Two further selections agree by less than this in 2.5 % of all cases.
    """

    run: str
    sample_size: int
    stability: float
    low: float
    high: float
    limit: float


@dataclass(frozen=True)
class Difference:
    """The difference between two runs.

    Attributes
    ----------
    first, second : str
        The run directories.
    n_selected : tuple of int
        Number of features that each run selected.
    n_features : int
        Number of features in the union of both runs.
    n_included : int
        Number of features that both runs select by their setting ``include``.
    overlap : Overlap
        Features that the selections share: their number, as a share of the larger selection, and
        the share expected of two selections that are random but for ``n_included``.
    agreement : float
        Agreement of the two selections: 1 if they are equal, 0 if they agree as by chance.
    expected : list of Expected
        One entry for each run with a measured stability.
    came, went : list of Moved
        Features that only the second, or only the first run selected, best first.
    moved : list of Moved
        Features that both selected but at different ranks, the largest change of rank first.
    rank_correlation : float or None
        Spearman's correlation over all features that both runs have; None for fewer than two.
    inputs, settings, versions : dict
        Values that differ, as pairs by name.
    """

    first: str
    second: str
    n_selected: tuple[int, int]
    n_features: int
    n_included: int
    overlap: Overlap
    agreement: float
    expected: list[Expected]
    came: list[Moved]
    went: list[Moved]
    moved: list[Moved]
    rank_correlation: float | None
    inputs: dict[str, tuple[Any, Any]]
    settings: dict[str, tuple[Any, Any]]
    versions: dict[str, tuple[Any, Any]]

    def json(self) -> str:
        """Return everything as JSON."""
        return json.dumps(asdict(self), indent=2) + "\n"

    def text(self) -> str:
        """Return the difference in words, for a terminal."""
        a, b = self.n_selected
        shown = self.overlap
        lines = [
            f"{self.first} -> {self.second}",
            f"{shown.count} features are in both selections (of {a} and {b}): "
            f"{100 * shown.share:.1f} % of the larger; {100 * shown.chance:.1f} % by chance",
        ]
        for other in self.expected:
            verdict = "no more" if self.agreement >= other.limit else "more"
            lines.append(
                f"agreement {self.agreement:.2f}: {verdict} change than other rows would cause, by "
                f"the stability of {other.run} ({other.stability:.2f}, {other.low:.2f} to "
                f"{other.high:.2f}, on {other.sample_size:,} rows; two further samples agree by "
                f"{other.limit:.2f} or more)"
            )
        if self.rank_correlation is not None:
            lines.append(f"rank correlation of all features: {self.rank_correlation:.3f}")
        listed = {"added": self.came, "removed": self.went, "changed rank": self.moved}
        for title, features in listed.items():
            table = [
                [f.name, f"rank {f.first_rank or 'none'} -> {f.second_rank or 'none'}"]
                for f in features[:_SHOWN]
            ]
            lines += [f"{title}: {len(features)}", *aligned(table, "<<", "  ")]
            if len(features) > _SHOWN:
                lines.append(f"  ... and {len(features) - _SHOWN} more")
        changed = {"data": self.inputs, "settings": self.settings, "versions": self.versions}
        for title, values in changed.items():
            lines.append(f"{title}:" if values else f"{title}: the same")
            for name, pair in values.items():
                before, after = ("null" if value is None else value for value in pair)
                lines.append(f"  {name}: {before} -> {after}")
        return "\n".join(lines)


def diff_runs(first: str | Location, second: str | Location) -> Difference:
    """Return the differences between the results of two runs.

    Features are matched by name, or by column if a run has no names.

    Parameters
    ----------
    first, second : str, Path or ObjectPath
        Run directories.

    Returns
    -------
    difference : Difference

    Raises
    ------
    InputError
        If a run has no result, or features without names differ in number.
    """
    a, b = open_result(first), open_result(second)
    names, columns = _matched(a, b)
    sides = list(zip((a, b), columns, strict=True))
    ranks = np.array([_ranks(result, where) for result, where in sides])
    masks = np.array([np.isin(where, result.selected) for result, where in sides])
    of_runs = [np.isin(where, _included(result)) for result, where in sides]
    included = of_runs[0] & of_runs[1]
    free = masks if included.all() else masks[:, ~included]

    def features(mask: np.ndarray, order: np.ndarray) -> list[Moved]:
        """Return the features of a mask, sorted by ascending values of ``order``."""
        chosen = [i for i in np.argsort(order, kind="stable") if mask[i]]
        return [Moved(names[i], *(rank or None for rank in ranks[:, i].tolist())) for i in chosen]

    moves = abs(ranks[0] - ranks[1])
    return Difference(
        str(first),
        str(second),
        (len(a.selected), len(b.selected)),
        len(names),
        int(included.sum()),
        _overlap(masks, included),
        float(agreement_of_pairs(free)[0]),
        [*_expected(first, a), *_expected(second, b)],
        features(masks[1] & ~masks[0], ranks[1]),
        features(masks[0] & ~masks[1], ranks[0]),
        features(masks[0] & masks[1] & (moves > 0), -moves),
        _rank_correlation(ranks[:, (ranks > 0).all(axis=0)]),
        *(_changed(x, y) for x, y in zip(_about(a), _about(b), strict=True)),
    )


def _overlap(masks: np.ndarray, included: np.ndarray) -> Overlap:
    """Return the overlap of two selections, masks of shape (2, n_features).

    ``included`` is the mask of the features that both were told to select.
    """
    sizes, n_included = masks.sum(axis=1), int(included.sum())
    count, larger = int(masks.all(axis=0).sum()), int(sizes.max())
    (a, b), free = sizes - n_included, max(1, masks.shape[1] - n_included)
    return Overlap(count, count / larger, float(n_included + a * b / free) / larger)


def _included(result: Result) -> np.ndarray:
    """Return the features that a run selects by its setting ``include``."""
    given = tuple(result.settings.get("include") or ())
    names = result.feature_names or [str(j) for j in range(result.n_features)]
    return np.array(Roles(given).features(names, str(result.path)) if given else [], dtype=int)


def _expected(run: str | Location, result: Result) -> Iterator[Expected]:
    """Yield the agreement expected by the stability of a run, if that was measured."""
    measured = result.stability
    if measured is not None:
        mean, limit = measured.stability, measured.lowest_of_another()
        yield Expected(str(run), measured.sample_size, mean.value, mean.low, mean.high, limit)


def _matched(a: Result, b: Result) -> tuple[list[str], list[list[int]]]:
    """Return the names of all features and their columns in both runs, -1 for missing ones."""
    if a.feature_names and b.feature_names:
        names = list(dict.fromkeys([*a.feature_names, *b.feature_names]))
        places = [{n: i for i, n in enumerate(r.feature_names or [])} for r in (a, b)]
        return names, [[place.get(name, -1) for name in names] for place in places]
    if a.n_features != b.n_features:
        raise InputError(
            f"{a.path} has {a.n_features} features and {b.path} has {b.n_features}; without "
            "feature names they cannot be matched."
        )
    names = a.feature_names or b.feature_names or [str(i) for i in range(a.n_features)]
    return names, [list(range(a.n_features))] * 2


def _ranks(result: Result, columns: list[int]) -> np.ndarray:
    """Return the rank of each column, from 1; 0 for a column that the run does not have."""
    rank = np.zeros(result.n_features + 1, dtype=np.int64)  # the last entry is for column -1
    rank[result.ranking] = np.arange(1, result.n_features + 1)
    return rank[columns]


def _rank_correlation(ranks: np.ndarray) -> float | None:
    """Return Spearman's correlation of the ranks in two runs, an array of shape (2, n_features).

    None for fewer than two features.
    """
    if ranks.shape[1] < 2:
        return None
    first, second = ranks.argsort(axis=1).argsort(axis=1)
    return float(np.corrcoef(first, second)[0, 1])


def _about(result: Result) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the input of a run, its settings by dotted names, and its package versions."""
    settings = dict(_flat(result.settings))
    inputs = {name: settings.pop(name) for name in list(settings) if name.startswith("input.")}
    inputs["rows"], inputs["features"] = result.n_samples, result.n_features
    inputs["content"] = result.manifest.get("data", {}).get("key")
    settings = {k: v for k, v in settings.items() if k.split(".")[0] not in _NOT_OF_RESULTS}
    return inputs, settings, result.versions


def _flat(settings: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _changed(first: dict[str, Any], second: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    names = dict.fromkeys([*first, *second])
    pairs = {name: (first.get(name), second.get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
