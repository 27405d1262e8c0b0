"""Matrix Market files, texts with one entry per line, and the files with names that 10x adds."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.core.units import GIB, format_bytes
from bigfs.store.formats import MARKET
from bigfs.store.formats.cube import open_loaded
from bigfs.store.formats.parts import ByBands, held_texts
from bigfs.store.formats.tenx import of_types
from bigfs.store.formats.texts import open_text, whole_lines
from bigfs.store.location import METADATA_BYTES, Location, files_below
from bigfs.store.source import Source, check_no_variable, listed
from bigfs.store.values import refusing

_FEATURES = ("features.tsv", "genes.tsv")
_PIECE_BYTES = 2**22
_HEADER_LINES, _LINE_BYTES = 1000, 2**16
_KINDS: dict[str, np.dtype[Any]] = {
    "integer": np.dtype(np.int64), "unsigned-integer": np.dtype(np.uint64),
    "real": np.dtype(np.float64), "pattern": np.dtype(np.int8),
}  # fmt: skip
# Bytes that may occur in numbers, inf and nan. scipy would read Fortran's 1D3 as 1.
_NUMBERS = b"0123456789+-.eE \t\r\nnaifNAIFty"
_HALVES = ("symmetric", "skew-symmetric")


@dataclass(frozen=True)
class _Text:
    """Header of a Matrix Market file, and access to its lines as scipy reads them.

    Attributes
    ----------
    path : Path or ObjectPath
        Compressed by gzip if its name ends in .gz.
    form : {"coordinate", "array"}
    kind : str
        Type of the values, a key of `_KINDS`.
    symmetry : str
    sizes : tuple of int
        Number of rows, of columns and, for coordinates, of entries.
    """

    path: Location
    form: str
    kind: str
    symmetry: str
    sizes: tuple[int, ...]

    @classmethod
    def opened(cls, path: Location) -> _Text:
        """Read the header of a file.

        Raises
        ------
        InputError
            If it is damaged, or the kind of matrix is not supported.
        """
        with open_text(path) as file:
            words, line = _header(file)
        known = len(words) == 5 and words[:2] == ["%%matrixmarket", "matrix"]
        if not known or words[2] not in ("coordinate", "array"):
            raise _damaged(path, "it is not a Matrix Market file")
        _, _, form, kind, symmetry = words
        is_read = symmetry == "general" or (form == "coordinate" and symmetry in _HALVES)
        if kind not in _KINDS or not is_read:
            raise InputError(f"{path}: a matrix of kind {form} {kind} {symmetry} is not supported.")
        sizes = line.split()
        count = 3 if form == "coordinate" else 2
        if len(sizes) != count or not all(size.isdigit() and len(size) < 19 for size in sizes):
            raise _damaged(path, f"its sizes are not {count} whole numbers")
        return cls(path.absolute(), form, kind, symmetry, tuple(map(int, sizes)))

    def pieces(self) -> Iterator[Any]:
        """Yield what scipy reads from each piece of lines: entries, or one column of values."""
        with open_text(self.path) as file:
            _header(file)
            for piece in whole_lines(file, _PIECE_BYTES, self.path):
                if piece.isspace():
                    continue
                what = f"{self.path}: a line is not a row, a column and a value"
                # scipy reads past the end of its buffer if any other byte ends a number.
                if piece.translate(None, _NUMBERS):
                    raise InputError(f"{what}. Write it again.")
                try:
                    read = self._read(piece)
                except (ValueError, OverflowError):
                    # Try again without empty lines. Removing them takes as long as parsing, so it
                    # is not done at first.
                    with refusing(what, ValueError, OverflowError):
                        read = self._read(re.sub(rb"\n\s*\n", b"\n", piece.strip()) + b"\n")
                yield read

    def _read(self, lines: bytes) -> Any:
        """Return what scipy reads from the given lines; an empty line is an error."""
        from scipy.io import mmread

        count = int(np.count_nonzero(np.frombuffer(lines, np.uint8) == ord("\n")))
        sizes = (count, 1) if self.form == "array" else (*self.sizes[:2], count)
        header = f"%%MatrixMarket matrix {self.form} {self.kind} {self.symmetry}\n"
        header += f"{' '.join(map(str, sizes))}\n"
        return mmread(io.BytesIO(header.encode() + lines))

    def values(self) -> np.ndarray:
        """Return all values of a file in array form."""
        pieces = [column.ravel() for column in self.pieces()]
        values = np.concatenate([np.empty(0, _KINDS[self.kind]), *pieces])
        if len(values) != math.prod(self.sizes):
            announced = math.prod(self.sizes)
            why = f"its header announces {announced:,} values, but it has {len(values):,}"
            raise _damaged(self.path, why)
        return values.reshape(self.sizes, order="F")


class MarketSource(ByBands):
    """Matrix Market file in coordinate form, whose entries are sorted by rows; see `ByBands`.

    Parameters
    ----------
    text : _Text
    uri : str
        Name used in error messages.
    by_columns : bool
        Whether the columns of the file are the rows of the matrix, as in files of features by
        cells.
    """

    def __init__(self, text: _Text, uri: str, *, by_columns: bool) -> None:
        self._text, self._by_columns = text, by_columns
        *sizes, n_entries = text.sizes
        self._is_half = text.symmetry != "general"
        # For a symmetric matrix an upper bound, which counts entries of the diagonal twice.
        self.n_entries = n_entries * (2 if self._is_half else 1)
        shape = tuple(sizes[::-1] if by_columns else sizes)
        self.set_matrix(uri, shape, _KINDS[text.kind])
        self._check_sizes(self.n_samples)

    def pieces(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield rows, columns and values of the entries, in the order of the file."""
        n_read, announced = 0, self._text.sizes[2]
        for entries in self._text.pieces():
            rows, columns = entries.row, entries.col
            # scipy returns both halves of a symmetric matrix.
            n_read += int((rows >= columns).sum()) if self._is_half else len(rows)
            if n_read > announced:
                break
            yield *((columns, rows) if self._by_columns else (rows, columns)), entries.data
        if n_read != announced:
            why = f"its header announces {announced:,} entries, but it has a different number"
            raise _damaged(self._text.path, why)


