"""Parquet files, streamed in batches of rows."""

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
# Memory for decoded batches, and for what Arrow's allocator keeps of them.
_BATCHES_BYTES = 24 * 2**20
# Measured memory per byte of the footer, which describes row groups and columns, and the size of
# the largest footer that is read, which fits the default memory limit.
_FOOTER_FACTOR, _FOOTER_BYTES = 13, 2**27


class ParquetTable(Table):
    """Parquet file, in which index columns of pandas are the ids of the rows."""

    scratch: Any = None

    def __init__(self, path: Location, uri: str | None = None) -> None:
        self.uri, self._path = uri or str(path), path.absolute()
        with _open(path) as file:
            self.schema, self._metadata = file.schema_arrow, file.metadata
        self.n_rows = self._metadata.num_rows
        self.row_ids = index_columns(self.schema, self.uri)

    def batches(self, columns: list[str], rows: int) -> Iterator[Any]:
        """Yield batches of rows; texts are read as dictionaries, which hold duplicates once."""
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
        """Return the bytes that Arrow holds.

        They are those of decoded batches, of two pages per column of at most 1 MB each, of the read
        buffers, and of the footer.
        """
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
        """Raise InputError if the footer is damaged for a row group.

        Otherwise Arrow would abort the process when a damaged column is requested. Arrow checks all
        columns before it reads values, so it is given a file that refuses reads.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        known = {"metadata": self._metadata, "buffer_size": 1, "pre_buffer": False}
        with refusing(f"{self.uri} is damaged", pa.ArrowException, OSError), suppress(EOFError):
            next(pq.ParquetFile(_Unread(), **known).iter_batches(1, [group], use_threads=False), 0)


class _Unread(io.RawIOBase):
    """File that refuses every read."""

    def readable(self) -> bool:
        return True

    def seek(self, *place: int) -> int:
        return 0

    def tell(self) -> int:  # Arrow takes the size of the file from the position of its end
        return 2**62

    def read(self, size: int = -1) -> bytes:
        raise EOFError


def _open(path: Location, **known: Any) -> Any:
    """Open a Parquet file, which the caller closes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    faults = (pa.ArrowException, OSError, UnicodeDecodeError)
    with refusing(f"{path} is not a Parquet file", *faults):
        if not known:
            _check_footer(path)
        if is_remote(path):  # pre-buffering whole columns of a row group makes few, large requests
            return pq.ParquetFile(path.open("rb", buffering=0), pre_buffer=True, **known)
        return pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False, **known)


def _check_footer(path: Location) -> None:
    """Raise InputError if the footer, which describes row groups and columns, is too large."""
    with path.open("rb") as file:
        end = file.seek(0, 2)
        file.seek(max(0, end - 8))
        size = int.from_bytes(file.read(4), "little")
    if _FOOTER_BYTES < size < end:  # otherwise it is damaged, which Arrow reports
        raise InputError(
            f"{path}: its footer has {format_bytes(size)}; at most {format_bytes(_FOOTER_BYTES)} "
            "is supported. Write it again with larger row groups."
        )


open_table = ParquetTable


def write(file: IO[bytes], selected: Any) -> None:
    """Write the selected columns as Parquet."""
    import pyarrow.parquet as pq

    write_batches(selected, lambda schema: pq.ParquetWriter(file, schema))
