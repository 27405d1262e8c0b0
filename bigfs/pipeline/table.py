"""Tables of comparisons as text, CSV, JSON and figures.

A single comparison has one row per selection, and curves over the number of features kept. Several
comparisons are summarized by the mean ranks of the methods, with the Friedman test and the Nemenyi
critical difference.
"""

from __future__ import annotations

import html
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import combinations, product
from typing import Any

import numpy as np

from bigfs.config.comparison import CHANCE
from bigfs.core.errors import InputError
from bigfs.core.text import aligned, csv_text
from bigfs.core.units import format_bytes, format_seconds
from bigfs.evaluate.metrics import Overlap, selection_overlap
from bigfs.evaluate.protocols import MANY_FEATURES, are_many
from bigfs.pipeline.run import run_in_directory
from bigfs.report.curves import SCORES, Curve, draw_panels, draw_ranks, drawn
from bigfs.results.result import mean_score, score_cell
from bigfs.solvers.agreement import Agreement
from bigfs.store.location import Location, as_location, write_atomic
from bigfs.store.records import TABLE
from bigfs.store.rundir import RunDirectory

CSV, JSON, FIGURES = "table.csv", "table.json", ("curves.svg", "curves.png")
_KINDS = ("svg", "png")  # file formats of the figures
TABLES = (TABLE, CSV, JSON, *FIGURES)
# Scores by which methods are compared with chance; 1 if larger is better, -1 if smaller is.
JUDGED = {"nmi": 1, "acc": 1, "nearest_neighbor_error": -1, "explained": 1}
BETTER, WORSE, NEITHER = "better", "worse", "neither"
# Significance level of the critical difference of ranks.
ALPHA = 0.05


def run_table(config: Any, work: Callable[[RunDirectory], Any], **options: Any) -> Any:
    """Do the work in the run directory of a configuration and write the table that it returns.

    The options are those of `run_in_directory`.
    """

    def written(directory: RunDirectory) -> Any:
        table = work(directory)
        directory.remove_files(TABLES)
        table.write(directory)
        return table

    return run_in_directory(config, written, TABLES, **options)


@dataclass(frozen=True)
class Row:
    """A row of the table: one selection and its scores.

    Attributes
    ----------
    name : str
        Name of the method in this comparison.
    method : str or None
        None for the row of all features.
    n_features : int
    selected : ndarray of shape (n_features,), int64
    scores : dict
        As `bigfs.evaluate.selection.measure_selection` returns them, in [0, 1].
    seconds : float
        Time of the method's own stage, without the stages that it shares with other methods.
    n_draws : int
        Number of random selections that the scores summarize, of which ``selected`` is the first;
        1 for other methods.
    stability : Agreement or None
        Agreement of the method's selections on samples; None if it was not requested.
    """

    name: str
    method: str | None
    n_features: int
    selected: np.ndarray
    scores: dict[str, float]
    seconds: float
    n_draws: int = 1
    stability: Agreement | None = None

    def value(self, score: str) -> float | None:
        """Return the mean of a score, or the score itself if it was measured only once."""
        return mean_score(self.scores, score)

    def than(self, chance: Row) -> dict[str, str]:
        """Return for each score whether this row is better than chance, worse, or neither.

        A score is better (worse) if it lies outside the interval that contains 95 % of random
        selections, on the good (bad) side.
        """
        verdicts = {}
        for score, sign in JUDGED.items():
            value, low, high = self.value(score), f"{score}_low", f"{score}_high"
            if value is None or low not in chance.scores:
                continue
            above = sign * (value - chance.scores[high if sign > 0 else low])
            below = sign * (value - chance.scores[low if sign > 0 else high])
            # If all draws agree, the interval is a single point up to rounding.
            verdicts[score] = BETTER if above > 1e-12 else WORSE if below < -1e-12 else NEITHER
        return verdicts


