"""Matrices in this process's memory: NumPy, pandas, scipy sparse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.store.columns import ALL_FEATURES, Roles, refuse_unusable
from bigfs.store.encoding import encode_columns, notes_of
from bigfs.store.source import RandomAccessSource, check_names, check_shape, no_column, work_dtype
from bigfs.store.values import as_floats, check_exact

_DROP = "X.drop(columns={})"  # in pandas and Dask


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
        return as_floats(np.asarray(self._X[start:stop]), self.dtype, self.uri, start)


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
        import pandas as pd

        self.uri, all_columns = uri, frame
        # A part of a frame may have no rows.
        n_rows = len(frame) if roles.partitions is None else max(len(frame), 2)
        check_shape((n_rows, frame.shape[1]), uri)
        # Columns that pandas numbered have no names.
        named = not isinstance(frame.columns, pd.RangeIndex)
        names = [str(name) for name in frame.columns]
        if named:
            check_names(names, len(names), uri)
        kept = roles.features(names, uri) if roles != ALL_FEATURES else list(range(len(names)))
        self._ids = frame.iloc[:, names.index(roles.index)] if roles.index is not None else None
        dtypes = frame.dtypes
        kinds = {names[j]: kind for j in kept if (kind := _kind_of(dtypes.iloc[j])) is not None}
        places = {name: j for j, name in enumerate(names)}
        distinct = distinct or (lambda name: frame.iloc[:, places[name]].unique())
        encoded, dropped, refused = encode_columns(kinds, roles.encoding, distinct, uri)
        unusable = {name: str(dtypes.iloc[places[name]]) for name in refused}
        refuse_unusable(unusable, roles, names, uri, dropped_by=_DROP)
        kept = [j for j in kept if names[j] not in dropped]
        check_shape((2, len(kept)), uri)
        columns = [(j, encoded.get(names[j])) for j in kept]
        # pandas' own types can hold missing values: NaN, and float64 holds the rest.
        types = [dtypes.iloc[j] if c is None else c.dtype for j, c in columns]
        types = [work_dtype(t if isinstance(t, np.dtype) else np.float64, uri) for t in types]
        numbers = all(c is None or c.kind == "boolean" for _, c in columns)
        self._encoded = [] if numbers else columns
        self.notes = notes_of(encoded.values(), dropped)
        self.categories = {name: column.values for name, column in encoded.items()}
        features = [
            feature for j, c in columns for feature in ([names[j]] if c is None else c.features)
        ]
        self.n_samples, self.n_features = len(frame), len(features)
        self.dtype = np.result_type(*types)
        self.feature_names = features if named else None
        if not self._encoded and len(kept) < len(names):
            frame = frame.iloc[:, kept]
        self.index, self._all = roles.index, all_columns
        self._frame = frame

    def read_column(self, name: str) -> Any:
        """Return a column of the frame."""
        names = [str(column) for column in self._all.columns]
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
        if self._encoded:
            parts = [
                piece.iloc[:, [j]].to_numpy(dtype=self.dtype, na_value=np.nan)
                if c is None or c.kind == "boolean"
                else c.encode(piece.iloc[:, j], self.uri).astype(self.dtype)
                for j, c in self._encoded
            ]
            return np.concatenate(parts, axis=1)
        integers = piece.select_dtypes(["int64", "uint64"])
        check_exact(integers.to_numpy(), self.uri, start, list(integers.columns))
        rows = piece.to_numpy(dtype=self.dtype, na_value=np.nan)
        return np.ascontiguousarray(rows)


def _kind_of(dtype: Any) -> str | None:
    """Return the kind of a frame's column that holds no numbers, or may hold none."""
    kind = getattr(dtype, "kind", "O")
    if kind == "b":
        return "boolean"
    if kind == "M":
        return "date"
    return None if kind in "fiu" else "category"


def refuse_texts(X: Any) -> None:
    """Raise InputError if columns of a pandas frame hold texts, dates or categories of texts."""
    if not (type(X).__module__.startswith("pandas") and hasattr(X, "columns")):
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
    names = [str(name) for name in X.columns]
    refuse_unusable(unusable, ALL_FEATURES, names, "X", dropped_by=_DROP)


def open_memory(X: Any, roles: Roles = ALL_FEATURES) -> RandomAccessSource | None:
    """Return a source for an object in memory, None for one of another kind."""
    if isinstance(X, np.ma.MaskedArray):
        raise InputError("X is a masked array: fill it first, for example X.filled(numpy.nan).")
    if isinstance(X, np.ndarray):
        return ArraySource(X)
    root = type(X).__module__.split(".")[0]
    if root == "scipy" and hasattr(X, "tocsr"):
        from bigfs.store.csr import CSRSource

        return CSRSource(X)
    if root == "pandas" and hasattr(X, "columns"):
        return FrameSource(X, roles=roles)
    return None
