"""The protocols of the papers, each a function from a data set to rows of a table.

Trials run as tasks, in parallel on whatever workers there are, each with its own seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigfs.config.comparison import Entry
from bigfs.evaluate.protocols import Protocol
from bigfs.runtime.execute import run_tasks
from bigfs.runtime.scope import inline
from pipelines.paper.settings import ALL_FEATURES, PaperTable, SetConfig
from pipelines.paper.trials import Found, Trial, draw_classes, fit_and_judge, fit_trial, judge

# Repetitions after which a selection this many points behind the best is given up.
_FIRST, _MARGIN = 4, 8.0


@dataclass(frozen=True)
class Value:
    """One cell of a table, in percent."""

    method: str
    n_features: int | None  # None: all, or the best of several
    score: str
    value: float
    std: float
    detail: str = ""  # the setting that was best, or what else is worth saying

    @classmethod
    def over(
        cls, cells: list[float], method: str, n_features: int | None, score: str, detail: str = ""
    ) -> Value:
        """Return the mean and deviation over repetitions."""
        return cls(method, n_features, score, float(np.mean(cells)), float(np.std(cells)), detail)


def by_draws(
    config: PaperTable, dataset: SetConfig, trial: Trial, y: np.ndarray, case: int
) -> list[Value]:
    """Draw classes, select features anew, cluster; mean and deviation over the draws (MCFS).

    All classes are one draw.
    """
    total = int(y.max()) + 1
    n_classes = case or total
    all_classes = n_classes == total
    draws = 1 if all_classes else config.n_draws
    entries = config.entries(dataset, n_clusters=n_classes)
    nearest = all_classes and "nearest_neighbor_error" in config.scores
    protocol = _protocol(config, n_classes, nearest)
    trials = [
        Trial(
            trial.X,
            trial.y,
            f"{trial.folder}/draw-{n_classes}-{draw}",
            None if all_classes else draw_classes(y, n_classes, draw, config.random_state),
        )
        for draw in range(draws)
    ]
    label = f"{dataset.name}, {n_classes} classes"
    results = run_tasks(
        fit_and_judge, trials, entries, config.sizes(dataset), protocol, label=label, unit="draws"
    )
    values = []
    for score in config.scores:
        if score == "nearest_neighbor_error" and not nearest:
            continue
        for name, m in sorted(results[0], key=lambda cell: cell[0] == ""):  # all features last
            cells = [_percent(repeated, score) for each in results for repeated in each[name, m]]
            method, size = (name, m) if name else (ALL_FEATURES, None)
            values.append(Value.over(cells, method, size, score))
    return values


def best_of_grid(
    config: PaperTable, dataset: SetConfig, trial: Trial, y: np.ndarray, case: int
) -> list[Value]:
    """Return the best over each method's grid and the numbers of features, by score (NDFS).

    Equal selections are clustered once, and those far behind after a few repetitions are given
    up: they cannot be the best. Without methods: all features.
    """
    n_clusters = int(y.max()) + 1
    entries = config.entries(dataset, n_clusters=n_clusters)
    outcomes = _fit_all(dataset, trial, entries, config.sizes(dataset))
    kept: dict[str, list[tuple[tuple[int, ...] | None, str]]] = {}
    for entry, result in zip(entries, outcomes, strict=True):
        for m, columns in result.selections.items():
            detail = ", ".join(filter(None, [entry.point, f"{m} features"]))
            kept.setdefault(entry.name, []).append((columns, detail))
    if not entries:
        kept[ALL_FEATURES] = [(None, "")]
    figures = _cluster_all(config, dataset, trial, _protocol(config, n_clusters, False), kept)
    values = []
    for score in config.scores:
        for method, candidates in kept.items():
            cells = [figures[columns][score] for columns, _ in candidates]
            best = int(np.argmax([np.mean(cell) for cell in cells]))
            values.append(Value.over(cells[best], method, None, score, candidates[best][1]))
    return values


def by_labels(
    config: PaperTable, dataset: SetConfig, trial: Trial, y: np.ndarray, case: int
) -> list[Value]:
    """Judge the clusters of the method itself, or of k-means on its features (M3FS, LFS).

    Of the points of a method's grid the best counts, by score. Without methods: k-means on all
    features.
    """
    n_clusters = int(y.max()) + 1
    entries = config.entries(dataset, n_clusters=n_clusters)
    outcomes = _fit_all(dataset, trial, entries, config.sizes(dataset)[:1])
    protocol = _protocol(config, n_clusters, False)
    rest = [(entry, outcomes[i]) for i, entry in enumerate(entries) if outcomes[i].clusters is None]
    columns = [next(iter(result.selections.values())) for _, result in rest]
    repetitions = range(config.n_repetitions)
    clustered = run_tasks(
        _judged,
        columns if entries else [None],
        trial,
        protocol,
        repetitions,
        label=f"{dataset.name}, k-means",
        unit="methods",
    )
    # Per method: what is told of a point of its grid, and its scores.
    points: dict[str, list[tuple[str, list[dict[str, float]]]]] = {}
    if not entries:
        points[ALL_FEATURES] = [("", clustered[0])]
    judged = iter(clustered)
    for entry, result in zip(entries, outcomes, strict=True):
        scores = next(judged) if result.clusters is None else [result.clusters]
        points.setdefault(entry.name, []).append((entry.point, scores))
    unselected = {ALL_FEATURES, *(entry.name for entry in entries if entry.everything)}
    values = []
    for score in config.scores:
        for method, grid in points.items():
            cells = [[_percent(repeated, score) for repeated in scores] for _, scores in grid]
            means = [np.mean(cell) for cell in cells]
            best = int(np.argmin(means) if score == "error" else np.argmax(means))
            size = None if method in unselected else config.sizes(dataset)[0]
            values.append(Value.over(cells[best], method, size, score, grid[best][0]))
    return values


def _protocol(config: PaperTable, n_clusters: int, nearest_neighbor: bool) -> Protocol:
    return Protocol(
        n_clusters,
        config.n_repetitions,
        config.n_init,
        config.init,
        nearest_neighbor,
        random_state=config.random_state,
    )


def _fit_all(
    dataset: SetConfig, trial: Trial, entries: list[Entry], sizes: list[int]
) -> list[Found]:
    """Fit every configuration in a task of its own, graphs and eigenvectors before the rest."""
    if not entries:
        return []
    first: dict[str, int] = {}
    for position, entry in enumerate(entries):
        shared = entry.config.model_dump_json(include={"graph", "spectral"})
        first.setdefault(f"{entry.config.method} {shared}", position)
    leading = sorted(first.values())
    rest = sorted(set(range(len(entries))) - set(leading))
    outcomes: dict[int, Found] = {}
    for part in filter(None, (leading, rest)):
        results = run_tasks(
            _fitted,
            [entries[position] for position in part],
            trial,
            sizes,
            label=f"{dataset.name}, {entries[0].name}",
            unit="settings",
        )
        outcomes |= dict(zip(part, results, strict=True))
    return [outcomes[position] for position in range(len(entries))]


def _fitted(entry: Entry, trial: Trial, sizes: list[int]) -> Found:
    return fit_trial(trial, [entry], sizes)[0]


def _judged(
    columns: tuple[int, ...] | None, trial: Trial, protocol: Protocol, repetitions: range
) -> list[dict[str, float]]:
    with inline():
        return judge(columns, trial, protocol, repetitions)


def _cluster_all(
    config: PaperTable,
    dataset: SetConfig,
    trial: Trial,
    protocol: Protocol,
    kept: dict[str, list[tuple[tuple[int, ...] | None, str]]],
) -> dict[tuple[int, ...] | None, dict[str, list[float]]]:
    """Return the scores of every different selection, for each repetition.

    Of each method, those that after the first repetitions are behind its best by ``_MARGIN``
    points in every score are not repeated further.
    """
    different = list(dict.fromkeys(columns for group in kept.values() for columns, _ in group))
    n_first = min(_FIRST, protocol.n_repetitions)
    run: Callable[..., Any] = run_tasks
    say = {"label": f"{dataset.name}, k-means", "unit": "selections"}
    begun = run(_judged, different, trial, protocol, range(n_first), **say)
    figures: dict[tuple[int, ...] | None, dict[str, list[float]]] = {
        columns: {score: [_percent(r, score) for r in each] for score in config.scores}
        for columns, each in zip(different, begun, strict=True)
    }
    close: dict[tuple[int, ...] | None, None] = {}
    for group in kept.values():
        for score in config.scores:
            means = {columns: np.mean(figures[columns][score]) for columns, _ in group}
            best = max(means.values())
            close |= dict.fromkeys(c for c, mean in means.items() if mean > best - _MARGIN)
    rest = range(n_first, protocol.n_repetitions)
    if len(rest):
        more = run(_judged, list(close), trial, protocol, rest, **say)
        for columns, each in zip(close, more, strict=True):
            for score in config.scores:
                figures[columns][score] += [_percent(repeated, score) for repeated in each]
    return figures


def _percent(scores: dict[str, float], score: str) -> float:
    """Return a score in percent; ``error`` is that of majority labels."""
    if score == "error":
        return 100 * (1 - scores["majority"])
    return 100 * scores[score]
