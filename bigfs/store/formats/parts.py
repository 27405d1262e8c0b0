"""Matrices stored as one array (dense) or three (CSR, CSC) in HDF5 and zarr, read by row blocks.

A place opens the array, or the group that has ``data``, ``indices`` and ``indptr``.
"""

from __future__ import annotations

import io
import weakref
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import IO, Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.core.units import GIB
from bigfs.runtime.progress import track
from bigfs.store import csr
from bigfs.store.formats.cube import CubeSource, Place
from bigfs.store.location import METADATA_BYTES
from bigfs.store.scratch import temporary_file
from bigfs.store.source import CSRLayout, RandomAccessSource, Source
from bigfs.store.values import HEAD_ROWS, are_counts, as_floats, check_exact, decoding

PARTS = ("data", "indices", "indptr")
# Number of entries read at once of a matrix stored by columns, and of those in a band of rows.
_PIECE_ENTRIES, _BAND_ENTRIES = 2**20, 2**22
# Upper bound of the groups of rows that pieces are sorted by, and lower bound of the entries in a
# piece of text.
_MOST_GROUPS, _FEWEST_IN_PIECE = 2**12, 2**16
# Number of entries read at once of a matrix stored by rows, unless a chunk is larger.
_READ_ENTRIES = 2**18
_TEXTS_AT_ONCE = 2**14
# Memory for decoding chunks that the estimate for a block already includes.
_USUAL_BYTES = 64 * 10**6
_MOST_POINTER_BYTES = 2 * GIB
_BAD_INDPTR = "indptr is not a non-decreasing sequence from 0 to the number of entries"


@contextmanager
def open_here(node: Any) -> Iterator[Any]:
    """Yield an array or group that is already open in this process."""
    if type(node).__module__.startswith("h5py"):
        from bigfs.store.formats.hdf5 import checked

        node = checked(node, node.name)
    yield node


def _is_here(place: Place) -> bool:
    return getattr(place, "func", None) is open_here


