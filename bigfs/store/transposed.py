"""Matrices that lie on their side, such as genes by cells: what are columns there are rows here."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np

from bigfs.core.errors import InputError
from bigfs.store.csr import SparseSource
from bigfs.store.formats.parts import ByBands, HeldTexts
from bigfs.store.scratch import temporary_file
from bigfs.store.source import Source, check_names, check_shape

# Of the rows that are read at once, and of those that are handed out.
_PIECE_BYTES, _BAND_BYTES = 16 * 10**6, 16 * 10**6
_ROWS = 2**12
# The name of the ids, which were names of columns.
_INDEX = "column"


class _Turned(Source):
    """Names, ids and sizes of a source on its side, dense or sparse."""

    n_samples: int
    starts_quickly = False

    def __init__(self, source: Source) -> None:
        self.uri, self.watch, self.notes = source.uri, source.watch, source.notes
        self._source, self.dtype = source, source.dtype
        self._stored = source.stored_dtype
        if source.categories:
            raise InputError(
                f"{self.uri}: columns of categories are not numbered in a table on its side. Leave "
                "them out by input.columns."
            )
        names = list(chain.from_iterable(source.iter_index()))
        self.feature_names = names or None
        self.n_samples = source.n_features
        # Where only reading tells, the table is read once for it.
        rows = len(names) or source.n_samples
        self.n_features = rows or sum(len(block) for block in source.iter_blocks(_ROWS))
        check_shape((self.n_samples, self.n_features), self.uri)
        check_names(self.feature_names, self.n_features, self.uri)
        if source.feature_names:
            self.index, self.ids = _INDEX, HeldTexts(source.feature_names)
        self.held_bytes = source.held_bytes
        self.temporary_bytes = source.temporary_bytes


class TransposedSource(_Turned):
    """A dense source on its side: written to a file without a name by bands, which are read back.

    A band has the columns of the file that are handed out together. Each block of rows that is read
    gives a piece to every band.
    """

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        size = self.dtype.itemsize
        self._width = max(1, min(self.n_samples, _BAND_BYTES // (self.n_features * size)))
        self._rows = max(1, _PIECE_BYTES // (self.n_samples * size))
        self.held_bytes += self._rows * self.n_samples * size + 2 * _BAND_BYTES
        self.temporary_bytes += self.n_samples * self.n_features * size

    def iter_blocks(self, rows: int) -> Iterator[np.ndarray]:
        """Yield consecutive arrays of at most ``rows`` rows."""
        size, n, d = self.dtype.itemsize, self.n_samples, self.n_features
        bands = [(start, min(start + self._width, n)) for start in range(0, n, self._width)]
        with temporary_file() as file:
            first = 0
            for block in self._source.iter_blocks(self._rows):
                if first + len(block) > d:
                    raise self._changed()
                for start, stop in bands:
                    file.seek((start * d + first * (stop - start)) * size)
                    file.write(np.ascontiguousarray(block[:, start:stop]).data)
                first += len(block)
            if first != d:
                raise self._changed()
            for start, stop in bands:
                file.seek(start * d * size)
                content = file.read((stop - start) * d * size)
                band = np.frombuffer(content, self.dtype).reshape(d, stop - start).T
                for begin in range(0, stop - start, rows):
                    yield np.ascontiguousarray(band[begin : begin + rows])

    def _changed(self) -> InputError:
        return InputError(f"{self.uri} has changed since it was opened. Run again.")


class TransposedSparse(_Turned, ByBands):
    """A sparse source on its side, whose entries are brought into order of its columns."""

    def __init__(self, source: SparseSource) -> None:
        super().__init__(source)
        self._stored = self.dtype
        layout = source.layout
        self.n_entries = layout.n_entries if layout is not None else self._counted()
        self._check_sizes(self.n_samples)

    @property
    def stored_dtype(self) -> np.dtype:
        """Type of the values as they are stored."""
        return self._source.stored_dtype

    def pieces(self) -> Iterator[np.ndarray]:
        """Yield the entries in the order of the file, as records."""
        first = 0
        for block in self._blocks():
            entries = block.tocoo()
            piece = np.empty(entries.nnz, self._record)
            piece["row"], piece["column"] = entries.col, entries.row + first
            piece["value"] = entries.data
            first += block.shape[0]
            yield piece

    def _blocks(self) -> Iterator[Any]:
        assert isinstance(self._source, SparseSource)
        layout = self._source.layout
        yield from self._source.iter_csr(_ROWS if layout is None else layout.rows)

    def _counted(self) -> int:
        return sum(block.nnz for block in self._blocks())


def transposed(source: Source) -> Source:
    """Return a source whose rows are the columns of another one."""
    if isinstance(source, SparseSource):
        return TransposedSparse(source)
    return TransposedSource(source)
