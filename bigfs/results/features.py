"""The table of all features of a result, and the parts of its summary in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bigfs.core.text import aligned
from bigfs.stages.curves import Curves, feature_columns

if TYPE_CHECKING:
    from bigfs.results.result import Result

# From this absolute correlation on, a feature is as good as its closest selected one.
ALIKE = 0.9


def columns_of_result(result: Result) -> dict[str, Any]:
    """Return the columns of the table of a result, best feature first, by their names."""
    sure, consensus = result.stability, result.consensus_ranking
    return feature_columns(
        result.ranking,
        result.scores,
        result.selected,
        [result.name_of(feature) for feature in range(result.n_features)],
        curves=result.curves,
        redundant_with=result.redundant_with,
        frequencies=None if sure is None else sure.frequencies,
        consensus=None if result.is_quick else consensus,
    )


def mean_score(scores: dict[str, Any], name: str) -> float | None:
    """Return the mean of a score, or the score where it is not repeated; None without it."""
    return scores.get(f"{name}_mean", scores.get(name))


def score_cell(scores: dict[str, Any], name: str) -> str:
    """Return a score in percent with its deviation, if it has one, for a table."""
    value, spread = mean_score(scores, name), scores.get(f"{name}_std")
    if value is None:
        return "-"
    return f"{100 * value:5.1f}" + ("" if spread is None else f" ± {100 * spread:<4.1f}")


def number_lines(curves: Curves) -> list[str]:
    """Return how many features there are and why, and how many others they stand for."""
    lines, number, n_selected = [], curves.number, len(curves.order)
    if number is not None:
        about = f"{number['rule']}; up to {number['largest']} were looked at"
        lines.append(f"  {n_selected} features by {number['auto']}: {about}.")
    explained = 100 * np.nansum(curves.adds)
    lines.append(f"  The selected explain {explained:.0f} % of the variance of all features.")
    left_out = len(curves.correlation) - n_selected
    if left_out:
        alike = int((np.abs(curves.correlation) >= ALIKE).sum())
        have = "has" if alike == 1 else "have"
        lines.append(
            f"  {alike:,} of the {left_out:,} features left out {have} a correlation of {ALIKE} or "
            "more with a selected one."
        )
    return lines


def evaluation_lines(evaluation: dict[str, Any], n_selected: int) -> list[str]:
    """Return the figures of selected, all and random features as a small table."""
    components = evaluation.get("n_components")
    by = f" on {components} principal components" if components else ""
    lines = [
        f"  against the labels {evaluation['labels']} (k-means{by}, {evaluation['n_repetitions']} "
        "repetitions, mean and deviation in percent)",
    ]
    table = [["features", "NMI", "ACC", "Rand index", "1-NN error"]]
    titles = {"selected": f"selected {n_selected}", "all": "all", "chance": f"random {n_selected}"}
    for key, title in titles.items():
        if key not in evaluation:
            continue
        row = evaluation[key]
        scores = ("nmi", "acc", "rand", "nearest_neighbor_error")
        table.append([title, *(score_cell(row, name) for name in scores)])
    return [*lines, *aligned(table, "<<<<<", "  ")]
