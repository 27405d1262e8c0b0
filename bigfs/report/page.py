"""A run or a comparison as one HTML file: the result first, then its basis."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from bigfs.config.comparison import ALL_FEATURES, CHANCE
from bigfs.core.errors import InputError
from bigfs.core.files import parse_json
from bigfs.core.units import format_bytes, format_seconds
from bigfs.core.uris import short_name
from bigfs.core.yamltext import write_yaml
from bigfs.report import svg
from bigfs.report.axis import check_image, read_axis
from bigfs.report.facts import Facts, gather
from bigfs.report.style import STYLE
from bigfs.results.result import Result
from bigfs.spectral.choice import relative_gaps
from bigfs.stages.curves import curve_sizes

# What the page shows at most; features.csv has all.
_CHIPS, _BARS, _CELLS = 60, 40, 60
_ENOUGH = 0.9
_SCORES = {
    "nmi": "NMI",
    "acc": "ACC",
    "rand": "Rand index",
    "nearest_neighbor_error": "1-NN error",
    "explained": "variance explained",
    "redundancy": "redundancy",
}


def run_page(result: Result) -> str:
    """Return the page of a run.

    Parameters
    ----------
    result : Result

    Raises
    ------
    InputError
        If ``report`` names an image or an axis that does not go with the features, or the data of
        the run are gone.
    """
    settings = result.settings.get("report") or {}
    facts = gather(result)
    title = f"{len(result.selected)} of {result.n_features:,} features"
    sections = [
        _answer(result, facts, title),
        _sure(result),
        *_places(result, settings),
        _scores(result),
        _curves(result, facts),
        _correlation(result, facts),
        _map(facts),
        _quality(result),
        _cost(result),
        _repeat(result),
    ]
    return _page(f"{title}: {result.method} on {_data_name(result)}", sections)


def comparison_page(table: dict[str, Any], figure: str, folder: str) -> str:
    """Return the page of a comparison.

    Parameters
    ----------
    table : dict
        What its ``table.json`` holds.
    figure : str
        Its ``curves.svg``.
    folder : str
        The run directory.
    """
    rows = table["rows"]
    names = [key for key in _SCORES if any(_score(row, key) for row in rows)]
    sure = ["stability (95 %)"] if any(_agreement(row) for row in rows) else []
    body = [
        [
            row["name"],
            f"{row['n_features']:,}",
            *(_score(row, key) for key in names),
            *(_agreement(row) for _ in sure),
            "" if row["method"] is None else f"{row['seconds']:.1f}",
        ]
        for row in rows
    ]
    head = ["method", "m", *(_SCORES[key] for key in names), *sure, "seconds"]
    key, what = (
        ("nmi_mean", "Highest NMI") if table["n_classes"] else ("explained", "Most explained")
    )
    kept = [row for row in rows if row["name"] not in (ALL_FEATURES, CHANCE)]
    methods = [row for row in kept if key in row["scores"]]
    best_line = ""
    if methods:
        best = max(methods, key=lambda row: row["scores"][key])
        best_line = (
            f"{what}: {best['name']} with {best['n_features']} features, "
            f"{100 * best['scores'][key]:.1f} %."
        )
    title = f"{len({row['name'] for row in methods})} methods on {_file_name(table['input'])}"
    classes = f", {table['n_classes']} classes" if table["n_classes"] else ""
    about = (
        f"{table['n_samples']:,} rows, {table['n_features']:,} features{classes}. "
        "Values in percent."
    )
    drawing = re.sub(r"^.*?(?=<svg)", "", figure, flags=re.S)
    overlaps = [
        [f"{o['n_features']}", o["first"], o["second"], f"{100 * o['share']:.0f}"]
        for o in table["overlaps"]
    ]
    sections = [
        f"<header><h1>{escape(title)}</h1><p>{escape(best_line)}</p><p>{escape(about)}</p></header>",
        _section("Scores", _table(head, body), "across"),
        _section("Curves", f'<div class="figure">{drawing}</div>', "across"),
    ]
    if overlaps:
        shared = _table(["m", "method", "method", "shared, %"], overlaps)
        sections.append(_section("Selections in common", shared))
    command = f"bigfs compare {folder}/config.yaml"
    sections.append(_section("How to repeat it", f"<pre>{escape(command)}</pre>"))
    return _page(title, sections)


def _score(row: dict[str, Any], key: str) -> str:
    """Return the mean of a score, or the score where it is not repeated, in percent."""
    value = row["scores"].get(f"{key}_mean", row["scores"].get(key))
    return "" if value is None else f"{100 * value:.1f}"


def _agreement(row: dict[str, Any]) -> str:
    """Return the stability of a row with its interval, or nothing."""
    stability = row.get("stability")
    return "{value:.2f} ({low:.2f} to {high:.2f})".format(**stability) if stability else ""


def _answer(result: Result, facts: Facts, title: str) -> str:
    kept = set(result.selected.tolist())
    order = [feature for feature in result.ranking.tolist() if feature in kept]
    chips = "".join(
        f'<li style="--strength:{1 - 0.7 * i / len(order):.2f}">{_name(result.name_of(f))}</li>'
        for i, f in enumerate(order[:_CHIPS])
    )
    more = len(order) - _CHIPS
    rest = f"<p>and {more:,} more, see features.csv</p>" if more > 0 else ""
    tiles = "".join(
        f"<div><b>{escape(value)}</b><span>{escape(text)}</span></div>"
        for value, text in _tiles(result, facts)
    )
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in result.notes)
    about = f"{result.method} on {_data_name(result)}, {result.n_samples:,} rows"
    return (
        f"<header><h1>{escape(title)}</h1><p>{escape(about)}. The best first:</p>"
        f'<ol class="chips">{chips}</ol>{rest}<div class="tiles">{tiles}</div>{notes}'
        "</header>"
    )


def _tiles(result: Result, facts: Facts) -> list[tuple[str, str]]:
    n_selected = len(result.selected)
    tiles = []
    explained, mean = facts.explained, ", on average"
    if result.curves is not None:
        explained, mean = (
            _every_m(result.curves.sizes, result.curves.values["explained_variance"]),
            "",
        )
    if n_selected > len(explained):
        share, first = float(explained[-1]), len(explained)
        text = f"of the features' variance explained by the first {first}{mean}"
        tiles.append((f"{100 * share:.0f} %", text))
    else:
        share = float(explained[n_selected - 1])
        if result.curves is not None:
            share = float(result.curves.adds.sum())
        tiles.append((f"{100 * share:.0f} %", f"of the features' variance explained{mean}"))
        enough = int(np.searchsorted(explained, _ENOUGH * share)) + 1
        tiles.append((f"{enough}", f"of them explain {100 * _ENOUGH:.0f} % of that"))
    sure = result.stability
    if sure is not None:
        text = f"of the features are common to two samples of {sure.sample_size:,} rows"
        tiles.insert(0, (sure.share_line(), text))
    if result.evaluation is not None:
        nmi = {
            name: f"{100 * result.evaluation[name]['nmi_mean']:.0f} %"
            for name in ("selected", "all")
            if name in result.evaluation  # all: but of large sparse data
        }
        beside = f"; all features: {nmi['all']}" if "all" in nmi else ""
        tiles.append((nmi["selected"], f"NMI with the labels{beside}"))
    if result.recall is not None:
        tiles.append(
            (f"{100 * result.recall['value']:.0f} %", "of the true neighbors are in the graph")
        )
    if n_selected < result.n_features and result.is_quick and sure is not None:
        last, first = 100 * sure.frequencies[result.ranking[n_selected - 1 : n_selected + 1]]
        text = "frequency of the last kept and the first left out"
        tiles.append((f"{last:.0f} | {first:.0f} %", text))
    elif n_selected < result.n_features:
        scores = np.sort(result.scores)[::-1]
        last, first = scores[n_selected - 1], scores[n_selected]
        tiles.append(
            (f"{last:#.3g} | {first:#.3g}", "score of the last kept and the first left out")
        )
    return tiles


def _places(result: Result, settings: dict[str, Any]) -> list[str]:
    """Return where the selected features are, in an image or along an axis."""
    sections = []
    shape, axis = settings.get("image_shape"), settings.get("axis")
    if shape:
        check_image(shape, result.n_features)
        ranks = np.full(result.n_features, result.n_features)
        kept = result.ranking[np.isin(result.ranking, result.selected)]
        ranks[kept] = np.arange(len(kept))
        picture = svg.mask(ranks, len(kept), shape, "The selected features in the image")
        sections.append(_section("In the image", f'<div class="square">{picture}</div>'))
    if axis:
        values = read_axis(axis, result.n_features)
        assert values is not None
        picture = svg.positions(values, result.scores, result.selected, "Scores along the axis")
        sections.append(_section("Along the axis", picture))
    return sections


def _sure(result: Result) -> str:
    """Return how sure the selection is, with the features that are stable."""
    sure = result.stability
    if sure is None:
        return ""
    lines = [line[0].upper() + line[1:] for line in result.stability_lines]
    paragraphs = "".join(f"<p>{escape(line)}.</p>" for line in lines)
    return _section("How sure", paragraphs)


def _scores(result: Result) -> str:
    kept = set(result.selected.tolist())
    shown = result.ranking[:_BARS].tolist()
    low = min(0.0, float(result.scores.min()))
    size = float(result.scores.max()) - low or 1.0
    sure = result.stability
    often = [""] * len(shown)
    if sure is not None:
        often = [f"<td>{100 * sure.frequencies[f]:.0f} %</td>" for f in shown]
    why = _why(result)
    rows = "".join(
        f"<tr{'' if f in kept else ' class=out'}><td>{rank}</td>"
        f"<th>{_name(result.name_of(f))}</th>"
        f'<td class="bar"><i style="width:{100 * (result.scores[f] - low) / size:.1f}%"></i></td>'
        f"<td>{result.scores[f]:.4g}</td>{often[rank - 1]}{why.get(f, '')}</tr>"
        for rank, f in enumerate(shown, start=1)
    )
    note = f"The first {len(shown)}; features.csv has all {result.n_features:,}."
    column = "" if sure is None else "<td>frequency</td>"
    column += "<td>why</td>" if why else ""
    head = f"<tr><td>rank</td><th>feature</th><td></td><td>score</td>{column}</tr>"
    return _section("Scores", f'<p>{note}</p><table class="scores">{head}{rows}</table>')


def _why(result: Result) -> dict[int, str]:
    """Return a cell for each feature: what it adds, or the selected one that is closest."""
    curves = result.curves
    if curves is None:
        return {}
    cells = {}
    for feature, adds, part in zip(
        curves.order.tolist(), curves.adds, curves.explains, strict=True
    ):
        also = f", {escape(part)}" if part else ""
        cells[feature] = f"<td>adds {100 * adds:.1f} %{also}</td>"
    for feature in np.setdiff1d(result.ranking, curves.order).tolist():
        closest = int(curves.closest[feature])
        name = _name(result.name_of(closest)) if closest >= 0 else ""
        text = f"{curves.correlation[feature]:.2f} with {name}" if name else "tied to none"
        cells[feature] = f"<td>{text}</td>"
    return cells


def _every_m(sizes: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return a curve for 1, 2, ... features, read linearly between those it was computed for."""
    return np.interp(np.arange(1, sizes[-1] + 1), sizes, values)


