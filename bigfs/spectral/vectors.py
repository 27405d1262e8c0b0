"""Thin blocks of vectors in storage, in the order of the graph's rows.

Vectors are a file for each block of rows, with one panel of columns after the other, or a file for
each panel, with one block of rows after the other. So a task reads a panel of all rows or some rows
of all panels from either. Every attempt of a task writes a file of its own, and `Vectors` names the
attempts that count: nothing else is ever read.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bigfs.store.chunking import block_bounds
from bigfs.store.location import Location, as_location, new_file, read_into, write_from
from bigfs.store.pages import open_own


@dataclass(frozen=True)
class Vectors:
    """Addresses of the vectors z."""

    folder: str
    step: int  # tells those of one folder apart
    n_samples: int
    block_rows: int
    dtype: str
    widths: tuple[int, ...]  # columns of each panel
    by_panel: bool  # a file for each panel; otherwise one for each block of rows
    done: int = 0  # steps of the recurrence behind them
    attempts: tuple[int | None, ...] = ()  # the one that counts of each file; None: no such file

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Vectors:
        """Return what `dataclasses.asdict` gave, from JSON."""
        lists = {name: tuple(stored[name]) for name in ("widths", "attempts")}
        return cls(**{**stored, **lists})

    @property
    def width(self) -> int:
        """Number of vectors."""
        return sum(self.widths)

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """First row of each block, and one past its last."""
        return block_bounds(self.n_samples, self.block_rows)

    def with_attempts(self, attempts: Iterable[int | None]) -> Vectors:
        """Return the vectors whose files are those attempts."""
        return replace(self, attempts=tuple(attempts))

    def _path(self, file: int, attempt: int) -> Location:
        kind = "panel" if self.by_panel else "rows"
        return as_location(self.folder) / f"{kind}-{self.step:06d}-{file:05d}-{attempt:016x}"

    def write(self, file: int, parts: Iterable[np.ndarray]) -> int:
        """Write a file: the values of arrays one after the other; return the attempt."""
        attempt = secrets.randbits(62)
        with new_file(self._path(file, attempt)) as out:
            for part in parts:
                write_from(out, part)
                del part  # before the next is made
        return attempt

    def read(self, start: int, stop: int, panel: int, second: str | None = None) -> np.ndarray:
        """Read a panel of some rows, of one block unless there is a file for each panel.

        With ``second``, a type, what follows the vectors in the file of a panel: their products,
        or the vectors before them.
        """
        size, width = np.dtype(self.dtype).itemsize, self.widths[panel]
        out = np.empty((stop - start, width), second or self.dtype)
        file, begin = panel, start * width * out.itemsize
        if not self.by_panel:
            file = start // self.block_rows
            first, last = self.bounds[file]
            begin += ((last - first) * sum(self.widths[:panel]) - first * width) * size
        elif second:
            begin += self.n_samples * width * size
        attempt = self.attempts[file]
        assert attempt is not None
        with open_own(self._path(file, attempt), buffering=0) as source:
            read_into(source, begin, out)
        return out

    def rows(
        self, start: int, stop: int, second: str | None = None,
        columns: tuple[int, int] | None = None,
    ) -> np.ndarray:  # fmt: skip
        """Read some rows, float64: all columns, or those from one up to another."""
        first, last = columns or (0, self.width)
        out, begin = np.empty((stop - start, last - first)), 0
        for panel, width in enumerate(self.widths):
            low, high = max(first, begin), min(last, begin + width)
            if low < high:
                part = self.read(start, stop, panel, second)[:, low - begin : high - begin]
                out[:, low - first : high - first] = part
            begin += width
        return out

    def remove(self) -> None:
        """Delete the files."""
        for file, attempt in enumerate(self.attempts):
            if attempt is not None:
                self._path(file, attempt).unlink(missing_ok=True)


def split_width(width: int, most: int) -> tuple[int, ...]:
    """Return the columns of the panels of ``width`` vectors, at most ``most`` each."""
    return tuple(min(most, width - start) for start in range(0, width, most))
