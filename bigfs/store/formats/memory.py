"""Matrices in this process's memory: NumPy, pandas, scipy sparse."""

from __future__ import annotations

from typing import Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.core.units import GIB, format_bytes
from bigfs.store.source import RandomAccessSource, check_names, check_shape, work_dtype

_DENSE_LIMIT_BYTES = 2 * GIB


class ArraySource(RandomAccessSource):
    """A NumPy array; converted block by block, never as a whole."""

    shareable = False

    def __init__(self, X: np.ndarray, uri: str = "X", names: list[str] | None = None) -> None:
        self.uri = uri
        self.dtype = work_dtype(X.dtype, uri)
        check_shape(X.shape, uri)
        self.n_samples, self.n_features = X.shape
        check_names(names, self.n_features, uri)
        self.feature_names = names
        self._X = X

    @property
    def stored_dtype(self) -> np.dtype:
        """Type of the array."""
        return self._X.dtype

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return rows ``start`` to ``stop``."""
        return np.ascontiguousarray(self._X[start:stop], dtype=self.dtype)


class FrameSource(RandomAccessSource):
    """A pandas frame whose columns are all numbers; converted block by block."""

    shareable = False

    def __init__(self, frame: Any, uri: str = "X") -> None:
        import pandas as pd

        self.uri = uri
        check_shape(frame.shape, uri)
        types = []
        for name, dtype in frame.dtypes.items():
            kind = getattr(dtype, "kind", "O")
            if kind not in "fiub":
                raise InputError(
                    f"{uri}: column {name!r} holds {dtype}, not numbers. Drop or encode it."
                )
            # pandas' own types can hold missing values: NaN, and float64 holds the rest.
            types.append(work_dtype(dtype if isinstance(dtype, np.dtype) else np.float64, uri))
        self.n_samples, self.n_features = frame.shape
        self.dtype = np.result_type(*types)
        # Columns that pandas numbered have no names.
        if not isinstance(frame.columns, pd.RangeIndex):
            self.feature_names = [str(name) for name in frame.columns]
            check_names(self.feature_names, self.n_features, uri)
        self._frame = frame

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return rows ``start`` to ``stop``; missing values are NaN."""
        rows = self._frame.iloc[start:stop].to_numpy(dtype=self.dtype, na_value=np.nan)
        return np.ascontiguousarray(rows)


class SparseSource(RandomAccessSource):
    """A scipy sparse matrix, made dense block by block; refused above 2 GiB."""

    shareable = False

    def __init__(self, X: Any, uri: str = "X") -> None:
        self.uri = uri
        self.dtype = work_dtype(X.dtype, uri)
        check_shape(X.shape, uri)
        self.n_samples, self.n_features = (int(size) for size in X.shape)
        size = self.n_samples * self.n_features * self.dtype.itemsize
        if size > _DENSE_LIMIT_BYTES:
            raise InputError(
                f"{uri}: sparse input at scale is not supported yet. It is made dense block by "
                f"block, up to {format_bytes(_DENSE_LIMIT_BYTES)} dense; this matrix would be "
                f"{format_bytes(size)}. Drop rare features first."
            )
        self._X = X.tocsr()

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return rows ``start`` to ``stop``, dense."""
        return np.ascontiguousarray(self._X[start:stop].toarray(), dtype=self.dtype)


def open_memory(X: Any) -> RandomAccessSource | None:
    """Return a source for an object in memory, None for one of another kind."""
    if isinstance(X, np.ma.MaskedArray):
        raise InputError("X is a masked array: fill it first, for example X.filled(numpy.nan).")
    if isinstance(X, np.ndarray):
        return ArraySource(X)
    root = type(X).__module__.split(".")[0]
    if root == "scipy" and hasattr(X, "tocsr"):
        return SparseSource(X)
    if root == "pandas" and hasattr(X, "columns"):
        return FrameSource(X)
    return None
