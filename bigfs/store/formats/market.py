"""Folders of Cell Ranger (10x): a Matrix Market file of features by cells, names and barcodes."""

from __future__ import annotations

import gzip
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import numpy as np

from bigfs.core.errors import InputError
from bigfs.store.formats.parts import ByBands
from bigfs.store.formats.tenx import unique_names
from bigfs.store.location import METADATA_BYTES, Location
from bigfs.store.source import MARKET, Source, check_no_variable, check_shape, work_dtype

_FEATURES = ("features.tsv.gz", "features.tsv", "genes.tsv.gz", "genes.tsv")
_PIECE_BYTES = 2**22
_HEADER_LINES, _LINE_BYTES = 1000, 2**16
_KINDS = {"integer": np.dtype(np.int64), "real": np.dtype(np.float64)}


class MarketSource(ByBands):
    """A folder with a Matrix Market file of features by cells, the features' names and barcodes.

    The text is read twice: entries of the rows are counted, and then put in order of rows.
    """

    def __init__(self, folder: Location) -> None:
        self.uri, self._folder = str(folder), folder
        self._file = next(folder / name for name in MARKET if (folder / name).is_file())
        with self._text(self._file) as file:
            kind, sizes = self._header(file)
        self.n_features, self.n_samples, self.n_entries = sizes
        check_shape((self.n_samples, self.n_features), self.uri)
        self._stored = _KINDS[kind]
        self.dtype = work_dtype(self._stored, self.uri)
        self._check_sizes(self.n_samples)
        self.feature_names = self._names()

    def pieces(self) -> Iterator[np.ndarray]:
        """Yield the entries in the order of the file, as records."""
        n_read = 0
        with self._text(self._file) as file:
            self._header(file)
            for lines in self._whole_lines(file):
                with warnings.catch_warnings():
                    warnings.simplefilter("error")  # of text that is no numbers
                    try:
                        numbers = np.fromstring(lines, sep=" ").reshape(-1, 3)
                    except (ValueError, DeprecationWarning):
                        raise self.damaged("a line is not a row, a column and a value") from None
                places = numbers[:, :2]
                if (places < 1).any() or (places > (self.n_features, self.n_samples)).any():
                    raise self.damaged("an entry lies outside of the matrix")
                piece = np.empty(len(numbers), self._record)
                piece["row"], piece["column"] = places[:, 1] - 1, places[:, 0] - 1
                piece["value"] = numbers[:, 2]
                n_read += len(piece)
                if n_read > self.n_entries:
                    break
                yield piece
        if n_read != self.n_entries:
            raise self.damaged(f"it announces {self.n_entries:,} entries and has others")

    def damaged(self, why: str) -> InputError:
        """Return the error for a file that is no matrix."""
        return InputError(f"{self._file}: {why}. Write it again.")

    def _header(self, file: IO[bytes]) -> tuple[str, tuple[int, int, int]]:
        words = file.readline(_LINE_BYTES).decode(errors="replace").lower().split()
        if words[:3] != ["%%matrixmarket", "matrix", "coordinate"] or words[3:4] == ["complex"]:
            raise self.damaged("it is no Matrix Market file of real coordinates")
        if words[3] not in _KINDS or words[4:] != ["general"]:
            raise self.damaged(f"a matrix that is {' '.join(words[3:])} is not read")
        for _ in range(_HEADER_LINES):
            line = file.readline(_LINE_BYTES)
            if not line.startswith(b"%"):
                break
        sizes = line.split()
        if len(sizes) != 3 or not all(size.isdigit() and len(size) < 19 for size in sizes):
            raise self.damaged("its sizes are not three whole numbers")
        return words[3], (int(sizes[0]), int(sizes[1]), int(sizes[2]))

    def _whole_lines(self, file: IO[bytes]) -> Iterator[bytes]:
        rest = b""
        while piece := file.read(_PIECE_BYTES):
            lines, end, after = piece.rpartition(b"\n")
            if not end:
                raise self.damaged("a line is longer than 4 MB")
            yield rest + lines
            rest = after
        if rest.strip():
            yield rest

    def _names(self) -> list[str]:
        """Return the names of the features."""
        path = next((self._folder / n for n in _FEATURES if (self._folder / n).is_file()), None)
        if path is None:
            raise InputError(f"{self.uri} has no features.tsv.gz (or genes.tsv) with the names.")
        with self._text(path) as file:
            content = file.read(METADATA_BYTES + 1)
        if len(content) > METADATA_BYTES:
            raise InputError(f"{path}: the names of the features are too long.")
        table = [line.split("\t") for line in content.decode(errors="replace").splitlines()]
        if len(table) != self.n_features:
            raise InputError(f"{path} has {len(table):,} lines for {self.n_features:,} features.")
        names = [row[1] if len(row) > 1 else row[0] for row in table]
        return unique_names(names, [row[0] for row in table], str(path))

    @contextmanager
    def _text(self, path: Location) -> Iterator[IO[bytes]]:
        try:
            with path.open("rb") as raw:
                if path.name.endswith(".gz"):
                    with gzip.open(raw, "rb") as file:
                        yield file  # type: ignore[misc]
                else:
                    yield raw
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InputError(f"{path} is damaged: {error}. Write it again.") from None


def open_file(path: Location, variable: str | None) -> Source:
    """Open a folder with matrix.mtx.gz, features.tsv.gz and barcodes.tsv.gz."""
    check_no_variable(path, variable)
    return MarketSource(path)
