"""Tables with typed columns, read as blocks of numbers; shared by all table formats.

Each table format provides a `Table`: a schema, and the rows as Arrow batches of selected columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from itertools import chain, groupby
from types import MappingProxyType
from typing import Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.core.text import FROM_0
from bigfs.core.units import format_bytes
from bigfs.store.columns import (
    ALL_FEATURES,
    Column,
    Encoding,
    Roles,
    distinct_values,
    notes_of,
    refuse_unusable,
)
from bigfs.store.source import PLAIN_TYPES, Source, check_names, check_shape, no_column
from bigfs.store.values import EXACT, beyond_exact, check_exact, refusing

_BATCH_BYTES = 4 * 10**6
# Rows per batch when a single column is read.
_ROWS = 2**16
_SHOWN = 40
# Maximum size of the strings in a batch with dictionaries decoded, and of the memory held while the
# first rows of several columns are read.
_TEXT_BYTES, _FIRST_BYTES = 2**27, 2**29


class Table(ABC):
    """A table of columns with names and types.

    Attributes
    ----------
    uri : str
        Name used in error messages.
    schema : pyarrow.Schema
        Schema of all columns.
    n_rows : int or None
        Number of rows; None if it is only known after reading.
    row_ids : sequence of str
        Columns that the file itself marks as row ids; they are not features.
    index : str or None
        The row id column used by default, if the user names none.
    named : bool
        Whether the columns have real names, not just numbers.
    dropped_by : str
        For an object ``X``: the call that drops columns, with a placeholder for their names.
    """

    uri: str
    schema: Any
    n_rows: int | None = None
    row_ids: Sequence[str] = ()
    index: str | None = None
    named: bool = True
    dropped_by: str = ""
    roles: Roles = ALL_FEATURES  # used in messages
    read_once: bool = False  # whether its rows can be read only once
    is_text: bool = False  # whether numbers are parsed from text, so that integers may be rounded
    # Columns with a constant value, from the names of the folders that contain a part of a table.
    folders: Mapping[str, Any] = MappingProxyType({})

    @abstractmethod
    def batches(self, columns: list[str], rows: int) -> Iterator[Any]:
        """Yield all rows of the given columns, in this order, in batches of about ``rows`` rows."""

    def put_in(self, folders: Mapping[str, Any]) -> None:
        """Add columns from folder names, as Arrow scalars; columns of the file take precedence."""
        import pyarrow as pa

        self.folders = {k: v for k, v in folders.items() if k not in self.schema.names}
        for name, value in self.folders.items():
            self.schema = self.schema.append(pa.field(name, value.type))
        self.named = self.named or bool(folders)

    def own(self, names: Iterable[str]) -> list[str]:
        """Return the columns that are stored in the file itself."""
        return [name for name in names if name not in self.folders]

    def read(self, columns: list[str], rows: int) -> Iterator[Any]:
        """Yield batches of columns from the file and from its folder names.

        Raises
        ------
        InputError
            If the data are damaged, or a string is not valid UTF-8.
        """
        import pyarrow as pa

        own, first = self.own(columns) or self.schema.names[:1], 0
        kinds = [self.schema.field(name).type for name in own]
        for batch in self.batches(own, rows):
            if not self.is_text:
                _check_values(batch, self.uri, first)
                batch = batch if batch.schema.types == kinds else _as_stored(batch, kinds)
            first += batch.num_rows
            if self.folders:
                arrays = [
                    batch.column(name)
                    if name not in self.folders
                    else pa.repeat(self.folders[name], batch.num_rows)
                    for name in columns
                ]
                batch = pa.record_batch(arrays, names=columns)
            yield batch

    def held_bytes(self, columns: Sequence[str]) -> int:
        """Return the bytes held while the given columns are read, in addition to a batch."""
        return 0

    def check_header(self) -> None:
        """Raise InputError if it is ambiguous whether the first line holds names."""
        return None

    def check_features(self, names: list[str]) -> None:
        """Raise InputError if any of the given columns cannot be features."""
        return None

    def check_whole(self, columns: list[str]) -> None:
        """Raise InputError if the batch read last contains an integer beyond 2^53."""
        return None

    def written(self, column: str) -> Iterator[list[str]]:
        """Yield the values of a column as lists of strings."""
        for batch in self.read([column], _ROWS):
            yield [str(value) for value in batch.column(0).to_pylist()]

    def estimated_rows(self) -> int | None:
        """Return an estimate of the number of rows; None if unknown."""
        return self.n_rows

    def content_of(self, column: str) -> str:
        """Return a description of the content of a non-numeric column."""
        if column in self.folders:
            return f"text (its folder is '{column}={self.folders[column]}')"
        return str(self.schema.field(column).type)

    def column(self, name: str) -> Any:
        """Return all values of a column as a chunked array.

        Raises
        ------
        InputError
            If there is no such column.
        """
        import pyarrow as pa

        if name not in self.schema.names:
            raise no_column(self.uri, name, self.schema.names)
        kind = self.schema.field(name).type
        return pa.chunked_array([batch.column(0) for batch in self.read([name], _ROWS)], kind)

    def distinct(self, column: str) -> Iterator[Any]:
        """Yield the values of a column, without duplicates within a batch."""
        for batch in self.read([column], _ROWS):
            yield from _as_pandas(batch.column(0)).dropna().unique()

    def values(self, name: str) -> np.ndarray:
        """Return all values of a column, as objects unless it is numeric and has no nulls."""
        column = self.column(name)
        if kind_of(column.type) == "number" and not column.null_count:
            return np.asarray(column.to_numpy())
        return np.asarray(column.to_pandas().astype(object))

    def count_rows(self) -> int:
        """Return the number of rows, reading them if necessary."""
        if self.n_rows is not None:
            return self.n_rows
        return sum(batch.num_rows for batch in self.batches(self.schema.names[:1], _ROWS))

    def first_rows(self, count: int) -> Iterator[Any]:
        """Yield the first rows of all columns of a supported kind, a group of columns at a time."""
        import pyarrow as pa

        names = [field.name for field in self.schema if kind_of(field.type) is not None]
        held = 0 if self.is_text else self.held_bytes(names)  # text: all columns are parsed anyway
        step = max(1, min(len(names), len(names) * _FIRST_BYTES // max(1, held)))
        for start in range(0, len(names), step):
            some = names[start : start + step]
            empty = pa.schema([self.schema.field(name) for name in some])
            first = next(self.read(some, count), None)
            yield pa.RecordBatch.from_pylist([], empty) if first is None else first.slice(0, count)


def set_features(
    source: Source,
    columns: list[Column],
    roles: Roles,
    *,
    named: bool,
    distinct: Callable[[str], Iterable[Any]],
    content_of: Callable[[str], str],
    check: Callable[[list[str]], None] = lambda names: None,
    dropped_by: str = "",
    in_folders: Mapping[str, Any] = MappingProxyType({}),
) -> list[Column]:
    """Set the feature attributes of a source; return the table columns that become features.

    Parameters
    ----------
    source : Source
    columns : list of Column
        All columns of the table, except those that it marks as row ids itself.
    roles : Roles
    named : bool
        Whether the features have names.
    distinct : callable
        ``distinct(name)`` yields the distinct values of a category; duplicates are allowed.
    content_of : callable
        ``content_of(name)`` returns a description of a column's content.
    check : callable
        ``check(names)`` raises for columns that cannot be features.
    dropped_by : str, default=""
    in_folders : mapping, default={}
        Columns whose values come from folder names, without reading rows.

    Raises
    ------
    InputError
        If columns that would be features are neither numeric nor encoded.
    """
    uri = source.uri
    kept = [columns[j] for j in roles.features([column.name for column in columns], uri)]
    check([column.name for column in kept])
    ruled = [(column, roles.encoding.of(column.kind)) for column in kept]
    unsupported = " (no setting encodes it: convert it to numbers)"
    unusable = {
        c.name: content_of(c.name) + ("" if c.kind else unsupported)
        for c, rule in ruled
        if rule == "error"
    }
    refuse_unusable(unusable, roles, uri, dropped_by=dropped_by)
    features: list[Column] = []
    for column, rule in ruled:
        if rule == "drop":
            continue
        if column.kind == "category":
            values = (roles.encoding.known or {}).get(column.name)
            if values is None:
                values = distinct_values(distinct(column.name), column.name, uri)
            column = replace(column, values=values, one_hot=rule == "one_hot")
        features.append(column)
    encoded = [c for c in features if c.kind not in ("number", "list")]
    dropped = [column.name for column, rule in ruled if rule == "drop"]
    source.notes = notes_of(encoded, dropped, in_folders)
    source.categories = {column.name: column.values for column in encoded}
    source.encoded = {column.name: str(column.kind) for column in encoded}
    names = [name for column in features for name in column.features]
    source.n_features = len(names)
    check_shape((2, source.n_features), uri)
    source.dtype = np.result_type(*(column.dtype for column in features))
    if named:
        check_names(names, source.n_features, uri)
        source.feature_names = names
    return features


class TableSource(Source):
    """The numeric columns of a table, and its other columns as encoded by the settings."""

    is_table = True

    def __init__(self, table: Table, roles: Roles = ALL_FEATURES) -> None:
        table.put_in(roles.partitions or {})
        table.roles = roles
        self.uri = uri = table.uri
        self.index, self._table = roles.index or table.index, table
        self.read_once = table.read_once
        fields = [f for f in table.schema if f.name not in table.row_ids or f.name == roles.index]
        check_names([field.name for field in table.schema], len(table.schema), uri)
        # A part of a table may have no rows.
        known = table.n_rows is not None and roles.partitions is None
        self.n_samples = table.n_rows
        check_shape(((table.n_rows or 0) if known else 2, len(fields)), uri)
        if roles.columns is not None:  # names exist only with a header
            table.check_header()
        self._columns = set_features(
            self, [_column(field, roles.encoding) for field in fields], roles, named=table.named,
            distinct=table.distinct, content_of=table.content_of, dropped_by=table.dropped_by,
            check=lambda names: table.check_features(table.own(names)),
            in_folders=table.folders,
        )  # fmt: skip
        plain = [c.name for c in self._columns if c.is_plain and not table.is_text]
        types = {name: str(table.schema.field(name).type) for name in plain}
        self.empty = {field.name for field in fields if str(field.type) == "null"}
        self.column_types = {n: kind for n, kind in types.items() if kind in PLAIN_TYPES}
        self.held_bytes = table.held_bytes(table.own([column.name for column in self._columns]))

    @property
    def estimated_samples(self) -> int | None:
        """Number of rows, or an estimate."""
        return self._table.estimated_rows()

    def iter_index(self) -> Iterator[list[str]]:
        """Yield the ids of the rows."""
        if self.index is not None:
            yield from self._table.written(self.index)

    def read_column(self, name: str) -> Any:
        """Return the values of a column for all rows."""
        return self._table.values(name)

    def iter_rows(self, rows: int) -> Iterator[np.ndarray]:
        """Yield consecutive dense blocks of at most ``rows`` rows; nulls become NaN."""
        size = min(rows, max(1, _BATCH_BYTES // (self.n_features * self.dtype.itemsize)))
        first = 0
        for batch in self._table.read([column.name for column in self._columns], size):
            for start in range(0, batch.num_rows, size):
                block = self._block(batch.slice(start, size), first)
                first += len(block)
                yield block

    def _block(self, batch: Any, first_row: int) -> np.ndarray:
        """Return the features of a batch as a dense array."""
        parts = []
        places = enumerate(self._columns)
        for is_plain, group in groupby(places, lambda place: place[1].is_plain):
            columns = list(group)
            if is_plain:
                numbers = batch.select([j for j, _ in columns])
                parts.append(_numbers(numbers, self.dtype, self.uri, first_row))
                if self._table.is_text and _may_be_rounded(parts[-1]):
                    self._table.check_whole(self._table.own(numbers.schema.names))
                continue
            for j, column in columns:
                values = batch.column(j)
                if column.kind == "list":
                    parts.append(_lists(values, column.name, self.uri, first_row))
                else:
                    parts.append(column.encode(_as_pandas(values), self.uri))
        return np.concatenate(parts, axis=1, dtype=self.dtype, casting="unsafe")


def index_columns(schema: Any, uri: str) -> Sequence[str]:
    """Return the columns that hold the pandas index, according to the schema's pandas metadata."""
    with refusing(f"{uri} has damaged pandas metadata", ValueError, AttributeError):
        names = (schema.pandas_metadata or {}).get("index_columns", [])
        if not isinstance(names, list):
            raise ValueError(f"index_columns is {names!r}")
    return names


