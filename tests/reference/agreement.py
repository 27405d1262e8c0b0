"""Agreement of selections, written as the formulas are: loops over sets."""

from __future__ import annotations

import math


def phi(selections: list[set[int]], d: int) -> float:
    """Nogueira's agreement of any number of selections."""
    B = len(selections)
    k = sum(len(selection) for selection in selections) / B
    D = k / d * (1 - k / d)
    total = 0.0
    for j in range(d):
        p = sum(j in selection for selection in selections) / B
        total += B / (B - 1) * p * (1 - p)
    return 1 - total / d / D


def phi_deviation(selections: list[set[int]], d: int) -> float:
    """The square root of its variance."""
    B, value = len(selections), phi(selections, d)
    k = sum(len(selection) for selection in selections) / B
    D = k / d * (1 - k / d)
    p = [sum(j in selection for selection in selections) / B for j in range(d)]
    parts = []
    for selection in selections:
        size = len(selection)
        inside = sum(p[j] for j in selection) / d - size * k / d**2
        inside += value / 2 * (2 * size * k / d**2 - size / d - k / d + 1)
        parts.append(inside / D)
    mean = sum(parts) / B
    return math.sqrt(4 / B**2 * sum((part - mean) ** 2 for part in parts))


def kuncheva(a: set[int], b: set[int], d: int) -> float:
    """Common features of two selections of one size, corrected for chance."""
    m = len(a)
    return (len(a & b) - m * m / d) / (m - m * m / d)
