"""Arrow tables and streams in memory, and whatever hands out one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bigfs.core.errors import InputError
from bigfs.store.tables import Table, index_columns

_GROUP_BYTES = 16 * 10**6


class ArrowTable(Table):
    """An Arrow table, a stream of batches, or an object that hands out one."""

    uri, dropped_by = "X", "X.drop({})"  # in polars and Arrow

    def __init__(self, X: Any) -> None:
        import pyarrow as pa

        self._X, self.read_once = X, isinstance(X, pa.RecordBatchReader)
        self._used = False
        self.schema = X.schema if self.read_once else pa.RecordBatchReader.from_stream(X).schema
        self.n_rows = getattr(X, "num_rows", getattr(X, "height", None))
        self.row_ids = index_columns(self.schema, self.uri)

    def column(self, name: str) -> Any:
        """Return all values of a column."""
        if self.read_once:
            raise _second_read()
        return super().column(name)

    def distinct(self, column: str) -> Iterator[Any]:
        """Yield the values of a column."""
        if self.read_once:
            raise _second_read()
        return super().distinct(column)

    def batches(self, columns: list[str], rows: int) -> Iterator[Any]:
        """Yield batches as the object cuts them."""
        import pyarrow as pa

        if self._used:
            raise _second_read()
        self._used = self.read_once
        for batch in self._X if self.read_once else pa.RecordBatchReader.from_stream(self._X):
            yield batch.select(columns)


def _second_read() -> InputError:
    return InputError(
        "X is a stream that can be read once, and these settings need a second read. Write it to "
        "a Parquet file first."
    )


def open_arrow(X: Any) -> Table:
    """Return an Arrow table or stream, or a polars frame; a lazy one goes to scratch first."""
    if hasattr(X, "__arrow_c_stream__"):
        return ArrowTable(X)
    from bigfs.store.formats.parquet import ParquetTable
    from bigfs.store.scratch import Scratch

    scratch = Scratch()
    rows = max(1, _GROUP_BYTES // (8 * len(X.collect_schema())))
    # polars runs the query in pieces
    X.sink_parquet(scratch.path / "X.parquet", row_group_size=rows)
    table = ParquetTable(scratch.path / "X.parquet", "X")
    table.scratch = scratch  # which is removed with it
    table.dropped_by = ArrowTable.dropped_by
    return table
