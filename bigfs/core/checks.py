"""Checks of parameters, with one wording."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any

from bigfs.core.errors import InputError


def is_int(value: Any) -> bool:
    """Say whether a value is an int of Python or NumPy; a bool is not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_count(name: str, value: Any, largest: int, reason: str) -> int:
    """Return a parameter as an int; raise InputError unless it is one in [1, largest]."""
    if not is_int(value) or not 1 <= value <= largest:
        raise InputError(f"{name} must be an int in [1, {largest}], {reason}. Got {value!r}.")
    return int(value)


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Raise InputError unless a parameter is one of some texts."""
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(choices)}. Got {value!r}.")


def check_rows(given: Mapping[str, Any]) -> None:
    """Raise ValueError unless settings of `input.rows` choose some rows and go together."""
    has_conditions = any(name in given for name in ("keep", "drop", "at_least", "at_most"))
    if has_conditions != ("column" in given):
        raise ValueError(
            "a column needs keep, drop, at_least or at_most, and each of them needs a column"
        )
    if not has_conditions and "every" not in given:
        raise ValueError("give a rule: every: 10, or a column with keep or drop")
