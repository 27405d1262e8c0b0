"""Views of a source: a subset of its rows and columns, or its transpose.

Rows are selected by a step (every k-th) or by the values of a column. A transposed source, such as
genes by cells, has in its columns what are rows here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import chain
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.core.errors import InputError, check_count, check_rows
from bigfs.core.paths import LabelValues, column_of, within
from bigfs.store.columns import Roles
from bigfs.store.csr import expected_layout
from bigfs.store.formats.parts import ByBands, held_texts
from bigfs.store.objects import ObjectPath
from bigfs.store.scratch import block_bounds, temporary_file
from bigfs.store.source import CSRLayout, Source, check_names, check_shape, listed
from bigfs.store.values import refusing

# Size of the rows read at a time, and of the bands of rows that are returned.
_PIECE_BYTES, _BAND_BYTES = 16 * 10**6, 16 * 10**6
_ROWS = 2**12
# Name of the id column that is made of the former column names.
_INDEX = "column"


@dataclass(frozen=True)
class RowFilter:
    """Rule that selects rows."""

    every: int | None = None  # every k-th row, starting with the first
    # Ids, labels or a quality measure: a column, or a URI like that of labels.
    column: str | None = None
    # Tuples of str or number: rows with one of these values are kept, or dropped.
    keep: tuple[Any, ...] = ()
    drop: tuple[Any, ...] = ()
    # Bounds of the values, inclusive.
    at_least: float | None = None
    at_most: float | None = None

    @property
    def file(self) -> str | None:
        """The file with the values, if it is a separate file."""
        return column_of(self.column or "")[0] if self._is_in_other_file else None

    @property
    def of_table(self) -> tuple[str, ...]:
        """The column, if it belongs to the data themselves."""
        return () if self.column is None or self._is_in_other_file else (self.column,)

    @property
    def _is_in_other_file(self) -> bool:
        # Endings of files that hold a single array.
        return "::" in (self.column or "") or (self.column or "").endswith(
            (".npy", ".tif", ".tiff")
        )

    def labels(
        self, X: Any, source: Source, variable: str | None = None
    ) -> str | LabelValues | None:
        """Return the URI of the column's values, or the values of an object's column; else None.

        Parameters
        ----------
        X : str, Path, ObjectPath or object
            Path or object that was opened.
        source : Source
        variable : str or None, default=None
            Array or modality that was opened.

        Raises
        ------
        InputError
            If an object has no such column.
        """
        if self.column is None or self._is_in_other_file:
            return self.column
        if isinstance(X, (str, Path, ObjectPath)):
            return within(str(X), variable, self.column)
        from bigfs.store.labels import labels_in

        return LabelValues(f"X::{self.column}", labels_in(X, source, self.column))

    def mask(self, values: np.ndarray, uri: str) -> np.ndarray:
        """Return a mask of the rows to keep, given their values in the column."""
        kept = np.zeros(len(values), dtype=bool)
        kept[:: self.every or 1] = True
        if self.at_least is not None or self.at_most is not None:
            if values.dtype.kind not in "fiub":
                raise InputError(
                    f"{uri}: input.rows has bounds for {self.column!r}, which holds texts. Give "
                    "keep or drop."
                )
            kept &= values >= (-np.inf if self.at_least is None else self.at_least)
            kept &= values <= (np.inf if self.at_most is None else self.at_most)
        for given, wanted in ((self.keep, True), (self.drop, False)):
            if given:
                kept &= self._is_one_of(values, given, uri) == wanted
        return kept

    def _is_one_of(self, values: np.ndarray, given: tuple[Any, ...], uri: str) -> np.ndarray:
        """Return a mask of the values equal to one of those given, each of which must occur."""
        texts = values.dtype.kind not in "fiub"
        matches = np.zeros(len(values), dtype=bool)
        for value in given:
            same = values == (str(value) if texts else value)
            if not np.any(same):
                there = [value for value in values.tolist() if value is not None]
                raise InputError(
                    f"{uri}: no row has {value!r} in {self.column!r} (input.rows). It holds "
                    f"{listed([str(value) for value in np.unique(there).tolist()])}."
                )
            matches |= same
        return matches


def row_filter(given: Any) -> RowFilter:
    """Return the row filter described by a mapping of settings.

    Raises
    ------
    InputError
        If it is not a mapping of these settings, or they are incompatible.
    """
    names = [field.name for field in fields(RowFilter)]
    if not isinstance(given, Mapping) or not set(given) <= set(names):
        raise InputError(f"rows must be a dict of {', '.join(names)}. Got {given!r}.")
    values = {name: value for name, value in given.items() if value is not None and value != []}
    for name in values.keys() & {"keep", "drop"}:
        several = isinstance(values[name], (list, tuple))
        values[name] = tuple(values[name]) if several else (values[name],)
    chosen = RowFilter(**values)
    if chosen.every is not None:
        check_count("rows: every", chosen.every, 2**53, "every k-th row is kept")
    for name in values.keys() & {"at_least", "at_most"}:
        if not isinstance(values[name], Real):
            raise InputError(f"rows: {name} must be a number. Got {values[name]!r}.")
    with refusing("rows", ValueError, cure=f"Got {given!r}."):
        check_rows(values)
    return chosen


class FilteredSource(Source):
    """A view of the rows that a filter keeps, and of the given columns.

    Parameters
    ----------
    source : Source
    rows : RowFilter
    labels : str, LabelValues or None
        Location of the filter column's values, as for `load_labels`. None: there is no such column.
    columns : list of int or None, default=None
        Positions of the columns. None: all.
    """

    def __init__(
        self,
        source: Source,
        rows: RowFilter,
        labels: str | LabelValues | None,
        columns: list[int] | None = None,
    ) -> None:
        self._source, self._rows, self._labels = source, rows, labels
        self._columns = columns
        for name in (
            *("uri", "n_features", "dtype", "feature_names", "sparse", "watch", "index", "notes"),
            *("grid", "column_types", "starts_quickly", "read_once", "categories"),
            *("held_bytes", "temporary_bytes"),
        ):
            setattr(self, name, getattr(source, name))
        self._stored = source.stored_dtype
        if columns is not None:
            names = source.feature_names
            self.n_features = len(columns)
            self.feature_names = [names[j] if names else str(j) for j in columns]
        known = labels is None and source.n_samples is not None
        # The number of rows selected by value is only known after reading the column.
        self._every = rows.every or 1
        self.n_samples = -(-int(source.n_samples or 0) // self._every) if known else None
        self._n_read = 0

    @property
    def estimated_samples(self) -> int | None:
        """Number of rows, or an upper bound."""
        return self._kept_of(self._source.estimated_samples)

    @property
    def counted_samples(self) -> int | None:
        """Number of rows that the filter keeps."""
        kept = self._of_column
        return self._kept_of(self._source.counted_samples) if kept is None else int(kept.sum())

    def _kept_of(self, most: int | None) -> int | None:
        if self.n_samples is not None or most is None:
            return self.n_samples
        return max(2, -(-most // self._every))

    @property
    def planned_layout(self) -> CSRLayout | None:
        """Layout estimated from the entries per row of the source, with a margin of factor 2."""
        layout, n_rows = self._source.planned_layout, self._source.estimated_samples
        if layout is None or not n_rows:
            return None
        mean, n_kept = layout.n_entries / n_rows, self.estimated_samples or n_rows
        most = min(layout.n_entries, int(2 * mean * n_kept) + 1)
        return expected_layout(mean, n_kept, most, self.dtype.itemsize)

    @property
    def dropped(self) -> Sequence[int]:  # type: ignore[override]
        """Rows that are not kept, if this is known from their numbers before reading."""
        rows = np.arange(0 if self.n_samples is None else int(self._source.n_samples or 0))
        return rows[rows % self._every != 0]  # type: ignore[return-value]

    @cached_property
    def _of_column(self) -> np.ndarray | None:
        """Mask of the rows that are kept by their values; None if only row numbers matter."""
        from bigfs.store.labels import check_order, read_values
        from bigfs.store.values import plain_values

        if self._labels is None:
            return None
        column, source = self._rows.column, self._source
        if source.is_table and self._labels == f"{source.uri}::{column}":  # read as it was opened
            values = plain_values(source.read_column(str(column)), self.uri)
        else:
            check_order(self._labels, source)
            values = read_values(self._labels, source.row_dimensions)
        return self._rows.mask(values, self.uri)

    @property
    def sources(self) -> list[tuple[str, int]]:  # type: ignore[override]
        """Number of rows kept from each of several sources."""
        counts = np.array([count for _, count in self._source.sources], dtype=np.int64)
        ends = np.searchsorted(self._positions(), np.cumsum(counts))
        kept = np.diff(ends, prepend=0).tolist()
        return [(uri, n) for (uri, _), n in zip(self._source.sources, kept, strict=True)]

    def locate(self, row: int) -> tuple[str, int]:
        """Return the source of a row among those read so far, and its row number there."""
        return self._source.locate(int(self._positions()[row]))

    def left_out(self, dropped: list[int]) -> np.ndarray:
        """Return the rows of the source that are not kept or were dropped later."""
        kept = np.delete(self._positions(), dropped)
        return np.delete(np.arange(self._n_read), kept)

    def read_column(self, name: str) -> Any:
        """Return a column of the object for all its rows, including those not kept."""
        return self._source.read_column(name)

    def iter_index(self) -> Iterator[list[str]]:
        """Yield the ids of the rows."""
        first = 0
        for piece in self._source.iter_index():
            kept = self._keeps(first, first + len(piece))
            yield [text for text, keep in zip(piece, kept, strict=True) if keep]
            first += len(piece)

    def iter_rows(self, rows: int) -> Iterator[Any]:
        """Yield consecutive blocks of at most ``rows`` rows."""
        self._n_read, known = 0, self._of_column
        for block in self._source.iter_rows(rows):
            first = self._n_read
            self._n_read += block.shape[0]
            if known is not None and self._n_read > len(known):
                break
            kept = self._keeps(first, self._n_read)
            if kept.any():
                yield block[kept] if self._columns is None else block[kept][:, self._columns]
        if known is not None and self._n_read != len(known):
            name = getattr(self._labels, "name", self._labels)
            raise InputError(
                f"{name} has {len(known):,} values for input.rows, but the data have at least "
                f"{self._n_read:,} rows. Give one for each row."
            )

    def _keeps(self, start: int, stop: int) -> np.ndarray:
        """Return a mask of the kept rows among rows ``start`` to ``stop``."""
        if self._of_column is not None:
            return self._of_column[start:stop]
        return np.arange(start, stop) % self._every == 0

    def _positions(self) -> np.ndarray:
        return np.flatnonzero(self._keeps(0, self._n_read))


def chosen_columns(source: Source, roles: Roles) -> Source:
    """Return a view of the columns selected by name, or by number from 0."""
    if roles.columns is None:
        return source
    names = source.feature_names or [str(j) for j in range(source.n_features)]
    columns = replace(roles, labels=(), index=None).features(names, source.uri)
    return FilteredSource(source, RowFilter(), None, columns)


class _Turned(Source):
    """Names, ids and sizes of a transposed source, dense or sparse."""

    n_samples: int
    starts_quickly = False

    def __init__(self, source: Source) -> None:
        self.uri, self.watch, self.notes = source.uri, source.watch, source.notes
        self._source, self.dtype = source, source.dtype
        self._stored = source.stored_dtype
        if source.categories:
            raise InputError(
                f"{self.uri}: categorical columns of a transposed table cannot be encoded. Leave "
                "them out with input.columns."
            )
        names = list(chain.from_iterable(source.iter_index()))
        self.feature_names = names or None
        self.n_samples = source.n_features
        # If the number is only known after reading, the table is read once to count.
        rows = len(names) or source.n_samples
        self.n_features = rows or sum(len(block) for block in source.iter_blocks(_ROWS))
        check_shape((self.n_samples, self.n_features), self.uri)
        check_names(self.feature_names, self.n_features, self.uri)
        if source.feature_names:
            self.index, self.ids = _INDEX, held_texts(source.feature_names)
        self.held_bytes = source.held_bytes
        self.temporary_bytes = source.temporary_bytes


class TransposedSource(_Turned):
    """A transposed dense source, written in bands to an unnamed file and read back.

    A band holds the file's columns that are returned together. Each block of rows that is read
    contributes a piece to every band.
    """

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        size = self.dtype.itemsize
        self._width = max(1, min(self.n_samples, _BAND_BYTES // (self.n_features * size)))
        self._rows = max(1, _PIECE_BYTES // (self.n_samples * size))
        self.held_bytes += self._rows * self.n_samples * size + 2 * _BAND_BYTES
        self.temporary_bytes += self.n_samples * self.n_features * size

    def iter_rows(self, rows: int) -> Iterator[np.ndarray]:
        """Yield consecutive arrays of at most ``rows`` rows."""
        size, n, d = self.dtype.itemsize, self.n_samples, self.n_features
        bands = block_bounds(n, self._width)
        with temporary_file() as file:
            n_read = 0
            for block in self._source.iter_blocks(self._rows):
                first, n_read = n_read, n_read + len(block)
                if n_read > d:
                    break
                for start, stop in bands:
                    file.seek((start * d + first * (stop - start)) * size)
                    file.write(np.ascontiguousarray(block[:, start:stop]).data)
            if n_read != d:
                raise InputError(f"{self.uri} has changed since it was opened. Run again.")
            for start, stop in bands:
                file.seek(start * d * size)
                content = file.read((stop - start) * d * size)
                band = np.frombuffer(content, self.dtype).reshape(d, stop - start).T
                for begin in range(0, stop - start, rows):
                    yield np.ascontiguousarray(band[begin : begin + rows])


class TransposedSparse(_Turned, ByBands):
    """A transposed sparse source, whose entries are sorted by the source's columns."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._stored = self.dtype
        layout = source.layout
        self.n_entries = layout.n_entries if layout else sum(b.nnz for b in self._blocks())
        self._check_sizes(self.n_samples)

    @property
    def stored_dtype(self) -> np.dtype:
        """Type of the values as they are stored."""
        return self._source.stored_dtype

    def pieces(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield rows, columns and values of the entries, in file order."""
        first = 0
        for block in self._blocks():
            entries = block.tocoo()
            yield entries.col, entries.row + first, entries.data
            first += block.shape[0]

    def _blocks(self) -> Iterator[Any]:
        layout = self._source.layout
        yield from self._source.iter_rows(_ROWS if layout is None else layout.rows)


def transposed(source: Source) -> Source:
    """Return the transpose of a source."""
    return (TransposedSparse if source.sparse else TransposedSource)(source)