def kind_of(kind: Any) -> str | None:
    """Return the kind of the columns of an Arrow type; None if it is not supported.

    Returns
    -------
    kind : {"number", "list", "boolean", "date", "category"} or None
    """
    import pyarrow.types as types

    kind = getattr(kind, "storage_type", kind)  # of an extension type, such as a tensor
    if types.is_boolean(kind):
        return "boolean"
    if types.is_date(kind) or types.is_timestamp(kind):
        return "date"
    numbers = (types.is_integer, types.is_floating, types.is_decimal, types.is_null)
    if any(is_one(kind) for is_one in numbers):
        return "number"
    if types.is_fixed_size_list(kind) and kind_of(kind.value_type) == "number":
        return "list"
    texts = (types.is_string, types.is_large_string, types.is_string_view, types.is_dictionary)
    return "category" if any(is_one(kind) for is_one in texts) else None


def _column(field: Any, encoding: Encoding) -> Column:
    """Return the description of a column of an Arrow table, not encoded yet."""
    import pyarrow.types as types

    content, size, kind = getattr(field.type, "storage_type", field.type), 1, kind_of(field.type)
    if types.is_null(content):  # a part may be all null in a column that has values in other parts
        kind = (encoding.kinds or {}).get(field.name, kind)
    if kind == "list":
        size, content = content.list_size, content.value_type
    large = types.is_integer(content) and content.bit_width > 16
    large |= types.is_float64(content) or types.is_decimal(content) or types.is_null(content)
    large |= kind == "date"
    return Column(field.name, kind, np.dtype(np.float64 if large else np.float32), size)


