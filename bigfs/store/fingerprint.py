"""Content fingerprints of inputs, and detection of changes while an input is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.core.errors import InputError, StorageError
from bigfs.core.paths import OBJECT, column_of, short_name
from bigfs.store.grown import (
    count_chunks,
    count_rows,
    has_last_rows,
    key_of_rows,
    uncommitted,
)
from bigfs.store.location import Location, as_location, files_below
from bigfs.store.objects import ObjectPath
from bigfs.store.several import flattened, sources_of

_PIECE_BYTES = 2**16
# Number of pieces sampled: at most 1 MiB of a file and 4 MiB of a folder.
_FILE_PIECES = 16
_FOLDER_PIECES = 64


def fingerprint(uri: str) -> str:
    """Return a fingerprint of an input's content.

    A file or folder is identified by names, sizes, modification times and a sample of its content:
    files of up to 1 MiB as a whole, larger ones by 16 evenly spaced pieces of 64 KiB, a folder by
    64 such pieces and its whole ``zarr.json``, in which a store of ours keeps its checksums.
    Objects in a bucket are identified by their entity tags, scikit-learn datasets by name and
    version, and several sources by all of theirs, in order. A change between the sampled pieces
    that preserves size and modification time is not detected.

    Raises
    ------
    InputError
        If the path does not exist or cannot be read.
    """
    refuse_object(uri)
    try:
        return _digest(_state_of(uri))
    except FileNotFoundError:
        raise InputError(f"{uri} does not exist. Check the path.") from None


def fingerprint_of_rows(blocks: Iterable[Any], names: Sequence[str] | None) -> str:
    """Return a fingerprint of an in-memory matrix, from its feature names and all blocks.

    Parameters
    ----------
    blocks : iterable of ndarray or CSR block
    names : sequence of str or None
    """
    read = hashlib.sha256()
    for block in blocks:
        parts: tuple[Any, ...] = (block,)
        if hasattr(block, "indptr"):  # independent of the index dtype
            parts = (block.data, block.indices.astype(np.int64), block.indptr.astype(np.int64))
        for part in parts:
            read.update(str((part.dtype.str, part.shape)).encode())  # h5py dtypes print differently
            read.update(np.ascontiguousarray(part).data)
    return _digest([read.hexdigest(), None if names is None else list(names)])


def refuse_object(uri: str) -> None:
    """Raise InputError if a URI refers to an in-memory object that was passed to a run."""
    if uri.startswith(OBJECT):
        raise InputError(
            f"{uri} is an object of the Python session that ran it, so its data and labels cannot "
            "be read here. Write it to a file, or run there with data=."
        )


class Watch:
    """Detector of changes of a file or folder while it is read.

    It detects what `fingerprint` detects and, on a local disk, also compares the status change time
    (ctime), which programs cannot set back.

    Parameters
    ----------
    place : Path, ObjectPath or str
        Location about to be opened; a string may refer to several sources.
    """

    def __init__(self, place: Location | str) -> None:
        # Absolute, since copies may be used in another working directory.
        self._place = place if isinstance(place, str) else place.absolute()
        self._opened = _stamps(place)
        self._rows: tuple[int, str | None] | None = None
        if not isinstance(place, str) and (rows := count_rows(place)) is not None:
            self._rows = rows, key_of_rows(place, rows, "all")
        self._begun: str | None = None

    def begin(self) -> None:
        """Record the state of the content before its rows are read."""
        if self._begun is None:
            self._begun = _digest(_state_of(self._place, with_change=True))

    def check(self) -> None:
        """Raise InputError if the content has changed since it was opened."""
        try:
            unchanged = _stamps(self._place) == self._opened
            if unchanged and self._begun is not None:
                unchanged = _digest(_state_of(self._place, with_change=True)) == self._begun
        except (FileNotFoundError, InputError):
            unchanged = False
        except StorageError:
            raise
        except OSError as error:
            raise InputError(f"{self._place} can no longer be read: {error}.") from error
        if not unchanged and not self._only_grew():
            raise changed(short_name(str(self._place)))

    def _only_grew(self) -> bool:
        """Return True if it is a store of ours to which rows were at most appended."""
        if self._rows is None or isinstance(self._place, str):
            return False
        rows, key = self._rows
        same = key is not None and key == key_of_rows(self._place, rows, "all")
        return same and has_last_rows(self._place, rows)


def changed(uri: str) -> InputError:
    """Return the error for an input that changed while it was read."""
    return InputError(
        f"{uri} changed while it was read: its size, time or content differs from that at the "
        "start. No copy was kept. Run again when no program writes to it."
    )


def _stamps(place: Location | str) -> Any:
    """Return the version stamps of all sources that a URI refers to, or of one location."""
    if not isinstance(place, str):
        return _stamp(place)
    return [
        (uri, None if uri.startswith("sklearn:") else _stamp(as_location(column_of(uri)[0])))
        for uri in dict.fromkeys(flattened(place))
    ]


def _stamp(place: Location) -> tuple[Any, ...] | None:
    """Return the version stamp of a location from one stat call; None for a folder in a bucket.

    It is also None if nothing exists there, which is reported when it is opened.
    """
    try:
        if isinstance(place, ObjectPath):
            remote = place.stat()
            return remote.st_size, remote.e_tag
        return _times(place, True)
    except FileNotFoundError:
        return None


def _state_of(place: Location | str, with_change: bool = False) -> Any:
    """Return the content state of a location, or of all sources that a URI refers to."""
    if not isinstance(place, str):
        return _state(place, with_change)
    if place.startswith("sklearn:"):
        from importlib.metadata import version

        return [place, version("scikit-learn")]
    sources = sources_of(place)
    if sources is None:
        return _state(as_location(column_of(place)[0]), with_change)
    files = [p for p in map(as_location, sources) if isinstance(p, Path) and p.is_file()]
    if len(files) < len(sources):
        return [[source, _state_of(source, with_change)] for source in sources]
    return [[[str(p), *_times(p, with_change)] for p in files], _sample(files)]


def _state(place: Location, with_change: bool = False) -> Any:
    """Return the content state of a location, to be hashed."""
    n_chunks, there = count_chunks(place), files_below(place)
    names = [name for name in there if not uncommitted(name, n_chunks)]
    if isinstance(place, ObjectPath):
        if names:
            return {name: list(there[name]) for name in names}
        status = place.stat()
        return {"": [status.st_size, status.e_tag]}
    try:
        files = [place / name for name in names] if place.is_dir() else [place]
        times = [[str(p.relative_to(place)), *_times(p, with_change)] for p in files]
        return [times, _sample(files, place / "zarr.json")]
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InputError(f"{place} cannot be read: {error.strerror or error}.") from None


def _times(path: Path, with_change: bool) -> tuple[int, ...]:
    status = path.stat()
    times = status.st_size, status.st_mtime_ns
    return (*times, status.st_ctime_ns) if with_change else times


def _sample(files: list[Path], metadata: Path | None = None) -> str:
    """Return a hash of sampled pieces of the files, chosen by number and sizes of the files."""
    digest = hashlib.sha256()
    chosen = [files[i] for i in _spread(len(files) - 1, _FOLDER_PIECES)]
    pieces = max(1, min(_FILE_PIECES, _FOLDER_PIECES // max(1, len(chosen))))
    for path in chosen:
        try:
            with path.open("rb", buffering=0) as file:
                size = path.stat().st_size
                last = max(0, size - _PIECE_BYTES)
                all_of_it = size <= pieces * _PIECE_BYTES
                starts = range(0, size, _PIECE_BYTES) if all_of_it else _spread(last, pieces)
                for start in starts:
                    file.seek(start)
                    digest.update(file.read(_PIECE_BYTES))
        except PermissionError:  # reported when it is opened; in a folder it may not be part of X
            continue
    if metadata is not None and metadata.is_file():
        digest.update(metadata.read_bytes())
    return digest.hexdigest()


def _spread(last: int, count: int) -> list[int]:
    """Return up to ``count`` evenly spaced integers from 0 to ``last``, including both ends."""
    if last < count:
        return list(range(last + 1))
    return [0] if count == 1 else [i * last // (count - 1) for i in range(count)]


def _digest(record: object) -> str:
    return hashlib.sha256(json.dumps(record).encode()).hexdigest()[:16]