def _curves(result: Result, facts: Facts) -> str:
    curves, n_selected = result.curves, len(result.selected)
    content = f"<p>The line marks the {n_selected} selected."
    shown: list[tuple[str, np.ndarray]] = []
    if curves is None:
        text = (
            "Percent of the variance of all features, in the mean, that the first features of the "
            "ranking explain by linear regression (adjusted R squared, on "
            f"{facts.n_rows:,} rows)."
        )
        shown.append((text, facts.explained))
    else:
        if curves.number is not None:
            content += f" Their number is {escape(curves.number['rule'])}."
        texts = {
            "explained_variance": "Percent of the variance of all features that linear "
            "regressions on the first features of the ranking explain, on all rows.",
            "explained_eigenvectors": "Percent of the eigenvectors of the graph that linear "
            "regressions on them explain, in the mean.",
            "neighbors_kept": f"Percent of the {curves.n_neighbors} nearest rows that are also "
            f"nearest in these features alone, among {curves.n_rows:,} sampled rows.",
        }
        shown += [
            (text, _every_m(curves.sizes, curves.values[name]))
            for name, text in texts.items()
            if name in curves.values
        ]
    if result.stability is not None:
        # Of selections of all features there is nothing to say.
        most = min(len(shown[0][1]), max(n_selected, result.n_features - 1))
        sizes = curve_sizes(most)
        text = (
            "Stability in percent: how far selections of so many features agree on samples of "
            f"{result.stability.sample_size:,} rows, 0 for chance."
        )
        values = result.stability.curves(sizes)[0]["stability"]
        shown.append((text, np.maximum(_every_m(sizes, values), 0.0)))
    content += "</p>"
    for text, values in shown:
        content += f"<p>{text}</p>{svg.curve(values, n_selected, text)}"
    return _section("How many features", content)


