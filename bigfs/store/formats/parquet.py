"""Parquet, streamed by row batches (needs the extra ``bigfs[parquet]``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bigfs.core.errors import InputError, StorageError
from bigfs.store.columns import ALL_FEATURES, Roles
from bigfs.store.formats.arrow import ArrowSource
from bigfs.store.location import Location, is_remote
from bigfs.store.source import check_no_variable

# Pages are read through a buffer for each column, so that a row group is never whole in memory;
# Arrow still keeps a dictionary page (1 MB by default) for each column that has one.
_BUFFER_BYTES = 2**16
_PAGE_BYTES = 2**20
# Batches that are decoded, and what Arrow's allocator keeps of them.
_BATCHES_BYTES = 16 * 2**20


class ParquetSource(ArrowSource):
    """A Parquet file; pandas' index columns are left out."""

    n_samples: int
    scratch: Any = None

    def __init__(self, path: Location, roles: Roles = ALL_FEATURES, uri: str | None = None) -> None:
        self._path = path
        with open_parquet(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
            metadata = file.metadata
        super().__init__(uri or str(path), schema, rows, roles)
        self.held_bytes = _held_bytes(metadata, {name for name, _ in self._columns})

    def _batches(self, columns: list[str], rows: int) -> Iterator[Any]:
        """Yield batches of whole pages."""
        import pyarrow as pa

        try:
            with open_parquet(self._path) as file:
                yield from file.iter_batches(rows, columns=columns, use_threads=False)
        except StorageError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{self.uri} is damaged: {error}. Write it again.") from None


def _held_bytes(metadata: Any, names: set[str]) -> int:
    """Return what Arrow holds while it reads some columns: two pages of each, at most 1 MB each."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    if not groups:
        return 0
    largest = max(groups, key=lambda group: group.total_byte_size)
    columns = (largest.column(j) for j in range(largest.num_columns))
    sizes = (c.total_uncompressed_size for c in columns if c.path_in_schema in names)
    return _BATCHES_BYTES + sum(2 * min(_PAGE_BYTES, size) + _BUFFER_BYTES for size in sizes)


def open_parquet(path: Location) -> Any:
    """Open a Parquet file, to be closed."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise InputError(
            f"{path}: reading Parquet needs pyarrow. Install it with: pip install 'bigfs[parquet]'."
        ) from None
    try:
        if is_remote(path):  # whole columns of a row group: few and large requests
            return pq.ParquetFile(path.open("rb", buffering=0), pre_buffer=True)
        return pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False)
    except StorageError:
        raise
    except (pa.ArrowException, OSError) as error:
        reason = str(error).rstrip(".")
        raise InputError(f"{path} is not a Parquet file: {reason}. Write it again.") from None


def open_file(path: Location, variable: str | None, roles: Roles = ALL_FEATURES) -> ParquetSource:
    """Open a Parquet file."""
    check_no_variable(path, variable)
    return ParquetSource(path, roles)
