"""Objects of this process: NumPy, pandas, scipy sparse, anything that exports Arrow, and Dask.

Dask data frames and arrays are computed piece by piece by the active scheduler: one partition of a
data frame, or a band of whole chunks of an array, at a time.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from numbers import Number
from typing import Any

import numpy as np

from bigfs.core.errors import InputError, InputTypeError
from bigfs.core.units import format_bytes
from bigfs.runtime.scope import dask_get
from bigfs.store.columns import ALL_FEATURES, Column, Roles, refuse_unusable
from bigfs.store.csr import CSRSource, as_block
from bigfs.store.formats.parts import ArrayByRows, in_blocks, open_here
from bigfs.store.source import (
    Options,
    RandomAccessSource,
    Source,
    check_names,
    check_shape,
    is_frame,
    no_column,
    work_dtype,
)
from bigfs.store.tables import Table, TableSource, index_columns, set_features
from bigfs.store.values import as_floats, check_exact, without_mask

logger = logging.getLogger("bigfs")
_GROUP_BYTES = 16 * 10**6  # size of a row group that is written to scratch
# Copies of a partition in memory: as it is read, and as a data frame.
_COPIES = 2
_COMPLEX = (complex, np.complexfloating)
_DROP = "X.drop(columns={})"  # in pandas and Dask


class ArraySource(ArrayByRows):
    """NumPy array, possibly masked, converted block by block and never as a whole."""

    def __init__(self, X: np.ndarray, uri: str = "X", names: list[str] | None = None) -> None:
        super().__init__(partial(open_here, X), uri)
        check_names(names, self.n_features, uri)
        self.feature_names = names


class FrameSource(RandomAccessSource):
    """pandas DataFrame, converted block by block; columns without numbers may be encoded."""

    uri, shareable = "X", False

    def __init__(
        self,
        frame: Any,
        roles: Roles = ALL_FEATURES,
        distinct: Callable[[str], Any] | None = None,
    ) -> None:
        self._all, uri = frame, self.uri
        self._frame = frame = _plain_frame(frame)
        # A part of a data frame may have no rows.
        n_rows = len(frame) if roles.partitions is None else max(len(frame), 2)
        check_shape((n_rows, frame.shape[1]), uri)
        named, dtypes = _names_of(frame), frame.dtypes
        check_names(named, frame.shape[1], uri)
        names = named or [str(name) for name in frame.columns]
        places = {name: j for j, name in enumerate(names)}
        self._columns = set_features(
            self, [_column(name, dtype, uri) for name, dtype in zip(names, dtypes, strict=True)],
            roles, named=named is not None, dropped_by=_DROP,
            distinct=distinct or (lambda name: frame.iloc[:, places[name]].unique()),
            content_of=lambda name: str(dtypes.iloc[places[name]]),
        )  # fmt: skip
        self.n_samples, self.index = len(frame), roles.index
        self._ids = None if roles.index is None else frame.iloc[:, places[roles.index]]
        self._places = [places[column.name] for column in self._columns]

    def read_column(self, name: str) -> Any:
        """Return a column of the data frame."""
        names = _texts_of(self._all.columns)
        if name not in names:
            raise no_column(self.uri, name, names)
        return self._all.iloc[:, names.index(name)]

    def iter_index(self) -> Iterator[list[str]]:
        """Yield the ids of the rows."""
        if self._ids is not None:
            yield [str(value) for value in self._ids]

    def read_rows(self, start: int, stop: int) -> np.ndarray:
        """Return rows ``start`` to ``stop``; missing values are NaN."""
        piece = self._frame.iloc[start:stop]
        if len(self._places) < piece.shape[1]:
            piece = piece.iloc[:, self._places]
        for kind in ("int64", "uint64"):
            integers = piece.select_dtypes([kind])
            check_exact(integers.to_numpy(), self.uri, start, list(integers.columns))
        for name, dtype in piece.dtypes.items():
            if not isinstance(dtype, np.dtype) and dtype.kind in "iu":  # may have missing values
                integers = piece[name].to_numpy(f"{dtype.kind}8", na_value=0)
                check_exact(integers[:, None], self.uri, start, [name])
        if all(column.is_plain for column in self._columns):
            return np.ascontiguousarray(piece.to_numpy(dtype=self.dtype, na_value=np.nan))
        parts = [
            piece.iloc[:, [j]].to_numpy(dtype=self.dtype, na_value=np.nan)
            if column.is_plain
            else column.encode(piece.iloc[:, j], self.uri).astype(self.dtype)
            for j, column in enumerate(self._columns)
        ]
        return np.concatenate(parts, axis=1)


def _column(name: str, dtype: Any, uri: str) -> Column:
    """Return the description of a column of a data frame, before any encoding."""
    kind = getattr(dtype, "kind", "O")
    if kind in "fiu":  # pandas' own types may have missing values, so they become float64 with NaN
        number = work_dtype(dtype if isinstance(dtype, np.dtype) else np.float64, uri)
        return Column(name, "number", number)
    if kind == "M":
        return Column(name, "date", np.dtype(np.float64))
    return Column(name, "boolean" if kind == "b" else "category")


def is_pandas(X: Any) -> bool:
    """Return True if X is a pandas DataFrame."""
    return type(X).__module__.startswith("pandas") and hasattr(X, "columns")


def plain(X: Any) -> Any:
    """Return an object in memory in a form that scikit-learn's checks interpret correctly.

    Missing values (masked, None, NA) become NaN, object columns of numbers become float64, and
    sparse columns become dense unless all columns are sparse with the fill value 0.

    Raises
    ------
    InputError
        If values are complex, or a column name is duplicated.
    """
    if isinstance(X, (list, tuple)):
        is_masked = any(isinstance(row, np.ma.MaskedArray) for row in X)
        X = np.ma.array(X) if is_masked else np.asarray(X)
    X = without_mask(X)
    for j, dtype in enumerate(X.dtypes if is_pandas(X) else [getattr(X, "dtype", None)]):
        values: Any = ()
        if getattr(dtype, "char", "") == "O":
            values = X.iloc[:, j] if is_pandas(X) else getattr(X, "flat", ())
        if getattr(dtype, "kind", "") == "c" or any(isinstance(v, _COMPLEX) for v in values):
            held = dtype if dtype.kind == "c" else "complex numbers"
            raise InputError(
                f"Complex data not supported: X holds {held}. Give real numbers, for instance "
                "X.real and X.imag side by side."
            )
    if is_pandas(X):
        check_names(_names_of(X), X.shape[1], "X")
        return _plain_frame(X)
    if isinstance(X, np.ndarray) and X.dtype.kind == "O":
        import pandas as pd

        missing = pd.isna(X)
        return np.where(missing, np.nan, X) if missing.any() else X
    return X


def _names_of(frame: Any) -> list[str] | None:
    """Return the column names of a data frame, or None if pandas numbered the columns."""
    import pandas as pd

    is_numbered = isinstance(frame.columns, pd.RangeIndex)
    return None if is_numbered else _texts_of(frame.columns)


def _texts_of(names: Any) -> list[str]:
    """Return names as texts.

    A float32 name is written with the digits of float32; pandas would write those of float64.
    """
    return [str(name) for name in (names.to_numpy() if names.dtype == np.float32 else names)]


def _plain_frame(frame: Any) -> Any:
    """Return a data frame with object columns of numbers as float64 and sparse columns as dense.

    Sparse columns stay sparse if all columns are sparse with the fill value 0.
    """
    import pandas as pd

    sparse = [isinstance(dtype, pd.SparseDtype) for dtype in frame.dtypes]
    stays_sparse = all(sparse) and all(dtype.fill_value == 0 for dtype in frame.dtypes)
    changed = frame.copy(deep=False)
    for j, dtype in enumerate(frame.dtypes):
        if sparse[j] and not stays_sparse:
            changed.isetitem(j, frame.iloc[:, j].sparse.to_dense())
        elif isinstance(dtype, np.dtype) and dtype.kind == "O":
            column = frame.iloc[:, j]
            missing = column.isna()
            if all(isinstance(value, Number) for value in column[~missing]):
                changed.isetitem(j, column.where(~missing, np.nan).astype(np.float64))
    return changed


def refuse_texts(X: Any) -> None:
    """Raise InputError if a pandas DataFrame has columns of texts, dates or categories."""
    if is_pandas(X):
        kinds = zip(_texts_of(X.columns), X.dtypes, strict=True)
        unusable = {n: str(kind) for n, kind in kinds if getattr(kind, "kind", "O") not in "fiub"}
        refuse_unusable(unusable, ALL_FEATURES, "X", dropped_by=_DROP)


class ArrowTable(Table):
    """Arrow table, stream of batches, or object that exports an Arrow stream."""

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
        """Yield the values of a column, without duplicates within a batch."""
        if self.read_once:
            raise _second_read()
        return super().distinct(column)

    def batches(self, columns: list[str], rows: int) -> Iterator[Any]:
        """Yield batches of the sizes that the object has."""
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
    """Return the table of an Arrow table or stream, or of a polars frame.

    A polars LazyFrame is first written to a Parquet file in scratch.
    """
    kinds = X.collect_schema() if hasattr(X, "collect_schema") else {}
    for name, kind in kinds.items():
        if str(kind).endswith("Int128"):
            raise InputError(
                f"X: column {name!r} holds {kind}, which Arrow does not have. Cast it: "
                f"X.cast({{{name!r}: polars.Int64}})."
            )
    if hasattr(X, "__arrow_c_stream__"):
        return ArrowTable(X)
    from bigfs.store.formats.parquet import ParquetTable
    from bigfs.store.scratch import Scratch

    scratch = Scratch()
    rows = max(1, _GROUP_BYTES // (8 * len(kinds)))
    # polars runs the query in pieces; its default compression is stronger and slower
    path = scratch.path / "X.parquet"
    X.sink_parquet(path, compression="lz4", statistics=False, row_group_size=rows)
    table = ParquetTable(path, "X")
    table.scratch = scratch  # removed together with the table
    table.dropped_by = ArrowTable.dropped_by
    return table


class DaskFrameSource(Source):
    """Dask DataFrame, of which one partition is in memory at a time.

    The size of a partition is unknown until it is computed. If the memory has to be estimated (in
    plans, and before an ingest), each partition is computed once to measure it. The memory that the
    graph of the data frame needs to compute a partition depends on the user's code and is not
    counted: Dask's Parquet reader needed up to eight times the size of the partition.
    """

    def __init__(self, X: Any, roles: Roles = ALL_FEATURES) -> None:
        self.uri, self.index, self._X = "X", roles.index, X
        # The types of the columns are known without reading.
        part = replace(roles, partitions={})
        meta = FrameSource(X._meta, part, distinct=self._distinct)
        self.n_features, self.dtype = meta.n_features, meta.dtype
        self.feature_names, self.notes = meta.feature_names, meta.notes
        self.categories = meta.categories
        self._roles = replace(
            part, encoding=replace(roles.encoding, known=meta.categories, kinds=meta.encoded)
        )

    def _distinct(self, column: str) -> Any:
        return self._X[column].unique().compute(scheduler=dask_get())

    @cached_property
    def _sizes(self) -> list[tuple[int, int]]:
        """Rows and bytes of each partition, measured by the worker that computes it."""
        measured = self._X.map_partitions(_measure, meta=_measure(self._X._meta))
        sizes = [
            tuple(measured.partitions[i].compute(scheduler=dask_get()).iloc[0].tolist())
            for i in range(self._X.npartitions)
        ]
        logger.info(
            "X: %s rows in %d partitions, the largest of %s; X.repartition(partition_size='64MB') "
            "makes smaller ones",
            f"{sum(rows for rows, _ in sizes):,}",
            len(sizes),
            format_bytes(max(size for _, size in sizes)),
        )
        return sizes

    @property
    def n_samples(self) -> int | None:  # type: ignore[override]
        """Number of rows, or None until the partitions are measured."""
        return self.estimated_samples if "_sizes" in vars(self) else None

    @property
    def estimated_samples(self) -> int:
        """Number of rows of all partitions, which are measured for it."""
        return sum(rows for rows, _ in self._sizes)

    @property
    def held_bytes(self) -> int:  # type: ignore[override]
        """Bytes of the largest partition and of the copy that is made to compute it."""
        return _COPIES * max(size for _, size in self._sizes)

    def _part(self, i: int) -> FrameSource:
        frame = self._X.partitions[i].compute(scheduler=dask_get())
        return FrameSource(frame, self._roles)

    def iter_index(self) -> Iterator[list[str]]:
        """Yield the ids of the rows."""
        if self.index is not None:
            for i in range(self._X.npartitions):
                yield from self._part(i).iter_index()

    def read_column(self, name: str) -> Any:
        """Return a column of all partitions."""
        if name not in self._X.columns:
            raise no_column(self.uri, name, self._X.columns)
        return self._X[name].compute(scheduler=dask_get())

    def iter_rows(self, rows: int) -> Iterator[np.ndarray]:
        """Yield consecutive arrays of at most ``rows`` rows."""
        for i in range(self._X.npartitions):
            # Without a reference to it, the part is freed before the next is computed.
            for block in self._part(i).iter_blocks(rows):
                yield np.ascontiguousarray(block, self.dtype)


def _measure(frame: Any) -> Any:
    """Return the rows and bytes of a partition."""
    import pandas as pd

    size = int(frame.memory_usage(deep=True).sum())
    return pd.DataFrame({"rows": [len(frame)], "bytes": [size]})


class DaskSource(Source):
    """Dask array of known shape, of which one band of row chunks is in memory at a time.

    The meta of the array tells whether chunks are sparse. The number of their entries is unknown
    until they are read.
    """

    def __init__(self, X: Any) -> None:
        import dask.array as da

        self.uri = "X"
        if not isinstance(X, da.Array):
            raise InputTypeError(
                f"X is a Dask {type(X).__name__}; only Dask arrays are read. Convert it with "
                "to_dask_array(lengths=True)."
            )
        if any(math.isnan(size) for size in X.shape):
            raise InputError(
                "X is a Dask array of unknown shape. Call X.compute_chunk_sizes() first."
            )
        self.dtype = work_dtype(X.dtype, self.uri)
        check_shape(X.shape, self.uri)
        self.n_samples, self.n_features = (int(size) for size in X.shape)
        self._X, self.sparse = X, hasattr(getattr(X, "_meta", None), "tocsr")

    def iter_rows(self, rows: int) -> Iterator[Any]:
        """Yield consecutive blocks of at most ``rows`` rows."""
        for start, stop in self._bands(rows):
            if self.sparse:
                band = as_block(self._compute(start, stop), self.dtype, self.uri, start)
                yield from in_blocks(band, rows)
                continue
            band = self._compute(start, stop)
            if hasattr(band, "toarray"):  # chunks are sparse although the meta of the array is not
                band = band.toarray()
            for first in range(0, stop - start, rows):
                yield as_floats(band[first : first + rows], self.dtype, self.uri, start + first)

    def _compute(self, start: int, stop: int) -> Any:
        return self._X[start:stop].compute(scheduler=dask_get())

    def _bands(self, rows: int) -> Iterator[tuple[int, int]]:
        """Yield row ranges of whole chunks, about ``rows`` long, so that each is computed once."""
        start = stop = 0
        for size in self._X.chunks[0]:
            if stop > start and stop + size - start > rows:
                yield start, stop
                start = stop
            stop += size
        if stop > start:
            yield start, stop


def open_object(X: Any, options: Options) -> Source | None:
    """Return a source for an object, or None if its type is not supported."""
    root = type(X).__module__.split(".")[0]
    if root == "dask":
        return DaskFrameSource(X, options.roles) if is_frame(X) else DaskSource(X)
    if is_pandas(X):
        return FrameSource(X, options.roles)
    if is_frame(X) and root != "pandas":
        return TableSource(open_arrow(X), options.roles)
    if root == "h5py" and not hasattr(X, "shape"):
        raise InputError(
            f"X is {X.name!r} of an HDF5 file, which is not an array. Give the path of the file, "
            "or an array of it, X[NAME]."
        )
    # An h5py dataset is read by slices, like an array in memory.
    if isinstance(X, np.ndarray) or root == "h5py":
        return ArraySource(X)
    if root == "scipy" and hasattr(X, "tocsr"):
        return CSRSource(X)
    return None
