"""Dask arrays: computed by bands of whole chunks under whatever scheduler is active."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from bigfs.core.errors import InputError, InputTypeError
from bigfs.runtime.scope import dask_get
from bigfs.store.csr import SparseSource, as_block
from bigfs.store.source import Source, check_shape, work_dtype
from bigfs.store.values import as_floats


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


def open_dask(X: Any) -> DaskSource:
    """Open a Dask array; its meta says whether its chunks are sparse."""
    sparse = hasattr(getattr(X, "_meta", None), "tocsr")
    return SparseDaskSource(X) if sparse else DaskSource(X)
