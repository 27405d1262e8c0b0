"""Arrays of several dimensions: one is that of the features, the others are stacked into rows."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.store.source import Source, check_names, check_shape, work_dtype
from bigfs.store.values import check_exact, decoding

# What is read of a cube at once, unless its chunks are larger.
_PIECE_BYTES = 32 * 10**6
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
        self.dtype = np.dtype(np.float64) if packed else work_dtype(self._stored, uri)
        self._plan()
        # What is put in order by way of a file is not decoded at the same time.
        n_pieces = 1 if self._thick else 2
        self.held_bytes = n_pieces * self._piece_bytes + self._decoded_bytes

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
        self._feature_step = min(chunks[self._axis], self.n_features) if self._thick else 0
        line_bytes = below[self._level]
        piece = self._step * line_bytes
        if self._thick:
            piece = max(piece, self._thick * line_bytes * self._feature_step // self.n_features)
        self._piece_bytes = min(piece, self.n_samples * row_bytes)
        chunk = math.prod(chunks) * self._stored.itemsize
        n_chunks = math.prod(-(-n // c) for n, c in zip(self._shape, chunks, strict=True))
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
        per_line = math.prod(self._shape[i] for i in self._others[self._level + 1 :])
        tiles = [
            (first * per_line, min(first + self._step, stop - start) * per_line)
            for first in range(0, stop - start, self._step)
        ]
        d, size = self.n_features, self._stored.itemsize
        # It has no name: not even a process that is killed leaves anything.
        with tempfile.TemporaryFile() as file:
            for feature in range(0, d, self._feature_step):
                some = slice(feature, min(feature + self._feature_step, d))
                piece = self._read(array, prefix, slice(start, stop), some)
                for begin, end in tiles:
                    file.seek((begin * d + (end - begin) * feature) * size)
                    file.write(np.ascontiguousarray(piece[begin:end]).data)
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
        self, array: Any, prefix: tuple[int, ...], lines: slice, features: slice
    ) -> np.ndarray:
        """Return some features of some lines, (n_rows, n_features), as they are stored."""
        key = [slice(0, size) for size in self._shape]
        for axis, place in zip(self._others, prefix, strict=False):
            key[axis] = slice(place, place + 1)
        key[self._others[self._level]] = lines
        key[self._axis] = features
        with decoding(self.uri):
            values = np.asarray(array[tuple(key)])
        return np.moveaxis(values, self._axis, -1).reshape(-1, features.stop - features.start)

    def _decoded(self, rows: np.ndarray, first_row: int) -> np.ndarray:
        """Return rows as numbers to work with; missing ones are NaN."""
        check_exact(rows, self.uri, first_row)
        numbers = rows.astype(self.dtype)
        if (self._scale, self._offset) != (1, 0):
            numbers = numbers * self._scale + self._offset
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
    said = f"has no dimension {features!r}" if features is not None else "is no matrix"
    raise InputError(
        f"{uri} {said}: its dimensions are {sizes}. Name that of the features by input.features "
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
