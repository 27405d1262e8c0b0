"""CSV and TSV, plain or gzipped, streamed in pieces of a megabyte of text."""

from __future__ import annotations

import codecs
import csv as text_csv
import gzip
import io
import logging
import zlib
from collections.abc import Iterator
from datetime import datetime
from itertools import chain, islice, pairwise
from operator import itemgetter
from typing import IO, Any

import numpy as np

from bigfs.core.errors import InputError, StorageError
from bigfs.store.columns import ALL_FEATURES, Roles, refuse_unusable
from bigfs.store.encoding import Encoded, encode_columns, notes_of
from bigfs.store.location import Location, is_remote
from bigfs.store.source import Header, Source, check_names, check_no_variable

logger = logging.getLogger("bigfs")
_TEXT_BYTES = 10**6
# What a first column without a name is called: pandas writes its index so.
UNNAMED = "Unnamed: 0"
# A million columns of 30 characters. A file without line breaks would be held as a whole.
_LINE_BYTES = 32 * 2**20
# Lines that a first line of increasing numbers is compared with, and cells of it that are shown.
_COMPARED_LINES, _SHOWN_CELLS = 100, 5
# Of a piece, from which on pandas picks columns faster than they are cut out line by line.
_FEWEST_LINES = 50
# What a download ends in where a server wanted a click.
_PAGES = ("<!doctype html", "<html")
_MISSING = {"", "na", "n/a", "nan", "null", "none"}
_MISSING_SPELLED = sorted(
    spelling for word in _MISSING for spelling in {word, word.upper(), word.title()}
) + ["NaN"]


