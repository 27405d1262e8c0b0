"""Dask arrays: computed one row block at a time under whatever scheduler is active."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from bigfs.core.errors import InputError, InputTypeError
from bigfs.store.source import Source, check_shape, work_dtype


class DaskSource(Source):
    """A Dask array of known shape."""

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
        check_shape(X.shape, self.uri)
        self.n_samples, self.n_features = (int(size) for size in X.shape)
        self.dtype = work_dtype(X.dtype, self.uri)
        self._X = X

    def iter_blocks(self, rows: int) -> Iterator[np.ndarray]:
        """Yield consecutive arrays of at most ``rows`` rows."""
        for start in range(0, self._X.shape[0], rows):
            yield np.asarray(self._X[start : start + rows].compute(), dtype=self.dtype)
