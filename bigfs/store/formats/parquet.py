"""Parquet, streamed by row batches."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import IO, Any

from bigfs.core.errors import InputError
from bigfs.core.units import format_bytes
from bigfs.store.location import Location, is_remote
from bigfs.store.tables import Table, index_columns, kind_of, write_batches
from bigfs.store.values import refusing

# Pages are read through a buffer for each column, so that a row group is never whole in memory;
# Arrow still keeps a dictionary page (1 MB by default) for each column that has one.
_BUFFER_BYTES = 2**16
_PAGE_BYTES = 2**20
# Batches that are decoded, and what Arrow's allocator keeps of them.
_BATCHES_BYTES = 24 * 2**20
# Measured: what the description of row groups and columns takes for each of its bytes, and the
# largest that is read: it fits the default limit.
_FOOTER_FACTOR, _FOOTER_BYTES = 13, 2**27


class ParquetTable(Table):
    """A Parquet file; pandas' index columns are ids of rows."""

    scratch: Any = None

    def __init__(self, path: Location, uri: str | None = None) -> None:
        self.uri, self._path = uri or str(path), path.absolute()
        with _open(path) as file:
            self.schema, self._metadata = file.schema_arrow, file.metadata
        self.n_rows = self._metadata.num_rows
        self.row_ids = index_columns(self.schema, self.uri)

    def batches(self, columns: list[str], rows: int) -> Iterator[Any]:
        """Yield batches of whole pages; texts as they are packed, each that comes again once."""
        import pyarrow as pa

        kinds = {name: self.schema.field(name).type for name in columns}
        texts = [name for name, kind in kinds.items() if kind_of(kind) == "category"]
        texts = [name for name in texts if not pa.types.is_dictionary(kinds[name])]
        known = {"metadata": self._metadata, "read_dictionary": texts}
        with refusing(f"{self.uri} is damaged", pa.ArrowException, OSError):
            with _open(self._path, **known) as file:
                for batch in file.iter_batches(rows, columns=columns, use_threads=False):
                    yield batch.select(columns)

    def held_bytes(self, columns: Sequence[str]) -> int:
        """Return what Arrow holds: two pages of each column, at most 1 MB each, and the footer."""
        groups = [self._metadata.row_group(i) for i in range(self._metadata.num_row_groups)]
        if not groups:
            return 0
        largest, names = max(groups, key=lambda group: group.total_byte_size), set(columns)
        self._check_group(groups.index(largest))
        parts = (largest.column(j) for j in range(largest.num_columns))
        sizes = (
            part.total_uncompressed_size
            for part in parts
            if part.path_in_schema in names or part.path_in_schema.partition(".")[0] in names
        )
        pages = sum(2 * min(_PAGE_BYTES, size) + _BUFFER_BYTES for size in sizes)
        return _BATCHES_BYTES + pages + _FOOTER_FACTOR * int(self._metadata.serialized_size)

    def _check_group(self, group: int) -> None:
        """Raise InputError if the footer is damaged there; asked for a column, Arrow would abort.

        Arrow looks at all columns before it reads values, which this file refuses.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        known = {"metadata": self._metadata, "buffer_size": 1, "pre_buffer": False}
        with refusing(f"{self.uri} is damaged", pa.ArrowException, OSError), suppress(EOFError):
            next(pq.ParquetFile(_Unread(), **known).iter_batches(1, [group], use_threads=False), 0)


class _Unread(io.RawIOBase):
    """A file of which no byte is read."""

    def readable(self) -> bool:
        return True

    def seek(self, *place: int) -> int:
        return 0

    def tell(self) -> int:  # at its end, by which its size is known
        return 2**62

    def read(self, size: int = -1) -> bytes:
        raise EOFError


def _open(path: Location, **known: Any) -> Any:
    """Open a Parquet file, to be closed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    faults = (pa.ArrowException, OSError, UnicodeDecodeError)
    with refusing(f"{path} is not a Parquet file", *faults):
        if not known:
            _check_footer(path)
        if is_remote(path):  # whole columns of a row group: few and large requests
            return pq.ParquetFile(path.open("rb", buffering=0), pre_buffer=True, **known)
        return pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False, **known)


def _check_footer(path: Location) -> None:
    """Raise InputError if the description of a file's row groups and columns is too large."""
    with path.open("rb") as file:
        end = file.seek(0, 2)
        file.seek(max(0, end - 8))
        size = int.from_bytes(file.read(4), "little")
    if _FOOTER_BYTES < size < end:  # else it is damaged, which Arrow says
        raise InputError(
            f"{path}: its row groups and columns take {format_bytes(size)} to describe, and up to "
            f"{format_bytes(_FOOTER_BYTES)} are read. Write it again with larger row groups."
        )


open_table = ParquetTable


def write(file: IO[bytes], selected: Any) -> None:
    """Write the selected columns."""
    import pyarrow.parquet as pq

    write_batches(selected, lambda schema: pq.ParquetWriter(file, schema))
