"""Arrays of several dimensions: one is that of the features, the others are stacked into rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.store.scratch import temporary_file
from bigfs.store.source import Source, check_names, check_shape, work_dtype
from bigfs.store.values import check_exact, decoding

# What is read of a cube at once, unless its chunks are larger.
_PIECE_BYTES = 16 * 10**6
# Chunks that zarr decodes at once.
_DECODED_AT_ONCE = 10
# Attributes of the conventions of NetCDF: values that are missing, and how numbers are packed.
_MISSING = ("_FillValue", "missing_value")


@dataclass(frozen=True)
class Transposed:
    """The place of an array whose dimensions are in reverse order, as MATLAB's are in HDF5."""

    place: Any

    @contextmanager
    def open(self) -> Iterator[Any]:
        """Open the array."""
        with self.place.open() as array:
            yield _Reversed(array)


class _Reversed:
    def __init__(self, array: Any) -> None:
        self._array, self.dtype = array, array.dtype
        self.shape = tuple(array.shape[::-1])
        self.chunks = None if array.chunks is None else tuple(array.chunks[::-1])

    def __getitem__(self, key: tuple[slice, ...]) -> np.ndarray:
        return np.asarray(self._array[key[::-1]]).T


class CubeSource(Source):
    """An array read piece by piece, whose rows are all but one of its dimensions.

    Rows are in the order of the array: the last of the other dimensions runs fastest. Where its
    chunks hold few features of many rows, they are brought into order of rows in scratch, so
    that each is decoded once.

    Parameters
    ----------
    uri : str
    place : object with open()
        Its context gives an array with ``shape``, ``dtype``, ``chunks`` and slices.
    dims : sequence of str or None
        Names of the dimensions; None where they have none.
    features : str, int or None
        Name or number of the dimension of features. None: the last of two.
    coordinates : mapping of str to array, default={}
        Values along dimensions; those of the features are their names.
    attributes : mapping, default={}
        ``_FillValue``, ``scale_factor`` and ``add_offset`` are applied.
    no_data : float or None, default=None
        A value that stands for a missing one.
    """

    n_samples: int

    def __init__(
        self,
        uri: str,
        place: Any,
        dims: Sequence[str] | None,
        features: str | int | None,
        coordinates: Mapping[str, Any] | None = None,
        attributes: Mapping[str, Any] | None = None,
        no_data: float | None = None,
    ) -> None:
        self.uri, self._place = uri, place
        with place.open() as array:
            shape, self._stored = tuple(int(n) for n in array.shape), np.dtype(array.dtype)
            self._chunks = None if array.chunks is None else tuple(map(int, array.chunks))
        if len(shape) < 2:
            check_shape(shape, uri)
        names = list(dims or [str(i) for i in range(len(shape))])
        self._axis = _axis(features, names, shape, uri)
        self._others = [i for i in range(len(shape)) if i != self._axis]
        self._shape, self.n_features = shape, shape[self._axis]
        self.n_samples = math.prod(shape[i] for i in self._others)
        check_shape((self.n_samples, self.n_features), uri)
        self.grid = {
            "dims": [names[i] for i in self._others], "shape": [shape[i] for i in self._others],
        }  # fmt: skip
        self.feature_names = _names((coordinates or {}).get(names[self._axis]), self.n_features)
        given = attributes or {}
        self._missing = [given[name] for name in _MISSING if name in given]
        self._missing += [] if no_data is None else [no_data]
        self._scale = float(np.asarray(given.get("scale_factor", 1)).ravel()[0])
        self._offset = float(np.asarray(given.get("add_offset", 0)).ravel()[0])
        packed = (self._scale, self._offset) != (1, 0)
        small = self._stored.kind in "iu" and self._stored.itemsize <= 2 and self._offset == 0
        # As xarray unpacks numbers.
        wide = packed and not small and self._stored != np.float32
        self.dtype = np.dtype(np.float64) if wide else work_dtype(self._stored, uri)
        self._plan()
        self.starts_quickly = not self._thick
        # What is put in order by way of a file is not decoded at the same time.
        n_pieces = 1 if self._thick else 2
        self.held_bytes = n_pieces * self.piece_bytes + self._decoded_bytes

    def _plan(self) -> None:
        """Choose what is read at once: lines along a dimension, of as many rows as fit a piece."""
        sizes = [self._shape[i] for i in self._others]
        row_bytes = self.n_features * self.dtype.itemsize
        below = [math.prod(sizes[i + 1 :]) * row_bytes for i in range(len(sizes))]
        fits = [i for i, size in enumerate(below) if size <= _PIECE_BYTES]
        self._level = fits[0] if fits else len(sizes) - 1
        self._lines = max(1, _PIECE_BYTES // below[self._level])
        chunks = self._chunks or (1,) * len(self._shape)
        line = min(chunks[self._others[self._level]], sizes[self._level])
        self._thick = line if line > self._lines else 0
        self._step = self._lines if self._thick else self._lines // line * line
        self._feature_step = min(chunks[self._axis], self.n_features)
        self._feature_step = self._feature_step if self._thick else self.n_features
        line_bytes, n_along = below[self._level], [*sizes, 1][self._level + 1]
        # Lines that are put in order are read in parts, if all of them are too much.
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
        read_at_once[self._axis] = self._feature_step
        n_chunks = math.prod(
            -(-min(read_at_once[i], n) // chunks[i]) for i, n in enumerate(self._shape)
        )
        chunk = math.prod(chunks) * self._stored.itemsize
        self._decoded_bytes = min(_DECODED_AT_ONCE, n_chunks) * chunk if self._chunks else 0

    @property
    def stored_dtype(self) -> np.dtype:
        """Type of the array."""
        return self._stored

    def iter_blocks(self, rows: int) -> Iterator[np.ndarray]:
        """Yield consecutive arrays of at most ``rows`` rows."""
        first = 0
        with self._place.open() as array:
            for piece in self._pieces(array):
                for start in range(0, len(piece), rows):
                    yield self._decoded(piece[start : start + rows], first + start)
                first += len(piece)

    def _pieces(self, array: Any) -> Iterator[np.ndarray]:
        """Yield rows as they are stored, in order."""
        sizes = [self._shape[i] for i in self._others]
        n_lines = sizes[self._level]
        for prefix in np.ndindex(*sizes[: self._level]):
            if self._thick:
                for start in range(0, n_lines, self._thick):
                    stop = min(start + self._thick, n_lines)
                    yield from self._in_order(array, prefix, start, stop)
                continue
            for start in range(0, n_lines, self._step):
                lines = slice(start, min(start + self._step, n_lines))
                yield self._read(array, prefix, lines, slice(0, self.n_features))

    def _in_order(
        self, array: Any, prefix: tuple[int, ...], start: int, stop: int
    ) -> Iterator[np.ndarray]:
        """Yield the rows of some lines, of which each chunk is read once, by way of scratch."""
        sizes = [self._shape[i] for i in (*self._others[self._level + 1 :], self._axis)]
        *sizes, d = sizes
        n_along, inner = [*sizes, 1][0], math.prod(sizes[1:])
        # Lines that are read in parts are put in order one by one.
        per_line, step = n_along * inner, self._step if self._along == n_along else 1
        tiles = [
            (first * per_line, min(first + step, stop - start) * per_line)
            for first in range(0, stop - start, step)
        ]
        size, lines = self._stored.itemsize, slice(start, stop)
        with temporary_file() as file:
            for feature, first in product(
                range(0, d, self._feature_step), range(0, n_along, self._along)
            ):
                some = slice(feature, min(feature + self._feature_step, d))
                along = slice(first, min(first + self._along, n_along))
                piece = self._read(array, prefix, lines, some, along)
                n_rows = (along.stop - first) * inner  # of a line
                for begin, end in tiles:
                    place = begin * d + (end - begin) * feature
                    place += first * inner * (some.stop - feature)
                    file.seek(place * size)
                    part = piece[begin // per_line * n_rows : end // per_line * n_rows]
                    file.write(np.ascontiguousarray(part).data)
            del piece
            for begin, end in tiles:
                file.seek(begin * d * size)
                rows = np.empty((end - begin, d), self._stored)
                for feature in range(0, d, self._feature_step):
                    width = min(self._feature_step, d - feature)
                    content = file.read((end - begin) * width * size)
                    part = np.frombuffer(content, self._stored).reshape(end - begin, width)
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
        """Return some features of (a part of) some lines, (n_rows, n_features), as stored."""
        key = [slice(0, size) for size in self._shape]
        for axis, place in zip(self._others, prefix, strict=False):
            key[axis] = slice(place, place + 1)
        key[self._others[self._level]] = lines
        if along is not None and self._level + 1 < len(self._others):
            key[self._others[self._level + 1]] = along
        key[self._axis] = features
        with decoding(self.uri):
            values = np.asarray(array[tuple(key)])
        return np.moveaxis(values, self._axis, -1).reshape(-1, features.stop - features.start)

    def _decoded(self, rows: np.ndarray, first_row: int) -> np.ndarray:
        """Return rows as numbers to work with; missing ones are NaN."""
        check_exact(rows, self.uri, first_row)
        numbers = rows.astype(self.dtype)
        if (self._scale, self._offset) != (1, 0):
            numbers *= self._scale
            numbers += self._offset
        for value in self._missing:
            numbers[rows == value] = np.nan
        return np.ascontiguousarray(numbers)


def _axis(features: str | int | None, dims: list[str], shape: tuple[int, ...], uri: str) -> int:
    """Return the dimension of the features."""
    if features is None and len(shape) == 2:
        return 1
    if features in dims:
        return dims.index(str(features))
    if isinstance(features, int) and -len(shape) <= features < len(shape):
        return features % len(shape)
    sizes = ", ".join(f"{name}: {size:,}" for name, size in zip(dims, shape, strict=True))
    problem = f"has no dimension {features!r}" if features is not None else "is not a matrix"
    raise InputError(
        f"{uri} {problem}: its dimensions are {sizes}. Name that of the features by input.features "
        "(features=); the others become rows."
    )


def _names(values: Any, n_features: int) -> list[str] | None:
    """Return the coordinates of features as their names, None if they are no names."""
    if values is None:
        return None
    texts = [v.decode() if isinstance(v, bytes) else str(v) for v in np.asarray(values).tolist()]
    if len(texts) != n_features or len(set(texts)) < n_features:
        return None
    check_names(texts, n_features, "coordinates")
    return texts


def names_of_dimensions(array: Any) -> list[str] | None:
    """Return the names of a zarr array's dimensions, if it has any."""
    dims = getattr(array.metadata, "dimension_names", None)
    names = dims or array.attrs.get("_ARRAY_DIMENSIONS")  # xarray's, in version 2
    return None if names is None else list(names)


def as_stacked(
    values: np.ndarray, dims: Sequence[str] | None, others: Iterable[Sequence[str] | None]
) -> np.ndarray:
    """Return an image of labels, or a mask, with its dimensions in the order that rows have.

    Parameters
    ----------
    values : ndarray
    dims : sequence of str or None
        Names of its dimensions.
    others : iterable of (sequence of str or None)
        Those of the arrays beside it: of such with more dimensions the order counts.
    """
    if dims is None or values.ndim < 2:
        return values
    larger = [names for names in others if names is not None and set(dims) < set(names)]
    orders = {tuple(name for name in names if name in dims) for names in larger}
    return values.transpose([dims.index(d) for d in orders.pop()]) if len(orders) == 1 else values
