"""Figures of comparisons: scores against the number of selected features, and mean ranks."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigfs.core.text import in_picture

# The scores of a comparison, and their names in tables and figures.
SCORES = {
    "nmi": "NMI",
    "acc": "ACC",
    "rand": "Rand index",
    "nearest_neighbor_error": "1-NN error",
    "explained": "variance explained",
    "redundancy": "redundancy",
}
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31")
_MARKERS = "osD^vP*X"
_MOST_TICKS = 12


@dataclass(frozen=True)
class Curve:
    """The curve of one method in one panel."""

    name: str
    sizes: list[int]  # numbers of features
    # The score and its standard deviation, in percent.
    values: list[float]
    spread: list[float]
    is_line: bool = False  # all features: a line across the panel instead of a curve
    is_chance: bool = False  # random selections: in gray


def drawn(
    draw: Callable[[Any], Any], kinds: Sequence[str], size: tuple[float, float] | None = None
) -> list[bytes]:
    """Return the figure drawn by ``draw(figure)`` as files of the given kinds, ``svg`` or ``png``.

    The files are reproducible: the same figure gives the same bytes.
    """
    import matplotlib
    from matplotlib.figure import Figure

    contents = []
    with matplotlib.rc_context({"svg.hashsalt": "bigfs"}):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        for kind in kinds:
            content, metadata = io.BytesIO(), {"Date": None} if kind == "svg" else {}
            figure.savefig(content, format=kind, dpi=130, metadata=metadata)
            contents.append(content.getvalue())
    return contents


def draw_panels(
    figure: Any, panels: Sequence[tuple[str, Sequence[Curve]]], title: str
) -> np.ndarray:
    """Draw panels side by side on a figure and return their axes.

    Parameters
    ----------
    figure : Figure
        It is resized to fit the panels.
    panels : sequence of (str, sequence of Curve)
        Title of the vertical axis, and the curves.
    title : str
    """
    from matplotlib.ticker import FixedLocator, MaxNLocator

    figure.set_size_inches(3.9 * len(panels) + 0.3, 4.3)
    colored = [c for _, curves in panels for c in curves if not (c.is_line or c.is_chance)]
    names = list(dict.fromkeys(c.name for c in colored))
    row: np.ndarray = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (label, curves) in zip(row, panels, strict=True):
        for curve in curves:
            _draw(axes, curve, names)
        axes.set_xlabel("selected features")
        axes.set_ylabel(label)
        sizes = sorted({m for curve in curves if not curve.is_line for m in curve.sizes})
        few = len(sizes) <= _MOST_TICKS
        axes.xaxis.set_major_locator(FixedLocator(sizes) if few else MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    columns = min(7, len(labels))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    figure.suptitle(in_picture(title))
    return row


def _draw(axes: Any, curve: Curve, names: list[str]) -> None:
    if curve.is_line:
        axes.axhline(curve.values[0], color="gray", linestyle="--", label=in_picture(curve.name))
        return
    position = 0 if curve.is_chance else names.index(curve.name)
    axes.errorbar(
        curve.sizes,
        curve.values,
        yerr=curve.spread if any(curve.spread) else None,
        color="gray" if curve.is_chance else _COLORS[position % len(_COLORS)],
        marker="." if curve.is_chance else _MARKERS[position % len(_MARKERS)],
        linestyle=":" if curve.is_chance else "-",
        markersize=5,
        capsize=2,
        elinewidth=0.8,
        label=in_picture(curve.name),
    )


def draw_ranks(diagrams: Mapping[str, Any], kinds: Sequence[str]) -> list[bytes]:
    """Return critical difference diagrams, one below the other, as a file of each given format.

    Bars connect methods that do not differ by more than the critical difference.

    Parameters
    ----------
    diagrams : dict of str to Ranks
        The ranks by the title of the score.
    kinds : sequence of str
        File formats, as in `drawn`.
    """
    heights = [1.2 + 0.13 * len(r.names) + 0.12 * len(r.groups()) for r in diagrams.values()]

    def draw(figure: Any) -> None:
        rows = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, (title, ranks) in zip(rows, diagrams.items(), strict=True):
            _draw_line(axes, title, ranks)

    return drawn(draw, kinds, (7.5, sum(heights)))


def _draw_line(axes: Any, title: str, ranks: Any) -> None:
    """Draw one diagram: the line of ranks, the names left and right of it, and the bars."""
    k = len(ranks.names)
    means = dict(zip(ranks.names, ranks.mean_ranks, strict=True))
    order = [ranks.names[i] for i in np.argsort(ranks.mean_ranks, kind="stable")]
    groups = ranks.groups()
    axes.axis("off")
    axes.set_xlim(0.2 - 0.35 * k, 0.8 + 1.35 * k)
    axes.plot([1, k], [0, 0], color="black", linewidth=1)
    for rank in range(1, k + 1):
        axes.plot([rank, rank], [0, 0.25], color="black", linewidth=1)
        axes.text(rank, 0.4, str(rank), ha="center", va="bottom", fontsize=8)
    start = min(1.0, k - ranks.critical_difference)
    axes.plot([start, start + ranks.critical_difference], [2.2, 2.2], color="black", marker="|")
    label = f"{title}: critical difference {ranks.critical_difference:.2f}"
    axes.text(start, 2.5, in_picture(label), ha="left", va="bottom", fontsize=9)
    for i, group in enumerate(groups):
        low, high = means[group[0]], means[group[-1]]
        axes.plot([low - 0.05, high + 0.05], [-0.5 - 0.4 * i] * 2, color="#d55e00", linewidth=3)
    below = -0.9 - 0.4 * len(groups)
    half = -(-k // 2)
    for i, name in enumerate(order):
        is_left = i < half
        depth = below - 0.8 * (i if is_left else k - 1 - i)
        end, align = (0.6, "right") if is_left else (k + 0.4, "left")
        axes.plot([means[name], means[name], end], [0, depth, depth], color="gray", linewidth=0.8)
        text = f"{name} {means[name]:.1f}" if is_left else f"{means[name]:.1f} {name}"
        axes.text(end, depth, in_picture(text), ha=align, va="center", fontsize=8)
    axes.set_ylim(below - 0.8 * half, 3.4)