def _numbers(batch: Any, dtype: np.dtype, uri: str, first_row: int) -> np.ndarray:
    """Return numeric columns as floats; Arrow rejects integers that it would have to round."""
    import pyarrow as pa

    kind = pa.from_numpy_dtype(dtype)
    target = pa.schema([(str(j), kind) for j in range(batch.num_columns)])
    names = batch.schema.names
    batch = _without_decimals(batch, uri, first_row).rename_columns(target.names)
    try:
        floats = batch if set(batch.schema.types) == {kind} else batch.cast(target)
    except pa.ArrowInvalid:
        for name, values in zip(names, batch.columns, strict=True):
            if pa.types.is_integer(values.type):
                numbers = values.fill_null(0).to_numpy(zero_copy_only=False)
                check_exact(numbers[:, None], uri, first_row, [name])
        raise
    return np.asarray(floats.to_tensor(null_to_nan=True, row_major=True))


def _without_decimals(batch: Any, uri: str, first_row: int) -> Any:
    """Return a batch with decimals converted to the nearest floats.

    They are converted through strings, since Arrow's direct cast may be off by one digit.

    Raises
    ------
    InputError
        If an integer is beyond 2^53.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    for j, values in enumerate(batch.columns):
        if not pa.types.is_decimal(values.type):
            continue
        name, kind = batch.schema.names[j], values.type
        if kind.scale <= 0:
            integers = values.cast(pa.decimal256(76, 0))
            beyond = pc.greater(pc.abs(integers), pa.scalar(Decimal(EXACT), integers.type))
            if pc.any(beyond).as_py():
                row = pc.index(beyond, True).as_py()
                raise beyond_exact(f"{uri}: row {first_row + row}, column {name!r}", values[row])
        batch = batch.set_column(j, name, values.cast(pa.string()).cast(pa.float64()))
    return batch


def _check_values(batch: Any, uri: str, first_row: int) -> None:
    """Raise InputError if a batch is damaged, or holds strings that are too long or not UTF-8."""
    import pyarrow as pa

    with refusing(f"{uri} is damaged", pa.ArrowException):
        batch.validate()
    for name, values in zip(batch.schema.names, batch.columns, strict=True):
        if kind_of(values.type) != "category":
            continue
        readable = True
        with refusing(f"{uri}: column {name!r} is damaged", pa.ArrowException):
            try:  # first of all: damaged values may crash the process
                values.validate(full=True)
            except pa.ArrowInvalid as error:
                if "UTF8" not in str(error):
                    raise
                readable = False
        if (size := _size_of_texts(values)) > _TEXT_BYTES:
            raise InputError(
                f"{uri}: column {name!r} holds {format_bytes(size)} of texts in {len(values):,} "
                f'rows, which is too much. Leave it out (input.columns: ["!{name}"]).'
            )
        if readable:
            continue
        is_coded = pa.types.is_dictionary(values.type)
        texts = (values.dictionary_decode() if is_coded else values).cast(pa.binary())
        for i, text in enumerate(texts.to_pylist()):
            try:
                (text or b"").decode()
            except UnicodeDecodeError:
                raise InputError(
                    f"{uri}: row {first_row + i}, column {name!r} is not readable text: its "
                    f"bytes {text[:_SHOWN]!r} are not UTF-8. Write it again as UTF-8, or leave "
                    f"the column out (input.columns). {FROM_0}"
                ) from None


def _size_of_texts(values: Any) -> int:
    """Return the size of strings in bytes with dictionaries decoded.

    A dictionary of few long strings may be small while the decoded column is huge.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_dictionary(values.type) or not len(values.dictionary):
        return int(values.nbytes)
    if kind_of(values.type.value_type) != "category":
        return 0
    lengths = pc.binary_length(values.dictionary.cast(pa.large_binary()))
    return int(pc.sum(pc.cast(lengths.take(values.indices), pa.int64())).as_py() or 0)


