"""Values that hold within a block of code, for the thread or task that runs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def set_within(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Set a context variable within the block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
