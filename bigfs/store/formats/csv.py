"""CSV and TSV, plain or gzipped, streamed by pandas."""

from __future__ import annotations

import csv as text_csv
import gzip
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.store.source import Source, check_names

_MISSING = {"", "na", "n/a", "nan", "null", "none"}


class CsvSource(Source):
    """A table of numbers, one sample a line; a first line that is no numbers gives the names."""

    n_samples = None

    def __init__(self, path: Path) -> None:
        self.uri = str(path)
        self._path = path
        self._separator = "\t" if ".tsv" in path.name.lower() else ","
        first = self._first_line()
        self.n_features = len(first)
        self._header = not all(_is_number(cell) for cell in first)
        if self._header:
            self.feature_names = [cell.strip() for cell in first]
            check_names(self.feature_names, self.n_features, self.uri)
        self.dtype = np.dtype(np.float64)

    def iter_blocks(self, rows: int) -> Iterator[np.ndarray]:
        """Yield consecutive arrays of at most ``rows`` rows."""
        import pandas as pd

        line = 1 + self._header
        try:
            with pd.read_csv(
                self._path,
                sep=self._separator,
                header=None,
                skiprows=int(self._header),
                chunksize=rows,
                dtype=str,
                keep_default_na=False,
                skip_blank_lines=False,
                index_col=False,
            ) as reader:
                for frame in reader:
                    yield self._numbers(frame, line)
                    line += len(frame)
        except pd.errors.EmptyDataError:
            return
        except (pd.errors.ParserError, UnicodeDecodeError, OSError, EOFError) as error:
            raise InputError(f"{self.uri}: {_readable(error, self._header)}") from None

    def _numbers(self, frame: Any, first_line: int) -> np.ndarray:
        """Convert a frame of texts, or name the first cell that is no number."""
        if frame.shape[1] != self.n_features:
            raise InputError(
                f"{self.uri}: line {first_line} has {frame.shape[1]} cells, the first line has "
                f"{self.n_features}. Every line needs the same number."
            )
        block = np.empty(frame.shape, self.dtype)
        for column in range(frame.shape[1]):
            cells = frame.iloc[:, column].to_numpy(dtype=object)
            try:
                block[:, column] = cells.astype(np.float64)
            except (ValueError, TypeError):
                block[:, column] = [
                    self._cell(cell, first_line + i, column) for i, cell in enumerate(cells)
                ]
        return block

    def _cell(self, cell: Any, line: int, column: int) -> float:
        text = "" if not isinstance(cell, str) else cell.strip()
        if text.lower() in _MISSING:
            return float("nan")
        try:
            return float(text)
        except ValueError:
            name = f" ({self.feature_names[column]!r})" if self.feature_names else ""
            raise InputError(
                f"{self.uri}: line {line}, column {column}{name} is {text[:40]!r}, which is no "
                "number. Encode or drop such columns."
            ) from None

    def _first_line(self) -> list[str]:
        opener: Any = gzip.open if self._path.name.lower().endswith(".gz") else open
        try:
            with opener(self._path, "rt", newline="", encoding="utf-8") as file:
                first = next(text_csv.reader(file, delimiter=self._separator), [])
        except (OSError, UnicodeDecodeError, EOFError, text_csv.Error) as error:
            raise InputError(f"{self.uri} is not a readable text table: {error}.") from None
        if not first:
            raise InputError(f"{self.uri} is empty.")
        return first


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return cell.strip().lower() in _MISSING and bool(cell.strip())
    return True


def _readable(error: Exception, header: bool) -> str:
    """Say what pandas found in terms of lines and cells."""
    found = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error))
    if found is None:
        return f"cannot be read: {error}."
    expected, line, seen = found.groups()
    return (
        f"line {line} has {seen} cells, the lines before have {expected}. "
        "Every line needs the same number."
    )


def open_file(path: Path, variable: str | None) -> CsvSource:
    """Open a text table."""
    if variable is not None:
        raise InputError(f"{path} holds one table; input.variable must be null. Got {variable!r}.")
    return CsvSource(path)
