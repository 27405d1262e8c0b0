"""Text files: decompression by extension, and dialects of text tables, given or proposed."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import lzma
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from typing import IO, Any

from bigfs.core.errors import InputError
from bigfs.store.formats import TEXTS
from bigfs.store.location import Location
from bigfs.store.values import refusing

# A million columns of 30 characters. A file without line breaks would be loaded as a whole.
LINE_BYTES = 32 * 2**20
_FAULTS = (
    OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, UnicodeError,
    NotImplementedError,
)  # fmt: skip
# Words for a missing value in lower case: those of pandas and of pyarrow.
_WORDS = ("na", "n/a", "nan", "null", "none", "<na>", "#n/a", "#na", "-nan", "1.#ind", "-1.#qnan")
MISSING = frozenset(("", *_WORDS))
SPELLED = sorted(
    f"{blank}{word}"
    for word in {s for w in MISSING for s in (w, w.upper(), w.title())} | {"NaN", "-NaN"}
    for blank in ("", " ")
)
BLANKS = " "
_CANDIDATES = (";", "\t", "|", ",", BLANKS)
_LOOKED_AT_LINES = 100
# Upper bound of the words for a missing value that are proposed.
_WORDS_PROPOSED = 7
_NOT_AVAILABLE = re.compile(r"#(n/a|na\b)", re.IGNORECASE)
_FILL = re.compile(r"-9{2,5}(\.0*)?")
_COMMA_NUMBER, _POINT_NUMBER = re.compile(r"[+-]?\d*,\d+"), re.compile(r"[+-]?\d*\.\d+")


@contextmanager
def open_text(path: Location) -> Iterator[IO[bytes]]:
    """Open a file for reading, decompressed according to its extension."""
    lower = path.name.lower()
    unpack = next((PACKED[end] for end in PACKED if lower.endswith(end)), None)
    with refusing(f"{path} cannot be read, it is damaged or not a readable text table", *_FAULTS):
        with path.open("rb") as raw, (unpack or nullcontext)(raw) as file:
            yield file


def whole_lines(file: IO[bytes], size: int, path: Location) -> Iterator[bytes]:
    """Yield pieces of an open file that end at the end of a line.

    Raises
    ------
    InputError
        If a line is longer than 32 MiB.
    """
    while lines := file.read(size):
        end = file.readline(LINE_BYTES)
        if len(end) == LINE_BYTES:
            raise InputError(f"{path}: a line is longer than 32 MiB. Write it again.")
        yield lines + end


def _zstd(raw: IO[bytes]) -> Any:
    import pyarrow as pa

    return pa.CompressedInputStream(pa.PythonFile(raw, "r"), "zstd")


@contextmanager
def _member(raw: IO[bytes]) -> Iterator[IO[bytes]]:
    """Open the only file in a .zip archive."""
    with zipfile.ZipFile(raw) as archive:
        names = [n for n in archive.namelist() if not n.endswith("/") and "__MACOSX" not in n]
        if len(names) != 1:
            raise InputError(f"the zip holds {len(names)} files, and must hold one table.")
        with archive.open(names[0]) as file:
            yield file


PACKED: dict[str, Any] = {
    ".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": _zstd, ".zip": _member,
}  # fmt: skip


@dataclass(frozen=True)
class Dialect:
    """Syntax of a text table."""

    delimiter: str = ","  # one character; a blank means one blank or more
    decimal: str = "."  # or ","
    comment: str | None = None  # the character that begins a comment, which ends with its line
    na_values: tuple[str, ...] = ()  # additional words for a missing value
    encoding: str = "utf-8"
    skip_rows: int = 0  # lines before the table

    @property
    def missing(self) -> list[str]:
        """All words for a missing value."""
        return [*SPELLED, *self.na_values]

    @property
    def missing_numbers(self) -> list[float]:
        """Numbers that represent a missing value, in whatever form they are written."""
        numbers = (as_number(word.replace(self.decimal, ".")) for word in self.na_values)
        return [number for number in numbers if number is not None and number == number]


def dialect_of(given: Mapping[str, Any] | None, name: str, uri: str) -> Dialect:
    """Return the dialect of a file, from its name and the given settings.

    Raises
    ------
    InputError
        If a setting is unknown, or has an invalid value.
    """
    plain = name.lower()
    if not plain.endswith(TEXTS):
        plain = re.sub(r"\.\w+$", "", plain)
    values: dict[str, Any] = {"delimiter": "\t" if plain.endswith((".tsv", ".tab")) else ","}
    values |= {key: value for key, value in (given or {}).items() if value is not None}
    known = [field.name for field in fields(Dialect)]
    if unknown := sorted(set(values) - set(known)):
        raise InputError(f"csv must have keys of {', '.join(known)}. Got {unknown[0]!r}.")
    words = values.get("na_values", ())
    words = [words] if isinstance(words, (str, int, float)) else words
    values["na_values"] = tuple(str(word) for word in words)
    chosen = Dialect(**values)
    marks = [chosen.delimiter, chosen.comment or "#"]
    what = f"csv: there is no encoding {chosen.encoding!r}"
    with refusing(what, LookupError, UnicodeError, cure="Try latin-1."):
        "".encode(chosen.encoding)  # also fails for codecs of bytes, such as hex
    if any(not isinstance(c, str) or len(c) != 1 or c in '\r\n"' or not c.isascii() for c in marks):
        raise InputError(
            f"csv: delimiter and comment are one character each. Got {marks!r} ({uri})."
        )
    if chosen.decimal not in (".", ",") or chosen.decimal == chosen.delimiter:
        raise InputError(
            f"csv: decimal must be '.' or ',', and not the delimiter. Got {chosen.decimal!r}."
        )
    return chosen


def as_number(cell: str) -> float | None:
    """Return the number in a cell, NaN if the cell is a missing value, or None for a text."""
    text = cell.strip()
    if text.lower() in MISSING:
        return float("nan")
    if "_" in text:  # float() would accept 1_000
        return None
    try:
        return float(text)
    except ValueError:
        return None


def records_of(lines: Iterable[str], delimiter: str) -> tuple[list[list[str]], int]:
    """Return the cells of the given lines, and the number of lines up to the end of the first row.

    Empty lines have no row. If the lines cannot be parsed, there are no rows.
    """
    if delimiter == BLANKS:
        lines, delimiter = (" ".join(line.split()) for line in lines), " "
    reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
    rows, taken = [], 0
    try:
        for row in reader:
            taken = taken or (reader.line_num if row else 0)
            rows += [row] if row else []
    except csv.Error:
        return [], 0
    return rows, taken


def proposed(begin: bytes, default: Dialect) -> dict[str, Any]:
    """Return the proposed settings for reading a text table, inferred from its first bytes.

    Parameters
    ----------
    begin : bytes
        First bytes of the file.
    default : Dialect
        Dialect inferred from the name of the file.

    Returns
    -------
    settings : dict
        Settings that differ from the default; empty if there is nothing better.
    """
    settings: dict[str, Any] = {"encoding": encoding_of(begin)}
    text = begin.decode(settings["encoding"], errors="replace").lstrip("\ufeff")
    lines = [line for line in text.splitlines() if line.strip()][: _LOOKED_AT_LINES + 1]
    lines = lines[:-1] if len(lines) > _LOOKED_AT_LINES else lines
    for mark in "#%":
        # A single marked line at the start may hold the names, as NumPy's savetxt writes them.
        marked = [i for i, line in enumerate(lines) if _is_marked(line, mark)]
        if len(marked) > 1 or marked and marked != [0]:
            settings["comment"] = mark
            lines = [line for line in lines if not _is_marked(line, mark)]
    delimiter, skipped, rows = _best_delimiter(lines, default.delimiter)
    if not rows:
        return {}
    settings["delimiter"] = delimiter
    settings["skip_rows"] = text.splitlines().index(lines[skipped]) if skipped else 0
    cells = [cell.strip() for row in rows[1:] for cell in row]
    commas = sum(_COMMA_NUMBER.fullmatch(cell) is not None for cell in cells)
    points = sum(_POINT_NUMBER.fullmatch(cell) is not None for cell in cells)
    settings["decimal"] = "," if delimiter != "," and commas > points else "."
    settings["na_values"] = _missing_words(rows[1:], settings["decimal"])
    return {key: v for key, v in settings.items() if v and v != getattr(default, key)}


def _is_marked(line: str, mark: str) -> bool:
    """Return True if a line begins with a mark, and not with the missing value #N/A."""
    return line.startswith(mark) and not _NOT_AVAILABLE.match(line)


