"""Parsing and formatting of sizes and durations."""

from __future__ import annotations

import re

from bigfs.core.errors import InputError
from bigfs.core.text import cut

KIB = 1024
MIB = 1024**2
GIB = 1024**3
_MOST_BYTES = 2**63

_FACTORS = {"": 1, "b": 1}
for _power, _prefix in enumerate("kmgt", start=1):
    _FACTORS |= {f"{_prefix}b": 1000**_power, f"{_prefix}ib": 1024**_power}


def parse_bytes(value: int | float | str) -> int:
    """Return a number of bytes from ``"4 GiB"``, ``"500MB"`` or a number.

    Raises
    ------
    InputError
        If the text is not a positive number with a known unit.
    """
    if isinstance(value, bool):
        raise InputError(f"a size must be a number or a text such as '4 GiB'. Got {value!r}.")
    text = "" if isinstance(value, int) and abs(value) >= _MOST_BYTES else str(value).strip()
    match = re.fullmatch(r"([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)", text)
    if match is None or match.group(2).lower() not in _FACTORS:
        raise InputError(
            f"a size must look like '4 GiB', '500 MB' or 1000000. Got {_shown(value)}."
        )
    size = float(match.group(1)) * _FACTORS[match.group(2).lower()]
    if size < 1:
        raise InputError(f"a size must be above zero bytes. Got {_shown(value)}.")
    if size >= _MOST_BYTES:
        raise InputError(f"a size must be below 8 EiB. Got {_shown(value)}.")
    return int(size)


def _shown(value: object) -> str:
    is_beyond = isinstance(value, int) and abs(value) >= _MOST_BYTES
    return "a larger one" if is_beyond else cut(repr(value), 60)


def format_bytes(size: int | float) -> str:
    """Return a size with a binary unit and three digits: ``"1.5 GiB"``."""
    if size >= _MOST_BYTES:
        return "over 8 EiB"
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{_digits(amount) if unit != 'B' else round(amount)} {unit}"
        amount /= 1024
    return f"{_digits(amount)} TiB"


def _digits(amount: float) -> str:
    """Return a number with three digits or as an integer, never with an exponent."""
    return f"{amount:.3g}" if abs(amount) < 999.5 else f"{amount:,.0f}"


def format_seconds(seconds: float) -> str:
    """Return a duration as text, such as ``"3.2 s"``, ``"4 min 05 s"`` or ``"2 h 07 min"``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
