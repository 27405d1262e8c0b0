"""Text for messages: untrusted names escaped, values and names as users write them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

# Behind every message that names a row of the data.
FROM_0 = "Rows and columns count from 0."

# What a spreadsheet takes for the beginning of a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def printable(text: str) -> str:
    """Return a text with control characters escaped.

    Line breaks and tabs stay.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text
    )


def spreadsheet_cell(text: str) -> str:
    """Return a text that no spreadsheet executes: formulas get a leading ``'``, numbers do not."""
    if not text.startswith(_FORMULA):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def quoted(names: Iterable[str]) -> str:
    """Return names in quotes, separated by commas."""
    return ", ".join(f"'{name}'" for name in names)


def shown(value: Any) -> str:
    """Return a value as a user would write it, cut to a readable length."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
