"""Scores against the number of selected features, a panel for each score, in one figure."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31")
_MARKERS = "osD^vP*X"
_MOST_TICKS = 12


@dataclass(frozen=True)
class Curve:
    """One method in one panel."""

    name: str
    sizes: list[int]  # numbers of features
    # The score and its deviation, in percent.
    values: list[float]
    spread: list[float]
    is_line: bool = False  # all features: a line across the panel instead of a curve
    is_chance: bool = False  # random selections: in gray


def draw_curves(
    panels: Sequence[tuple[str, Sequence[Curve]]], title: str, kinds: Sequence[str]
) -> list[bytes]:
    """Return the panels side by side as one figure, in some formats.

    Parameters
    ----------
    panels : sequence of (str, sequence of Curve)
        Title of the vertical axis, and the curves.
    title : str
    kinds : sequence of str
        ``svg``, ``png``.

    Returns
    -------
    contents : list of bytes
    """
    import matplotlib
    from matplotlib.figure import Figure

    # The same figure has the same bytes.
    with matplotlib.rc_context({"svg.hashsalt": "bigfs"}):
        figure = Figure(layout="constrained")
        draw_panels(figure, panels, title)
        return [content_of(figure, kind) for kind in kinds]


def draw_panels(
    figure: Any, panels: Sequence[tuple[str, Sequence[Curve]]], title: str
) -> np.ndarray:
    """Draw the panels on a figure, which gets their size; return their axes."""
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
    figure.suptitle(title)
    return row


def _draw(axes: Any, curve: Curve, names: list[str]) -> None:
    if curve.is_line:
        axes.axhline(curve.values[0], color="gray", linestyle="--", label=curve.name)
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
        label=curve.name,
    )


def content_of(figure: Any, kind: str) -> bytes:
    """Return a figure as the bytes of a file; the same figure has the same bytes."""
    content = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {}
    figure.savefig(content, format=kind, dpi=130, metadata=metadata)
    return content.getvalue()
