"""Checks of parameters that must be whole numbers."""

from __future__ import annotations

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