def _header(file: IO[bytes]) -> tuple[list[str], bytes]:
    """Return the words of the first line, and the line of sizes.

    The file is left positioned after the line of sizes.
    """
    words = file.readline(_LINE_BYTES).decode(errors="replace").lower().split()
    for _ in range(_HEADER_LINES):
        line = file.readline(_LINE_BYTES)
        if line.strip() and not line.startswith(b"%"):
            break
    return words, line


def _damaged(path: Location, why: str) -> InputError:
    return InputError(f"{path}: {why}. Write it again.")


def open_file(
    path: Location, variable: str | None, feature_types: Sequence[str] | None = None
) -> Source:
    """Open a Matrix Market file, or the only one of a folder.

    It is read as counts of 10x (features by cells) if files with their names lie next to it.
    """
    check_no_variable(path, variable)
    file = _only_file(path) if path.is_dir() else path
    text = _Text.opened(file)
    prefix, is_matrix, _ = file.name.partition("matrix.mtx")
    names = [f"{prefix}{name}{ending}" for name in _FEATURES for ending in (".gz", "")]
    features = _first_file(file.parent, names)
    if not is_matrix or features is None:
        if path.is_dir():
            raise InputError(f"{path} has no {names[0]} (or genes.tsv) with the names.")
        if feature_types is not None:
            raise InputError(f"{path} has no feature types. Remove input.feature_types.")
        if text.form == "array":
            return _dense(text, str(path))
        return MarketSource(text, str(path), by_columns=False)
    if text.form == "array":
        raise InputError(
            f"{path} is dense (array form), but counts of cells must be in coordinate form. Write "
            "it again."
        )
    source = MarketSource(text, str(path), by_columns=True)
    table = [line.split("\t") for line in _lines(features, source.n_features)]
    columns = [[row[min(i, len(row) - 1)] for row in table] for i in range(3)]
    types = columns[2] if min(map(len, table)) > 2 else None
    barcodes = _first_file(file.parent, [f"{prefix}barcodes.tsv{ending}" for ending in (".gz", "")])
    if barcodes is not None:
        cells = [line.partition("\t")[0] for line in _lines(barcodes, source.n_samples)]
        source.index, source.ids = "barcode", held_texts(cells)
    return of_types(source, columns[1], columns[0], types, feature_types=feature_types)


def _dense(text: _Text, uri: str) -> Source:
    """Return the source of a file in array form, which is loaded as a whole.

    The file has all values, column by column.

    Raises
    ------
    InputError
        If the matrix is larger than 1 GiB.
    """
    n_bytes = math.prod(text.sizes) * _KINDS[text.kind].itemsize
    if n_bytes > GIB:
        raise InputError(
            f"{uri} is dense and would be loaded as a whole: {format_bytes(n_bytes)}. Convert it: "
            "numpy.save('X.npy', scipy.io.mmread(path))."
        )
    source = open_loaded(uri, text.sizes, _KINDS[text.kind], text.values)
    source.grid = None
    return source


def _first_file(folder: Location, names: list[str]) -> Location | None:
    """Return the first of the named files that exists, or None."""
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _only_file(folder: Location) -> Location:
    """Return the only Matrix Market file of a folder; its name may begin with a sample name."""
    names = sorted(name for name in files_below(folder) if "/" not in name)
    matrices = [name for name in names if name.endswith(MARKET)]
    if len(matrices) != 1:
        raise InputError(
            f"{folder} holds several matrices: {listed(matrices)}. Name one of the files."
        )
    return folder / matrices[0]


def _lines(path: Location, n_rows: int) -> list[str]:
    """Return the lines of a text file with one line for each feature or cell.

    Raises
    ------
    InputError
        If it has another number of lines, is too long or is not UTF-8.
    """
    with open_text(path) as file:
        content = file.read(METADATA_BYTES + 1)
    if len(content) > METADATA_BYTES:
        raise InputError(f"{path} is too long.")
    try:
        text = content.decode().replace("\r\n", "\n").removesuffix("\n")
    except UnicodeDecodeError as error:
        line = 1 + content.count(b"\n", 0, error.start)
        raise InputError(
            f"{path}: line {line} is not readable text: its bytes "
            f"{content[error.start : error.end]!r} are not UTF-8. Write it again as UTF-8."
        ) from None
    lines = text.split("\n") if text else []
    if len(lines) != n_rows:
        raise InputError(f"{path} has {len(lines):,} lines for {n_rows:,} features or cells.")
    return lines
