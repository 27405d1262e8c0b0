"""Small figures as SVG: they scale on a phone and on paper, and need no other file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

# Colors that remain apart for color-blind people (Okabe and Ito).
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#666666")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 300, 46, 34


def curve(values: np.ndarray, n_selected: int, label: str) -> str:
    """Return a line over 1, 2, ... features, in percent, with a mark at a number of them."""
    right, top = _WIDTH - 12, 12
    count = len(values)

    def x(m: float) -> float:
        return _LEFT + (right - _LEFT) * (m - 1) / max(1, count - 1)

    def y(share: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - top) * min(1.0, share)

    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(_line("grid", (_LEFT, y(share)), (right, y(share))))
        parts.append(_text(_LEFT - 6, y(share) + 4, f"{100 * share:.0f}", "end"))
    for m in _ticks(count):
        parts.append(_text(x(m), _HEIGHT - _BOTTOM + 16, str(m), "middle"))
    parts.append(
        _text((_LEFT + right) / 2, _HEIGHT - 2, "features, in the order of the ranking", "middle")
    )
    points = " ".join(f"{x(m + 1):.1f},{y(v):.1f}" for m, v in enumerate(values.tolist()))
    parts.append(f'<polyline class="line" points="{points}"/>')
    if n_selected <= count:
        at = x(n_selected), y(float(values[n_selected - 1]))
        parts.append(_line("mark", (at[0], top), (at[0], y(0))))
        parts.append(f'<circle class="dot" cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="4"/>')
    return _svg(_WIDTH, _HEIGHT, parts, label)


def heat_map(matrix: np.ndarray, names: Sequence[str], label: str) -> str:
    """Return a symmetric matrix of correlations: blue below zero, red above."""
    n = len(matrix)
    cell = 480 / n
    parts = []
    for i in range(n):
        for j in range(n):
            value = float(matrix[i, j])
            color = "#b2182b" if value > 0 else "#2166ac"
            title = f"<title>{escape(names[i])}, {escape(names[j])}: {value:.2f}</title>"
            parts.append(
                f'<rect x="{j * cell:.1f}" y="{i * cell:.1f}" width="{cell:.1f}" '
                f'height="{cell:.1f}" fill="{color}" fill-opacity="{min(1.0, abs(value)):.2f}">'
                f"{title if n <= 40 else ''}</rect>"
            )
    return _svg(480, 480, parts, label)


def scatter(points: np.ndarray, groups: np.ndarray, label: str) -> str:
    """Return points in the plane, colored by group."""
    low, high = np.quantile(points, [0.005, 0.995], axis=0)
    scaled = np.clip((points - low) / np.where(high > low, high - low, 1.0), 0, 1)
    width, height, edge = 640, 440, 8
    parts = []
    for group in np.unique(groups).tolist():
        inside = scaled[groups == group]
        across = edge + inside[:, 0] * (width - 2 * edge)
        down = height - edge - inside[:, 1] * (height - 2 * edge)
        dots = "".join(f"M{x:.0f} {y:.0f}h0" for x, y in zip(across, down, strict=True))
        parts.append(f'<path class="cloud" stroke="{color_of(group)}" d="{dots}"/>')
    return _svg(width, height, parts, label)


def mask(ranks: np.ndarray, n_selected: int, shape: Sequence[int], label: str) -> str:
    """Return an image whose pixels are features: the selected ones filled, the best the darkest.

    Parameters
    ----------
    ranks : ndarray of shape (n_features,), int64
        From 0 for the best; features that are not selected have at least ``n_selected``.
    n_selected : int
    shape : (int, int)
        Rows and columns of the image.
    label : str
    """
    cell = 480 / max(shape)
    parts = [f'<rect class="frame" width="{shape[1] * cell:.1f}" height="{shape[0] * cell:.1f}"/>']
    for feature in np.flatnonzero(ranks < n_selected).tolist():
        row, column = divmod(feature, shape[1])
        strength = 1 - 0.75 * int(ranks[feature]) / n_selected
        parts.append(
            f'<rect x="{column * cell:.1f}" y="{row * cell:.1f}" width="{cell:.1f}" '
            f'height="{cell:.1f}" fill="{COLORS[0]}" fill-opacity="{strength:.2f}">'
            f"<title>row {row}, column {column}: rank {int(ranks[feature]) + 1}</title></rect>"
        )
    return _svg(round(shape[1] * cell), round(shape[0] * cell), parts, label)


def positions(axis: np.ndarray, scores: np.ndarray, selected: np.ndarray, label: str) -> str:
    """Return the scores along an axis such as wavelength, with the selected features marked."""
    order = np.argsort(axis, kind="stable")
    low, high = float(axis.min()), float(axis.max())
    bottom, right, top = _HEIGHT - _BOTTOM, _WIDTH - 12, 12
    span, least = (high - low) or 1.0, float(scores.min())
    size = float(scores.max()) - least or 1.0
    across = _LEFT + (right - _LEFT) * (axis - low) / span
    up = bottom - (bottom - top) * (scores - least) / size
    points = " ".join(f"{across[i]:.1f},{up[i]:.1f}" for i in order.tolist())
    parts = [f'<polyline class="line thin" points="{points}"/>']
    for feature in selected.tolist():
        at = float(across[feature])
        parts.append(_line("mark", (at, top), (at, bottom), f"{axis[feature]:g}"))
    for value in np.linspace(low, high, 5).tolist():
        at = _LEFT + (right - _LEFT) * (value - low) / span
        parts.append(_text(at, bottom + 16, f"{value:g}", "middle"))
    return _svg(_WIDTH, _HEIGHT, parts, label)


def color_of(group: int) -> str:
    """Return the color of a group."""
    return COLORS[group % len(COLORS)]


def _ticks(count: int) -> list[int]:
    step = max(1, round(count / 8))
    return sorted({1, *range(step, count + 1, step)})


def _line(kind: str, start: tuple[float, float], stop: tuple[float, float], title: str = "") -> str:
    inside = f"<title>{escape(title)}</title>" if title else ""
    return (
        f'<line class="{kind}" x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{stop[0]:.1f}" '
        f'y2="{stop[1]:.1f}">{inside}</line>'
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(width: int, height: int, parts: Sequence[str], label: str) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg>"
    )
