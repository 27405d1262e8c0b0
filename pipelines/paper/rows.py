"""The table of a paper with our values beside the paper's, rows without data included."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from bigfs.core.units import format_seconds
from bigfs.pipeline.table import CSV, JSON
from bigfs.store.location import Location
from bigfs.store.records import TABLE
from bigfs.store.rundir import RunDirectory
from pipelines.paper.settings import ALL_FEATURES, Score

_TITLES = {
    "nmi": "NMI",
    "acc": "ACC",
    "rand": "Rand",
    "majority": "majority",
    "error": "error",
    "nearest_neighbor_error": "1-NN error",
}
_SMALLER = ("error", "nearest_neighbor_error")


@dataclass(frozen=True)
class PaperRow:
    """One value of a table, in percent.

    Attributes
    ----------
    set : str
    case : str
        Number of classes that were drawn, or ``average``; empty where all of them always are.
    method : str
    n_features : int or None
        None: all, or the best of several numbers.
    score : str
    value, std : float or None
        Ours. None: there is no data.
    detail : str
    paper : float or None
        None: the paper does not say.
    why : str
        Why there is no value of ours.
    """

    set: str
    case: str
    method: str
    n_features: int | None
    score: Score
    value: float | None = None
    std: float | None = None
    detail: str = ""
    paper: float | None = None
    why: str = ""


@dataclass(frozen=True)
class PaperResult:
    """The table.

    Attributes
    ----------
    path : Path or ObjectPath
        The run directory.
    title, protocol : str
    rows : list of PaperRow
    remarks : dict of str to str
        Data sets without data and methods that were not run, and why.
    stages : dict
    """

    path: Location
    title: str
    protocol: str
    rows: list[PaperRow]
    remarks: dict[str, str]
    stages: dict[str, dict[str, Any]]

    def text(self) -> str:
        """Return the table for a terminal."""
        sets = max(len(row.set) for row in self.rows)
        methods = max(len(row.method) for row in self.rows)
        classes = any(row.case for row in self.rows)
        lines = [
            self.title,
            "",
            f"{'data':<{sets}}  {'classes  ' if classes else ''}{'method':<{methods}}  "
            f"{'m':>4}  {'score':<10}  {'ours':>13}  {'paper':>6}  {'difference':>10}",
        ]
        for row in self.rows:
            ours = row.why if row.value is None else _with_deviation(row.value, row.std)
            paper = "-" if row.paper is None else f"{row.paper:.1f}"
            apart = "-"
            if row.value is not None and row.paper is not None:
                apart = f"{round(row.value - row.paper, 1) + 0.0:+.1f}"
            group = f"{row.case:>7}  " if classes else ""
            size = "-" if row.n_features is None else str(row.n_features)
            cells = f"{_TITLES[row.score]:<10}  {ours:>13}  {paper:>6}  {apart:>10}  {row.detail}"
            what = f"{row.set:<{sets}}  {group}{row.method:<{methods}}  {size:>4}"
            lines.append(f"{what}  {cells}".rstrip())
        lines += ["", *self._order_lines()]
        lines += [f"{what}: {why}." for what, why in self.remarks.items()]
        seconds = sum(record["seconds"] for record in self.stages.values())
        lines.append(f"Time: {format_seconds(seconds)}. Table: {self.path / TABLE}, {CSV}, {JSON}")
        return "\n".join(lines)

    def csv(self) -> str:
        """Return the table as CSV."""
        text = io.StringIO()
        names = list(PaperRow.__dataclass_fields__)
        table = csv.DictWriter(text, names, lineterminator="\n")
        table.writeheader()
        table.writerows(asdict(row) for row in self.rows)
        return text.getvalue()

    def json(self) -> str:
        """Return all that is known as JSON."""
        about = {
            "title": self.title,
            "protocol": self.protocol,
            "rows": [asdict(row) for row in self.rows],
            "remarks": self.remarks,
            "stages": self.stages,
        }
        return json.dumps(about, indent=2) + "\n"

    def write(self, directory: RunDirectory) -> None:
        """Write the table in all forms."""
        directory.write_file(TABLE, self.text() + "\n")
        directory.write_file(CSV, self.csv())
        directory.write_file(JSON, self.json())

    def orders(self) -> Iterator[tuple[str, str, str, list[str], list[str]]]:
        """Yield set, case, score, and the methods from best to worst, ours and the paper's."""
        groups: dict[tuple[str, str, str], list[tuple[str, float, float]]] = {}
        for row in self.rows:
            if row.value is not None and row.paper is not None and row.method != ALL_FEATURES:
                cells = groups.setdefault((row.set, row.case, row.score), [])
                cells.append((row.method, row.value, row.paper))
        for (name, case, score), cells in groups.items():
            sign = 1 if score in _SMALLER else -1
            ours = sorted(cells, key=lambda cell: sign * cell[1])
            theirs = sorted(cells, key=lambda cell: sign * cell[2])
            if len(cells) > 1:
                yield name, case, score, [cell[0] for cell in ours], [cell[0] for cell in theirs]

    def _order_lines(self) -> list[str]:
        lines = []
        for name, case, score, ours, theirs in self.orders():
            group = f", {case} classes" if case.isdigit() else f", {case}" if case else ""
            what = f"{name}{group}, {_TITLES[score]}"
            if ours == theirs:
                lines.append(f"Order of the paper in {what}: {' > '.join(ours)}")
            else:
                lines.append(
                    f"Another order in {what}: {' > '.join(ours)} (paper: {' > '.join(theirs)})"
                )
        return [*lines, ""] if lines else []


def _with_deviation(value: float, deviation: float | None) -> str:
    """Return a mean with its deviation; of a single run there is none."""
    return f"{value:6.1f} ± {deviation:<4.1f}" if deviation else f"{value:6.1f}       "
