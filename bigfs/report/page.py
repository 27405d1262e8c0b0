"""Reports of runs and comparisons as single HTML files: the result first, then its basis.

The text is in the templates beside this file; the plots are those of `bigfs.results.plots`.
"""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.config.comparison import ALL_FEATURES, CHANCE
from bigfs.core.paths import OBJECT, short_name
from bigfs.core.threads import ignoring_warnings
from bigfs.core.yamltext import write_yaml
from bigfs.report.curves import SCORES, drawn
from bigfs.results.plots import positions_of, read_axis
from bigfs.results.result import Result, mean_score, score_cell
from bigfs.results.sample import Sample
from bigfs.spectral.choice import relative_gaps
from bigfs.stages.curves import Curves

# Largest numbers of features on the page; features.csv has all of them.
_CHIPS, _BARS = 50, 50
_ENOUGH = 0.9
_THAN_CHANCE = {"better": " +", "worse": " -"}


@dataclass(frozen=True)
class Drawn:
    """A figure that is embedded in a page: SVG in base64, and its description."""

    content: str
    label: str


def run_page(result: Result, mark: str = "") -> str:
    """Return the report of a run as HTML.

    Parameters
    ----------
    result : Result
    mark : str, default=""
        A tag for the head of the page.

    Raises
    ------
    InputError
        If the image or axis in the section ``report`` does not match the features, or the data of
        the run are gone.
    """
    settings, plots = result.settings.get("report") or {}, result.plot
    sample, curves = plots.sample(), result.curves
    first = plots.ranking.tolist()
    name = _file_name(short_name(str(result.settings["input"]["uri"])))
    heading = f"{len(result.selected)} of {result.n_features:,} features"
    shape = settings.get("image_shape")
    axis = read_axis(settings.get("axis"), result.n_features)
    if axis is None and not shape:
        axis = positions_of(plots.names)
    used = {name: value for name, value in result.settings.items() if value is not None}
    low = min(0.0, float(result.scores.min()))
    place = "ANOTHER-{date}" if "date" in used else "ANOTHER"
    pictures: dict[str, Drawn | None] = {"image": None, "axis": None, "clusters": None}
    draw = plots.curves if curves is not None else partial(_explained, plots.n_selected, sample)
    pictures["curves"] = _drawn(draw, "Curves over the number of features")
    pictures["correlation"] = _drawn(plots.correlation, "Correlation of the selected features", 4.4)
    pictures["map"] = _drawn(plots.map, "Map of the rows", 4.4)
    if shape:
        pictures["image"] = _drawn(lambda ax: plots.mask(shape, ax), "Selected features", 4.4)
    if axis is not None:
        pictures["axis"] = _drawn(lambda ax: plots.spectrum(axis, ax), "Scores along the axis")
    if 1 < len(np.unique(sample.groups)) <= 40:
        height = 1 + 0.24 * min(40, plots.n_selected)
        label = "Means of the selected features in each cluster"
        pictures["clusters"] = _drawn(plots.heatmap, label, height)
    return _template("run.html").render(
        mark=mark,
        title=f"{heading}: {result.method} on {name}",
        heading=heading,
        file=name,
        result=result,
        plots=plots,
        sample=sample,
        chips=first[: min(_CHIPS, plots.n_selected)],
        tiles=_tiles(result, sample),
        features=first[:_BARS],
        widths=100 * (result.scores - low) / (float(result.scores.max()) - low or 1.0),
        reasons={} if curves is None else _reasons(curves, first[:_BARS]),
        pair=_closest_pair(sample.correlation),
        quality=_quality(result),
        command=_repeated("run", str(result.path), used, place),
        configuration=write_yaml(used),
        **pictures,
    )


def comparison_page(
    table: dict[str, Any], figure: str, folder: str, settings: dict[str, Any], mark: str = ""
) -> str:
    """Return the report of a comparison as HTML.

    Parameters
    ----------
    table : dict
        Content of its ``table.json``.
    figure : str
        Content of its ``curves.svg``.
    folder : str
        The run directory.
    settings : dict
        Content of its ``config.yaml``.
    mark : str, default=""
        A tag for the head of the page.
    """
    rows = table["rows"]
    names = [key for key in SCORES if any(_percent(row, key) for row in rows)]
    stability = ["stability (95 %)"] if any(_agreement(row) for row in rows) else []
    body = [
        [
            row["name"],
            f"{row['n_features']:,}",
            *(_beside_chance(row, key) for key in names),
            *(_agreement(row) for _ in stability),
            "" if row["method"] is None else f"{row['seconds']:.1f}",
        ]
        for row in rows
    ]
    drawing = re.sub(r"^.*?(?=<svg)", "", figure, flags=re.S)
    kept = {row["name"].partition(" (auto ")[0] for row in rows}.difference((ALL_FEATURES, CHANCE))
    classes = f", {table['n_classes']} classes" if table["n_classes"] else ""
    heading = f"{len(kept)} methods on {_file_name(table['input'])}"
    return _template("comparison.html").render(
        mark=mark,
        title=heading,
        heading=heading,
        best=_best(table),
        about=f"{table['n_samples']:,} rows, {table['n_features']:,} features{classes}. "
        "Values in percent.",
        head=["method", "m", *(SCORES[key] for key in names), *stability, "seconds"],
        rows=body,
        judged=any(row.get("than_chance") for row in rows),
        curves=Drawn(base64.b64encode(drawing.encode()).decode(), "Scores by number of features"),
        overlaps=[
            [f"{o['n_features']}", o["first"], o["second"], f"{100 * o['share']:.0f}"]
            for o in table["overlaps"]
        ],
        command=_repeated("compare", folder, settings),
    )


