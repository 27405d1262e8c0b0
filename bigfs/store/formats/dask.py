"""Dask frames and arrays: computed piece by piece under whatever scheduler is active.

A piece is a partition of a frame, or a band of whole chunks of an array.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from bigfs.core.errors import InputError, InputTypeError
from bigfs.core.units import format_bytes
from bigfs.runtime.scope import dask_get
from bigfs.store.columns import ALL_FEATURES, Roles
from bigfs.store.csr import SparseSource, as_block
from bigfs.store.formats.memory import FrameSource
from bigfs.store.source import Options, Source, check_shape, is_frame, no_column, work_dtype
from bigfs.store.values import as_floats

logger = logging.getLogger("bigfs")
# Of a partition: as it is read, and as a frame.
_COPIES = 2


class DaskFrameSource(Source):
    """A Dask DataFrame; one partition is in memory at a time.

    Nothing tells how large partitions are before they are computed. Where memory is promised (in
    plans, and before an ingest), each is computed once to be measured. The memory that the graph of
    the frame takes to compute a partition is the user's, and is not counted: Dask's reader of
    Parquet took up to eight times the partition.
    """

    def __init__(self, X: Any, roles: Roles = ALL_FEATURES) -> None:
        self.uri, self.index, self._X = "X", roles.index, X
        # The types of the columns are known without reading.
        part = replace(roles, partitions={})
        meta = FrameSource(X._meta, self.uri, part, distinct=self._distinct)
        self.n_features, self.dtype = meta.n_features, meta.dtype
        self.feature_names, self.notes = meta.feature_names, meta.notes
        self.categories = meta.categories
        self._roles = replace(part, encoding=replace(roles.encoding, known=meta.categories))

    def _distinct(self, column: str) -> Any:
        return self._X[column].unique().compute(scheduler=dask_get())

    @cached_property
    def _sizes(self) -> list[tuple[int, int]]:
        """Rows and bytes of each partition, measured where it is computed."""
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
        """Rows, once partitions were measured."""
        return self.estimated_samples if "_sizes" in vars(self) else None

    @property
    def estimated_samples(self) -> int:
        """Rows of all partitions."""
        return sum(rows for rows, _ in self._sizes)

    @property
    def held_bytes(self) -> int:  # type: ignore[override]
        """The largest partition, and the copies of it that are made to compute it."""
        return _COPIES * max(size for _, size in self._sizes)

    def _part(self, i: int) -> FrameSource:
        frame = self._X.partitions[i].compute(scheduler=dask_get())
        return FrameSource(frame, self.uri, self._roles)

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

    def iter_blocks(self, rows: int) -> Iterator[np.ndarray]:
        """Yield consecutive arrays of at most ``rows`` rows."""
        for i in range(self._X.npartitions):
            # No name holds the part while the next is computed.
            for block in self._part(i).iter_blocks(rows):
                yield np.ascontiguousarray(block, self.dtype)


def _measure(frame: Any) -> Any:
    """Return the rows and bytes of a partition."""
    import pandas as pd

    size = int(frame.memory_usage(deep=True).sum())
    return pd.DataFrame({"rows": [len(frame)], "bytes": [size]})


class DaskSource(Source):
    """A Dask array of known shape; one band of its row chunks is in memory at a time."""

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
        self._X = X

    def iter_blocks(self, rows: int) -> Iterator[np.ndarray]:
        """Yield consecutive arrays of at most ``rows`` rows."""
        for start, stop in self._bands(rows):
            band = self._compute(start, stop)
            if hasattr(band, "toarray"):  # sparse chunks that the array's meta does not speak of
                band = band.toarray()
            for first in range(0, stop - start, rows):
                yield as_floats(band[first : first + rows], self.dtype, self.uri, start + first)

    def _compute(self, start: int, stop: int) -> Any:
        return self._X[start:stop].compute(scheduler=dask_get())

    def _bands(self, rows: int) -> Iterator[tuple[int, int]]:
        """Yield row ranges of whole chunks, about ``rows`` long, so each is computed once."""
        start = stop = 0
        for size in self._X.chunks[0]:
            if stop > start and stop + size - start > rows:
                yield start, stop
                start = stop
            stop += size
        if stop > start:
            yield start, stop


class SparseDaskSource(SparseSource, DaskSource):
    """A Dask array of scipy sparse chunks; how many entries they have, only reading them tells."""

    def iter_csr(self, rows: int) -> Iterator[Any]:
        """Yield consecutive CSR blocks of at most ``rows`` rows."""
        for start, stop in self._bands(rows):
            band = as_block(self._compute(start, stop), self.dtype)
            for first in range(0, stop - start, rows):
                yield band[first : first + rows]


def open_object(X: Any, options: Options) -> Source:
    """Open a Dask frame or array."""
    return DaskFrameSource(X, options.roles) if is_frame(X) else open_dask(X)


def open_dask(X: Any) -> DaskSource:
    """Open a Dask array; its meta says whether its chunks are sparse."""
    sparse = hasattr(getattr(X, "_meta", None), "tocsr")
    return SparseDaskSource(X) if sparse else DaskSource(X)