def _correlation(result: Result, facts: Facts) -> str:
    kept = result.ranking[np.isin(result.ranking, result.selected)].tolist()
    n = min(_CELLS, len(facts.correlation))
    matrix, names = facts.correlation[:n, :n], [result.name_of(f) for f in kept[:n]]
    pairs = np.where(np.triu(np.ones((n, n)), 1) > 0, np.abs(matrix), -1.0)
    text = "One selected feature has no pairs."
    if n > 1:
        i, j = np.unravel_index(int(pairs.argmax()), pairs.shape)
        text = (
            f"Rows and columns: the {n} best selected features. Closest pair: {_name(names[i])} "
            f"and {_name(names[j])}, {matrix[i, j]:.2f}."
        )
    picture = svg.heat_map(matrix, names, "Correlation of the selected features")
    return _section("Correlation", f'<p>{text}</p><div class="square">{picture}</div>')


def _map(facts: Facts) -> str:
    text = f"{facts.n_rows:,} rows by two {facts.axes}."
    if facts.group_name:
        text += f" Colors: {facts.group_name}."
    picture = svg.scatter(facts.points, facts.groups, "Map of the rows")
    return _section("Map of the rows", f"<p>{escape(text)}</p>{picture}")


def _quality(result: Result) -> str:
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
            gap = f"{low:.3g} to {high:.3g}, as of {n_groups} groups"
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
        for key, title in (("selected", "selected features"), ("all", "all features")):
            if key not in result.evaluation:
                continue
            figures = result.evaluation[key]
            values = {label: _score({"scores": figures}, name) for name, label in _SCORES.items()}
            text = ", ".join(f"{label} {value} %" for label, value in values.items() if value)
            rows.append([f"labels, {title}", text])
    return _section("Quality", _table([], rows, "facts")) if rows else ""