class CsvSource(Source):
    """A table of numbers, one sample a line; a first line that is no numbers gives the names."""

    n_samples = None

    def __init__(
        self, path: Location, header: Header = "auto", roles: Roles = ALL_FEATURES
    ) -> None:
        self.uri, self._path = str(path), path
        self.separator = "\t" if ".tsv" in path.name.lower() else ","
        first, lines = self._first_record()
        self._width = len(first)
        self.held_bytes = 8 * _TEXT_BYTES + 256 * self._width  # a piece; names of columns
        texts = (cell for cell in first if cell.strip())
        # pandas writes an index under an empty cell, and numbers columns that have no names.
        indexed = len(first) > 1 and all(
            cell.strip() == ("" if j == 0 else str(j - 1)) for j, cell in enumerate(first)
        )
        named = header is True or indexed or any(as_number(cell) is None for cell in texts)
        self._header_lines = lines if header is not False and named else 0
        self.names = [str(j) for j in range(self._width)]
        if self._header_lines:
            self.names = [cell.strip() for cell in first]
            self.names[0] = self.names[0] or UNNAMED
            self._check_header()
        # What the file has itself counts before the names of the folders that it is in.
        given = roles.partitions or {}
        self._folders = {name: pair for name, pair in given.items() if name not in self.names}
        self.names += self._folders
        self._roles, self.index = roles, roles.index
        kept = roles.features(self.names, self.uri)
        self._kept = [j for j in kept if j < self._width]
        if not first[0].strip() and self._header_lines and 0 in self._kept:
            raise InputError(
                f"{self.uri}: column 0 has no name in the header, line 1. If it is the row index "
                f"that pandas writes, take it as ids: --set 'input.index={UNNAMED}' (--index, "
                "index=), or use to_csv(..., index=False)."
            )
        kinds = self._kinds()
        of_folders = {self.names[j]: self._folders[self.names[j]] for j in kept[len(self._kept) :]}
        kinds |= {name: kind for name, (_, kind) in of_folders.items() if kind is not None}
        encoded, dropped, _ = encode_columns(kinds, roles.encoding, self._distinct, self.uri)
        columns = [j for j in kept if self.names[j] not in dropped]
        if not columns:
            raise InputError(f"{self.uri}: no column is left as a feature. Choose others.")
        self._kept = [j for j in columns if j < self._width and self.names[j] not in encoded]
        self._columns = [(j, encoded.get(self.names[j])) for j in columns]
        self._constants = {
            name: constant_features(value, encoded.get(name), self.uri)
            for name, (value, _) in of_folders.items()
            if name not in dropped
        }
        self.notes = notes_of(encoded.values(), dropped, self._folders)
        self.categories = {name: column.values for name, column in encoded.items()}
        features = [
            feature
            for j, column in self._columns
            for feature in ([self.names[j]] if column is None else column.features)
        ]
        self.n_features = len(features)
        if self._header_lines or self._folders:
            self.feature_names = features
            check_names(features, len(features), self.uri)
        is_sample = header == "auto" and not named
        self._note = "no header, the first line is a sample" if is_sample else ""
        self.dtype = np.dtype(np.float64)

    @property
    def has_header(self) -> bool:
        """True if the first line is no sample."""
        return self._header_lines > 0

    @property
    def estimated_samples(self) -> int | None:
        """Lines of the mean length of the first megabyte that the file has room for."""
        if self._path.name.lower().endswith(".gz"):
            return None
        for _, lines in self._lines():
            return max(2, round(self._path.stat().st_size * len(lines) / sum(map(len, lines))))
        return None

    def read_texts(self, column: int) -> list[str]:
        """Return all cells of one column as texts without spaces around them."""
        return [text for piece in self._iter_texts(column) for text in piece]

    def count_rows(self) -> int:
        """Return how many samples there are, by reading all lines."""
        return sum(len(lines) for _, lines in self._lines())

    def iter_index(self) -> Iterator[list[str]]:
        """Yield the ids of the rows, about a megabyte of text at a time."""
        if self.index is not None:
            yield from self._iter_texts(self.names.index(self.index))

    def _iter_texts(self, column: int) -> Iterator[list[str]]:
        for line, lines in self._lines():
            if column >= self._width:
                yield [str(self._folders[self.names[column]][0])] * len(lines)
            else:
                yield [row[column].strip() for row in self._rows(lines, line)]

    def first_rows(self, count: int) -> list[list[str]]:
        """Return the cells of the first rows, whatever they hold."""
        rows: list[list[str]] = []
        for line, lines in self._lines():
            rows += self._rows(lines[: count - len(rows)], line)
            if len(rows) >= count:
                break
        return rows

    def check_first_piece(self) -> None:
        """Raise InputError if the first megabyte holds columns that are no numbers."""
        for line, texts in self._lines():
            self._parse(texts, line)
            return

    def check_first_line(self) -> None:
        """Raise InputError if the first line is a sample or a header, and nothing tells which.

        Wavelengths and years increase from the first to the last; few samples do.
        """
        lines: list[bytes] = []
        for _, texts in self._lines():
            lines += texts
            if len(lines) > 1:
                break
        rows = (self._parse_line(text, 1 + i) for i, text in enumerate(lines))
        if not _increases(next(rows, [])) or all(map(_increases, islice(rows, _COMPARED_LINES))):
            return
        cells = [cell.strip()[:20] for cell in self._cells(lines[0])]
        if len(cells) > _SHOWN_CELLS:
            cells = [*cells[: _SHOWN_CELLS - 1], "...", cells[-1]]
        raise InputError(
            f"{self.uri}: the first line ({', '.join(cells)}) is strictly increasing, and those "
            "below it are not: it may hold names, such as wavelengths or years, or be a sample. "
            "Set input.header (--header, header=): true takes it as names, false as a sample."
        )

    def iter_blocks(self, rows: int) -> Iterator[np.ndarray]:
        """Yield consecutive arrays of at most ``rows`` rows; empty cells are NaN."""
        if self._note:
            logger.info("%s: %s (input.header)", self.uri, self._note)
            self._note = ""  # once, however often it is read
        for line, lines in self._lines():
            block = self._parse(lines, line)
            for start in range(0, len(block), rows):
                yield block[start : start + rows]

    def _lines(self) -> Iterator[tuple[int, list[bytes]]]:
        """Yield number of the first line and lines below the header, about 1 MB at a time."""
        try:
            with self._open() as file:
                if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
                    file.seek(0)
                for _ in range(self._header_lines):
                    file.readline(_LINE_BYTES)
                yield from self._pieces(file)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{self.uri} cannot be read: {error}. Write it again.") from None

    def _pieces(self, file: IO[bytes]) -> Iterator[tuple[int, list[bytes]]]:
        """Yield number of the first line and lines; empty lines at the end are left out."""
        line = 1 + self._header_lines
        held: list[bytes] = []
        rest = b""
        while text := file.read(_TEXT_BYTES):
            # The end of a piece is a part of a line, unless the file ends.
            text = rest + text
            end = text.rfind(b"\n") + 1
            rest = text[end:]
            if len(rest) > _LINE_BYTES:
                raise self._too_long(line + len(held) + text.count(b"\n"))
            texts = held + io.BytesIO(text[:end]).readlines()
            full = len(texts)
            while full and not texts[full - 1].strip(b"\r\n "):
                full -= 1
            if full:
                yield line, texts[:full]
            line, held = line + full, texts[full:]
        if rest.strip(b"\r\n "):
            yield line, [*held, rest]

    def _too_long(self, line: int) -> InputError:
        return InputError(
            f"{self.uri}: line {line} is longer than {_LINE_BYTES / 2**20:g} MiB. Every sample "
            "needs a line of its own."
        )

    def _kinds(self) -> dict[str, str]:
        """Return which columns the first megabyte shows to hold booleans, dates or texts."""
        for line, texts in self._lines() if self._kept else ():
            try:
                if self._numbers(texts, line) is not None:
                    break
                rows = self._rows(texts, line)
            except InputError:  # said where the rows are read
                break
            kinds = {self.names[j]: kind_of([row[j] for row in rows]) for j in self._kept}
            return {name: kind for name, kind in kinds.items() if kind is not None}
        return {}

    def _distinct(self, column: str) -> Iterator[str | None]:
        if column in self._folders:
            yield self._folders[column][0]
            return
        for piece in self._iter_texts(self.names.index(column)):
            yield from {text for text in piece if text.lower() not in _MISSING}

    def _parse(self, texts: list[bytes], first_line: int) -> np.ndarray:
        """Return the features in some lines."""
        if any(constant is None for constant in self._constants.values()):
            self._refuse_texts(self._rows(texts, first_line), first_line)
        if len(self._kept) == len(self._columns):
            return self._parse_numbers(texts, first_line)
        import pandas as pd

        numbers = self._parse_numbers(texts, first_line) if self._kept else None
        own = any(column is not None and j < self._width for j, column in self._columns)
        rows, parts = self._rows(texts, first_line) if own else [], []
        for j, column in self._columns:
            if j >= self._width:
                constant = self._constants[self.names[j]]
                assert constant is not None
                parts.append(np.tile(constant, (len(texts), 1)))
                continue
            if column is None:
                assert numbers is not None
                parts.append(numbers[:, [self._kept.index(j)]])
                continue
            cells = (row[j].strip() for row in rows)
            there = [None if cell.lower() in _MISSING else cell for cell in cells]
            parts.append(column.encode(pd.Series(there, dtype=object), self.uri))
        return np.concatenate(parts, axis=1)

    def _parse_numbers(self, texts: list[bytes], first_line: int) -> np.ndarray:
        """Return the numbers of some lines, after checking that each has all its cells."""
        numbers = self._numbers(texts, first_line)
        if numbers is not None:
            return numbers
        rows = self._rows(texts, first_line)
        self._refuse_texts(rows, first_line)
        return np.array([self._parse_row(row, first_line + i) for i, row in enumerate(rows)])

    def _numbers(self, texts: list[bytes], first_line: int) -> np.ndarray | None:
        """Return the numbers of some lines, None if a cell is none."""
        separator = self.separator.encode()
        together = b"".join(texts)
        cells = together.replace(separator, b"\n")
        quoted = b'"' in together
        if not quoted:
            for i, text in enumerate(texts):
                if text.count(separator) != self._width - 1:
                    self._check_cells(self._cells(text), text, first_line + i)
        if len(self._kept) < self._width and not quoted and len(texts) >= _FEWEST_LINES:
            return _parse_cells(together, self.separator, self._kept, len(texts))
        if len(self._kept) < self._width or quoted:
            rows, choose = self._rows(texts, first_line), itemgetter(*self._kept)
            picked = map(choose, rows)
            flat = picked if len(self._kept) == 1 else chain.from_iterable(picked)
            cells = "\n".join([*flat, ""]).encode()
        numbers = _parse_cells(cells, ",", None, len(texts) * len(self._kept))
        return None if numbers is None else numbers.reshape(len(texts), len(self._kept))

    def _rows(self, texts: list[bytes], first_line: int) -> list[list[str]]:
        """Return the cells of some lines, after checking that each has all its cells."""
        rows = [self._cells(text) for text in texts]
        for i, row in enumerate(rows):
            self._check_cells(row, texts[i], first_line + i)
        return rows

    def _refuse_texts(self, rows: list[list[str]], first_line: int) -> None:
        """Raise InputError if more than half of what is in a column is no number."""
        unusable = {}
        for column in self._kept:
            numbers = [as_number(row[column]) for row in rows]
            texts = [i for i, number in enumerate(numbers) if number is None]
            if 2 * len(texts) > sum(number is None or number == number for number in numbers):
                cell = rows[texts[0]][column].strip()[:40]
                what = f"{cell!r} in line {first_line + texts[0]}"
                if self._width == 1:
                    what += f" (Cells are separated by {self.separator!r})"
                unusable[self.names[column]] = what
        for name, constant in self._constants.items():
            if constant is None:
                unusable[name] = f"text (its folder is '{name}={self._folders[name][0]}')"
        refuse_unusable(unusable, self._roles, self.names, self.uri)

    def _parse_line(self, text: bytes, line: int) -> list[float]:
        """Return the numbers of one line, or name the cell that is none."""
        return self._parse_row(self._rows([text], line)[0], line)

    def _parse_row(self, row: list[str], line: int) -> list[float]:
        numbers = []
        for column in self._kept:
            number = as_number(row[column])
            if number is None:
                name = f" ({self.names[column]!r})" if self.feature_names else ""
                raise InputError(
                    f"{self.uri}: line {line}, column {column}{name} is {row[column][:40]!r}, "
                    f"which is not a number. Cells are separated by {self.separator!r}; encode or "
                    "drop columns of text. Lines count from 1, columns from 0."
                )
            numbers.append(number)
        return numbers

    def _check_cells(self, cells: list[str], text: bytes, line: int) -> None:
        if len(cells) == self._width:
            return
        problem = f"has {len(cells)} cells" if text.strip() else "is empty"
        raise InputError(
            f"{self.uri}: line {line} {problem}, where the first line has {self._width} "
            "columns. Every line needs the same number."
        )

    def _cells(self, text: bytes) -> list[str]:
        line = text.decode("utf-8", errors="replace").rstrip("\r\n")
        try:
            # As many columns as there are: an empty line is one empty cell.
            return next(text_csv.reader([line], delimiter=self.separator), None) or [""]
        except text_csv.Error as error:  # a carriage return alone, a cell without an end
            raise InputError(
                f"{self.uri}: the line that begins with {line[:40]!r} cannot be read: {error}."
            ) from None

    def _check_header(self) -> None:
        """Names must be there and unique."""
        names = self.names
        if "" in names:
            column = names.index("")
            raise InputError(
                f"{self.uri}: column {column} has no name in the header, line 1. Name it or "
                "drop it."
            )
        check_names(names, self._width, self.uri)

    def _first_record(self) -> tuple[list[str], int]:
        """Return the cells of the first line, and how many lines they take (quoted breaks)."""
        try:
            with self._open() as file:
                reader = text_csv.reader(self._first_lines(file), delimiter=self.separator)
                first = next(reader, [])
        except StorageError:
            raise
        except (OSError, UnicodeDecodeError, EOFError, zlib.error, text_csv.Error) as error:
            raise InputError(f"{self.uri} is not a readable text table: {error}.") from None
        if not first:
            raise InputError(f"{self.uri} is empty, or begins with an empty line.")
        if first[0].lstrip().lower().startswith(_PAGES):
            raise InputError(f"{self.uri} is a web page, not a table. Download the file itself.")
        if any("\0" in cell for cell in first):
            raise InputError(f"{self.uri} is not a text table: it holds zero bytes.")
        return first, reader.line_num

    def _first_lines(self, file: IO[bytes]) -> Iterator[str]:
        """Yield lines for the first record, which takes several where a name has a line break."""
        left = _LINE_BYTES
        while text := file.readline(left + 1):
            left -= len(text)
            if left < 0:
                raise self._too_long(1)
            yield text.removeprefix(codecs.BOM_UTF8).decode()

    def _open(self) -> Any:
        packed = self._path.name.lower().endswith(".gz")
        if is_remote(self._path):
            file = self._path.open("rb")
            return gzip.open(file, "rb") if packed else file
        opener: Any = gzip.open if packed else open
        return opener(self._path, "rb")