@dataclass(frozen=True, repr=False)
class ComparisonResult:
    """The table of a comparison.

    Attributes
    ----------
    path : Path or ObjectPath
        The run directory.
    uri : str
        URI of the data.
    n_samples, n_features : int
    n_classes : int or None
        None without labels.
    evaluate : dict
        Settings of the evaluation by labels; empty without labels.
    rows : list of Row
        All features first (omitted for sparse data that would take more than 2 GiB as a dense
        array), then chance, then the methods in the order of the configuration.
    stages : dict
        For each finished stage: seconds, passes, bytes read, measured peak bytes.
    """

    path: Location
    uri: str
    n_samples: int
    n_features: int
    n_classes: int | None
    evaluate: dict[str, Any]
    rows: list[Row]
    stages: dict[str, dict[str, Any]]

    def text(self) -> str:
        """Return the table for a terminal, in percent."""
        scores = [s for s in SCORES if any(row.value(s) is not None for row in self.rows)]
        classes = f", {self.n_classes} classes" if self.n_classes else ""
        titles = ["stability (95 %)"] if self._has_stability else []
        titles = [*(SCORES[score] for score in scores), *titles]
        table = [["method", "m", *titles, "seconds", self._chance_title()]]
        for row in self.rows:
            stability = [_stability_cell(row)] if self._has_stability else []
            took = f"{row.seconds:.1f}" if row.method else "-"
            verdicts = self.than_chance(row)
            known = self._judged if verdicts else ()
            against = "  ".join(f"{verdicts.get(score, '-'):<7}" for score in known)
            cells = [*(score_cell(row.scores, score) for score in scores), *stability]
            table.append([row.name, str(row.n_features), *cells, took, against])
        lines = [
            f"{self.uri}: {self.n_samples:,} samples x {self.n_features:,} features{classes}",
            self._how_judged(),
            "",
            *aligned(table, f"<>{'<' * len(titles)}><"),
            *self._chance_lines(),
            *self._overlap_lines(),
            "",
            *self._shared_lines(),
        ]
        return "\n".join(lines)

    def _how_judged(self) -> str:
        spec = self.evaluate
        if not spec:
            return (
                "without labels: variance of all features explained by the selected ones, and "
                "mean absolute correlation among these; percent"
            )
        kind, n_components = spec.get("preprocess", "none"), spec.get("n_components")
        space = "" if kind == "none" else f"; values: {kind}"
        if any(are_many(row.n_features, n_components) for row in self.rows):
            least = max(MANY_FEATURES, n_components or 0)
            space += f"; more than {least} features by their first {n_components} "
            space += "principal components"
        starts = f"the best of {spec['n_init']} starts" if spec["n_init"] > 1 else "one start each"
        return (
            f"k-means with {spec['n_clusters']} clusters, {spec['n_repetitions']} repetitions, "
            f"{starts} ({spec['init']}); percent, mean and standard deviation over repetitions "
            "(chance and random_selection: over draws); redundancy: mean absolute correlation of "
            f"the selected features{space}"
        )

    def than_chance(self, row: Row) -> dict[str, str]:
        """Return for each score whether a method is better than chance, worse, or neither.

        Empty for the rows of chance and of all features, and if chance was not requested.
        """
        chance = self._chance.get(row.n_features)
        return row.than(chance) if chance and row.method and row.name != CHANCE else {}

    @property
    def _has_stability(self) -> bool:
        return any(row.stability is not None for row in self.rows)

    @cached_property
    def _chance(self) -> dict[int, Row]:
        return {row.n_features: row for row in self.rows if row.name == CHANCE}

    @cached_property
    def _judged(self) -> list[str]:
        """Names of the scores that were measured for chance."""
        known = {key for row in self._chance.values() for key in row.scores}
        return [score for score in JUDGED if f"{score}_low" in known]

    def _chance_title(self) -> str:
        return "vs. chance: " + ", ".join(SCORES[s] for s in self._judged) if self._chance else ""

    def _chance_lines(self) -> list[str]:
        """Return lines with the 95 % interval of chance for each number of features."""
        if not self._chance:
            return []
        n_draws = next(iter(self._chance.values())).n_draws
        title = f"chance: {n_draws} random selections; intervals that hold 95 % of such (percent)"
        lines = ["", title]
        for m, row in sorted(self._chance.items()):
            cells = [
                f"{SCORES[score]} {max(0, 100 * row.scores[f'{score}_low']):.1f} to "
                f"{min(100, 100 * row.scores[f'{score}_high']):.1f}"
                for score in self._judged
                if f"{score}_low" in row.scores
            ]
            lines.append(f"{m:>6}  {', '.join(cells)}")
        return lines

    def csv(self) -> str:
        """Return the table as CSV, with values in [0, 1]."""
        rows = self.rows
        columns = {key: [getattr(r, key) for r in rows] for key in ("name", "method", "n_features")}
        for name in sorted({name for row in rows for name in row.scores}):
            columns[name] = [row.scores.get(name) for row in rows]
        if self._has_stability:
            for key, end in (("value", ""), ("low", "_low"), ("high", "_high")):
                columns[f"stability{end}"] = [getattr(row.stability, key, None) for row in rows]
        columns["seconds"] = [row.seconds for row in rows]
        for score in self._judged:
            columns[f"{score}_than_chance"] = [self.than_chance(row).get(score) for row in rows]
        return csv_text(columns)

    def to_frame(self) -> Any:
        """Return the table as a DataFrame with the columns of ``table.csv``, values in [0, 1]."""
        import pandas as pd

        return pd.read_csv(io.StringIO(self.csv()), keep_default_na=False, na_values=[""])

    def plot(self) -> np.ndarray:
        """Draw each score against the number of features, one panel per score, in a pyplot figure.

        Returns
        -------
        axes : ndarray of shape (n_panels,), object
            The axes, as matplotlib's ``subplots`` returns them.
        """
        import matplotlib.pyplot as plt

        return self._draw(plt.figure(layout="constrained"))

    def _draw(self, figure: Any) -> np.ndarray:
        return draw_panels(figure, self._panels(), self.uri.rpartition("/")[2])

    def __repr__(self) -> str:
        names = dict.fromkeys(row.name for row in self.rows if row.method)
        return f"<ComparisonResult of {', '.join(names)} on {self.uri}: {self.path}>"

    def _repr_html_(self) -> str:
        """Return the table as HTML, for notebooks."""
        shown: str = self.to_frame().to_html(index=False, float_format="%.3f", na_rep="")
        return f"<p><b>{html.escape(repr(self).strip('<>'))}</b></p>{shown}"

    def json(self) -> str:
        """Return everything that is known as JSON, with values in [0, 1]."""
        rows = []
        for row in self.rows:
            selected = None if row.method is None else row.selected.tolist()
            rows.append({**asdict(row), "than_chance": self.than_chance(row), "selected": selected})
        overlaps = [
            {"n_features": m, "first": a, "second": b, **asdict(overlap)}
            for m, a, b, overlap in self.overlaps()
        ]
        named = ("n_samples", "n_features", "n_classes", "evaluate")
        about = {"input": self.uri, **{name: getattr(self, name) for name in named}}
        about |= {"rows": rows, "overlaps": overlaps, "stages": self.stages}
        return json.dumps(about, indent=2) + "\n"

    def overlaps(self) -> list[tuple[int, str, str, Overlap]]:
        """Return m, the names of two methods and the overlap of their selections of m features.

        One entry for each m and each pair of methods that have a selection of m features.
        """
        pairs = []
        own = [row for row in self.rows if row.method and row.n_draws == 1]
        for m in sorted({row.n_features for row in own}):
            for a, b in combinations((row for row in own if row.n_features == m), 2):
                overlap = selection_overlap(a.selected, b.selected, self.n_features)
                pairs.append((m, a.name, b.name, overlap))
        return pairs

    def write(self, directory: RunDirectory) -> None:
        """Write the table in all formats, and the figure."""
        directory.write_file(TABLE, self.text() + "\n")
        directory.write_file(CSV, self.csv())
        directory.write_file(JSON, self.json())
        for name, content in zip(FIGURES, drawn(self._draw, _KINDS), strict=True):
            directory.write_file(name, content)

    def _panels(self) -> list[tuple[str, list[Curve]]]:
        """Return the title and the curves (in percent) of each panel of the figure."""
        panels = []
        for score in JUDGED:
            curves: list[Curve] = []
            for name in dict.fromkeys(row.name for row in self.rows):
                rows = [row for row in self.rows if row.name == name]
                values = [v for row in rows if (v := row.value(score)) is not None]
                if len(values) < len(rows):
                    continue
                sizes, percent = [row.n_features for row in rows], [100 * v for v in values]
                spread = [100 * row.scores.get(f"{score}_std", 0.0) for row in rows]
                kind = {"is_line": rows[0].method is None, "is_chance": name == CHANCE}
                curves.append(Curve(name, sizes, percent, spread, **kind))
            if curves:
                panels.append((f"{SCORES[score]} (%)", curves))
        return panels

    def _overlap_lines(self) -> list[str]:
        """Return a table of overlaps with a line for each pair of methods and a column for each m.

        The values are percentages of m.
        """
        by_pair: dict[tuple[str, str], dict[int, str]] = {}
        for m, a, b, overlap in self.overlaps():
            by_pair.setdefault((a, b), {})[m] = f"{100 * overlap.share:.1f}"
        if not by_pair:
            return []
        sizes = sorted({m for shares in by_pair.values() for m in shares})
        table = [
            ["", "m", *map(str, sizes)],
            ["", "by chance", *(f"{100 * m / self.n_features:.1f}" for m in sizes)],
        ]
        for pair, shares in by_pair.items():
            table.append([*pair, *(shares.get(m, "-") for m in sizes)])
        return ["", "selected features in common (percent)", *aligned(table)]

    def _shared_lines(self) -> list[str]:
        """Return lines on the time of the stages and the largest peak memory of a process."""
        seconds: dict[str, list[float]] = {}
        for name, record in self.stages.items():
            seconds.setdefault(name.partition("-")[0], []).append(record["seconds"])
        parts = [f"{kind} {len(s)} x, {format_seconds(sum(s))}" for kind, s in seconds.items()]
        peak = max(record["measured_peak_bytes"] for record in self.stages.values())
        return [
            f"Stages: {'; '.join(parts)}. Peak memory of a process: {format_bytes(peak)}.",
            f"Table and figure: {self.path / TABLE}, {CSV}, {JSON}, {', '.join(FIGURES)}",
        ]


