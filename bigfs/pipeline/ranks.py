"""Summary of several comparisons: ranks of the methods over the data sets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bigfs.config import Comparison, Methods
from bigfs.core.errors import InputError
from bigfs.core.text import aligned, csv_text
from bigfs.evaluate.ranks import Ranks
from bigfs.pipeline.compare import compare
from bigfs.pipeline.table import JUDGED, ComparisonResult
from bigfs.report.curves import SCORES, draw_ranks
from bigfs.store.location import Location, as_location, replaced_file

_FIGURES = ("svg", "png")


@dataclass(frozen=True)
class RankSummary:
    """Ranks of methods over several data sets.

    Attributes
    ----------
    sets : list of str
    values : dict of str to ndarray of shape (n_sets, n_methods)
        By score: the mean over the numbers of features, in [0, 1].
    ranks : dict of str to Ranks
        By score. Chance is ranked as a method; all features are not.
    left_out : list of str
        Methods that are not in every comparison.
    """

    sets: list[str]
    values: dict[str, np.ndarray]
    ranks: dict[str, Ranks]
    left_out: list[str]

    @classmethod
    def of(cls, results: Sequence[ComparisonResult]) -> RankSummary:
        """Return the summary of comparisons of the same methods.

        Raises
        ------
        InputError
            If there are fewer than two comparisons, or fewer than two methods in all of them.
        """
        tables: dict[str, dict[str, dict[str, list[float]]]] = {score: {} for score in JUDGED}
        for result in results:
            for row in (row for row in result.rows if row.method is not None):
                for score in JUDGED:
                    value = row.value(score)
                    if value is not None:
                        of_set = tables[score].setdefault(str(result.path), {})
                        of_set.setdefault(row.name, []).append(value)
        means = {
            score: {s: {m: float(np.mean(v)) for m, v in cells.items()} for s, cells in of.items()}
            for score, of in tables.items()
            if len(of) == len(results)
        }
        return cls.of_values(means)

    @classmethod
    def of_values(cls, values: Mapping[str, Mapping[str, Mapping[str, float]]]) -> RankSummary:
        """Return the summary of ``values[score][set][method]``."""
        tables = list(values.values())
        sets = list(tables[0]) if tables else []
        known = [list(row) for table in tables for row in table.values()]
        names = [m for m in dict.fromkeys(m for row in known for m in row)]
        common = [name for name in names if all(name in row for row in known)]
        if len(sets) < 2 or len(common) < 2:
            raise InputError(
                f"Ranks need at least two comparisons with two methods in common. Got {len(sets)} "
                f"comparisons with {len(common)} in common."
            )
        matrices = {
            score: np.array([[table[s][name] for name in common] for s in sets])
            for score, table in values.items()
        }
        ranks = {
            score: Ranks.of(common, matrix, larger_is_better=JUDGED[score] > 0)
            for score, matrix in matrices.items()
        }
        return cls(sets, matrices, ranks, [name for name in names if name not in common])

    def text(self) -> str:
        """Return the mean ranks as a table, best first by the first score."""
        by_score = list(self.ranks.values())
        table = [["method", *(SCORES[score] for score in self.ranks)]]
        for i in np.argsort(by_score[0].mean_ranks, kind="stable"):
            table.append([by_score[0].names[i], *(f"{r.mean_ranks[i]:.2f}" for r in by_score)])
        table += [
            ["critical difference", *(f"{r.critical_difference:.2f}" for r in by_score)],
            ["Friedman chi-square", *(f"{r.statistic:.2f}" for r in by_score)],
            ["p", *(f"{r.p_value:.2g}" for r in by_score)],
        ]
        title = f"mean ranks over {len(self.sets)} comparisons (1 is the best)"
        lines = [title, "", *aligned(table, "<"), ""]
        for score, ranks in self.ranks.items():
            groups = "; ".join(", ".join(group) for group in ranks.groups())
            lines.append(f"{SCORES[score]}, not significantly different: {groups or 'none'}")
        if self.left_out:
            lines.append(f"Not in every comparison, so not ranked: {', '.join(self.left_out)}")
        return "\n".join(lines)

    def csv(self) -> str:
        """Return mean ranks and values, a line for each method."""
        columns: dict[str, Any] = {"method": next(iter(self.ranks.values())).names}
        columns |= {f"{score}_mean_rank": r.mean_ranks for score, r in self.ranks.items()}
        for score, matrix in self.values.items():
            columns |= {f"{score} {s}": row for s, row in zip(self.sets, matrix, strict=True)}
        return csv_text(columns)

    def json(self) -> str:
        """Return all that is known as JSON."""
        about: dict[str, Any] = {"sets": self.sets, "left_out": self.left_out}
        for score, ranks in self.ranks.items():
            about[score] = {
                **asdict(ranks),
                "mean_ranks": ranks.mean_ranks.tolist(),
                "groups": ranks.groups(),
                "values": self.values[score].tolist(),
            }
        return json.dumps(about, indent=2) + "\n"

    def write(self, folder: str | Location) -> None:
        """Write ``ranks.txt``, ``.csv``, ``.json``, ``.svg`` and ``.png`` into a folder."""
        place = as_location(folder)
        place.mkdir(parents=True, exist_ok=True)
        diagrams = {SCORES[score]: ranks for score, ranks in self.ranks.items()}
        contents = {
            "txt": self.text().encode() + b"\n",
            "csv": self.csv().encode(),
            "json": self.json().encode(),
            **dict(zip(_FIGURES, draw_ranks(diagrams, _FIGURES), strict=True)),
        }
        for ending, content in contents.items():
            with replaced_file(place / f"ranks.{ending}") as file:
                file.write(content)


def compare_all(
    configs: Sequence[Methods], folder: str | Location, **options: Any
) -> tuple[list[ComparisonResult], RankSummary]:
    """Run several comparisons, and write how their methods rank.

    Parameters
    ----------
    configs : sequence of Comparison
        Each with a run directory of its own.
    folder : str, Path or ObjectPath
        Gets the files of `RankSummary.write`.
    **options
        As of `bigfs.compare`.

    Returns
    -------
    results : list of ComparisonResult
    summary : RankSummary

    Raises
    ------
    InputError
        If a configuration is the table of a paper, or two have the same run directory.
    """
    runs = [config.run for config in configs]
    twice = sorted({run for run in runs if runs.count(run) > 1})
    if twice:
        raise InputError(
            f"Comparisons that are ranked need different 'run' directories; {twice[0]} is "
            "given twice."
        )
    for config in configs:
        if not isinstance(config, Comparison):
            raise InputError(f"{config.run}: the table of a paper cannot be ranked.")
    results = [compare(config, **options) for config in configs]
    summary = RankSummary.of(results)
    summary.write(folder)
    return results, summary
