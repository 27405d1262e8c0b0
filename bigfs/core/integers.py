"""Check of parameters that must be whole numbers."""

from __future__ import annotations

from numbers import Integral
from typing import Any


def is_int(value: Any) -> bool:
    """Say whether a value is an int of Python or NumPy; a bool is not."""
    return isinstance(value, Integral) and not isinstance(value, bool)
