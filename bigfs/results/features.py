"""The table of all features of a result, and the parts of its summary in words."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

import numpy as np

from bigfs.core.text import spreadsheet_cell
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


def as_csv(columns: dict[str, Any]) -> str:
    """Return columns as the text of a .csv file; a cell is empty where there is no number."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    table.writerows(zip(*map(_cells, columns.values()), strict=True))
    return text.getvalue()


def _cells(column: Any) -> list[str]:
    values = column.tolist() if isinstance(column, np.ndarray) else column
    return [_cell(value) for value in values]


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return "" if np.isnan(value) else repr(value)
    return spreadsheet_cell(str(value))


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
        "  features      NMI           ACC           Rand index    1-NN error",
    ]
    titles = {"selected": f"selected {n_selected}", "all": "all", "chance": f"random {n_selected}"}
    for key, title in titles.items():
        if key not in evaluation:
            continue
        row = evaluation[key]
        cells = [
            f"{100 * row[f'{name}_mean']:5.1f} ± {100 * row[f'{name}_std']:<4.1f}"
            for name in ("nmi", "acc", "rand")
        ]
        error = row.get("nearest_neighbor_error", row.get("nearest_neighbor_error_mean"))
        cells.append("  -" if error is None else f"{100 * error:5.1f}")
        lines.append(f"  {title:<12}  {'  '.join(cells)}")
    return lines
