"""Errors that name what is wrong, where, and what to do; each carries its exit code.

Every class takes one string, so that it survives the trip from a worker to the client. Checks of
parameters raise them in one wording.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any

EXIT_DONE = 0
EXIT_BAD_INPUT = 2
EXIT_DOES_NOT_FIT = 3
EXIT_CLUSTER_OR_STORAGE = 4
EXIT_NUMERICAL = 5
EXIT_DIFFERENT = 6
EXIT_LOCKED = 75
EXIT_INTERRUPTED = 130


class BigfsError(Exception):
    """Base of every error bigfs raises on purpose.

    Parameters
    ----------
    message : str
        What happened, where, why it matters and what to do about it.
    """

    exit_code = EXIT_CLUSTER_OR_STORAGE

    def __init__(self, message: str) -> None:
        super().__init__(message)

    def __str__(self) -> str:
        """Return the message (KeyError and OSError would decorate it)."""
        return str(self.args[0])


class InputError(BigfsError, ValueError):
    """Data or a parameter that cannot be used; the message names the value and the remedy."""

    exit_code = EXIT_BAD_INPUT


class RowError(InputError):
    """An InputError of a row, numbered among the rows that are left."""

    def in_the_original(self, dropped: Iterable[int]) -> InputError:
        """Return it with the row's number among all rows, ``dropped`` ones included."""

        def renumbered(match: re.Match[str]) -> str:
            return f"{match[1]}{row_in_the_original(int(match[2]), dropped)}"

        return InputError(re.sub(r"([Rr]ow )(\d+)", renumbered, str(self), count=1))


def row_in_the_original(row: int, dropped: Iterable[int]) -> int:
    """Return the number among all rows of one among those that are left."""
    for left_out in sorted(dropped):
        row += left_out <= row
    return row


class InputTypeError(InputError, TypeError):
    """A value of a type that cannot be used at all."""


class ConfigError(InputError):
    """A pipeline file or ``--set`` that does not follow the schema."""


class CorruptStoreError(InputError):
    """A store whose chunks are missing or do not match their checksums."""


class NumericalError(BigfsError, ArithmeticError):
    """A result that is not finite; the message names it and the place."""

    exit_code = EXIT_NUMERICAL


class ConvergenceError(NumericalError):
    """An iteration that did not reach its tolerance; the message gives the residuals."""


class MemoryLimitError(BigfsError, MemoryError):
    """Work that does not fit the written ``memory_limit`` or the free scratch space."""

    exit_code = EXIT_DOES_NOT_FIT

    def __new__(cls, *args: str) -> MemoryLimitError:
        """Allocate as Exception does: MemoryError's own way fails when Dask unpickles it."""
        return Exception.__new__(cls, *args)


class ClusterError(BigfsError, RuntimeError):
    """A Dask cluster that has no workers, lost them, or cannot be reached."""


class StorageError(BigfsError, OSError):
    """Storage that failed while reading or writing; running again is safe."""


class RunLockedError(BigfsError, RuntimeError):
    """Another process holds the lease of this run directory."""

    exit_code = EXIT_LOCKED


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
