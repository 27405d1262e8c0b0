"""Text for messages: untrusted names escaped, values and names as users write them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# Appended to every message that names a row of the data.
FROM_0 = "Rows and columns count from 0."

# Characters that start a formula in a spreadsheet.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def printable(text: str) -> str:
    """Return a text with control characters escaped, except for line breaks and tabs."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text
    )


def in_picture(text: str) -> str:
    """Return a text that matplotlib shows literally: not as math, nor hidden in the legend."""
    text = printable(text).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def spreadsheet_cell(text: str) -> str:
    """Return a text that no spreadsheet executes: a formula (not a number) gets a leading ``'``."""
    if not text.startswith(_FORMULA):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def csv_text(columns: Mapping[str, Any]) -> str:
    """Return columns as the text of a .csv file; missing values are empty cells."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    lists = [c.tolist() if hasattr(c, "tolist") else c for c in columns.values()]
    table.writerows(map(_csv_cell, row) for row in zip(*lists, strict=True))
    return text.getvalue()


def _csv_cell(value: Any) -> str:
    if value is None or value != value:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    return repr(value) if isinstance(value, float) else spreadsheet_cell(str(value))


def aligned(rows: Sequence[Sequence[str]], sides: str = "", indent: str = "") -> list[str]:
    """Return the lines of a table whose columns are as wide as their widest cell.

    Parameters
    ----------
    rows : sequence of sequence of str
        Cells; all rows have the same number of them.
    sides : str, default=""
        One character per column, from the first: ``<`` for left alignment. All other columns are
        aligned right.
    indent : str, default=""
        Prefix of each line.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if side == "<" else cell.rjust(width)
            for cell, width, side in zip(row, widths, sides.ljust(len(widths)), strict=True)
        ]
        lines.append(indent + "  ".join(cells).rstrip())
    return lines


def first_of(names: Sequence[str], most: int) -> str:
    """Return the first ``most`` names, separated by commas, and dots if there are more."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def quoted(names: Iterable[str]) -> str:
    """Return names in quotes, separated by commas."""
    return ", ".join(f"'{name}'" for name in names)


def shown(value: Any) -> str:
    """Return a value as a user would write it, truncated to 80 characters."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return cut(repr(value), 80)


def cut(text: str, most: int) -> str:
    """Return a text truncated to at most ``most`` characters, ending in dots if it was longer."""
    return text if len(text) <= most else f"{text[: most - 3]}..."
