"""Arrow tables and streams, and whatever hands out one: read batch by batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.store.columns import ALL_FEATURES, Roles, refuse_unusable
from bigfs.store.encoding import Encoded, encode_columns, notes_of
from bigfs.store.formats.csv import as_number, constant_features
from bigfs.store.source import Source, check_names, check_shape, no_column, work_dtype
from bigfs.store.values import check_exact

_BATCH_BYTES = 4 * 10**6
_GROUP_BYTES = 16 * 10**6


class ArrowSource(Source):
    """A table of Arrow batches: its numbers, and what the settings make of other columns.

    Parameters
    ----------
    uri : str
    schema : pyarrow.Schema
    n_samples : int or None
        None where only reading tells.
    roles : Roles
    """

    def __init__(self, uri: str, schema: Any, n_samples: int | None, roles: Roles) -> None:
        self.uri, self.n_samples, self.index = uri, n_samples, roles.index
        index = (schema.pandas_metadata or {}).get("index_columns", [])
        fields = [field for field in schema if field.name not in index or field.name == roles.index]
        names = self._names = [field.name for field in fields]
        check_names(names, len(names), uri)
        # What the file has itself counts before the names of the folders that it is in.
        self._partitions = {k: v for k, v in (roles.partitions or {}).items() if k not in names}
        # A part of a table may have no rows.
        known = n_samples is not None and roles.partitions is None
        check_shape(((n_samples or 0) if known else 2, len(names) + len(self._partitions)), uri)
        types = {field.name: work_dtype_of(field) for field in fields}
        texts = {field.name: str(field.type) for field in fields}
        for name, (value, _) in self._partitions.items():
            types[name] = np.dtype(np.float64) if as_number(value or "") is not None else None
            texts[name] = f"text (its folder is '{name}={value}')"
        names = list(types)
        kept = [names[j] for j in roles.features(names, uri)]
        of_all = {field.name: kind_of(field) for field in fields}
        of_all |= {name: kind for name, (_, kind) in self._partitions.items()}
        kinds = {name: kind for name in kept if (kind := of_all[name]) is not None}
        encoded, dropped, _ = encode_columns(kinds, roles.encoding, self._distinct, uri)
        kept = [name for name in kept if name not in dropped]
        unusable = {n: texts[n] for n in kept if types[n] is None and n not in encoded}
        by = "X.drop({})" if uri == "X" else ""  # in polars and Arrow
        refuse_unusable(unusable, roles, names, uri, dropped_by=by)
        self._columns: list[tuple[str, Encoded | None]] = [(n, encoded.get(n)) for n in kept]
        self.notes = notes_of(encoded.values(), dropped, self._partitions)
        self.categories = {name: column.values for name, column in encoded.items()}
        self.feature_names = [
            feature
            for name, column in self._columns
            for feature in ([name] if column is None else column.features)
        ]
        check_shape((2, len(self.feature_names)), uri)
        self.n_features = len(self.feature_names)
        check_names(self.feature_names, self.n_features, uri)
        parts = [types[n] if column is None else column.dtype for n, column in self._columns]
        self._constants = {
            name: constant_features(self._partitions[name][0], column, uri)
            for name, column in self._columns
            if name in self._partitions
        }
        self.dtype = np.result_type(*parts)  # type: ignore[arg-type]  # all are there

    @abstractmethod
    def _batches(self, columns: list[str], rows: int) -> Iterator[Any]:
        """Yield batches of some columns, of about so many rows."""

    def _distinct(self, column: str) -> Iterator[Any]:
        """Yield the values of a column, each once in a batch."""
        if column in self._partitions:
            yield self._partitions[column][0]
            return
        for batch in self._batches([column], 2**16):
            yield from batch.column(0).to_pandas().dropna().unique()

    def iter_index(self) -> Iterator[list[str]]:
        """Yield the ids of the rows."""
        if self.index in self._partitions:
            yield [str(self._partitions[self.index][0])] * (self.n_samples or 0)
        elif self.index is not None:
            for batch in self._batches([self.index], 2**16):
                yield [str(value) for value in batch.column(0).to_pylist()]

    def read_column(self, name: str) -> Any:
        """Return a column of all batches."""
        import pandas as pd

        if name not in self._names:
            raise no_column(self.uri, name, self._names)
        batches = self._batches([name], 2**16)
        return pd.concat([batch.column(0).to_pandas().astype(object) for batch in batches])

    def iter_blocks(self, rows: int) -> Iterator[np.ndarray]:
        """Yield consecutive arrays of at most ``rows`` rows; nulls are NaN."""
        size = min(rows, max(1, _BATCH_BYTES // (self.n_features * self.dtype.itemsize)))
        columns, first = [n for n, _ in self._columns if n not in self._partitions], 0
        for batch in self._batches(columns, size):
            for start in range(0, batch.num_rows, size):
                block = self._block(batch.slice(start, size), first)
                first += len(block)
                yield block

    def _block(self, batch: Any, first_row: int) -> np.ndarray:
        """Return the features of a batch."""
        block = np.empty((batch.num_rows, self.n_features), self.dtype)
        place = 0
        for name, column in self._columns:
            width = 1 if column is None else len(column.features)
            into = block[:, place : place + width]
            place += width
            if name in self._constants:
                into[:] = self._constants[name]
                continue
            values = batch.column(batch.schema.get_field_index(name))
            if column is not None and column.kind != "boolean":
                into[:] = column.encode(values.to_pandas(), self.uri)
                continue
            numbers = (values if column is None else values.cast("uint8")).to_numpy(False)
            check_exact(numbers[:, None], self.uri, first_row, [name])
            into[:, 0] = numbers
        return block


class ArrowObject(ArrowSource):
    """An Arrow table, a stream of batches, or an object that hands out one."""

    def __init__(self, X: Any, roles: Roles = ALL_FEATURES) -> None:
        import pyarrow as pa

        self._X, self._read_once = X, isinstance(X, pa.RecordBatchReader)
        self._used = False
        schema = X.schema if self._read_once else pa.RecordBatchReader.from_stream(X).schema
        rows = getattr(X, "num_rows", getattr(X, "height", None))
        super().__init__("X", schema, rows, roles)

    def _distinct(self, column: str) -> Iterator[Any]:
        if self._read_once:
            raise _second_read()
        return super()._distinct(column)

    def read_column(self, name: str) -> Any:
        """Return a column of all batches."""
        if self._read_once:
            raise _second_read()
        return super().read_column(name)

    def _batches(self, columns: list[str], rows: int) -> Iterator[Any]:
        """Yield batches as the object cuts them."""
        import pyarrow as pa

        if self._used:
            raise _second_read()
        self._used = self._read_once
        for batch in self._X if self._read_once else pa.RecordBatchReader.from_stream(self._X):
            yield batch.select(columns)


def _second_read() -> InputError:
    return InputError(
        "X is a stream that can be read once, and these settings need a second read. Write it to "
        "a Parquet file first."
    )


def open_arrow(X: Any, roles: Roles) -> ArrowSource:
    """Open an Arrow table or stream, or a polars frame; a lazy one is first written to scratch.

    Raises
    ------
    InputError
        If the package pyarrow is not there.
    """
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise InputError(
            f"X is a {type(X).__name__}, and reading it needs pyarrow. Install it with: pip "
            "install 'bigfs[parquet]'."
        ) from None
    if hasattr(X, "__arrow_c_stream__"):
        return ArrowObject(X, roles)
    from bigfs.store.formats.parquet import ParquetSource
    from bigfs.store.scratch import Scratch

    scratch = Scratch()
    rows = max(1, _GROUP_BYTES // (8 * len(X.collect_schema())))
    # polars runs the query in pieces
    X.sink_parquet(scratch.path / "X.parquet", row_group_size=rows)
    source = ParquetSource(scratch.path / "X.parquet", roles, "X")
    source.scratch = scratch  # which is removed with it
    return source


def is_usable(field: Any) -> bool:
    """Say whether a column holds numbers."""
    return work_dtype_of(field) is not None


def work_dtype_of(field: Any) -> np.dtype | None:
    """Return the work dtype of a column, None if it holds no numbers."""
    try:
        return work_dtype(field.type.to_pandas_dtype(), field.name)
    except (InputError, NotImplementedError, TypeError):
        return None


def kind_of(field: Any) -> str | None:
    """Return the kind of a column that can be encoded as numbers; None for numbers and others."""
    import pyarrow.types as types

    if types.is_boolean(field.type):
        return "boolean"
    if types.is_date(field.type) or types.is_timestamp(field.type):
        return "date"
    text = types.is_string(field.type) or types.is_large_string(field.type)
    view = getattr(types, "is_string_view", lambda _: False)(field.type)
    return "category" if text or view or types.is_dictionary(field.type) else None
