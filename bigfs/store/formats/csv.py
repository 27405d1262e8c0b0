"""Text tables (.csv, .tsv, .txt, compressed or not), parsed by pyarrow in pieces of whole lines.

pyarrow's own streaming reader infers the column types from the first piece, and fails without
reporting a location if a later cell does not fit. So this module cuts the pieces itself, parses
each with known types, and locates a cell that does not fit in its piece. Before parsing, comments
are removed, runs of blanks become a tab, and other encodings are converted to UTF-8: pyarrow
supports none of the three when it is given pieces.
"""

from __future__ import annotations

import codecs
import io
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from decimal import Decimal
from itertools import compress, islice, pairwise
from typing import IO, Any

from bigfs.core.errors import InputError
from bigfs.store.columns import refuse_unusable
from bigfs.store.formats.texts import (
    BLANKS,
    LINE_BYTES,
    PACKED,
    as_number,
    dialect_of,
    encoding_of,
    open_text,
    proposed,
    records_of,
)
from bigfs.store.location import Location
from bigfs.store.source import Header, check_names
from bigfs.store.tables import Table
from bigfs.store.values import EXACT

logger = logging.getLogger("bigfs")
_TEXT_BYTES = 10**6
# Measured memory that pyarrow holds per column while it parses a piece.
_COLUMN_BYTES = 6 * 2**10
# Minimum number of lines in a piece: each piece costs pyarrow some time per column.
_FEWEST_LINES = 64
# Name of a first column without a name, which is how pandas writes its index.
UNNAMED = "Unnamed: 0"
# Number of lines that a first line of numbers is compared with, number of its cells that an error
# message shows, and number of characters of a text that a message shows.
_COMPARED_LINES, _SHOWN_CELLS, _SHOWN = 100, 5, 40
_LOOKED_AT_BYTES = 2**16
# Start of the web page that is downloaded instead of the file if the server expects a click.
_PAGES = ("<!doctype html", "<html")
_TRUE, _FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")
_PARQUET, _GZIP = b"PAR1", b"\x1f\x8b"
_OF_NUMBERS = b"0123456789.,;-+eE\t\r\n "
_WHOLE = re.compile(r"\s*[+-]?\d+\s*")