def _as_stored(batch: Any, kinds: list[Any]) -> Any:
    """Return a batch whose dictionary-encoded strings are cast to the column types."""
    import pyarrow as pa

    arrays = [
        values if values.type == kind else values.dictionary_decode().cast(kind)
        for values, kind in zip(batch.columns, kinds, strict=True)
    ]
    return pa.record_batch(arrays, names=batch.schema.names)


def _may_be_rounded(block: np.ndarray) -> bool:
    """Return True if a value is so large that not every integer near it is a float64."""
    if -EXACT < block.min() and block.max() < EXACT:  # skipped if a value is NaN
        return False
    return bool(((block >= EXACT) | (block <= -EXACT)).any())


def _as_pandas(values: Any) -> Any:
    """Return Arrow values as a pandas Series.

    Dictionaries with nulls or duplicates are decoded, since pandas categories allow neither.
    """
    import pyarrow as pa

    if pa.types.is_dictionary(values.type):
        known = values.dictionary
        if known.null_count or len(known.unique()) < len(known):
            values = values.dictionary_decode()
    return values.to_pandas()


def _lists(values: Any, name: str, uri: str, first_row: int) -> np.ndarray:
    """Return fixed-size lists as rows; a missing list becomes a row of NaN."""
    import pyarrow as pa

    values = getattr(values, "storage", values)
    size = values.type.list_size
    rows, flat = np.full((len(values), size), np.nan), values.flatten()
    if pa.types.is_integer(flat.type):
        integers = flat.fill_null(0).to_numpy(zero_copy_only=False).reshape(-1, size)
        check_exact(integers, uri, first_row, [f"{name}[{i}]" for i in range(size)])
    numbers = flat.cast(pa.float64()).to_numpy(zero_copy_only=False)
    rows[values.is_valid().to_numpy(zero_copy_only=False)] = numbers.reshape(-1, size)
    return rows


def typed(texts: Sequence[str | None]) -> Any:
    """Return strings as an Arrow array, cast to numbers, booleans or dates if all can be."""
    import pyarrow as pa

    array = pa.array(texts, pa.string())
    for kind in (pa.int64(), pa.float64(), pa.bool_(), pa.date32(), pa.timestamp("us")):
        with suppress(pa.ArrowInvalid):
            return array.cast(kind)
    return array


def write_batches(selected: Any, open_writer: Callable[[Any], Any]) -> None:
    """Write the selected columns with an Arrow writer, opened with their schema."""
    batches = selected.batches()
    first = next(batches)
    with open_writer(first.schema) as writer:
        for batch in chain([first], batches):
            writer.write_batch(batch)
