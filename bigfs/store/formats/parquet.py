"""Parquet, streamed by row batches (needs the extra ``bigfs[parquet]``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from bigfs.core.errors import InputError, StorageError
from bigfs.store.columns import ALL_FEATURES, Roles, refuse_unusable
from bigfs.store.formats.csv import as_number
from bigfs.store.location import Location, is_remote
from bigfs.store.source import Source, check_names, check_no_variable, check_shape, work_dtype
from bigfs.store.values import check_exact

# Pages are read through a buffer for each column, so that a row group is never whole in memory;
# Arrow still keeps a dictionary page (1 MB by default) for each column that has one.
_BUFFER_BYTES = 2**16
_BATCH_BYTES = 4 * 10**6


class ParquetSource(Source):
    """A Parquet file whose columns are all numbers; pandas' index columns are left out."""

    n_samples: int

    def __init__(self, path: Location, roles: Roles = ALL_FEATURES) -> None:
        self.uri = str(path)
        self._path = path
        with open_parquet(self._path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
        index = (schema.pandas_metadata or {}).get("index_columns", [])
        fields = [field for field in schema if field.name not in index or field.name == roles.index]
        names = [field.name for field in fields]
        # What the file has itself counts before the names of the folders that it is in.
        partitions = {k: v for k, v in (roles.partitions or {}).items() if k not in names}
        # A part of a table may have no rows.
        least = rows if roles.partitions is None else max(rows, 2)
        check_shape((least, len(fields) + len(partitions)), self.uri)
        check_names(names, len(names), self.uri)
        found = {field.name: (_work_dtype(field), str(field.type)) for field in fields}
        for name, value in partitions.items():
            is_number = value is None or as_number(value) is not None
            number = np.dtype(np.float64) if is_number else None
            found[name] = (number, f"text (its folder is '{name}={value}')")
        kept = [list(found)[j] for j in roles.features(list(found), self.uri)]
        unusable = {name: found[name][1] for name in kept if found[name][0] is None}
        refuse_unusable(unusable, roles, list(found), self.uri)
        types = [found[name][0] for name in kept]
        self.index, self.feature_names = roles.index, kept
        self._partitions = partitions
        self.n_samples, self.n_features = rows, len(types)
        self.dtype = np.result_type(*types)  # type: ignore[arg-type]  # all are there

    def iter_index(self) -> Iterator[list[str]]:
        """Yield the ids of the rows."""
        if self.index in self._partitions:
            yield [str(self._partitions[self.index])] * self.n_samples
        elif self.index is not None:
            with open_parquet(self._path) as file:
                for batch in file.iter_batches(columns=[self.index], use_threads=False):
                    yield [str(value) for value in batch.column(0).to_pylist()]

    def iter_blocks(self, rows: int) -> Iterator[np.ndarray]:
        """Yield consecutive arrays of at most ``rows`` rows; nulls are NaN."""
        import pyarrow as pa

        largest = max(1, _BATCH_BYTES // (self.n_features * self.dtype.itemsize))
        assert self.feature_names is not None
        columns = [name for name in self.feature_names if name not in self._partitions]
        constants = [
            as_number(self._partitions[name] or "") for name in self.feature_names[len(columns) :]
        ]
        size, row = min(rows, largest), 0
        try:
            with open_parquet(self._path) as file:
                for batch in file.iter_batches(size, columns=columns, use_threads=False):
                    block = np.empty((batch.num_rows, self.n_features), self.dtype)
                    for column, values in enumerate(batch.columns):
                        if pa.types.is_boolean(values.type):
                            values = values.cast(pa.uint8())
                        numbers = values.to_numpy(zero_copy_only=False)
                        check_exact(numbers[:, None], self.uri, row, [batch.schema.names[column]])
                        block[:, column] = numbers
                    block[:, len(columns) :] = constants
                    row += len(block)
                    yield block
        except StorageError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{self.uri} is damaged: {error}. Write it again.") from None


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
        raise InputError(f"{path} is not a Parquet file: {error}.") from None


def is_usable(field: Any) -> bool:
    """Say whether a column holds numbers."""
    return _work_dtype(field) is not None


def _work_dtype(field: Any) -> np.dtype | None:
    """Return the work dtype of a column, None if it holds no numbers."""
    try:
        return work_dtype(field.type.to_pandas_dtype(), field.name)
    except (InputError, NotImplementedError, TypeError):
        return None


def open_file(path: Location, variable: str | None, roles: Roles = ALL_FEATURES) -> ParquetSource:
    """Open a Parquet file."""
    check_no_variable(path, variable)
    return ParquetSource(path, roles)
