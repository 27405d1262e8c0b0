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
        check_shape(X.shape, uri)
        self.n_samples, self.n_features = X.shape
        self.dtype = work_dtype(X.dtype, uri)
        check_names(names, self.n_features, uri)
        self.feature_names = names
        self._X = X

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return rows ``start`` to ``stop``."""
        return np.ascontiguousarray(self._X[start:stop], dtype=self.dtype)


class SparseSource(RandomAccessSource):
    """A scipy sparse matrix, made dense block by block; refused above 2 GiB."""

    shareable = False

    def __init__(self, X: Any, uri: str = "X") -> None:
        self.uri = uri
        check_shape(X.shape, uri)
        self.n_samples, self.n_features = X.shape
        self.dtype = work_dtype(X.dtype, uri)
        size = self.n_samples * self.n_features * self.dtype.itemsize
        if size > _DENSE_LIMIT_BYTES:
            raise InputError(
                f"{uri}: sparse matrices are made dense block by block, and are refused above "
                f"{format_bytes(_DENSE_LIMIT_BYTES)} dense. This one would be "
                f"{format_bytes(size)}; drop rare features first."
            )
        self._X = X.tocsr()

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return rows ``start`` to ``stop``, dense."""
        return np.asarray(self._X[start:stop].toarray(), dtype=self.dtype)


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
        return frame_source(X, "X")
    return None


def frame_source(frame: Any, uri: str) -> ArraySource:
    """Return a source for a pandas frame whose columns are all numbers.

    Raises
    ------
    InputError
        Naming the first column that is not.
    """
    for name, dtype in frame.dtypes.items():
        kind = getattr(dtype, "kind", "O")
        if kind not in "fiub":
            raise InputError(
                f"{uri}: column {name!r} holds {dtype}, not numbers. Drop or encode it."
            )
    names = [str(name) for name in frame.columns]
    check_names(names, frame.shape[1], uri)
    return ArraySource(frame.to_numpy(), uri, names)
