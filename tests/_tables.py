"""Tables of cases, of which the second tier takes a part and a run by hand takes all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def shared(rows: Iterable[Any], columns: Iterable[Any], each: int = 2) -> list[Any]:
    """Return all pairs; those but ``each`` of a row are slow. Every column has its share."""
    across = list(columns)
    pairs = []
    for i, row in enumerate(rows):
        taken = {(i + j * max(len(across) // each, 1)) % len(across) for j in range(each)}
        for j, column in enumerate(across):
            marks = () if j in taken else (pytest.mark.slow,)
            pairs.append(pytest.param(row, column, marks=marks))
    return pairs
