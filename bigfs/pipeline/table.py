"""What a comparison found: rows as text, CSV and JSON, and curves over the features kept."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bigfs.core.units import format_bytes, format_seconds
from bigfs.evaluate.metrics import Overlap, selection_overlap
from bigfs.report.curves import Curve, draw_curves
from bigfs.store.location import Location
from bigfs.store.records import TABLE
from bigfs.store.rundir import RunDirectory

CSV, JSON, FIGURES = "table.csv", "table.json", ("curves.svg", "curves.png")
TABLES = (TABLE, CSV, JSON, *FIGURES)
# Score, title in the table, whether it is repeated (mean and deviation).
_COLUMNS = (
    ("nmi", "NMI", True),
    ("acc", "ACC", True),
    ("rand", "Rand index", True),
    ("nearest_neighbor_error", "1-NN error", False),
    ("redundancy", "redundancy", False),
)
_PANELS = (("nmi", "NMI (%)"), ("acc", "ACC (%)"), ("nearest_neighbor_error", "1-NN error (%)"))


@dataclass(frozen=True)
class Row:
    """One selection.

    Attributes
    ----------
    name : str
        Of the method in this comparison.
    method : str or None
        None: all features.
    n_features : int
    selected : ndarray of shape (n_features,), int64
    scores : dict
        As `bigfs.evaluate.selection.measure_selection` returns them, in [0, 1].
    seconds : float
        Of the method's own stage, without what it shares.
    """

    name: str
    method: str | None
    n_features: int
    selected: np.ndarray
    scores: dict[str, float]
    seconds: float

    def value(self, score: str) -> float | None:
        """Return the mean of a score, or the score where it is not repeated."""
        return self.scores.get(f"{score}_mean", self.scores.get(score))


@dataclass(frozen=True)
class ComparisonResult:
    """The table of a comparison.

    Attributes
    ----------
    path : Path or ObjectPath
        The run directory.
    uri : str
        The data.
    n_samples, n_features, n_classes : int
    evaluate : dict
        How selections were judged.
    rows : list of Row
        All features first, then the methods in the order of the configuration.
    stages : dict
        Per finished stage: seconds, passes, bytes read, measured peak bytes.
    """

    path: Location
    uri: str
    n_samples: int
    n_features: int
    n_classes: int
    evaluate: dict[str, Any]
    rows: list[Row]
    stages: dict[str, dict[str, Any]]

    def text(self) -> str:
        """Return the table for a terminal, in percent."""
        told = self.evaluate
        starts = f"the best of {told['n_init']} starts" if told["n_init"] > 1 else "one start each"
        columns = self._columns()
        width = max(len(row.name) for row in self.rows)
        lines = [
            f"{self.uri}: {self.n_samples:,} samples x {self.n_features:,} features, "
            f"{self.n_classes} classes",
            f"k-means with {told['n_clusters']} clusters, {told['n_repetitions']} repetitions, "
            f"{starts} ({told['init']}); percent, mean and deviation",
            "",
            f"{'method':<{width}}  {'m':>6}  "
            + "  ".join(f"{title:<12}" for _, title, _ in columns)
            + "  seconds",
        ]
        for row in self.rows:
            cells = "  ".join(f"{_cell(row, name, twice):<12}" for name, _, twice in columns)
            took = f"{row.seconds:>7.1f}" if row.method else f"{'-':>7}"
            lines.append(f"{row.name:<{width}}  {row.n_features:>6}  {cells}  {took}")
        return "\n".join([*lines, *self._overlap_lines(width), "", *self._shared_lines()])

    def csv(self) -> str:
        """Return the table as CSV, values in [0, 1]."""
        names = sorted({name for row in self.rows for name in row.scores})
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(["name", "method", "n_features", *names, "seconds"])
        for row in self.rows:
            values = [repr(row.scores[n]) if n in row.scores else "" for n in names]
            method = row.method or ""
            table.writerow([row.name, method, row.n_features, *values, row.seconds])
        return text.getvalue()

    def json(self) -> str:
        """Return all that is known as JSON, values in [0, 1]."""
        rows = [
            {
                "name": row.name,
                "method": row.method,
                "n_features": row.n_features,
                "seconds": row.seconds,
                "scores": row.scores,
                "selected": None if row.method is None else row.selected.tolist(),
            }
            for row in self.rows
        ]
        overlaps = [
            {"n_features": m, "first": a, "second": b, **asdict(found)}
            for m, a, b, found in self.overlaps()
        ]
        about = {
            "input": self.uri,
            "n_samples": self.n_samples,
            "n_features": self.n_features,
            "n_classes": self.n_classes,
            "evaluate": self.evaluate,
            "rows": rows,
            "overlaps": overlaps,
            "stages": self.stages,
        }
        return json.dumps(about, indent=2) + "\n"

    def overlaps(self) -> list[tuple[int, str, str, Overlap]]:
        """Return m, two names and what their selections of m features have in common."""
        found = []
        for m in sorted({row.n_features for row in self.rows if row.method}):
            same = [row for row in self.rows if row.method and row.n_features == m]
            for i, first in enumerate(same):
                for second in same[i + 1 :]:
                    overlap = selection_overlap(first.selected, second.selected, self.n_features)
                    found.append((m, first.name, second.name, overlap))
        return found

    def write(self, directory: RunDirectory) -> None:
        """Write the table in all forms, and the figure."""
        directory.write_file(TABLE, self.text() + "\n")
        directory.write_file(CSV, self.csv())
        directory.write_file(JSON, self.json())
        title = self.uri.rpartition("/")[2]
        kinds = [name.rpartition(".")[2] for name in FIGURES]
        for name, content in zip(FIGURES, draw_curves(self._panels(), title, kinds), strict=True):
            directory.write_file(name, content)

    def _columns(self) -> list[tuple[str, str, bool]]:
        return [
            column
            for column in _COLUMNS
            if any(row.value(column[0]) is not None for row in self.rows)
        ]

    def _panels(self) -> list[tuple[str, list[Curve]]]:
        """Return the title of each panel of the figure and its curves, in percent."""
        panels = []
        for score, title in _PANELS:
            curves: list[Curve] = []
            for name in dict.fromkeys(row.name for row in self.rows):
                rows = [row for row in self.rows if row.name == name]
                values = [v for row in rows if (v := row.value(score)) is not None]
                if len(values) < len(rows):
                    continue
                spread = [row.scores.get(f"{score}_std", 0.0) for row in rows]
                curves.append(
                    Curve(
                        name,
                        [row.n_features for row in rows],
                        [100 * v for v in values],
                        [100 * s for s in spread],
                        rows[0].method is None,
                    )
                )
            if curves:
                panels.append((title, curves))
        return panels

    def _overlap_lines(self, width: int) -> list[str]:
        """Return what each pair shares, a line for each pair and a column for each m."""
        found = self.overlaps()
        if not found:
            return []
        sizes = sorted({m for m, *_ in found})
        pairs = dict.fromkeys((a, b) for _, a, b, _ in found)
        by_pair = {(m, a, b): overlap for m, a, b, overlap in found}
        chance = "  ".join(f"{100 * m / self.n_features:>6.1f}" for m in sizes)
        lines = [
            "",
            "selections in common (percent)",
            f"{'m':>{2 * width + 3}}  " + "  ".join(f"{m:>6}" for m in sizes),
            f"{'by chance':>{2 * width + 3}}  {chance}",
        ]
        for a, b in pairs:
            cells = [by_pair.get((m, a, b)) for m in sizes]
            shown = "  ".join(f"{100 * c.share:>6.1f}" if c else f"{'-':>6}" for c in cells)
            lines.append(f"{a:>{width}} {b:>{width + 2}}  {shown}")
        return lines

    def _shared_lines(self) -> list[str]:
        """Return what was computed once for all, and the largest peak."""
        seconds: dict[str, tuple[int, float]] = {}
        for name, record in self.stages.items():
            kind = name.partition("-")[0]
            count, total = seconds.get(kind, (0, 0.0))
            seconds[kind] = (count + 1, total + record["seconds"])
        parts = [
            f"{kind} {count} x, {format_seconds(total)}" for kind, (count, total) in seconds.items()
        ]
        peak = max(record["measured_peak_bytes"] for record in self.stages.values())
        return [
            f"Stages: {'; '.join(parts)}. Largest process: {format_bytes(peak)}.",
            f"Table and figure: {self.path / TABLE}, {CSV}, {JSON}, {', '.join(FIGURES)}",
        ]


def _cell(row: Row, score: str, repeated: bool) -> str:
    value = row.value(score)
    if value is None:
        return "-"
    if repeated:
        return f"{100 * value:5.1f} ± {100 * row.scores[f'{score}_std']:<4.1f}"
    return f"{100 * value:5.1f}"
