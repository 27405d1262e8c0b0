"""Exceptions whose messages name the problem, its place and the remedy, with their exit codes.

Each class takes a single string, so that it can be pickled from a worker to the client. The checks
of parameters below raise them with uniform wording.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
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
    """Base class of all errors that bigfs raises deliberately.

    Parameters
    ----------
    message : str
        Description of what happened, where, why it matters and how to fix it.
    """

    exit_code = EXIT_CLUSTER_OR_STORAGE

    def __init__(self, message: str) -> None:
        super().__init__(message)

    def __str__(self) -> str:
        """Return the plain message, which KeyError and OSError would decorate."""
        return str(self.args[0])


class InputError(BigfsError, ValueError):
    """Data or a parameter that cannot be used; the message names the value and the remedy."""

    exit_code = EXIT_BAD_INPUT


class RowError(InputError):
    """An InputError about a row, numbered among the rows that were kept."""

    def in_the_original(self, dropped: Iterable[int]) -> InputError:
        """Return the error with the row's number among all rows, including the dropped ones."""

        def renumbered(match: re.Match[str]) -> str:
            return f"{match[1]}{row_in_the_original(int(match[2]), dropped)}"

        return InputError(re.sub(r"([Rr]ow )(\d+)", renumbered, str(self), count=1))


def row_in_the_original(row: int, dropped: Iterable[int]) -> int:
    """Return the number among all rows of a row that is numbered among the kept rows."""
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
    """Work that does not fit the given ``memory_limit`` or the free scratch space."""

    exit_code = EXIT_DOES_NOT_FIT

    def __new__(cls, *args: str) -> MemoryLimitError:
        """Allocate like Exception, since MemoryError's allocation fails when Dask unpickles it."""
        return Exception.__new__(cls, *args)


class ClusterError(BigfsError, RuntimeError):
    """A Dask cluster that has no workers, lost them, or cannot be reached."""


class StorageError(BigfsError, OSError):
    """Storage that failed while reading or writing; running again is safe."""


class RunLockedError(BigfsError, RuntimeError):
    """Another process holds the lease of this run directory."""

    exit_code = EXIT_LOCKED


def is_int(value: Any) -> bool:
    """Return True if a value is a Python or NumPy integer; a bool is not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_count(name: str, value: Any, largest: int, reason: str) -> int:
    """Return a parameter as an int; raise InputError unless it is an int in [1, largest]."""
    if not is_int(value) or not 1 <= value <= largest:
        raise InputError(f"{name} must be an int in [1, {largest}], {reason}. Got {value!r}.")
    return int(value)


def check_share(name: str, value: Any) -> None:
    """Raise InputError unless a parameter is a number above 0 and at most 1."""
    if not isinstance(value, Real) or not 0 < float(value) <= 1:
        raise InputError(f"{name} must be a number above 0, at most 1. Got {value!r}.")


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Raise InputError unless a parameter is one of the given choices."""
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(choices)}. Got {value!r}.")


def check_rows(given: Mapping[str, Any]) -> None:
    """Raise ValueError unless the settings of `input.rows` are consistent and select rows."""
    has_conditions = any(name in given for name in ("keep", "drop", "at_least", "at_most"))
    if has_conditions != ("column" in given):
        raise ValueError(
            "a column needs keep, drop, at_least or at_most, and each of them needs a column"
        )
    if not has_conditions and "every" not in given:
        raise ValueError("give a rule: every: 10, or a column with keep or drop")