def encoding_of(begin: bytes) -> str:
    """Return the encoding of a text, inferred from its first bytes."""
    if begin.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    if begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(begin)
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8"


def _best_delimiter(lines: list[str], default: str) -> tuple[str, int, list[list[str]]]:
    """Return the delimiter that best splits the lines into rows of equal width.

    Returns
    -------
    delimiter : str
    n_skipped : int
        Number of lines before the table.
    rows : list of list of str
        Cells of the table.
    """
    fits: list[Any] = []
    quoted, parts_all = any('"' in line for line in lines), False
    for delimiter in (default, *(c for c in _CANDIDATES if c != default)):
        rows, _ = records_of(lines, delimiter)
        if not rows:
            continue
        widths = [len(row) for row in rows]
        width = Counter(widths[len(widths) // 2 :]).most_common(1)[0][0]
        # Title lines are shorter. The header may lack the cell above the row names, or have an
        # additional empty one at its end.
        first = max((i + 1 for i, w in enumerate(widths) if w != width), default=0)
        if first and abs(widths[first - 1] - width) == 1 and (first == 1 or widths[first - 1] > 1):
            first -= 1
        is_below = all(w < width for w in widths[:first])
        if width > 1 and is_below and first < len(widths) - 1:
            numbers = sum(_is_number(cell) for row in rows[first + 1 :] for cell in row)
            if delimiter == default:
                parts_all = widths[first] == width
            # If the header has fewer cells than the lines below, the delimiter is probably part of
            # texts (such as two words in one column). It is only accepted if there are numbers or
            # quotes, and the default delimiter does not split the header too.
            elif widths[first] < width and (parts_all or not (numbers or quoted)):
                continue
            fits.append((numbers, -len(fits), delimiter, first, rows[first:]))
    if not fits:
        return default, 0, records_of(lines, default)[0]
    _, _, delimiter, first, rows = max(fits, key=lambda fit: fit[:2])
    return delimiter, first, rows


def _is_number(cell: str) -> bool:
    number = as_number(cell.replace(",", "."))
    return number is not None and number == number


def _missing_words(rows: list[list[str]], decimal: str) -> list[str]:
    """Return the probable words for a missing value.

    They are texts without letters and digits in columns of numbers, and numbers such as -9999 if
    they are far below all others of their column.
    """
    words: set[str] = set()
    for column in zip(*(row for row in rows if len(row) == len(rows[-1])), strict=True):
        texts = [cell.strip() for cell in column]
        numbers = [as_number(text.replace(decimal, ".")) for text in texts]
        others = {t for t, number in zip(texts, numbers, strict=True) if number is None}
        present = [number for number in numbers if number is not None and number == number]
        if len(present) <= len(texts) // 2:
            continue
        words |= {text for text in others if not any(c.isalnum() for c in text)}
        lowest = {t for t in texts if _FILL.fullmatch(t)}
        rest = [number for number in present if number > -99]
        if lowest and len(rest) + sum(t in lowest for t in texts) == len(present):
            words |= {t.split(".")[0] for t in lowest}
    return sorted(words)[:_WORDS_PROPOSED]