@dataclass(frozen=True)
class StoredTexts:
    """Array of texts, one for each row or feature, read in pieces."""

    place: Place

    def pieces(self, start: int, stop: int) -> Iterator[list[str]]:
        """Yield the texts from ``start`` to ``stop`` in pieces."""
        with self.place() as array:
            chunks = getattr(array, "chunks", None)  # arrays in memory have none
            chunk = chunks[0] if chunks else 1
            step = -(-_TEXTS_AT_ONCE // chunk) * chunk
            for begin in range(start, stop, step):
                piece = array[begin : min(begin + step, stop)]
                yield [text.decode() if isinstance(text, bytes) else str(text) for text in piece]


def held_texts(values: Any) -> StoredTexts:
    """Return texts in memory, or values that are converted to texts, as `StoredTexts`."""
    return StoredTexts(partial(open_here, values))


def all_texts(texts: StoredTexts, length: int, uri: str) -> list[str]:
    """Return the names of all features, or raise InputError if they exceed `METADATA_BYTES`."""
    names: list[str] = []
    size = 0
    for piece in texts.pieces(0, length):
        names += piece
        size += sum(map(len, piece))
        if size > METADATA_BYTES:
            raise InputError(f"{uri}: the names of the features are too long.")
    return names


def check_length(shape: tuple[int, ...], length: int, name: str, uri: str) -> None:
    """Raise InputError unless there is one text for each feature or row."""
    if shape != (length,):
        raise InputError(
            f"{uri}: {name} has {shape} names for {length:,} features or rows. Write it again."
        )


def in_blocks(rows: Any, size: int) -> Iterator[Any]:
    """Yield the given rows as consecutive blocks of at most ``size`` rows."""
    for start in range(0, rows.shape[0], size):
        yield rows[start : start + size]


class ArrayByRows(RandomAccessSource):
    """Dense array whose rows are read by range from where it is stored."""

    _cure = "Write it again."  # if rows cannot be decoded

    def __init__(self, place: Place, uri: str) -> None:
        self._place, self.shareable = place, not _is_here(place)
        with place() as array:
            self.set_matrix(uri, array.shape, array.dtype)
            chunks = getattr(array, "chunks", None)  # NumPy arrays have none
        self.held_bytes = _decoded(chunks, self.stored_dtype.itemsize)
        self.chunk_rows = None if chunks is None else int(chunks[0])

    def read_rows(self, start: int, stop: int) -> np.ndarray:
        """Return rows ``start`` to ``stop``."""
        with decoding(f"{self.uri}: rows {start} to {stop}", self._cure), self._place() as array:
            rows = self._stored_rows(array, start, stop)
        return as_floats(rows, self.dtype, self.uri, start)

    def _stored_rows(self, array: Any, start: int, stop: int) -> Any:
        """Return rows as they are stored."""
        return array[start:stop]


def open_dense(place: Place, uri: str) -> Source:
    """Open a dense array, whose rows are read by range, or in order if its chunks are large.

    Large chunks are decoded only once in a pass.
    """
    source = ArrayByRows(place, uri)
    rows = min(source.chunk_rows or 1, source.n_samples)
    is_large = rows > 1 and rows * source.n_features * source.dtype.itemsize > _USUAL_BYTES
    return CubeSource(uri, place, None) if is_large else source


class _SomeFeatures(Source):
    """Sparse matrix in a file, of which all or some columns are features."""

    sparse = True
    _kept: np.ndarray | None = None
    _width: int  # number of columns of the file

    def keep(self, kept: np.ndarray) -> None:
        """Use only the given columns of the file as features."""
        self._width, self._kept, self.n_features = self.n_features, kept, len(kept)

    def _check_pointers(self, count: int) -> None:
        """Raise InputError if ``count`` pointers, or the columns, are too many to be read."""
        if 8 * count > _MOST_POINTER_BYTES or self.n_features >= 2**31:
            shape = (self.n_samples, self.n_features)
            raise InputError(
                f"{self.uri}: a sparse matrix of shape {shape} is too large to be read."
            )

    @property
    def _n_columns(self) -> int:
        """Number of columns of the file."""
        return self.n_features if self._kept is None else self._width

    def _block(self, rows: Any) -> Any:
        """Return rows of the file as a block of the features."""
        return csr.as_block(rows if self._kept is None else rows[:, self._kept], self.dtype)


class _Parts(_SomeFeatures):
    """Sparse matrix stored as three arrays, of which only the sizes are read at first."""

    n_samples: int

    def __init__(self, place: Place, shape: Any, uri: str, *, by_columns: bool = False) -> None:
        self.uri, self._place = uri, place
        self.shareable = not _is_here(place)
        try:
            sizes = tuple(int(size) for size in np.asarray(shape).tolist())
        except (TypeError, ValueError):
            raise self.damaged(f"its shape is {shape!r}") from None
        with decoding(uri), place() as parts:
            data, indices, indptr = (parts[name] for name in PARTS)
            self.set_matrix(uri, sizes, data.dtype)
            n_pointers = sizes[by_columns] + 1
            if indptr.shape != (n_pointers,) or data.shape != indices.shape or data.shape[1:]:
                raise self.damaged(
                    f"data, indices and indptr have shapes {data.shape}, {indices.shape}, "
                    f"{indptr.shape}"
                )
            if indices.dtype.kind not in "iu" or indptr.dtype.kind not in "iu":
                raise self.damaged("indices and indptr must be whole numbers")
            self.n_entries = int(data.shape[0])
            decoded = sum(_decoded(part.chunks, part.dtype.itemsize) for part in (data, indices))
        self._check_pointers(n_pointers)
        self.held_bytes = decoded + max(0, 16 * n_pointers - _USUAL_BYTES)

    @cached_property
    def _indptr(self) -> np.ndarray:
        with decoding(self.uri), self._place() as parts:
            indptr = parts["indptr"]
            values = np.asarray(indptr[0 : indptr.shape[0]]).astype(np.int64)
        if values[0] or values[-1] != self.n_entries or (np.diff(values) < 0).any():
            raise self.damaged(_BAD_INDPTR)
        return values

    def damaged(self, why: str) -> InputError:
        """Return the error for parts that do not form a matrix."""
        return InputError(f"{self.uri} does not hold the parts of a sparse matrix: {why}.")

    def __getstate__(self) -> dict[str, Any]:
        # These grow with the matrix, and are read again after unpickling.
        state = super().__getstate__()
        return {name: state[name] for name in state if name not in ("_indptr", "layout")}


class CSRParts(_Parts, RandomAccessSource):
    """Sparse matrix stored by rows, whose rows are read by range."""

    @cached_property
    def layout(self) -> CSRLayout:
        """Layout with blocks of 8 to 16 MB of entries."""
        return csr.csr_layout(self._indptr, self.dtype.itemsize)

    def block_entries(self, rows: int) -> int:
        """Return the number of entries of the largest block of ``rows`` rows."""
        return csr.largest_block(self._indptr, rows)

    def read_rows(self, start: int, stop: int) -> Any:
        """Return rows ``start`` to ``stop`` in CSR form."""
        return self._block(self.read_entries(start, stop))

    def read_entries(self, start: int, stop: int) -> Any:
        """Return rows ``start`` to ``stop`` as they are stored, with explicit zeros.

        Raises
        ------
        InputError
            If the parts do not form a matrix in these rows.
        CorruptStoreError
            If they cannot be decoded.
        """
        from scipy.sparse import csr_array

        with decoding(f"{self.uri}: rows {start} to {stop}"), self._place() as parts:
            pointers = np.asarray(parts["indptr"][start : stop + 1]).astype(np.int64)
            first, last = int(pointers[0]), int(pointers[-1])
            counts = np.diff(pointers)
            if first < 0 or last > self.n_entries or (counts < 0).any():
                raise self.damaged(_BAD_INDPTR)
            if (counts > self._n_columns).any():
                raise self.damaged("a row has more entries than there are features")
            data, indices = (_by_pieces(parts[name], first, last) for name in PARTS[:2])
        try:
            # Use the types that scipy keeps without a copy; check_format refuses wrong indices.
            short = indices.dtype == np.int32 and last - first < 2**31
            columns = indices if short else indices.astype(np.int64, copy=False)
            pointers = (pointers - first).astype(np.int32 if short else np.int64)
            shape = (stop - start, self._n_columns)
            block = csr_array((data, columns, pointers), shape=shape)
            block.check_format(full_check=True)  # indices outside the shape would crash later
        except ValueError as error:
            raise self.damaged(str(error)) from None
        check_exact(block, self.uri, start)
        return block


class ByBands(_SomeFeatures):
    """Sparse matrix whose entries, stored in any order, are sorted by rows while they are copied.

    The entries of each row are counted while all entries are written to a file, usually with 12
    to 16 bytes each, and every piece is sorted by groups of rows. Then the entries of a band of
    rows lie in one range of each piece. The file is in the folder for temporary files (TMPDIR), or
    in memory if all entries fit in one band.
    """

    n_samples: int
    n_entries: int
    starts_quickly = False
    _stored: np.dtype
    _rows: np.ndarray | None = None
    # The temporary file with the entries, and the offsets of the groups of each piece in it.
    _waiting: tuple[IO[bytes], list[np.ndarray]] | None = None

    def holds_counts(self) -> bool:
        """Return True if the first entries are counts.

        Those of the first 1,000 rows are checked, or all of the first piece if it has none of them.
        """
        if not self.n_entries:
            return False
        rows, _, values = next(self.pieces())
        head = values[rows < HEAD_ROWS]
        return are_counts(head if len(head) else values)

    @abstractmethod
    def pieces(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield rows, columns and values of the entries, in the order of the file."""

    def _check_sizes(self, n_pointers: int) -> None:
        """Set the memory and disk space needed for sorting, and refuse a matrix that is too large.

        Raises
        ------
        InputError
            If the pointers or columns are too many.
        """
        self._check_pointers(n_pointers)
        held = min(self.n_entries, _BAND_ENTRIES + 2 * _PIECE_ENTRIES)
        n_bytes = self.n_entries * self._record.itemsize
        if self._n_groups > 1:
            self.temporary_bytes += n_bytes
        else:
            self.held_bytes += n_bytes + n_bytes // 8  # BytesIO allocates ahead
        self.held_bytes += 3 * held * self._record.itemsize + max(0, 16 * n_pointers - _USUAL_BYTES)
        self.held_bytes += 8 * self._n_groups * (self.n_entries // _FEWEST_IN_PIECE)

    @property
    def layout(self) -> CSRLayout:
        """Layout by the counted entries, or before that by their mean number per row."""
        if self._rows is not None:
            return csr.csr_layout(self._rows, self.dtype.itemsize)
        mean, sizes = self.n_entries / self.n_samples, (self.n_samples, self.n_entries)
        return csr.expected_layout(mean, *sizes, self.dtype.itemsize)

    def begin(self) -> None:
        """Count the entries of every row."""
        super().begin()
        if self._rows is None:
            self._count()

    def iter_rows(self, rows: int) -> Iterator[Any]:
        """Yield consecutive CSR blocks of at most ``rows`` rows."""
        from scipy.sparse import coo_array

        (file, ends), self._waiting = self._waiting or self._count(), None
        with file:
            for start, stop in self._bands(rows):
                records = self._records(file, ends, start, stop)
                values = as_floats(records["value"][None], self.dtype, self.uri, start)[0]
                content = (values, (records["row"] - start, records["column"]))
                band = coo_array(content, shape=(stop - start, self._n_columns)).tocsr()
                yield from in_blocks(self._block(band), rows)

    @property
    def _record(self) -> np.dtype:
        return np.dtype([("row", np.int32 if self.n_samples < 2**31 else np.int64),
                         ("column", np.int32), ("value", self._stored)])  # fmt: skip

    @property
    def _n_groups(self) -> int:
        """Number of row groups that each piece is sorted by: several per band, 1 for one band."""
        return min(self.n_samples, _MOST_GROUPS, 16 * (self.n_entries // _BAND_ENTRIES) + 1)

    def _group_of(self, rows: Any) -> Any:
        return rows // -(-self.n_samples // self._n_groups)

    def _count(self) -> tuple[IO[bytes], list[np.ndarray]]:
        """Count the entries of every row, and write all entries to the temporary file."""
        counts = np.zeros(self.n_samples + 1, dtype=np.int64)
        file = temporary_file() if self._n_groups > 1 else io.BytesIO()
        weakref.finalize(self, file.close)
        ends, n_written = [], 0
        with track("entries of the rows", self.n_entries, "entries") as progress:
            for rows, columns, values in self.pieces():
                piece = np.empty(len(values), self._record)
                piece["row"], piece["column"], piece["value"] = rows, columns, values
                np.add.at(counts, piece["row"] + 1, 1)
                in_group = np.array([len(piece)])
                if self._n_groups > 1:
                    groups = self._group_of(piece["row"]).astype(np.uint16)
                    if (groups[1:] < groups[:-1]).any():
                        piece = piece[np.argsort(groups, kind="stable")]
                    in_group = np.bincount(groups, minlength=self._n_groups)
                ends.append(n_written + np.cumsum([0, *in_group]))
                n_written += len(piece)
                file.write(piece.data)
                progress.advance(len(piece))
        self._rows, self._waiting = np.cumsum(counts, out=counts), (file, ends)
        return self._waiting

    def _bands(self, rows: int) -> list[tuple[int, int]]:
        """Return the bands of whole blocks as pairs of the first row and the one past the last."""
        assert self._rows is not None  # set by _count
        edges = [0]
        for stop in [*range(rows, self.n_samples, rows), self.n_samples]:
            begun = len(edges) > 1 and self._rows[stop] - self._rows[edges[-2]] <= _BAND_ENTRIES
            edges[-1:] = [stop] if begun else [edges[-1], stop]
        return list(pairwise(edges))

    def _records(
        self, file: IO[bytes], ends: list[np.ndarray], start: int, stop: int
    ) -> np.ndarray:
        """Return the entries of the given rows; those of one row are in the order of the input."""
        assert self._rows is not None  # set by _count
        first, last = self._group_of(start), self._group_of(stop - 1) + 1
        # Treat each record as one opaque value: NumPy copies the fields of records one by one.
        entries = np.empty(self._rows[stop] - self._rows[start], f"V{self._record.itemsize}")
        filled = 0
        for of_groups in ends:
            file.seek(int(of_groups[first]) * entries.itemsize)
            content = file.read(int(of_groups[last] - of_groups[first]) * entries.itemsize)
            row = np.frombuffer(content, self._record)["row"]
            part = np.frombuffer(content, entries.dtype)
            if (start, stop) != (0, self.n_samples):
                part = part[(row >= start) & (row < stop)]
            entries[filled : filled + len(part)] = part
            filled += len(part)
        return entries.view(self._record)


class CSCParts(_Parts, ByBands):
    """Sparse matrix stored by columns."""

    def __init__(self, place: Place, shape: Any, uri: str) -> None:
        super().__init__(place, shape, uri, by_columns=True)
        self._check_sizes(self.n_samples)

    def pieces(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield rows, columns and values of the entries, in the order of the file."""
        edges = self._indptr
        for start in range(0, self.n_entries, _PIECE_ENTRIES):
            stop = min(start + _PIECE_ENTRIES, self.n_entries)
            with decoding(self.uri), self._place() as parts:
                values = np.asarray(parts["data"][start:stop])
                rows = np.asarray(parts["indices"][start:stop])
            if rows.min() < 0 or rows.max() >= self.n_samples:
                raise self.damaged("indices are out of bounds")
            first, last = np.searchsorted(edges, (start, stop - 1), side="right") - 1
            inside = np.clip(edges[first : last + 2], start, stop)
            yield rows, np.repeat(np.arange(first, last + 1), np.diff(inside)), values


def _by_pieces(array: Any, first: int, last: int) -> np.ndarray:
    """Return a range of an array, read in pieces.

    In a single read zarr would hold all chunks both compressed and decompressed.
    """
    chunk = array.chunks[0] if array.chunks else _PIECE_ENTRIES
    step = max(1, _READ_ENTRIES // chunk) * chunk
    values = np.empty(last - first, array.dtype)
    bounds = [first, *range(first // step * step + step, last, step), last]
    for start, stop in pairwise(bounds):
        values[start - first : stop - first] = array[start:stop]
    return values


def _decoded(chunks: tuple[int, ...] | None, itemsize: int) -> int:
    """Return the bytes for decoding a chunk that the estimate for a block does not include."""
    size = 2 * itemsize * int(np.prod(chunks or (0,), dtype=np.float64))
    return size if size > _USUAL_BYTES else 0
