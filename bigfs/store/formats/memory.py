"""Matrices in this process's memory: NumPy, pandas, scipy sparse, and whatever is Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from numbers import Number
from typing import Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.store.columns import ALL_FEATURES, Roles, refuse_unusable
from bigfs.store.encoding import Column
from bigfs.store.formats.parts import ArrayByRows, open_here
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
from bigfs.store.tables import Table, TableFeatures, TableSource, index_columns
from bigfs.store.values import check_exact, without_mask

_GROUP_BYTES = 16 * 10**6  # of a row group that is written to scratch
_COMPLEX = (complex, np.complexfloating)
_DROP = "X.drop(columns={})"  # in pandas and Dask


class ArraySource(ArrayByRows):
    """A NumPy array, perhaps masked; converted block by block, never as a whole."""

    def __init__(self, X: np.ndarray, uri: str = "X", names: list[str] | None = None) -> None:
        super().__init__(partial(open_here, X), uri)
        check_names(names, self.n_features, uri)
        self.feature_names = names


class FrameSource(RandomAccessSource):
    """A pandas frame whose columns are all numbers; converted block by block."""

    shareable = False

    def __init__(
        self,
        frame: Any,
        uri: str = "X",
        roles: Roles = ALL_FEATURES,
        distinct: Callable[[str], Any] | None = None,
    ) -> None:
        self.uri, self._all = uri, frame
        self._frame = frame = _plain_frame(frame)
        # A part of a frame may have no rows.
        n_rows = len(frame) if roles.partitions is None else max(len(frame), 2)
        check_shape((n_rows, frame.shape[1]), uri)
        named, dtypes = _names_of(frame), frame.dtypes
        check_names(named, frame.shape[1], uri)
        names = named or [str(name) for name in frame.columns]
        places = {name: j for j, name in enumerate(names)}
        features = TableFeatures(
            [_column(name, dtype, uri) for name, dtype in zip(names, dtypes, strict=True)],
            roles, uri, dropped_by=_DROP,
            distinct=distinct or (lambda name: frame.iloc[:, places[name]].unique()),
            content_of=lambda name: str(dtypes.iloc[places[name]]),
        )  # fmt: skip
        features.describe(self, named=named is not None)
        self.n_samples, self.index = len(frame), roles.index
        self._ids = None if roles.index is None else frame.iloc[:, places[roles.index]]
        self._columns = features.columns
        self._places = [places[column.name] for column in self._columns]

    def read_column(self, name: str) -> Any:
        """Return a column of the frame."""
        names = _texts_of(self._all.columns)
        if name not in names:
            raise no_column(self.uri, name, names)
        return self._all.iloc[:, names.index(name)]

    def iter_index(self) -> Iterator[list[str]]:
        """Yield the ids of the rows."""
        if self._ids is not None:
            yield [str(value) for value in self._ids]

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return rows ``start`` to ``stop``; missing values are NaN."""
        piece = self._frame.iloc[start:stop]
        if len(self._places) < piece.shape[1]:
            piece = piece.iloc[:, self._places]
        for kind in ("int64", "uint64"):
            integers = piece.select_dtypes([kind])
            check_exact(integers.to_numpy(), self.uri, start, list(integers.columns))
        for name, dtype in piece.dtypes.items():
            if not isinstance(dtype, np.dtype) and dtype.kind in "iu":  # they may be missing
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
    """Return a column of a frame, which is not encoded yet."""
    kind = getattr(dtype, "kind", "O")
    if kind in "fiu":  # pandas' own types can hold missing values: NaN, and float64 holds the rest
        number = work_dtype(dtype if isinstance(dtype, np.dtype) else np.float64, uri)
        return Column(name, "number", number)
    if kind == "M":
        return Column(name, "date", np.dtype(np.float64))
    return Column(name, "boolean" if kind == "b" else "category")


def is_pandas(X: Any) -> bool:
    """Say whether X is a frame of pandas."""
    return type(X).__module__.startswith("pandas") and hasattr(X, "columns")


def plain(X: Any) -> Any:
    """Return an object in memory as one that scikit-learn's checks read as it is meant.

    Missing values (masked, None, NA) become NaN; columns of objects that are numbers become
    float64, and sparse columns dense unless all of them are sparse with zeros.

    Raises
    ------
    InputError
        If values are complex, or a name appears twice.
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
    """Return the names of a frame's columns; columns that pandas numbered have none."""
    import pandas as pd

    is_numbered = isinstance(frame.columns, pd.RangeIndex)
    return None if is_numbered else _texts_of(frame.columns)


def _texts_of(names: Any) -> list[str]:
    """Return names as texts; float32 with its own digits, where pandas gives those of float64."""
    return [str(name) for name in (names.to_numpy() if names.dtype == np.float32 else names)]


def _plain_frame(frame: Any) -> Any:
    """Return a frame whose columns of objects that are numbers, and sparse ones, are dense."""
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
    """Raise InputError if columns of a pandas frame hold texts, dates or categories of texts."""
    if not is_pandas(X):
        return
    import pandas as pd

    unusable = {}
    for position, (name, dtype) in enumerate(X.dtypes.items()):
        if getattr(dtype, "kind", "O") in "fiub":
            continue
        column = X.iloc[:, position]
        is_text = getattr(dtype, "kind", "O") in "mM"
        if not is_text:  # objects may be numbers
            numbers = pd.to_numeric(column.astype(object), errors="coerce")
            is_text = bool((numbers.isna() & column.notna()).any())
        if is_text:
            unusable[str(name)] = f"{dtype}"
    refuse_unusable(unusable, ALL_FEATURES, "X", dropped_by=_DROP)


def open_object(X: Any, options: Options) -> Source | None:
    """Return a source for an object in memory, None for one of another kind."""
    root = type(X).__module__.split(".")[0]
    if is_pandas(X):
        return FrameSource(X, roles=options.roles)
    if is_frame(X) and root != "pandas":
        return TableSource(open_arrow(X), options.roles)
    # An array of HDF5 is read by slices, as one in memory is.
    if isinstance(X, np.ndarray) or root == "h5py":
        return ArraySource(X)
    if root == "scipy" and hasattr(X, "tocsr"):
        from bigfs.store.csr import CSRSource

        return CSRSource(X)
    return None


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
