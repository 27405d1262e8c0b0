"""Parquet, streamed by row batches (needs the extra ``bigfs[parquet]``)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bigfs.core.errors import InputError
from bigfs.store.source import Source, check_names, work_dtype


class ParquetSource(Source):
    """A Parquet file whose columns are all numbers."""

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError:
            raise InputError(
                f"{path}: reading Parquet needs pyarrow. Install it with: "
                "pip install 'bigfs[parquet]'."
            ) from None
        self.uri = str(path)
        self._path = path
        try:
            with pq.ParquetFile(path) as file:
                schema, rows = file.schema_arrow, file.metadata.num_rows
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{path} is not a Parquet file: {error}.") from None
        types = []
        for field in schema:
            try:
                types.append(work_dtype(field.type.to_pandas_dtype(), self.uri))
            except (InputError, NotImplementedError, TypeError):
                raise InputError(
                    f"{path}: column {field.name!r} holds {field.type}, not numbers. "
                    "Drop or encode it."
                ) from None
        self.feature_names = list(schema.names)
        check_names(self.feature_names, len(types), self.uri)
        self.n_samples, self.n_features = rows, len(types)
        self.dtype = np.result_type(*types) if types else np.dtype(np.float32)

    def iter_blocks(self, rows: int) -> Iterator[np.ndarray]:
        """Yield consecutive arrays of at most ``rows`` rows."""
        import pyarrow.parquet as pq

        with pq.ParquetFile(self._path) as file:
            for batch in file.iter_batches(batch_size=rows):
                block = np.empty((batch.num_rows, self.n_features), self.dtype)
                for column, values in enumerate(batch.columns):
                    block[:, column] = values.to_numpy(zero_copy_only=False)
                yield block


def open_file(path: Path, variable: str | None) -> ParquetSource:
    """Open a Parquet file."""
    if variable is not None:
        raise InputError(f"{path} holds one table; input.variable must be null. Got {variable!r}.")
    return ParquetSource(path)