def _parse_cells(text: bytes, sep: str, chosen: list[int] | None, n: int) -> np.ndarray | None:
    """Return the numbers in some columns of n lines, None if some cell is no number.

    Without columns there is one cell a line ("1,000" is none); pandas takes 10 us for each column.
    """
    import pandas as pd

    # Before pandas 3.1 the default converter was off by one bit now and then.
    major, minor = (int(part) for part in pd.__version__.split(".")[:2])
    exact = {} if (major, minor) >= (3, 1) else {"float_precision": "round_trip"}
    try:
        frame = pd.read_csv(
            io.BytesIO(text),
            sep=sep,
            usecols=chosen,
            header=None,
            dtype=np.float64,
            skip_blank_lines=False,
            skipinitialspace=True,
            keep_default_na=False,
            na_values=_MISSING_SPELLED,
            **exact,
        )
    except ValueError:
        return None
    shape = (n, 1 if chosen is None else len(chosen))
    return np.ascontiguousarray(frame) if frame.shape == shape else None


def as_number(cell: str) -> float | None:
    """Return the number in a cell, NaN for one that says it is missing, None for a text."""
    text = cell.strip()
    if text.lower() in _MISSING:
        return float("nan")
    if "_" in text:  # float() takes 1_000
        return None
    try:
        return float(text)
    except ValueError:
        return None


