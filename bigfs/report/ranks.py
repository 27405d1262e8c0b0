"""Mean ranks on a line, and bars over the methods that are within the critical difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigfs.report.curves import content_of


@dataclass(frozen=True)
class RankLine:
    """One diagram."""

    title: str
    names: list[str]  # of the methods
    mean_ranks: np.ndarray  # of shape (n_methods,)
    critical_difference: float
    groups: list[list[str]]  # names that a bar connects


def draw_ranks(lines: Sequence[RankLine], kinds: Sequence[str]) -> list[bytes]:
    """Return a diagram for each score, one below the other, in every one of some formats."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "bigfs"}):
        heights = [
            1.2 + 0.13 * len(diagram.names) + 0.12 * len(diagram.groups) for diagram in lines
        ]
        figure = Figure(figsize=(7.5, sum(heights)), layout="constrained")
        rows = figure.subplots(len(lines), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, line in zip(rows, lines, strict=True):
            _draw(axes, line)
        return [content_of(figure, kind) for kind in kinds]


def _draw(axes: Any, ranks: RankLine) -> None:
    """Draw the line of ranks, the names left and right of it, and the bars."""
    k = len(ranks.names)
    means = dict(zip(ranks.names, ranks.mean_ranks, strict=True))
    order = [ranks.names[i] for i in np.argsort(ranks.mean_ranks, kind="stable")]
    groups = ranks.groups
    axes.axis("off")
    axes.set_xlim(0.2 - 0.35 * k, 0.8 + 1.35 * k)
    axes.plot([1, k], [0, 0], color="black", linewidth=1)
    for rank in range(1, k + 1):
        axes.plot([rank, rank], [0, 0.25], color="black", linewidth=1)
        axes.text(rank, 0.4, str(rank), ha="center", va="bottom", fontsize=8)
    start = min(1.0, k - ranks.critical_difference)
    axes.plot([start, start + ranks.critical_difference], [2.2, 2.2], color="black", marker="|")
    label = f"{ranks.title}: critical difference {ranks.critical_difference:.2f}"
    axes.text(start, 2.5, label, ha="left", va="bottom", fontsize=9)
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
        axes.text(end, depth, text, ha=align, va="center", fontsize=8)
    axes.set_ylim(below - 0.8 * half, 3.4)
