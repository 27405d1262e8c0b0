"""Values and names as messages show them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


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