def _repeated(command: str, folder: str, settings: dict[str, Any], place: str = "") -> str:
    """Return the command that repeats a run or comparison, in directory ``place`` if given.

    It is a call from Python if the data or labels were objects in memory.
    """
    config, judged = f"{folder}/config.yaml", settings.get("evaluate") or {}
    given = {"data": settings["input"]["uri"], "labels": judged.get("labels")}
    objects = [f", {name}=..." for name, x in given.items() if str(x).startswith(OBJECT)]
    if objects:
        other = f", overrides='run={place}'" if place else ""
        return f"bigfs.{command}({config!r}{''.join(objects)}{other})"
    return shlex.join(["bigfs", command, config, *(["--set", f"run={place}"] if place else [])])


@cache
def _template(name: str) -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(Path(__file__).with_name("templates"))
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template(name)


def _drawn(draw: Callable[[Any], Any], label: str, height: float = 3.4) -> Drawn:
    """Return a new figure drawn by ``draw(axes)``; the same drawing gives the same bytes."""
    with ignoring_warnings(message="Glyph .* missing from font"):
        [svg] = drawn(lambda figure: draw(figure.add_subplot()), ["svg"], (6, height))
    return Drawn(base64.b64encode(svg).decode(), label)


def _best(table: dict[str, Any]) -> str:
    """Return a sentence that names the best method by the first score, and those tied with it."""
    key, what = (
        ("nmi", "Highest NMI") if table["n_classes"] else ("explained", "Most variance explained")
    )
    methods = [row for row in table["rows"] if row["name"] not in (ALL_FEATURES, CHANCE)]
    values = [(row, shown) for row in methods if (shown := _percent(row, key))]
    if not values:
        return ""
    highest = max((shown for _, shown in values), key=float)
    first = [row for row, shown in values if shown == highest]
    named = " and ".join(f"{row['name']} with {row['n_features']} features" for row in first)
    return f"{what}: {named}, {highest} %."


def _percent(row: dict[str, Any], key: str) -> str:
    """Return a score (its mean if it was repeated) as text in percent; "" if it is missing."""
    value = mean_score(row["scores"], key)
    return "" if value is None else f"{100 * value:.1f}"


def _beside_chance(row: dict[str, Any], key: str) -> str:
    """Return a score with its deviation, and a sign if it differs from chance (+ is better)."""
    if not _percent(row, key):
        return ""
    verdict = (row.get("than_chance") or {}).get(key, "")
    return f"{score_cell(row['scores'], key).strip()}{_THAN_CHANCE.get(verdict, '')}"


def _agreement(row: dict[str, Any]) -> str:
    """Return the stability of a row with its interval, or "" if it was not measured."""
    stability = row.get("stability")
    return "{value:.2f} ({low:.2f} to {high:.2f})".format(**stability) if stability else ""


