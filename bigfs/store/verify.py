"""Recompute the checksums of a store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bigfs.core.errors import CorruptStoreError, InputError, StorageError
from bigfs.runtime.progress import track
from bigfs.store.csr import csr_checksum
from bigfs.store.formats.csr_store import StoredCSR
from bigfs.store.formats.zarr_stores import checked_store, expect, missing_chunks
from bigfs.store.location import Location, as_location
from bigfs.store.scratch import block_bounds
from bigfs.store.source import is_store
from bigfs.store.values import checksum


@dataclass(frozen=True)
class VerifyReport:
    """Report of a check of all chunks.

    Attributes
    ----------
    path : Path or ObjectPath
    n_chunks : int
    missing : list of str
        Keys of chunks that are not there.
    mismatched : list of str
        Keys of chunks whose values differ from their checksum or cannot be decoded.
    """

    path: Location
    n_chunks: int
    missing: list[str]
    mismatched: list[str]

    @property
    def ok(self) -> bool:
        """True if every chunk is there and matches."""
        return not self.missing and not self.mismatched

    def check(self) -> None:
        """Raise CorruptStoreError naming the first bad chunks unless all is well."""
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
    import zarr

    folder = as_location(path).absolute()
    if not is_store(folder):
        raise InputError(f"{path} has no checksums: only stores written by bigfs have them.")
    try:
        group = zarr.open_group(checked_store(folder)[0], mode="r")
        checksums = group.attrs["checksums"]
        if "csr" in group.attrs and isinstance(checksums, list):
            return _verify_csr(folder, dict(group.attrs), checksums)
        array, n_samples = group["X"], group.attrs["n_samples"]
        if not isinstance(array, zarr.Array) or not isinstance(checksums, list):
            raise TypeError("X is not an array with a list of checksums")
        if type(n_samples) is not int or not 0 <= n_samples <= array.shape[0]:
            raise ValueError(f"{n_samples!r} of {array.shape[0]} rows count")
        expect(array)
    except StorageError:
        raise
    except (KeyError, OSError, ValueError, TypeError) as error:
        raise CorruptStoreError(
            f"{path}: the metadata of the store is damaged ({error}). Ingest the source again."
        ) from None
    bounds = block_bounds(n_samples, array.chunks[0])  # an append that was cut off left more
    keys = [array.metadata.encode_chunk_key((i, 0)) for i in range(len(bounds))]
    gone = set(missing_chunks(array, folder / "X"))
    changed = []
    with track("verify", len(bounds), "chunks") as progress:
        for i, (key, (start, stop)) in enumerate(zip(keys, bounds, strict=True)):
            if key not in gone and [_checksum_of(array, start, stop)] != checksums[i : i + 1]:
                changed.append(f"X/{key}")
            progress.advance(1)
    missing = [f"X/{key}" for key in keys if key in gone]
    return VerifyReport(folder, len(bounds), missing, changed)


def _verify_csr(folder: Location, attributes: dict[str, Any], checksums: list[Any]) -> VerifyReport:
    """Read every block of a sparse store and compare it with its checksum."""
    source = StoredCSR(folder, attributes, strict=False)
    missing = source.missing()
    incomplete = {name.split("/")[1] for name in missing}
    changed = []
    n_blocks = len(source.stored_entries)
    with track("verify", n_blocks, "blocks") as progress:
        for i in range(n_blocks):
            if str(i) not in incomplete and _checksum_of_block(source, i) != checksums[i : i + 1]:
                changed.append(f"X/{i}")
            progress.advance(1)
    return VerifyReport(folder, n_blocks, missing, changed)


def _checksum_of_block(source: StoredCSR, i: int) -> list[str]:
    """Return the checksum of a stored block; nothing if it cannot be decoded."""
    try:
        return [csr_checksum(source.read_block(i))]
    except CorruptStoreError:
        return []


def _checksum_of(array: Any, start: int, stop: int) -> str:
    """Return the checksum of a stored chunk, in words if it cannot be decoded."""
    try:
        return checksum(np.asarray(array[start:stop]))
    except StorageError:
        raise
    except Exception as error:  # whatever a codec raises for bytes that it never wrote
        return f"undecodable ({type(error).__name__})"
