"""Stored data as Dask arrays, whose chunks are row blocks."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.core.paths import as_text
from bigfs.store.ingest import copy_rows
from bigfs.store.scratch import Scratch, block_rows
from bigfs.store.several import is_table
from bigfs.store.source import (
    RandomAccessSource,
    Source,
    is_frame,
    is_list_of_uris,
    listed,
    open_matrix,
)


def is_stored(X: Any) -> bool:
    """Return True if X is read by blocks: a path, Dask, zarr, HDF5 array, AnnData, opened data.

    A Dask array inside an xarray object counts as well.
    """
    root = type(X).__module__.split(".")[0]
    return (
        root in ("dask", "zarr", "h5py", "anndata", "xarray")
        or isinstance(X, (str, Path, Source))
        or is_list_of_uris(X)
        or (root != "pandas" and is_frame(X))
    )


def is_annotated(X: Any) -> bool:
    """Return True if X is an AnnData."""
    return type(X).__module__.partition(".")[0] == "anndata" and hasattr(X, "var_names")


def columns_of(X: Any, names: Sequence[str]) -> Any:
    """Return columns of a Dask, polars or Arrow frame as a frame of its kind; else None.

    Raises
    ------
    InputError
        If a column is missing.
    """
    root = type(X).__module__.split(".")[0]
    if not is_frame(X) or not (hasattr(X, "select") or root == "dask") or not names:
        return None
    columns = X.collect_schema().names() if hasattr(X, "collect_schema") else X.columns
    columns = getattr(X, "column_names", columns)
    missing = sorted(set(names) - set(columns))
    if missing:
        raise InputError(f"X has no column {listed(missing)}. X must have the selected columns.")
    return X[list(names)] if root == "dask" else X.select(list(names))


def in_memory(X: Any, output: str) -> Any:
    """Return lazy data or an Arrow table in memory, in the form of scikit-learn's ``output``."""
    if output == "default":
        return X
    X = X.compute() if hasattr(X, "compute") else X
    X = X.collect() if hasattr(X, "collect") else X
    return X.to_pandas() if output == "pandas" and hasattr(X, "to_pandas") else X


def open_stored(X: Any, names: Sequence[str]) -> Any:
    """Open stored data to read some features of; a Dask array is returned unchanged.

    If ``names`` is not empty, only the columns of these names are read from a table: the others
    need not be numeric.
    """
    if type(X).__module__.startswith(("xarray", "dask")) and not is_frame(X):
        return X
    uri = as_text(X) if is_list_of_uris(X) else X
    of_table = isinstance(uri, (str, Path)) and is_table(str(uri))
    return open_matrix(X, columns=list(names)) if names and of_table else open_matrix(X)


def as_lazy(X: Any) -> Any:
    """Return stored data as a Dask array; a Dask array is returned unchanged."""
    import dask.array as da

    X = X.data if type(X).__module__.startswith("xarray") else X
    return X if isinstance(X, da.Array) else lazy_array(X)


def lazy_array(X: Any) -> Any:
    """Return stored data as a Dask array whose chunks are the row blocks.

    Data without random access by rows, such as a text table, are first copied into a temporary
    store.
    """
    source, scratch = open_matrix(X), None
    if not isinstance(source, RandomAccessSource):  # rows can only be read in order: store them
        scratch = Scratch()
        copy_rows(source, scratch.path / "X.zarr")
        source = open_matrix(scratch.path / "X.zarr")
    assert isinstance(source, RandomAccessSource)
    chunk = None if source.sparse else source.chunk_rows
    rows = block_rows(source.n_features, source.dtype.itemsize, chunk)
    return rows_as_dask(
        source.read,
        (source.n_samples, source.n_features),
        np.dtype(source.dtype),
        rows,
        scratch,
    )


def rows_as_dask(
    read: Callable[[int, int], np.ndarray],
    shape: tuple[int, int],
    dtype: np.dtype[Any],
    rows: int,
    kept: Any = None,
) -> Any:
    """Return a Dask array of the rows that ``read(start, stop)`` reads, ``rows`` per chunk.

    It holds a reference to the object ``kept``.
    """
    import dask.array as da

    return da.from_array(
        _RowsOnDemand(read, shape, dtype, kept),
        chunks=(rows, shape[1]),
        name=f"bigfs-{uuid.uuid4().hex}",
        meta=np.empty((0, 0), dtype),
    )


@dataclass(frozen=True)
class _RowsOnDemand:
    """Array-like view for Dask: shape, dtype and rows on demand."""

    read: Callable[[int, int], np.ndarray]
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    kept: Any
    ndim: int = 2

    def __getitem__(self, key: tuple[slice, Any]) -> np.ndarray:
        rows, columns = key
        start, stop, _ = rows.indices(self.shape[0])
        return np.asarray(self.read(start, stop)[:, columns])
