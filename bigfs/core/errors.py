"""Errors that name what is wrong, where, and what to do; each carries its exit code.

Every class takes one string, so that it survives the trip from a worker to the client.
"""

from __future__ import annotations

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
