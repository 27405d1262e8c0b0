"""Parquet, streamed by row batches (needs the extra ``bigfs[parquet]``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from bigfs.core.errors import InputError, StorageError
from bigfs.store.location import Location, is_remote
from bigfs.store.source import Source, check_names, check_no_variable, check_shape, work_dtype

# Pages are read through a buffer for each column, so that a row group is never whole in memory;
# Arrow still keeps a dictionary page (1 MB by default) for each column that has one.
_BUFFER_BYTES = 2**16
_BATCH_BYTES = 4 * 10**6


class ParquetSource(Source):
    """A Parquet file whose columns are all numbers; pandas' index columns are left out."""

    n_samples: int

    def __init__(self, path: Location) -> None:
        self.uri = str(path)
        self._path = path
        with self._open() as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
        index = (schema.pandas_metadata or {}).get("index_columns", [])
        fields = [field for field in schema if field.name not in index]
        check_shape((rows, len(fields)), self.uri)
        types = [_work_dtype(field, self.uri) for field in fields]
        self.feature_names = [field.name for field in fields]
        check_names(self.feature_names, len(types), self.uri)
        self.n_samples, self.n_features = rows, len(types)
        self.dtype = np.result_type(*types)

    def iter_blocks(self, rows: int) -> Iterator[np.ndarray]:
        """Yield consecutive arrays of at most ``rows`` rows; nulls are NaN."""
        import pyarrow as pa

        largest = max(1, _BATCH_BYTES // (self.n_features * self.dtype.itemsize))
        size, columns = min(rows, largest), self.feature_names
        try:
            with self._open() as file:
                for batch in file.iter_batches(size, columns=columns, use_threads=False):
                    block = np.empty((batch.num_rows, self.n_features), self.dtype)
                    for column, values in enumerate(batch.columns):
                        if pa.types.is_boolean(values.type):
                            values = values.cast(pa.uint8())
                        block[:, column] = values.to_numpy(zero_copy_only=False)
                    yield block
        except StorageError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{self.uri} is damaged: {error}. Write it again.") from None

    def _open(self) -> Any:
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError:
            raise InputError(
                f"{self.uri}: reading Parquet needs pyarrow. Install it with: "
                "pip install 'bigfs[parquet]'."
            ) from None
        try:
            if is_remote(self._path):  # whole columns of a row group: few and large requests
                return pq.ParquetFile(self._path.open("rb", buffering=0), pre_buffer=True)
            return pq.ParquetFile(self._path, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        except StorageError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{self.uri} is not a Parquet file: {error}.") from None


def _work_dtype(field: Any, uri: str) -> np.dtype:
    """Return the work dtype of a column, or name the column that is no number."""
    try:
        return work_dtype(field.type.to_pandas_dtype(), uri)
    except (InputError, NotImplementedError, TypeError):
        raise InputError(
            f"{uri}: column {field.name!r} holds {field.type}, not numbers. Drop or encode it."
        ) from None


def open_file(path: Location, variable: str | None) -> ParquetSource:
    """Open a Parquet file."""
    check_no_variable(path, variable)
    return ParquetSource(path)