def _stability_cell(row: Row) -> str:
    mean = row.stability
    return "-" if mean is None else f"{mean.value:.2f} ({mean.low:.2f} to {mean.high:.2f})"


@dataclass(frozen=True)
class Ranks:
    """Mean ranks of methods over several data sets, with significance tests.

    Attributes
    ----------
    names : list of n_methods str
    mean_ranks : ndarray of shape (n_methods,), float64
        1 is the best; tied methods share the mean of their ranks.
    n_sets : int
    statistic : float
        Friedman's chi-square, corrected for ties.
    p_value : float
        p-value of the Iman-Davenport F statistic, which is derived from ``statistic``. The null
        hypothesis is that all methods are equivalent. If all data sets rank the methods alike, F
        is infinite, and this is the probability that such ranks all agree by chance.
    critical_difference : float
        Critical difference of the Nemenyi test: two methods whose mean ranks differ by less are
        not significantly different, at a family-wise level of 5 % over all pairs.

    Notes
    -----
    As in [1]_. With ``R_j`` the mean ranks of k methods on N data sets::

        chi2 = 12 N / (k (k + 1)) (sum_j R_j^2 - k (k + 1)^2 / 4),
        F = (N - 1) chi2 / (N (k - 1) - chi2)  with k - 1 and (k - 1)(N - 1) degrees of freedom,
        CD = q sqrt(k (k + 1) / (6 N)),

    where q is the 0.95 quantile of the studentized range of k means divided by ``sqrt(2)``.

    References
    ----------
    .. [1] J. Demsar, "Statistical comparisons of classifiers over multiple data sets", Journal of
       Machine Learning Research 7, 2006.
    """

    names: list[str]
    mean_ranks: np.ndarray
    n_sets: int
    statistic: float
    p_value: float
    critical_difference: float

    @classmethod
    def of(cls, names: list[str], values: np.ndarray, *, larger_is_better: bool) -> Ranks:
        """Rank methods by their values on each data set.

        Parameters
        ----------
        names : list of n_methods str
            At least two methods.
        values : ndarray of shape (n_sets, n_methods)
            At least two data sets.
        larger_is_better : bool
        """
        from scipy.special import factorial, fdtrc
        from scipy.stats import rankdata, studentized_range

        n, k = values.shape
        ranks = rankdata(-values if larger_is_better else values, axis=1)
        means = ranks.mean(axis=0)
        spread = float(((means - (k + 1) / 2) ** 2).sum())
        # Without ties, the sum of squares is n k (k + 1) (k - 1) / 12.
        squares = float(((ranks - (k + 1) / 2) ** 2).sum())
        statistic = n**2 * (k - 1) * spread / squares if squares else 0.0
        left = n * (k - 1) - statistic
        if left > 1e-9:
            p_value = float(fdtrc(k - 1, (k - 1) * (n - 1), (n - 1) * statistic / left))
        else:
            _, tied = np.unique(ranks[0], return_counts=True)
            p_value = float((factorial(tied).prod() / factorial(k)) ** (n - 1))
        q = float(studentized_range.ppf(1 - ALPHA, k, np.inf)) / np.sqrt(2)
        difference = q * float(np.sqrt(k * (k + 1) / (6 * n)))
        return cls(list(names), means, n, statistic, p_value, difference)

    def groups(self) -> list[list[str]]:
        """Return the maximal groups of methods that do not differ significantly, best first."""
        order = np.argsort(self.mean_ranks, kind="stable")
        largest: list[list[str]] = []
        last = -1
        for i, first in enumerate(order):
            reach = self.mean_ranks[first] + self.critical_difference
            end = int((self.mean_ranks[order] <= reach).sum())
            if end > last and end > i + 1:
                largest.append([self.names[j] for j in order[i:end]])
            last = max(last, end)
        return largest