def _tiles(result: Result, sample: Sample) -> list[tuple[str, str]]:
    n_selected = len(result.selected)
    if result.curves is None:
        explained, mean = sample.explained, ", on average"
    else:
        adds = result.curves.adds
        explained, mean = np.cumsum(adds[np.isfinite(adds)]), ""
    few = min(n_selected, len(explained))
    share, by = float(explained[few - 1]), "" if few == n_selected else f" by the first {few}"
    tiles = [(f"{100 * share:.0f} %", f"of the features' variance explained{by}{mean}")]
    if few == n_selected:
        enough = int(np.searchsorted(explained, _ENOUGH * share)) + 1
        tiles.append((f"{enough}", f"of the features explain {100 * _ENOUGH:.0f} % of that"))
    stability = result.stability
    if stability is not None:
        text = f"of the features are common to two samples of {stability.sample_size:,} rows"
        tiles.insert(0, (stability.share_line(), text))
    if result.evaluation is not None:
        nmi = {
            name: f"{100 * result.evaluation[name]['nmi_mean']:.0f} %"
            for name in ("selected", "all", "chance")
            if name in result.evaluation
        }
        beside = {"all": "all features", "chance": "as many random ones"}
        others = "".join(f"; {beside[name]}: {nmi[name]}" for name in beside if name in nmi)
        tiles.append((nmi["selected"], f"NMI with the labels{others}"))
    if result.recall is not None:
        share = float(result.recall["value"])
        tiles.append((f"{100 * share:.0f} %", "of the true neighbors are in the graph"))
    if n_selected < result.n_features and result.is_quick and stability is not None:
        last, first = 100 * stability.frequencies[result.ranking[n_selected - 1 : n_selected + 1]]
        text = "frequency of the last selected and the first other feature"
        tiles.append((f"{last:.0f} | {first:.0f} %", text))
    elif n_selected < result.n_features:
        last, first = result.scores[result.plot.ranking[n_selected - 1 : n_selected + 1]]
        text = "score of the last selected and the first other feature"
        tiles.append((f"{last:#.3g} | {first:#.3g}", text))
    return tiles


def _reasons(curves: Curves, features: list[int]) -> dict[int, tuple[str, int | None]]:
    """Return the reason why each feature was selected or left out, by feature.

    A reason is a text and the index of the feature that completes it, or None.
    """
    reasons: dict[int, tuple[str, int | None]] = {}
    for feature in features:
        j, r = int(curves.closest[feature]), curves.correlation[feature]
        alone = "" if np.isnan(r) else "correlated with none"
        reasons[feature] = (f"{r:.2f} with ", j) if j >= 0 else (alone, None)
    path = zip(curves.order.tolist(), curves.adds, curves.explains, strict=True)
    for feature, share, part in path:
        added = "" if np.isnan(share) else f"adds {100 * share:.1f} %"
        reasons[feature] = ", ".join(filter(None, (added, part))), None
    return reasons


def _explained(n_selected: int, sample: Sample, ax: Any) -> None:
    """Draw the share of variance explained in a sample, for a result without curves."""
    ax.plot(np.arange(1, len(sample.explained) + 1), 100 * sample.explained)
    ax.axvline(n_selected, color="#d55e00", linewidth=1)
    ax.set(xlabel="features, in the order of the ranking", ylabel="percent", ylim=(0, 102))


def _closest_pair(matrix: np.ndarray) -> tuple[int, int] | None:
    """Return the positions of the pair of features with the largest absolute correlation.

    None for fewer than two features.
    """
    n = len(matrix)
    if n < 2:
        return None
    pairs = np.where(np.triu(np.ones((n, n)), 1) > 0, np.abs(matrix), -1.0)
    i, j = np.unravel_index(int(pairs.argmax()), pairs.shape)
    return int(i), int(j)


def _quality(result: Result) -> list[list[str]]:
    rows = []
    if result.recall is not None:
        figures = result.recall
        interval = f"{100 * figures['low']:.1f} to {100 * figures['high']:.1f} %"
        rows.append(["graph recall", f"{100 * figures['value']:.1f} % ({interval})"])
    spectrum = result.details.get("spectrum", result.details.get("eigenvalues"))
    if spectrum is not None and len(spectrum):
        shown = ", ".join(f"{value:.3g}" for value in np.asarray(spectrum)[:12].tolist())
        rows.append(["eigenvalues of the graph", shown])
        if len(spectrum) > 1 and spectrum[-1] > 0:
            n_groups = int(relative_gaps(np.asarray(spectrum)).argmax()) + 2
            low, high = spectrum[n_groups - 2], spectrum[n_groups - 1]
            gap = f"{low:.3g} to {high:.3g}, suggests {n_groups} groups"
            rows.append(["largest relative gap", gap])
    for name, title in (
        ("n_clusters", "clusters"),
        ("n_connected_components", "connected components"),
        ("n_iter", "iterations"),
        ("n_passes", "passes of the method over the data"),
    ):
        if name in result.details:
            rows.append([title, str(result.details[name])])
    if result.evaluation is not None:
        by = result.evaluation.get("n_components")
        spaces = f" by {by} principal components" if by else ""
        titles = {"selected": "selected", "all": "all", "chance": "as many random"}
        for key in (key for key in titles if key in result.evaluation):
            row = {"scores": result.evaluation[key]}
            values = {label: _percent(row, name) for name, label in SCORES.items()}
            text = ", ".join(f"{label} {value} %" for label, value in values.items() if value)
            rows.append([f"labels, {titles[key]} features{spaces}", text])
    return rows


def _file_name(uri: str) -> str:
    return uri.rstrip("/").rpartition("/")[2]