class TextTable(Table):
    """Table in a text file; the first line gives the names unless it is a sample."""

    is_text = True

    def __init__(
        self, path: Location, header: Header = "auto", csv: Mapping[str, Any] | None = None
    ) -> None:
        import pyarrow as pa

        self.uri, self._path = str(path), path.absolute()
        self._dialect = dialect_of(csv, path.name, self.uri)
        blanks = self._dialect.delimiter == BLANKS
        self._delimiter = "\t" if blanks else self._dialect.delimiter
        self._skip, self._blanks, self._piece_bytes = 0, blanks, _TEXT_BYTES
        # A quoted cell, up to its closing quote or the end of the text. Only a quote at the start
        # of a cell opens it.
        before = rb" \t" if blanks else re.escape(self._delimiter.encode())
        self._quoted = rb"(?:(?<=[\r\n" + before + rb'])|\A)"[^"]*(?:""[^"]*)*(?:"|\Z)'
        self._width = 0
        self._current: tuple[int, bytes] = (1, b"")
        self._mixed: set[str] = set()
        rows, lines = self._first_records()
        self._header, self._note = header, ""
        self._width = _width_of(rows)
        self.named = self._has_names(rows)
        names = self._names(rows) if self.named else [str(j) for j in range(self._width)]
        self._all = names
        self._skip += lines if self.named else 0
        self._first = rows[0]
        if len(set(names)) < len(names):
            check_names(names, len(names), self.uri)
        types = self._types(names)
        self.schema = pa.schema([(name, types[name]) for name in names if name in types])

    def check_features(self, names: list[str]) -> None:
        """Raise InputError if a feature cannot be read or the first line is ambiguous.

        A feature cannot be read if it has no name or has texts among numbers. The first line is
        ambiguous if it may hold names or be a sample.
        """
        if UNNAMED in names and not self._first[0].strip():
            raise InputError(
                f"{self.uri}: column 0 has no name in the header, line 1. If it is the row index "
                f"that pandas writes, use it as ids: --set 'input.index=\"{UNNAMED}\"' (--index, "
                "index=), or use to_csv(..., index=False)."
            )
        if self._mixed & set(names):  # raises: the first piece has texts among numbers
            next(self.batches(names, 0))
        self.check_header()

    def check_header(self) -> None:
        """Raise InputError if it is unclear whether the first line holds names or a sample."""
        if self._note == "unclear":
            cells = [cell.strip()[:20] for cell in self._first]
            if len(cells) > _SHOWN_CELLS:
                cells = [*cells[: _SHOWN_CELLS - 1], "...", cells[-1]]
            raise InputError(
                f"{self.uri}: the first line ({', '.join(cells)}) {self._why}: it may hold names, "
                "such as wavelengths or years, or be a sample. Set input.header (--header, "
                "header=): true reads it as names, false as a sample."
            )

    def held_bytes(self, columns: Any) -> int:
        """Return the bytes held for a piece, as text and parsed, and for the columns."""
        return 8 * self._piece_bytes + _COLUMN_BYTES * self._width

    def estimated_rows(self) -> int | None:
        """Return the estimated number of rows, or None for a compressed or empty file.

        The estimate is the file size divided by the mean line length of the first piece, which is
        read as UTF-8: a file in UTF-16 has twice as many bytes.
        """
        if self._path.name.lower().endswith(tuple(PACKED)):
            return None
        _, piece = next(self._pieces(), (1, b""))
        count = piece.count(b"\n") + (not piece.endswith(b"\n"))
        if not piece:
            return None
        width = len("ab".encode(self._dialect.encoding)) - len("a".encode(self._dialect.encoding))
        return max(2, round(self._path.stat().st_size / width * count / len(piece)))

    def content_of(self, column: str) -> str:
        """Return a description of the first text in a column, with its line."""
        if column in self.folders:
            return super().content_of(column)
        for line, piece in self._pieces():
            texts = self._texts(piece, line, [column]).column(0).to_pylist()
            i = next((i for i, t in enumerate(texts) if as_number(t or "") is None), 0)
            return self._describe(texts[i], line + i)
        return "text"

    def batches(self, columns: list[str], rows: int) -> Iterator[Any]:
        """Yield the pieces of the file as batches; words for missing values become null."""
        import pyarrow as pa

        if self._note == "sample":
            logger.info("%s: no header, the first line is a sample (input.header)", self.uri)
            self._note = ""  # logged once, however often the file is read
        types = {name: self.schema.field(name).type for name in columns}
        # Empty cells may be followed by numbers.
        types = {n: pa.float64() if pa.types.is_null(kind) else kind for n, kind in types.items()}
        for line, piece in self._pieces():
            self._current = line, piece
            try:
                batch = self._parse(piece, line, types)
            except pa.ArrowInvalid:
                self._refuse(piece, line, columns)
                raise
            yield batch

    def written(self, column: str) -> Iterator[list[str]]:
        """Yield the cells of a column as they are written, without surrounding blanks."""
        if column in self.folders:
            yield from super().written(column)
            return
        for line, piece in self._pieces():
            texts = self._texts(piece, line, [column]).column(0).to_pylist()
            yield [text.strip() for text in texts]

    def column(self, name: str) -> Any:
        """Return all cells of a column, as numbers if all of them are, otherwise as texts.

        Among texts "NA" is an ordinary text, and only an empty cell is null.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        if name not in self.schema.names:
            return super().column(name)
        pieces = [pa.array(texts, pa.string()) for texts in self.written(name)]
        texts = pa.chunked_array(pieces, pa.string())
        words = pa.array(self._dialect.missing, pa.string())
        points = pc.replace_substring(texts, self._dialect.decimal, ".")
        numbers = pc.if_else(pc.is_in(texts, words), None, points)
        distinct = numbers.unique()
        padded = pc.match_substring_regex(distinct, r"^[+-]?0\d").to_pylist()
        for kind in (pa.int64(), pa.float64()):
            try:
                cast = numbers.cast(kind)
            except pa.ArrowInvalid:
                continue
            values = distinct.cast(kind).to_pylist() if any(padded) else []
            spelled = Counter(values)
            if any(spelled[value] > 1 for value in compress(values, padded)):
                break  # 1 and 01 are different classes
            return self._without_missing(cast)
        return pc.if_else(pc.equal(texts, ""), None, texts)

    def check_whole(self, columns: list[str]) -> None:
        """Raise InputError if the piece read last has a whole number beyond 2^53."""
        line, piece = self._current
        for name, texts in self._texts(piece, line, columns).to_pydict().items():
            for i, text in enumerate(texts):
                if _WHOLE.fullmatch(text) and abs(Decimal(text)) > EXACT:
                    raise InputError(
                        f"{self.uri}: line {line + i}, column {name!r} is {text.strip()[:_SHOWN]}. "
                        "Whole numbers beyond 2^53 would be rounded. Drop such columns (ids), "
                        "subtract an offset (times), or write them with a decimal point."
                    )

    def _texts(self, piece: bytes, line: int, columns: list[str]) -> Any:
        """Return the cells of the given columns of a piece as they are written."""
        import pyarrow as pa

        return self._parse(piece, line, dict.fromkeys(columns, pa.string()), raw=True)

    def _parse(self, piece: bytes, line: int, types: Mapping[str, Any], raw: bool = False) -> Any:
        """Return the given columns of a piece as one batch.

        If ``raw`` is true, words for missing values stay texts, as they are written.
        """
        import pyarrow as pa
        import pyarrow.csv as pc

        bad: list[Any] = []

        def refuse(row: Any) -> str:
            bad.append(row)
            return "error"

        quoted = b'"' in piece
        dialect = self._dialect
        words = _possible([*dialect.missing, *_TRUE, *_FALSE], piece)
        try:
            table = pc.read_csv(
                pa.BufferReader(piece),
                pc.ReadOptions(
                    column_names=self._all, use_threads=False, block_size=len(piece) + 1
                ),
                pc.ParseOptions(
                    delimiter=self._delimiter,
                    newlines_in_values=quoted,
                    ignore_empty_lines=self._width > 1,
                    invalid_row_handler=refuse,
                ),
                pc.ConvertOptions(
                    include_columns=list(types),
                    column_types={name: kind for name, kind in types.items() if kind is not None},
                    null_values=[] if raw else [word for word in words if word in dialect.missing],
                    strings_can_be_null=not raw,
                    decimal_point=dialect.decimal,
                    true_values=[word for word in words if word in _TRUE],
                    false_values=[word for word in words if word in _FALSE],
                    check_utf8=False,
                ),
            )
            columns = [column.combine_chunks() for column in table.columns]
            if not raw and self._dialect.missing_numbers:
                columns = list(map(self._without_missing, columns))
            return pa.record_batch(columns, names=table.column_names)
        except pa.ArrowInvalid as error:
            if bad:
                raise self._ragged(bad[0], line) from None
            if "CSV parse error" in str(error) or "straddling" in str(error):
                raise InputError(f"{self.uri}: from line {line} on, {error}.") from None
            raise

    def _without_missing(self, values: Any) -> Any:
        """Return a column in which the numbers that represent missing values are null."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not (pa.types.is_floating(values.type) or pa.types.is_integer(values.type)):
            return values
        missing = pa.array(self._dialect.missing_numbers, pa.float64())
        return pc.if_else(pc.is_in(values.cast(pa.float64()), missing), None, values)

    def _ragged(self, row: Any, line: int) -> InputError:
        return InputError(
            f"{self.uri}: line {line + (row.number or 1) - 1} has {row.actual_columns} cells, "
            f"but the first line has {self._width} columns. Every line needs the same number."
        )

    def _refuse(self, piece: bytes, line: int, columns: list[str]) -> None:
        """Raise InputError for cells of a piece that do not have the type of their column."""
        import pyarrow as pa

        kinds = {name: self.schema.field(name).type for name in columns}
        numbers = [name for name in columns if kinds[name] in ("double", "null")]
        unusable, first = {}, None
        for name, texts in self._texts(piece, line, numbers).to_pydict().items():
            values = [self._number(text) for text in texts]
            wrong = [i for i, value in enumerate(values) if value is None]
            is_late = bool(wrong) and kinds[name] == "null"
            if is_late or 2 * len(wrong) > sum(v is None or v == v for v in values):
                unusable[name] = self._describe(texts[wrong[0]], line + wrong[0])
            elif wrong and (first is None or wrong[0] < first[0]):
                first = (wrong[0], name, texts[wrong[0]])
        late = [name for name in unusable if kinds[name] == "null"]
        if late and self.roles.encoding.categories != "error":
            raise InputError(
                f"{self.uri}: column {late[0]!r} has no value in the first MB, which determines "
                f"its type, but text later: {unusable[late[0]]}. Leave it out (input.columns: "
                f'["!{late[0]}"]), or write the table as Parquet, which stores column types.'
            )
        refuse_unusable(unusable, self.roles, self.uri)
        if first is None:
            kinds |= dict.fromkeys(numbers, pa.float64())
            raise self._unlike(piece, line, kinds)
        i, name, text = first
        raise InputError(
            f"{self._cell(line + i, name, text)}, which is not a number. Cells are separated by "
            f"{self._dialect.delimiter!r}; encode or drop text columns. Lines count from 1, "
            "columns from 0."
        )

    def _cell(self, line: int, name: str, text: str) -> str:
        """Return the location and the content of a cell, as the beginning of a sentence."""
        shown = f" ({name!r})" if self.named else ""
        return (
            f"{self.uri}: line {line}, column {self._all.index(name)}{shown} is {text[:_SHOWN]!r}"
        )

    def _unlike(self, piece: bytes, line: int, kinds: Mapping[str, Any]) -> InputError:
        """Return the error for the first column with a cell of another type."""
        import pyarrow as pa

        for name, kind in kinds.items():
            try:
                self._parse(piece, line, {name: kind})
            except pa.ArrowInvalid as error:
                row = re.search(r"Row #(\d+)", str(error))
                i = int(row[1]) - 1 if row else 0
                text = self._texts(piece, line, [name]).column(0)[i].as_py()
                if kind != "double":
                    reason = str(error).rpartition(": ")[2].rstrip(".")
                    return InputError(
                        f"{self.uri}: column {name!r} begins with dates, or with true and false, "
                        f"but has other cells from line {line + i} on: {reason}. Leave it out "
                        "(input.columns), or correct it."
                    )
                why = (
                    "is not a number with the digits 0 to 9 and the decimal separator "
                    f"{self._dialect.decimal!r}. Correct it, or set input.csv.decimal"
                )
                if as_number(text) != as_number(text):  # NaN
                    why = (
                        "is not recognized as a missing value because of its blanks or spelling. "
                        "Correct it, or list it exactly as written in input.csv.na_values"
                    )
                return InputError(f"{self._cell(line + i, name, text)}, which {why}.")
        raise AssertionError("all cells are of the types of their columns")

    def _describe(self, text: str, line: int) -> str:
        what = f"{text.strip()[:_SHOWN]!r} in line {line}"
        note = f" (Cells are separated by {self._dialect.delimiter!r})"
        return what + (note if self._width == 1 else "")

    def _number(self, text: str) -> float | None:
        if text.strip() in self._dialect.na_values:
            return float("nan")
        number = as_number(text.replace(self._dialect.decimal, "."))
        return float("nan") if number in self._dialect.missing_numbers else number

    def _types(self, names: list[str]) -> dict[str, Any]:
        """Return the types of the columns, inferred from the first piece.

        A column without a name is left out if it has no values.

        Raises
        ------
        InputError
            If a column without a name has values.
        """
        import pyarrow as pa
        import pyarrow.types as types

        line, piece = next(self._pieces(), (1, b""))
        if not piece:
            return {name: pa.float64() for name in names if name}
        first = self._parse(piece, line, dict.fromkeys(self._all))
        known: dict[str, Any] = {}
        for name, values in zip(names, first.columns, strict=True):
            kind = values.type
            if not name and types.is_null(kind):  # of a delimiter at the end of the lines
                continue
            if types.is_string(kind):
                cells = [text for text in values.to_pylist() if text is not None]
                texts = sum(self._number(cell) is None for cell in cells)
                if 2 * texts <= len(cells):
                    kind = pa.float64()
                    self._mixed.add(name)
            elif types.is_date(kind) or types.is_timestamp(kind):
                kind = pa.timestamp("us", tz=getattr(kind, "tz", None))
            elif types.is_time(kind):
                kind = pa.string()
            elif not (types.is_boolean(kind) or types.is_null(kind)):
                kind = pa.float64()
            known[name] = kind
        if "" in names and "" in known:
            raise InputError(
                f"{self.uri}: column {names.index('')} has no name in the header, line 1. Name it "
                "or drop it."
            )
        return known

    def _has_names(self, rows: list[list[str]]) -> bool:
        """Return True if the first line holds names.

        ``_note`` becomes "sample" if the first line is a sample, and "unclear" if it may be either,
        with the reason in ``_why``.
        """
        first, below = rows[0], [row for row in rows[1:] if len(row) == self._width]
        if self._header != "auto":
            return bool(self._header)
        if self._marked or len(first) != self._width:
            return True
        # pandas writes an empty cell above its index, and numbers columns without names.
        indexed = [cell.strip() for cell in first] == ["", *map(str, range(len(first) - 1))]
        if (indexed and len(first) > 1) or not below:
            return indexed or any(self._number(cell) is None for cell in first)
        numbers = [self._number(cell) for cell in first]
        columns = list(zip(*below, strict=True))
        texts = [j for j, number in enumerate(numbers) if number is None]
        increase = _is_axis(numbers)
        all_increase = all(_is_axis([self._number(c) for c in row]) for row in below)
        if not texts:
            present = [number for number in numbers if number is not None and number == number]
            change = "decreasing" if present[:1] > present[-1:] else "increasing"
            self._why = f"is strictly {change}, but the lines below it are not"
            is_unclear = increase and not all_increase
            if not is_unclear and self._are_positions(first, columns):
                is_unclear = True
                self._why = "has whole numbers, but the lines below it have fractions"
            self._note = "unclear" if is_unclear else "sample"
            return False
        if all(first[j] in columns[j] for j in texts):  # values that occur again below
            self._note = "sample"
            return False
        of_texts = [cell for j in texts for cell in columns[j] if cell.strip()]
        if any(self._number(cell) is not None for cell in of_texts):
            return True
        has_numbers = any(number is not None and number == number for number in numbers)
        if has_numbers and not (increase and not all_increase):
            self._note, self._why = "unclear", "holds texts and numbers, like the lines below it"
        return True

    def _are_positions(self, first: list[str], columns: list[tuple[str, ...]]) -> bool:
        """Return True if the first line may number the columns, as an export by rank does."""
        below = [cell.strip() for column in columns for cell in column if cell.strip()]
        are_whole = all(cell.strip().isdecimal() for cell in first)
        is_own = are_whole and len({*first}) == len(first) > 1
        return is_own and bool(below) and not any(cell.lstrip("-").isdecimal() for cell in below)

    def _names(self, rows: list[list[str]]) -> list[str]:
        """Return the names of the columns from the first line."""
        names, below = [cell.strip() for cell in rows[0]], rows[1:]
        if len(names) == self._width + 1 and not names[-1]:
            names.pop()
        if len(names) == self._width - 1 and not any(row[-1].strip() for row in below):
            names.append("")  # the lines below end with a delimiter
        if len(names) == self._width - 1:  # R omits the cell above the row names
            names, self.row_ids, self.index = [UNNAMED, *names], (UNNAMED,), UNNAMED
        names[0] = names[0] or UNNAMED
        return names

    def _first_records(self) -> tuple[list[list[str]], int]:
        """Return the cells of the first lines, and the number of lines of the first record."""
        _, piece = next(self._pieces(), (1, b""))
        if not piece:
            raise InputError(f"{self.uri} is empty.")
        if b"\0" in piece[:_TEXT_BYTES]:
            raise InputError(f"{self.uri} is not a text table: it holds zero bytes.")
        text = io.StringIO(piece.decode(), newline="")
        lines = list(islice(text, _COMPARED_LINES + 1))
        if lines[0].lstrip().lower().startswith(_PAGES):
            raise InputError(f"{self.uri} is a web page, not a table. Download the file itself.")
        empty = next((i for i, line in enumerate(lines) if line.strip()), 0)
        if empty and not self._blanks and self._dialect.comment is None:
            raise InputError(f"{self.uri} begins with an empty line. Set input.csv.skip_rows.")
        rows, taken = records_of(lines, self._delimiter)
        if not rows:
            raise InputError(f"{self.uri} is not a readable text table.")
        self._marked = rows[0][0].startswith("#")  # NumPy's savetxt puts it before the names
        if self._marked:
            rows[0][0] = rows[0][0].lstrip("# ")
            rows[0] = rows[0] if rows[0][0] else rows[0][1:]
        longest = max(len(line) for line in lines)
        self._piece_bytes = min(LINE_BYTES, max(_TEXT_BYTES, _FEWEST_LINES * longest))
        return rows, taken

    def _pieces(self) -> Iterator[tuple[int, bytes]]:
        """Yield the lines below the header in pieces, each after the number of its first line."""
        left = self._skip + self._dialect.skip_rows
        for line, piece in self._whole_lines():
            while left and piece:
                piece = piece.partition(b"\n")[2]
                left, line = left - 1, line + 1
            piece = self._normal(piece) if piece else piece
            if piece.strip():
                yield line, piece

    def _normal(self, piece: bytes) -> bytes:
        """Return a piece without comments, and with runs of blanks replaced by a tab."""
        mark = (self._dialect.comment or "").encode()
        if mark and mark in piece:
            comment = rb"[ \t]*" + re.escape(mark) + rb"[^\r\n]*"
            if self._width == 1:  # an empty line is a missing value
                piece = re.sub(rb"(?m)^" + comment + rb"\r?\n", b"", piece)
            piece = re.sub(rb"(" + self._quoted + rb")|" + comment, rb"\1", piece)
        if self._blanks:
            piece = re.sub(rb"(?m)^[ \t]+|[ \t]+(?=\r?$)", b"", piece)
            blanks = self._quoted + rb"|[ \t]+" if b'"' in piece else rb"[ \t]+"
            piece = re.sub(blanks, lambda m: m[0] if m[0][:1] == b'"' else b"\t", piece)
        return piece

    def _whole_lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield pieces of whole lines, each after the number of its first line.

        Empty lines at the end of the file are left out.
        """
        encoding, line, rest, old = self._dialect.encoding, 1, b"", False
        is_utf8 = codecs.lookup(encoding).name == "utf-8"
        decoder = None if is_utf8 else codecs.getincrementaldecoder(encoding)()
        with open_text(self._path) as file:
            while True:
                read = file.read(self._piece_bytes)
                if line == 1 and read.startswith(_PARQUET):
                    raise InputError(f"{self.uri} is a Parquet file. Name it .parquet.")
                if line == 1 and read.startswith(_GZIP):
                    raise InputError(f"{self.uri} is compressed by gzip. Add .gz to its name.")
                text = read if decoder is None else decoder.decode(read, not read).encode()
                if line == 1 and not rest:
                    text = text.removeprefix(codecs.BOM_UTF8)
                    plain = re.sub(self._quoted, b"", text) if b'"' in text else text
                    old = b"\r" in plain and b"\n" not in plain  # the line ends of old Macs
                if old:
                    text = text.replace(b"\r", b"\n")
                rest += text
                end = _end_of_records(rest, self._quoted) if read else len(rest)
                # Empty lines are kept for the next piece: at the end of the file they are ignored.
                full = len(rest[:end].rstrip(b"\r\n "))
                full = min(end, rest.find(b"\n", full) + 1 or end) if full else 0
                piece, rest = rest[:full], rest[full:]
                if piece:
                    self._check_text(piece, line)
                    yield line, piece
                line += piece.count(b"\n")
                if not read:
                    return
                if len(rest) > LINE_BYTES:
                    long = "is longer than" if rest.strip() else "begins empty lines of more than"
                    raise InputError(
                        f"{self.uri}: line {line} {long} {LINE_BYTES / 2**20:g} MiB. "
                        "Every sample needs a line of its own."
                    )

    def _check_text(self, piece: bytes, line: int) -> None:
        """Raise InputError with line and column if a piece is not valid UTF-8."""
        if piece.isascii():
            return
        try:
            piece.decode()
        except UnicodeDecodeError as error:
            begin = piece.rfind(b"\n", 0, error.start) + 1
            column = piece.count(self._delimiter.encode(), begin, error.start)
            line += piece.count(b"\n", 0, begin)
            raise InputError(
                f"{self.uri}: line {line}, column {column} is not readable text: its bytes "
                f"{piece[error.start : error.end]!r} are not UTF-8. Set the "
                f"encoding: --set input.csv.encoding={encoding_of(piece)} (--csv, csv=). "
                "Lines count from 1, columns from 0."
            ) from None


def _width_of(rows: list[list[str]]) -> int:
    """Return the number of cells in a line.

    The header may have one cell less, or one empty cell more.
    """
    first, below = rows[0], len(rows[min(1, len(rows) - 1)])
    has_names = any(as_number(cell) is None for cell in first)
    of_rows = below == len(first) + 1 and has_names
    return below if of_rows or below == len(first) - 1 and not first[-1].strip() else len(first)


def _end_of_records(text: bytes, quoted: bytes) -> int:
    """Return the offset of the end of the last complete record.

    A line break within quotes does not end a record.
    """
    end = text.rfind(b"\n") + 1
    # If a cell continues on the next line, this line has an odd number of quotes.
    if b'"' in text and any(line.count(b'"') % 2 for line in text[:end].split(b"\n")):
        spans = [m.span() for m in re.finditer(quoted, text) if b"\n" in m[0]]
        for start, stop in reversed(spans):
            if start < end <= stop:
                end = text.rfind(b"\n", 0, start) + 1
    return end


def _possible(words: list[str], piece: bytes) -> list[str]:
    """Return the words that may occur in a piece, judging by their characters.

    pyarrow builds a trie of its words for each column. With all spellings of a missing value it
    takes 40 KB, and a piece of numbers needs none of them.
    """
    others = piece.translate(None, _OF_NUMBERS)

    def may_occur(word: bytes) -> bool:
        rare = word.translate(None, _OF_NUMBERS)
        return all(character in others for character in rare) if rare else word in piece

    return [word for word in words if may_occur(word.encode())]


def _is_axis(row: list[float | None]) -> bool:
    """Return True if at least two numbers strictly increase, or at least three decrease.

    Texts and missing values are ignored.
    """
    present = [number for number in row if number is not None and number == number]
    if len(present) > 2 and present[0] > present[1]:
        present = present[::-1]
    return len(present) > 1 and all(a < b for a, b in pairwise(present))


open_table = TextTable


def propose(path: Location) -> dict[str, Any]:
    """Return the settings with which a text table can probably be read."""
    try:
        with open_text(path) as file:
            begin = file.read(_LOOKED_AT_BYTES)
    except (InputError, OSError):  # reported when the file is opened
        return {}
    if begin.startswith((_PARQUET, _GZIP)):
        return {}
    settings = proposed(begin, dialect_of(None, path.name, str(path)))
    return {"csv": settings} if settings else {}


def write(file: IO[bytes], selected: Any) -> None:
    """Write the selected columns as CSV."""
    for i, batch in enumerate(selected.batches()):
        text = batch.to_pandas().to_csv(index=False, header=i == 0, lineterminator="\n")
        file.write(text.encode())
