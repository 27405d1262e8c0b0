"""The table of all features of a result, and the parts of its summary in words."""

from __future__ import annotations

import csv
import html
import io
from typing import TYPE_CHECKING, Any

import numpy as np

from bigfs.core.text import spreadsheet_cell
from bigfs.stages.curves import Curves

if TYPE_CHECKING:
    from bigfs.results.result import Result

# From this absolute correlation on, a feature is as good as its closest selected one.
ALIKE = 0.9
_BARS, _BLUE, _GRAY = 100, "#0072b2", "#bbbbbb"


def feature_columns(result: Result) -> dict[str, Any]:
    """Return the columns of the table, best feature first, by their names.

    With a stability there are ``frequency`` and, where it is not the rank itself,
    ``consensus_rank``; with curves ``adds``, ``explains``, ``closest_selected`` and
    ``correlation``, as in `Curves`: NaN or an empty text where they say nothing of a feature.
    """
    ranking, curves = result.ranking, result.curves
    columns: dict[str, Any] = {
        "rank": np.arange(1, result.n_features + 1),
        "index": ranking,
        "name": [result.name_of(feature) for feature in ranking.tolist()],
        "score": result.scores[ranking],
        "selected": np.isin(ranking, result.selected),
    }
    if result.stability is not None:
        columns["frequency"] = result.stability.frequencies[ranking]
    if result.consensus_ranking is not None and not result.is_quick:
        columns["consensus_rank"] = 1 + np.argsort(result.consensus_ranking)[ranking]
    if curves is None:
        return columns
    adds, explains = np.full(result.n_features, np.nan), [""] * result.n_features
    adds[curves.order] = curves.adds
    for feature, part in zip(curves.order.tolist(), curves.explains, strict=True):
        explains[feature] = part
    closest = curves.closest[ranking].tolist()
    return {
        **columns,
        "adds": adds[ranking],
        "explains": [explains[feature] for feature in ranking.tolist()],
        "closest_selected": [result.name_of(f) if f >= 0 else "" for f in closest],
        "correlation": np.where(columns["selected"], np.nan, curves.correlation[ranking]),
    }


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
    """Return the figures of selected against all features as a small table."""
    lines = [
        f"  against the labels {evaluation['labels']} (k-means, {evaluation['n_repetitions']} "
        "repetitions, mean and deviation in percent)",
        "  features      NMI           ACC           Rand index    1-NN error",
    ]
    for title, key in ((f"selected {n_selected}", "selected"), ("all", "all")):
        if key not in evaluation:  # all features of large sparse data
            continue
        row = evaluation[key]
        cells = [
            f"{100 * row[f'{name}_mean']:5.1f} ± {100 * row[f'{name}_std']:<4.1f}"
            for name in ("nmi", "acc", "rand")
        ]
        error = row.get("nearest_neighbor_error")
        cells.append("  -" if error is None else f"{100 * error:5.1f}")
        lines.append(f"  {title:<12}  {'  '.join(cells)}")
    return lines


def score_bars(result: Result) -> str:
    """Return the best scores as bars of an SVG picture, the selected ones in blue."""
    best = result.ranking[:_BARS]
    scores = result.scores[best]
    heights = 4 + 76 * (scores - scores.min()) / (np.ptp(scores) or 1.0)
    bars = "".join(
        f'<rect x="{6 * i}" y="{80 - height:.0f}" width="5" height="{height:.0f}" '
        f'fill="{_BLUE if is_kept else _GRAY}">'
        f"<title>{html.escape(result.name_of(feature))}</title></rect>"
        for i, (feature, height, is_kept) in enumerate(
            zip(best.tolist(), heights, np.isin(best, result.selected), strict=True)
        )
    )
    return f'<svg width="{6 * len(best)}" height="80" role="img">{bars}</svg>'