@dataclass(frozen=True)
class RankSummary:
    """Ranks of methods over several data sets, for each score.

    Attributes
    ----------
    sets : list of str
        Names of the data sets.
    values : dict of str to ndarray of shape (n_sets, n_methods)
        For each score, its mean over the numbers of features, in [0, 1]. If chance is ranked, only
        the numbers of features that chance and all methods have in common count.
    ranks : dict of str to Ranks
        For each score. Chance is ranked like a method if it shares a number of features with all
        methods; the row of all features is not ranked.
    left_out : list of str
        Methods that are missing from at least one comparison.
    """

    sets: list[str]
    values: dict[str, np.ndarray]
    ranks: dict[str, Ranks]
    left_out: list[str]

    @classmethod
    def of(cls, results: Sequence[ComparisonResult]) -> RankSummary:
        """Return the summary of several comparisons of the same methods.

        Raises
        ------
        InputError
            If there are fewer than two comparisons, or fewer than two methods in common.
        """
        means: dict[str, dict[str, dict[str, float]]] = {score: {} for score in JUDGED}
        for score, result in product(JUDGED, results):
            values: dict[str, dict[int, float]] = {}
            for row in result.rows:
                if row.method is not None and (value := row.value(score)) is not None:
                    values.setdefault(row.name, {})[row.n_features] = value
            # Chance has no row for all features, but one for each number that a method chose.
            shared = set.intersection(*map(set, values.values())) if CHANCE in values else set()
            if shared:
                values = {name: {m: of[m] for m in shared} for name, of in values.items()}
            else:  # methods that chose their own number of features share none with chance
                values.pop(CHANCE, None)
            if values:
                of_set = {name: float(np.mean([*of.values()])) for name, of in values.items()}
                means[score][str(result.path)] = of_set
        return cls.of_values({s: of for s, of in means.items() if len(of) == len(results)})

    @classmethod
    def of_values(cls, values: Mapping[str, Mapping[str, Mapping[str, float]]]) -> RankSummary:
        """Return the summary of ``values[score][set][method]``."""
        sets = list(next(iter(values.values()), ()))
        known = [list(row) for table in values.values() for row in table.values()]
        names = list(dict.fromkeys(m for row in known for m in row))
        common = [name for name in names if all(name in row for row in known)]
        if len(sets) < 2 or len(common) < 2:
            raise InputError(
                f"Ranks need at least two comparisons with two methods in common. Got {len(sets)} "
                f"comparisons with {len(common)} in common."
            )
        matrices, ranks = {}, {}
        for score, table in values.items():
            matrices[score] = np.array([[table[s][name] for name in common] for s in sets])
            ranks[score] = Ranks.of(common, matrices[score], larger_is_better=JUDGED[score] > 0)
        return cls(sets, matrices, ranks, [name for name in names if name not in common])

    def text(self) -> str:
        """Return the mean ranks as a table, sorted by the first score, best first."""
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
            lines.append(f"Not ranked, since not in every comparison: {', '.join(self.left_out)}")
        return "\n".join(lines)

    def csv(self) -> str:
        """Return mean ranks and values as CSV, one line per method."""
        columns: dict[str, Any] = {"method": next(iter(self.ranks.values())).names}
        columns |= {f"{score}_mean_rank": r.mean_ranks for score, r in self.ranks.items()}
        for score, matrix in self.values.items():
            columns |= {f"{score} {s}": row for s, row in zip(self.sets, matrix, strict=True)}
        return csv_text(columns)

    def json(self) -> str:
        """Return everything that is known as JSON."""
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
        contents: dict[str, str | bytes] = {
            "txt": self.text() + "\n",
            "csv": self.csv(),
            "json": self.json(),
            **dict(zip(_KINDS, draw_ranks(diagrams, _KINDS), strict=True)),
        }
        for ending, content in contents.items():
            write_atomic(place / f"ranks.{ending}", content)
