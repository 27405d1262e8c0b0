"""Escaping of untrusted text, such as feature names, before it is shown."""

from __future__ import annotations

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