def constant_features(text: str | None, column: Encoded | None, uri: str) -> np.ndarray | None:
    """Return the features in a row of a column of one value, None if it is not a number."""
    if column is None:
        number = as_number(text or "")
        return None if number is None else np.array([number])
    import pandas as pd

    return column.encode(pd.Series([text], dtype=object), uri)[0]


def kind_of(cells: list[str]) -> str | None:
    """Return the kind of more than half of the cells that are present, None for numbers."""
    there = [text for cell in cells if (text := cell.strip()).lower() not in _MISSING]
    if 2 * sum(as_number(text) is None for text in there) <= len(there):
        return None
    if {text.lower() for text in there} <= {"true", "false"}:
        return "boolean"
    return "date" if all(map(_is_date, there)) else "category"


def _is_date(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _increases(row: list[float]) -> bool:
    """Say whether there are two numbers or more, each larger than the one before it."""
    there = [number for number in row if number == number]
    return len(there) > 1 and all(a < b for a, b in pairwise(there))


def open_file(
    path: Location, variable: str | None, header: Header = "auto", roles: Roles = ALL_FEATURES
) -> CsvSource:
    """Open a text table."""
    check_no_variable(path, variable)
    source = CsvSource(path, header, roles)
    source.check_first_piece()
    if header == "auto" and not source.has_header:
        source.check_first_line()
    return source