def _cost(result: Result) -> str:
    rows = []
    for name, record in result.stages.items():
        predicted = record.get("predicted_peak_bytes")
        rows.append(
            [
                name,
                format_seconds(record["seconds"]),
                format_bytes(record["measured_peak_bytes"]),
                format_bytes(predicted) if predicted else "",
                str(record["passes"]),
            ]
        )
    head = ["stage", "time", "peak memory", "planned", "passes over X"]
    return _section("Cost against plan", _table(head, rows))


def _repeat(result: Result) -> str:
    command = f"bigfs run {result.path}/config.yaml --set run=ANOTHER"
    versions = result.manifest.get("versions", {})
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    used = {name: value for name, value in result.settings.items() if value is not None}
    return _section(
        "How to repeat it",
        f"<pre>{escape(command)}</pre><p>{escape(listed)}</p><details open><summary>Configuration"
        f"</summary><pre>{escape(write_yaml(used))}</pre></details>",
    )


def _section(title: str, content: str, kind: str = "") -> str:
    return f'<section class="{kind}"><h2>{escape(title)}</h2>{content}</section>'


def _name(text: str) -> str:
    """Return a name that cannot change the direction of the text around it."""
    return f"<bdi>{escape(text)}</bdi>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "wide") -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f'<div class="{kind}"><table>{f"<tr>{top}</tr>" if head else ""}{body}</table></div>'


def _data_name(result: Result) -> str:
    return _file_name(short_name(str(result.settings["input"]["uri"])))


def _file_name(uri: str) -> str:
    return uri.rstrip("/").rpartition("/")[2]


def _page(title: str, sections: Sequence[str]) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body><main>\n"
        + "\n".join(filter(None, sections))
        + "\n</main></body></html>\n"
    )


def page_of_comparison(texts: dict[str, str], folder: str) -> str:
    """Return the page of a comparison from the texts of its files."""
    try:
        return comparison_page(parse_json(texts["table.json"]), texts["curves.svg"], folder)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{folder}: table.json is damaged ({error}). Run the comparison again."
        ) from None
