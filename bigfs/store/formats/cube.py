"""Arrays of several dimensions, of which one holds the features and the others become rows."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from bigfs.core.errors import InputError
from bigfs.store.scratch import temporary_file
from bigfs.store.source import Source, check_shape, work_dtype
from bigfs.store.values import check_exact, decoding

logger = logging.getLogger("bigfs")

# Names by which the last dimension is recognized as that of the features.
_CALLED = ("band", "wavelength", "feature", "gene", "channel")
# Callable that returns a context with an open array or group of arrays. Its pickle is small.
Place: TypeAlias = Callable[[], AbstractContextManager[Any]]
Features: TypeAlias = str | int | Sequence[str | int] | None
# Bytes read of a cube at once, unless its chunks are larger.
_PIECE_BYTES = 16 * 10**6
# Number of chunks that zarr decodes at once.
DECODED_AT_ONCE = 10


@contextmanager
def open_transposed(place: Place) -> Iterator[Any]:
    """Open an array with its dimensions reversed, as MATLAB stores them in HDF5."""
    with place() as array:
        yield _Reversed(array)


class _Reversed:
    def __init__(self, array: Any) -> None:
        self._array, self.dtype = array, array.dtype
        self.shape = tuple(array.shape[::-1])
        self.chunks = None if array.chunks is None else tuple(array.chunks[::-1])

    def __getitem__(self, key: slice | tuple[slice, ...]) -> np.ndarray:
        given = key if isinstance(key, tuple) else (key,)
        full = (*given, *(slice(0, n) for n in self.shape[len(given) :]))
        return np.asarray(self._array[full[::-1]]).T


class Later:
    """Array of known shape whose values are loaded lazily, at the first read."""

    chunks = None

    def __init__(self, shape: Sequence[int], dtype: np.dtype, make: Callable[[], Any]) -> None:
        self.shape, self.dtype, self._make = tuple(shape), dtype, make
        self._array: Any = None

    def __getitem__(self, key: tuple[slice, ...]) -> np.ndarray:
        if self._array is None:
            self._array = self._make()
        return np.asarray(self._array[key])


@contextmanager
def _open_later(shape: Sequence[int], dtype: np.dtype, make: Callable[[], Any]) -> Iterator[Later]:
    """Yield an array that is loaded at the first read, and freed after the context."""
    yield Later(shape, dtype, make)


def open_loaded(
    uri: str, shape: Sequence[int], dtype: np.dtype, load: Callable[[], Any], **cube: Any
) -> CubeSource:
    """Open an array that is loaded as a whole.

    The memory for its decompressed bytes and for the array copied from them is counted.

    ``cube`` has ``features`` and ``no_data`` of a `CubeSource`, if given.
    """
    source = CubeSource(uri, partial(_open_later, shape, dtype, load), None, **cube)
    source.held_bytes += 2 * math.prod(shape) * dtype.itemsize
    return source


class CubeSource(Source):
    """Array read piece by piece, with all dimensions but that of the features stacked into rows.

    Rows are in C order of these dimensions: the last one varies fastest. If its chunks are larger
    than a piece along the rows, values are sorted by rows in a temporary file, so that each chunk
    is decoded only once.

    Parameters
    ----------
    uri : str
    place : Place
        Its context returns an array that has ``shape``, ``dtype``, ``chunks`` and slices.
    dims : sequence of str or None
        Names of the dimensions; None if they have none.
    features : str, int, list of them or None
        Names or numbers of the dimensions of the features. None: the last of two.
    no_data : float or None, default=None
        Stored value that represents a missing one.
    names : array or None, default=None
        Values along the dimension of the features, which become the feature names.
    decode : callable or None, default=None
        ``decode(rows)`` returns stored values as numbers.
    """

    n_samples: int
    _stored: np.dtype

    def __init__(
        self,
        uri: str,
        place: Place,
        dims: Sequence[str] | None,
        features: Features = None,
        no_data: float | None = None,
        *,
        names: Any = None,
        decode: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> None:
        self.uri, self._place = uri, place
        with place() as array:
            shape, self._stored = tuple(int(n) for n in array.shape), np.dtype(array.dtype)
            self._chunks = None if array.chunks is None else tuple(map(int, array.chunks))
        if len(shape) < 2:
            check_shape(shape, uri)
        dims = list(dims or map(str, range(len(shape))))
        self._axes = axes_of(features, dims, shape, uri)
        self._others = [i for i in range(len(shape)) if i not in self._axes]
        self._shape, self.n_features = shape, math.prod(shape[i] for i in self._axes)
        self._sizes = [shape[i] for i in self._others]
        self.n_samples = math.prod(self._sizes)
        check_shape((self.n_samples, self.n_features), uri)
        self.grid = {"dims": [dims[i] for i in self._others], "shape": self._sizes}
        self.feature_names = as_names(names, self.n_features)
        self._no_data, self._decode = no_data, decode
        of_one = np.zeros((1, 1), self._stored)
        self._value_type = of_one.dtype if decode is None else decode(of_one).dtype
        self.dtype = work_dtype(self._value_type, uri)
        self._plan()
        self.starts_quickly = not self._thick
        # Pieces that are sorted in a file are not decoded at the same time.
        n_pieces = 1 if self._thick else 2
        self.held_bytes = n_pieces * self.piece_bytes + self._decoded_bytes

    def _plan(self) -> None:
        """Choose what is read at once: lines along a dimension, as many as fit into a piece.

        This sets ``_level``, the dimension (among those of the rows), ``_lines``, the number of
        lines in a piece, and ``_thick``, the lines of a chunk if they are more, or else 0.
        """
        sizes = self._sizes
        row_bytes = self.n_features * self.dtype.itemsize
        below = [math.prod(sizes[i + 1 :]) * row_bytes for i in range(len(sizes))]
        fits = [i for i, size in enumerate(below) if size <= _PIECE_BYTES]
        self._level = fits[0] if fits else len(sizes) - 1
        self._lines = max(1, _PIECE_BYTES // below[self._level])
        chunks = self._chunks or (1,) * len(self._shape)
        line = min(chunks[self._others[self._level]], sizes[self._level])
        self._thick = line if line > self._lines else 0
        self._step = self._lines if self._thick else self._lines // line * line
        self._feature_step = self.n_features
        if self._thick and len(self._axes) == 1:
            self._feature_step = min(chunks[self._axes[0]], self.n_features)
        line_bytes, n_along = below[self._level], [*sizes, 1][self._level + 1]
        # Lines to be sorted are read in parts if all of them exceed a piece.
        read = (self._thick or self._step) * line_bytes * self._feature_step // self.n_features
        self._along = n_along
        if self._thick and read > _PIECE_BYTES and self._level + 1 < len(sizes):
            unit = min(chunks[self._others[self._level + 1]], n_along)
            self._along = max(1, _PIECE_BYTES * n_along // (read * unit)) * unit
        self._along = min(self._along, n_along)
        piece = max(self._step * line_bytes, read * self._along // n_along)
        in_order = min(self._thick, sizes[self._level]) * line_bytes // self.dtype.itemsize
        self.temporary_bytes = in_order * self._stored.itemsize
        self.piece_bytes = min(piece, self.n_samples * row_bytes)
        extents = [1] * self._level + [self._thick or self._step, self._along]
        extents = [*extents, *sizes[self._level + 2 :]][: len(sizes)]
        read_at_once = dict(zip(self._others, extents, strict=True))
        read_at_once |= {i: min(self._feature_step, self._shape[i]) for i in self._axes}
        n_chunks = math.prod(
            -(-min(read_at_once[i], n) // chunks[i]) for i, n in enumerate(self._shape)
        )
        chunk = math.prod(chunks) * self._stored.itemsize
        self._decoded_bytes = min(DECODED_AT_ONCE, n_chunks) * chunk if self._chunks else 0

    @property
    def stored_dtype(self) -> np.dtype:
        """Type of the decoded values; a file with a scale stores them in another type."""
        return self._value_type

    @property
    def is_plain(self) -> bool:
        """True for a matrix with features in columns, no decoding and no ``no_data`` value."""
        return (self._shape[2:], self._axes, self._decode, self._no_data) == ((), (1,), None, None)

    @property
    def has_features_last(self) -> bool:
        """True if the dimensions of the features are the last ones."""
        return self._axes[0] == len(self._others)

    def iter_rows(self, rows: int) -> Iterator[np.ndarray]:
        """Yield consecutive arrays of at most ``rows`` rows."""
        first = 0
        with self._place() as array:
            for piece in self._pieces(array):
                for start in range(0, len(piece), rows):
                    yield self._decoded(piece[start : start + rows], first + start)
                first += len(piece)

    def _pieces(self, array: Any) -> Iterator[np.ndarray]:
        """Yield all rows as they are stored, in order."""
        n_lines, at_once = self._sizes[self._level], self._thick or self._step
        for prefix in np.ndindex(*self._sizes[: self._level]):
            for start in range(0, n_lines, at_once):
                lines = slice(start, min(start + at_once, n_lines))
                if self._thick:
                    yield from self._in_order(array, prefix, lines)
                else:
                    yield self._read(array, prefix, lines, slice(0, self.n_features))

    def _in_order(self, array: Any, prefix: tuple[int, ...], lines: slice) -> Iterator[np.ndarray]:
        """Yield the rows of the given lines, reading each chunk once and sorting in a file.

        The file has one group of features after the other, each with all rows.
        """
        sizes = self._sizes[self._level + 1 :]
        d, size, n_lines = self.n_features, self._stored.itemsize, lines.stop - lines.start
        n_along, inner = [*sizes, 1][0], math.prod(sizes[1:])
        # Lines that are read in parts are sorted one by one.
        per_line, step = n_along * inner, self._step if self._along == n_along else 1
        n_rows = n_lines * per_line
        with temporary_file() as file:
            for feature, first in product(
                range(0, d, self._feature_step), range(0, n_along, self._along)
            ):
                some = slice(feature, min(feature + self._feature_step, d))
                along = slice(first, min(first + self._along, n_along))
                piece = self._read(array, prefix, lines, some, along)
                n_read = (along.stop - first) * inner  # rows of a line
                for i in range(0, n_lines, step):
                    row = i * per_line + first * inner
                    file.seek((n_rows * feature + row * (some.stop - feature)) * size)
                    part = piece[i * n_read : (i + step) * n_read]
                    file.write(np.ascontiguousarray(part).data)
            del piece
            for begin in range(0, n_rows, step * per_line):
                rows = np.empty((min(step * per_line, n_rows - begin), d), self._stored)
                for feature in range(0, d, self._feature_step):
                    width = min(self._feature_step, d - feature)
                    file.seek((n_rows * feature + begin * width) * size)
                    content = file.read(len(rows) * width * size)
                    part = np.frombuffer(content, self._stored).reshape(-1, width)
                    rows[:, feature : feature + width] = part
                yield rows

    def _read(
        self,
        array: Any,
        prefix: tuple[int, ...],
        lines: slice,
        features: slice,
        along: slice | None = None,
    ) -> np.ndarray:
        """Return the given features of the given lines, as they are stored.

        Parameters
        ----------
        array : array-like with slices
        prefix : tuple of int
            Indices along the dimensions before that of the lines.
        lines : slice
        features : slice
        along : slice or None, default=None
            Range along the dimension after that of the lines. None: all of it.

        Returns
        -------
        values : ndarray of shape (n_rows, n_features)
        """
        key = [slice(0, size) for size in self._shape]
        for axis, place in zip(self._others, prefix, strict=False):
            key[axis] = slice(place, place + 1)
        key[self._others[self._level]] = lines
        if along is not None and self._level + 1 < len(self._others):
            key[self._others[self._level + 1]] = along
        if len(self._axes) == 1:  # several feature dimensions are always read in full
            key[self._axes[0]] = features
        with decoding(self.uri):
            values = np.asarray(array[tuple(key)])
        values = values.transpose(*self._others, *self._axes)
        return values.reshape(-1, features.stop - features.start)

    def _decoded(self, rows: np.ndarray, first_row: int) -> np.ndarray:
        """Return stored rows as decoded numbers of the working dtype; missing values are NaN."""
        check_exact(rows, self.uri, first_row)
        numbers = (rows if self._decode is None else self._decode(rows)).astype(self.dtype)
        if self._no_data is not None:
            numbers[rows == self._no_data] = np.nan
        return np.ascontiguousarray(numbers)


def axes_of(
    features: Features, dims: list[str], shape: tuple[int, ...], uri: str
) -> tuple[int, ...]:
    """Return the axes of the features, in ascending order.

    If none is named, it is the last axis, provided that there are two or that its name is one of
    features (such as "band").

    Raises
    ------
    InputError
        If a name or number is not a dimension, or none is named and none is recognized.
    """
    if features is None and len(shape) == 2:
        return (1,)
    if features is None and len(dims) > 2 and dims[-1].lower() in _CALLED:
        logger.warning(
            "%s: the features are along %r; the other dimensions are rows.", uri, dims[-1]
        )
        return (len(dims) - 1,)
    wanted = features if isinstance(features, (list, tuple)) else [features]
    axes: set[int] = set()
    for feature in wanted or [features]:
        if feature in dims:
            axes.add(dims.index(str(feature)))
        elif isinstance(feature, int) and -len(shape) <= feature < len(shape):
            axes.add(feature % len(shape))
        else:
            sizes = ", ".join(f"{name}: {size:,}" for name, size in zip(dims, shape, strict=True))
            likely = next((dim for dim in dims if dim.lower() in _CALLED), dims[-1])
            problem = "is not a matrix" if feature is None else f"has no dimension {feature!r}"
            raise InputError(
                f"{uri} {problem}: its dimensions are {sizes}. Name the feature dimension, in "
                f"Python with fit(bigfs.open_matrix(X, features={likely!r})), in a pipeline with "
                "input.features; the others become rows."
            )
    return tuple(sorted(axes))


def as_names(values: Any, n_features: int) -> list[str] | None:
    """Return the values along a dimension as names, or None if they cannot be names.

    They must be unique, and one for each feature.
    """
    if values is None:
        return None
    values = np.asarray(values)
    if values.dtype.kind == "M":
        values = np.datetime_as_string(values, unit="auto")
    # Convert one by one, so that float32 is written with its own digits.
    texts = [v.decode() if isinstance(v, bytes) else str(v) for v in values]
    return texts if len(set(texts)) == len(texts) == n_features else None


def names_of_dimensions(array: Any) -> list[str] | None:
    """Return the names of the dimensions of a zarr array, or None if it has none."""
    dims = getattr(array.metadata, "dimension_names", None)
    names = dims or array.attrs.get("_ARRAY_DIMENSIONS")  # xarray's, in version 2
    return None if names is None else list(names)


def as_stacked(
    values: np.ndarray,
    dims: Sequence[str] | None,
    others: Iterable[Sequence[str] | None],
    rows: Collection[str] = (),
) -> np.ndarray:
    """Return an image of labels, or a mask, with its dimensions in the order of the rows.

    Parameters
    ----------
    values : ndarray
    dims : sequence of str or None
        Names of the dimensions of ``values``.
    others : iterable of (sequence of str or None)
        Names of the dimensions of the arrays next to it. If ``rows`` is unknown, the order is that
        of the arrays which have all of these dimensions and more, if they agree.
    rows : sequence of str, default=()
        Names of the dimensions of the rows that the values belong to, in order, if known.
    """
    if dims is None or values.ndim < 2:
        return values
    if set(rows) == set(dims):
        return values.transpose([dims.index(name) for name in rows])
    larger = [names for names in others if names is not None and set(dims) < set(names)]
    orders = {tuple(name for name in names if name in dims) for names in larger}
    return values.transpose([dims.index(d) for d in orders.pop()]) if len(orders) == 1 else values
