"""Stores of sparse matrices that `ingest` writes, as CSR row blocks.

The group ``X/i`` has ``data``, ``indices`` and ``indptr`` of block i. Each is a single chunk, so
that a task reads complete objects and nothing else. The attributes of the store describe how rows
are split into blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice
from types import MappingProxyType
from typing import Any

import numpy as np

from bigfs.core.errors import CorruptStoreError
from bigfs.store import csr
from bigfs.store.formats.parts import PARTS, StoredTexts
from bigfs.store.location import Location, as_location, files_below, zarr_store
from bigfs.store.source import CSRLayout, RandomAccessSource, check_names, check_shape, work_dtype
from bigfs.store.values import checksum, decoding

_SHOWN = 3
_CURE = "Ingest the source again, then run 'bigfs inspect --verify'."


class StoredCSR(RandomAccessSource):
    """Store of CSR row blocks, which is pickled as its address and shape.

    Parameters
    ----------
    path : Path or ObjectPath
    attributes : dict
        Attributes of the store.
    strict : bool, default=True
        Raise CorruptStoreError if an object is missing.

    Attributes
    ----------
    stored_entries : ndarray of shape (n_blocks,), int64
        Number of entries of each block.
    """

    sparse = checked = True
    chunk_rows: int

    def __init__(self, path: Location, attributes: dict[str, Any], *, strict: bool = True) -> None:
        self.uri, self._path = str(path), str(path.absolute())
        what = f"{path}: the metadata of the store is damaged, it"
        with decoding(what, "Ingest the source again."):
            about = attributes["csr"]
            self.n_samples, self.n_features = (int(size) for size in about["shape"])
            self.dtype = work_dtype(about["dtype"], self.uri)
            self._stored = np.dtype(attributes["stored_dtype"])
            self.chunk_rows = int(about["rows"])
            self.stored_entries = np.array(about["entries"], dtype=np.int64)
            self._dropped, self.index = attributes.get("dropped", ()), attributes.get("index")
            self.sources = attributes.get("sources", ())
            names = attributes.get("feature_names")
            self.feature_names = None if names is None else [str(name) for name in names]
            n_blocks = len(self.stored_entries)
            if self.chunk_rows < 1 or n_blocks != -(-self.n_samples // self.chunk_rows):
                raise ValueError(f"{n_blocks} blocks for {self.n_samples} rows")
        if self.index is not None:
            from bigfs.store.formats.zarr_array import open_rows  # imports zarr

            self.ids = StoredTexts(partial(open_rows, str(path.absolute() / "index"), True))
        check_shape((self.n_samples, self.n_features), self.uri)
        check_names(self.feature_names, self.n_features, self.uri)
        missing = self.missing() if strict else []
        if missing:
            more = ", ..." if len(missing) > _SHOWN else ""
            verb = "is" if len(missing) == 1 else "are"
            raise CorruptStoreError(
                f"{path}: {', '.join(missing[:_SHOWN])}{more} {verb} missing. {_CURE}"
            )

    @property
    def layout(self) -> CSRLayout:
        """Layout of the stored blocks."""
        entries = self.stored_entries
        return CSRLayout(self.chunk_rows, int(entries.sum()), int(entries.max()))

    def block_entries(self, rows: int) -> int:
        """Return an upper bound of the entries of the largest block of ``rows`` rows."""
        first_blocks = np.arange(0, len(self.stored_entries), -(-rows // self.chunk_rows))
        return int(np.add.reduceat(self.stored_entries, first_blocks).max())

    def missing(self) -> list[str]:
        """Return the names of missing objects."""
        there = files_below(as_location(self._path) / "X")
        expected = []
        for i, entries in enumerate(self.stored_entries.tolist()):
            expected += [f"{i}/{part}/zarr.json" for part in PARTS]
            expected += [f"{i}/{part}/c/0" for part in PARTS if entries or part == "indptr"]
        return [f"X/{name}" for name in expected if name not in there]

    def read_rows(self, start: int, stop: int) -> Any:
        """Return rows ``start`` to ``stop`` in CSR form."""
        rows = self.chunk_rows
        blocks = []
        at_least = min(start, self.n_samples - 1) // rows  # an empty range reads a block, for shape
        for i in range(at_least, max(at_least + 1, -(-stop // rows))):
            block, first = self.read_block(i), i * rows
            begin, end = max(0, start - first), min(rows, stop - first)
            blocks.append(block if end - begin >= block.shape[0] else block[begin:end])
        return csr.stack(blocks)

    def read_block(self, i: int) -> Any:
        """Return one stored block.

        Raises
        ------
        CorruptStoreError
            If it cannot be decoded, or is not a valid block of the store.
        """
        from scipy.sparse import csr_array

        shape = (min(self.chunk_rows, self.n_samples - i * self.chunk_rows), self.n_features)
        with decoding(f"{self.uri}: block {i}", _CURE):
            block = csr_array(tuple(self._read(i, part) for part in PARTS), shape=shape)
            block.check_format(full_check=True)  # indices outside the shape would crash later
            return csr.as_block(block, self.dtype)

    def _read(self, i: int, part: str) -> np.ndarray:
        import zarr

        from bigfs.store.formats.zarr_stores import checked_store, expect

        name = f"X/{i}/{part}"
        store, _ = checked_store(as_location(self._path) / name, strict=True)
        try:
            array = zarr.open_array(store, mode="r")
        except FileNotFoundError as error:
            raise CorruptStoreError(f"{self.uri}: {name} is missing ({error}). {_CURE}") from error
        expect(array)
        return np.asarray(array[:])

    @property
    def dropped(self) -> Sequence[int]:  # type: ignore[override]
        """Rows of the original that an ingest left out."""
        return read_dropped(self._dropped, as_location(self._path))

    beside_tasks = MappingProxyType({"feature_names": None, "stored_entries": None, "_dropped": ()})


def read_dropped(stored: Any, store: Location) -> Any:
    """Return the rows of the original that a store was written without.

    Parameters
    ----------
    stored : int or sequence of int
        Their number, or the rows themselves, as stored by earlier versions.
    store : Path or ObjectPath
    """
    if not isinstance(stored, int):
        return stored
    import zarr

    from bigfs.store.formats.zarr_stores import checked_store, expect

    with decoding(f"{store}: the numbers of the rows left out", "Ingest the source again."):
        place, inside = checked_store(store / "dropped", strict=True)
        rows = zarr.open_array(place, path=inside, mode="r")
        expect(rows)
        return np.asarray(rows[:stored])  # an append adds more before it is committed


def with_checksum() -> dict[str, Any]:
    """Return the options of an array beside the matrix: reading a damaged chunk fails."""
    from zarr.codecs import ZstdCodec

    # A missing chunk is an error, so one of zeros only is written too.
    return {"compressors": ZstdCodec(checksum=True), "config": {"write_empty_chunks": True}}


class StoreWriter:
    """Writer of a new store, with the rows and checksums of the chunks written so far."""

    def __init__(self, path: Location, rows: int) -> None:
        import zarr
        from zarr.codecs import BloscCodec, Crc32cCodec

        self._group, self._rows = zarr.create_group(store=zarr_store(path)), rows
        self._packing: dict[str, Any] = {
            # Blosc silently decodes most damaged chunks to wrong values. With the CRC every read of
            # a damaged chunk fails.
            "compressors": [BloscCodec(cname="lz4", clevel=3, shuffle="shuffle"), Crc32cCodec()],
            "config": {"write_empty_chunks": True},
        }
        self.n_samples = 0
        self.checksums: list[str] = []

    def write_ids(self, pieces: Iterator[list[str]]) -> None:
        """Write the ids of the rows, with as many ids per chunk as a block has rows."""
        chunk = self._rows
        ids = self._group.create_array(
            "index",
            shape=(self.n_samples,),
            dtype=str,
            chunks=(chunk,),
            dimension_names=("sample",),
            **with_checksum(),
        )
        texts, start = chain.from_iterable(pieces), 0
        while held := list(islice(texts, chunk)):
            ids[start : start + chunk] = np.array(held, dtype=object)
            start += chunk

    def finish(self, **attributes: Any) -> None:
        """Set the attributes that mark the group as a store."""
        kept = {"bigfs_store": 1, "checksums": self.checksums, **attributes}
        self._group.update_attributes(kept)


class CSRWriter(StoreWriter):
    """Writer of the blocks of a new sparse store, one after the other."""

    def __init__(self, path: Location, rows: int, n_features: int, dtype: np.dtype) -> None:
        super().__init__(path, rows)
        self._blocks = self._group.create_group("X")
        self._n_features, self._dtype = n_features, dtype
        self.entries: list[int] = []

    def append(self, block: Any) -> None:
        """Write one block; only the last one may have fewer rows."""
        group = self._blocks.create_group(str(len(self.entries)))
        for name, values in zip(PARTS, (block.data, block.indices, block.indptr), strict=True):
            chunks = (max(1, len(values)),)
            group.create_array(name, data=values, chunks=chunks, **self._packing)
        self.n_samples += block.shape[0]
        self.entries.append(block.nnz)
        self.checksums.append(checksum(block))

    @property
    def nbytes(self) -> int:
        """Size of the entries, uncompressed."""
        return sum(self.entries) * (self._dtype.itemsize + 4)

    def finish(self, **attributes: Any) -> None:
        """Set the attributes that mark the group as a store."""
        about = {
            "shape": [self.n_samples, self._n_features],
            "dtype": self._dtype.str,
            "rows": self._rows,
            "entries": self.entries,
        }
        super().finish(csr=about, **attributes)
