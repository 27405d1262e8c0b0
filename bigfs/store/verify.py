"""Recompute and compare the checksums of a store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import zarr

from bigfs.core.errors import CorruptStoreError, InputError, StorageError
from bigfs.runtime.progress import track
from bigfs.store.formats.csr_store import StoredCSR, read_dropped
from bigfs.store.formats.parts import StoredTexts
from bigfs.store.formats.zarr_array import open_rows
from bigfs.store.formats.zarr_stores import checked_store, expect, missing_chunks
from bigfs.store.location import Location, as_location
from bigfs.store.scratch import block_bounds
from bigfs.store.source import is_store
from bigfs.store.values import checksum, decoding


@dataclass(frozen=True)
class VerifyReport:
    """Report of a check of all chunks.

    Attributes
    ----------
    path : Path or ObjectPath
    n_chunks : int
    missing : list of str
        Keys of missing chunks.
    mismatched : list of str
        Keys of chunks whose values differ from their checksum or cannot be decoded; "index" or
        "dropped" if the ids of the rows, or the numbers of those left out, cannot be read.
    """

    path: Location
    n_chunks: int
    missing: list[str]
    mismatched: list[str]

    @property
    def ok(self) -> bool:
        """True if every chunk exists and matches its checksum."""
        return not self.missing and not self.mismatched

    def check(self) -> None:
        """Raise CorruptStoreError naming the first bad chunks, if there are any."""
        if self.ok:
            return
        problems = [
            f"{len(keys)} {what} ({', '.join(keys[:3])}{', ...' if len(keys) > 3 else ''})"
            for keys, what in ((self.missing, "missing"), (self.mismatched, "changed"))
            if keys
        ]
        raise CorruptStoreError(
            f"{self.path}: of {self.n_chunks} chunks, {' and '.join(problems)}. "
            "Ingest the source again."
        )


def verify(path: str | Location) -> VerifyReport:
    """Read every chunk of a store and compare it with its checksum.

    Raises
    ------
    InputError
        If the path is not a store that `ingest` wrote.
    """
    folder = as_location(path).absolute()
    if not is_store(folder):
        raise InputError(f"{path} has no checksums: only stores written by bigfs have them.")
    try:
        group = zarr.open_group(checked_store(folder)[0], mode="r")
        checksums = group.attrs["checksums"]
        if not isinstance(checksums, list):
            raise TypeError("there is no list of checksums")
        parts, read = (_blocks_of if "csr" in group.attrs else _chunks_of)(folder, group)
    except StorageError:
        raise
    except (KeyError, OSError, ValueError, TypeError) as error:
        raise CorruptStoreError(
            f"{path}: the metadata of the store is damaged ({str(error).rstrip('.')}). "
            "Ingest the source again."
        ) from None
    changed = []
    with track("verify", len(parts), "chunks") as progress:
        for i, (key, missing) in enumerate(parts.items()):
            if not missing and _checksum_of(read, i) != checksums[i : i + 1]:
                changed.append(key)
            progress.advance(1)
    changed += _damaged_beside(folder, group)
    return VerifyReport(folder, len(parts), list(chain.from_iterable(parts.values())), changed)


def _chunks_of(folder: Location, group: Any) -> tuple[dict[str, list[str]], Callable[[int], Any]]:
    """Return the chunk keys of a dense store, with missing ones marked, and a chunk reader."""
    array, n_samples = group["X"], group.attrs["n_samples"]
    if not isinstance(array, zarr.Array):
        raise TypeError("X is not an array")
    if type(n_samples) is not int or not 0 <= n_samples <= array.shape[0]:
        raise ValueError(f"n_samples is {n_samples!r}, but X has {array.shape[0]} rows")
    expect(array)
    bounds = block_bounds(n_samples, array.chunks[0])  # an interrupted append may have left more
    keys = [array.metadata.encode_chunk_key((i, 0)) for i in range(len(bounds))]
    missing = set(missing_chunks(array, folder / "X"))
    parts = {f"X/{key}": [f"X/{key}"] if key in missing else [] for key in keys}
    return parts, lambda i: np.asarray(array[slice(*bounds[i])])


def _blocks_of(folder: Location, group: Any) -> tuple[dict[str, list[str]], Callable[[int], Any]]:
    """Return the block names of a sparse store, what is missing of each, and a block reader."""
    source = StoredCSR(folder, dict(group.attrs), strict=False)
    parts: dict[str, list[str]] = {f"X/{i}": [] for i in range(len(source.stored_entries))}
    for name in source.missing():
        parts["/".join(name.split("/")[:2])].append(name)
    return parts, source.read_block


def _damaged_beside(folder: Location, group: Any) -> list[str]:
    """Return which arrays beside the matrix cannot be decoded; their chunks have own checksums.

    Chunks that earlier versions wrote have none.
    """
    about, damaged = dict(group.attrs), []
    try:
        read_dropped(about.get("dropped", ()), folder)
    except CorruptStoreError:
        damaged.append("dropped")
    if about.get("index") is not None and "index" not in group:
        damaged.append("index")
    elif about.get("index") is not None:
        ids = StoredTexts(partial(open_rows, str(folder / "index"), True))
        try:
            with decoding("ids"):
                for _ in ids.pieces(0, about.get("n_samples") or group["index"].shape[0]):
                    pass
        except CorruptStoreError:
            damaged.append("index")
    return damaged


def _checksum_of(read: Callable[[int], Any], i: int) -> list[str]:
    """Return the checksum of a stored chunk in a list, which is empty if it cannot be decoded."""
    try:
        return [checksum(read(i))]
    except StorageError:
        raise
    except Exception:  # codecs may raise anything for damaged bytes
        return []
