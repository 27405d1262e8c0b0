"""Recompute the checksums of a store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bigfs.core.errors import CorruptStoreError, InputError
from bigfs.core.progress import track
from bigfs.store.formats.zarr_array import missing_chunks
from bigfs.store.ingest import checksum
from bigfs.store.source import is_store


@dataclass(frozen=True)
class VerifyReport:
    """What a check of all chunks found.

    Attributes
    ----------
    path : Path
    n_chunks : int
    missing : list of str
        Keys of chunks that are not there.
    mismatched : list of str
        Keys of chunks whose values differ from their checksum or cannot be decoded.
    """

    path: Path
    n_chunks: int
    missing: list[str]
    mismatched: list[str]

    @property
    def ok(self) -> bool:
        """Whether every chunk is there and matches."""
        return not self.missing and not self.mismatched

    def check(self) -> None:
        """Raise CorruptStoreError naming the first bad chunks unless all is well."""
        if self.ok:
            return
        problems = [
            f"{len(keys)} chunks {what} ({', '.join(keys[:3])})"
            for keys, what in ((self.missing, "are missing"), (self.mismatched, "were changed"))
            if keys
        ]
        raise CorruptStoreError(
            f"{self.path}: of {self.n_chunks} chunks, {' and '.join(problems)}. "
            "Ingest the source again."
        )


def verify(path: str | Path) -> VerifyReport:
    """Read every chunk of a store and compare it with its checksum.

    Raises
    ------
    InputError
        If the path is not a store that `ingest` wrote.
    """
    import zarr

    folder = Path(path).absolute()
    if not is_store(folder):
        raise InputError(f"{path} has no checksums: only stores made by bigfs have them.")
    group = zarr.open_group(str(folder), mode="r")
    array, expected = group["X"], list(group.attrs["checksums"])
    missing = set(missing_chunks(array, folder / "X"))
    rows = array.chunks[0]
    changed = []
    with track("verify", len(expected), "chunks") as progress:
        for i, value in enumerate(expected):
            key = array.metadata.encode_chunk_key((i, 0))
            if key not in missing and _checksum_of(array, i * rows, rows) != value:
                changed.append(key)
            progress.advance(1)
    return VerifyReport(folder, len(expected), sorted(missing), changed)


def _checksum_of(array: object, start: int, rows: int) -> str | None:
    """Return the checksum of a stored chunk, None if it cannot be decoded."""
    try:
        return checksum(np.asarray(array[start : start + rows]))  # type: ignore[index]
    except (OSError, ValueError, RuntimeError):
        return None
