"""Feather and Arrow IPC files and streams, read batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO, Any

from bigfs.store.location import Location
from bigfs.store.tables import Table, index_columns, write_batches
from bigfs.store.values import refusing

_FILE = b"ARROW1"


class FeatherTable(Table):
    """File of Arrow batches, which have the sizes in which they were written."""

    def __init__(self, path: Location) -> None:
        self.uri, self._path = str(path), path.absolute()
        with path.open("rb") as file:
            self._is_file = file.read(len(_FILE)) == _FILE
        self._most_rows = self.n_rows = 0
        for batch in self._read(None):
            self.n_rows += batch.num_rows
            self._most_rows = max(self._most_rows, batch.num_rows)
        self.row_ids = index_columns(self.schema, self.uri)

    def batches(self, columns: list[str], rows: int) -> Iterator[Any]:
        """Yield the batches of the file."""
        for batch in self._read(columns):
            yield batch.select(columns)

    def held_bytes(self, columns: Sequence[str]) -> int:
        """Return the bytes of the largest batch, compressed and decompressed."""
        return 2 * self._most_rows * sum(_width(self.schema.field(name).type) for name in columns)

    def _read(self, columns: list[str] | None) -> Iterator[Any]:
        """Yield batches of the given columns.

        If ``columns`` is None, the first column is read, and ``schema`` is set.
        """
        import pyarrow as pa

        faults = (pa.ArrowException, OSError, UnicodeError, MemoryError)
        with refusing(f"{self.uri} is not an Arrow file, or is damaged", *faults):
            with self._path.open("rb") as file:
                open_ipc = pa.ipc.open_file if self._is_file else pa.ipc.open_stream
                if columns is None:
                    self.schema = open_ipc(file).schema
                    columns = self.schema.names[:1]
                    file.seek(0)
                places = [self.schema.get_field_index(name) for name in columns]
                options = pa.ipc.IpcReadOptions(included_fields=places, use_threads=False)
                reader = open_ipc(file, options=options)
                if self._is_file:
                    yield from map(reader.get_batch, range(reader.num_record_batches))
                else:
                    yield from reader


def _width(kind: Any) -> int:
    """Return the bytes of a value; texts are assumed to be short, 64 bytes."""
    try:
        return -(-int(kind.bit_width) // 8)
    except ValueError:
        return 64


open_table = FeatherTable


def write(file: IO[bytes], selected: Any) -> None:
    """Write the selected columns as an Arrow IPC file."""
    import pyarrow as pa

    write_batches(selected, lambda schema: pa.ipc.new_file(file, schema))
