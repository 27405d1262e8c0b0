"""Folders and objects as zarr opens them: of arrays of ours no missing chunk reads as zeros."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import LocalStore

from bigfs.core.errors import CorruptStoreError, StorageError
from bigfs.store.objects import ObjectPath

if TYPE_CHECKING:
    from bigfs.store.scratch import ArrayRef, Carried, Scratch

_METADATA = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")


def _is_metadata(key: str) -> bool:
    return key.rpartition("/")[2] in _METADATA


class ZarrObjects(Store):
    """A zarr store of objects, with bigfs's own errors.

    Parameters
    ----------
    path : ObjectPath
        What is above all keys.
    strict : bool
        Whether a missing chunk is an error; else it reads as the fill value.
    """

    def __init__(self, path: ObjectPath, strict: bool, *, read_only: bool = False) -> None:
        super().__init__(read_only=read_only)
        self.path, self.strict = path, strict

    def with_read_only(self, read_only: bool = False) -> ZarrObjects:
        """Return the same store, with or without the right to write."""
        return ZarrObjects(self.path, self.strict, read_only=read_only)

    def __str__(self) -> str:
        return str(self.path)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ZarrObjects) and other.path == self.path

    @property
    def supports_writes(self) -> bool:
        """True if it can be written."""
        return True

    @property
    def supports_deletes(self) -> bool:
        """True if keys can be removed."""
        return True

    @property
    def supports_listing(self) -> bool:
        """True if keys can be listed."""
        return True

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return an object or a range of it, None if there is none."""
        place = self.path / key
        is_proved = byte_range is None and (self.strict or _is_metadata(key))
        try:
            content = await to_thread(lambda: place.fetch(_range(place, byte_range), is_proved)[0])
        except FileNotFoundError:
            if self.strict and not _is_metadata(key):
                raise CorruptStoreError(
                    f"{self.path}: chunk {key} is missing and would read as zeros. Ingest the "
                    "source again, then run 'bigfs inspect --verify'."
                ) from None
            return None
        return prototype.buffer.from_bytes(content)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Return ranges of several objects."""
        return [await self.get(key, prototype, part) for key, part in key_ranges]

    async def exists(self, key: str) -> bool:
        """Say whether there is an object."""
        return (self.path / key).is_file()

    async def set(self, key: str, value: Buffer) -> None:
        """Write an object as a whole, in one request."""
        self._check_writable()
        await to_thread((self.path / key).write_bytes, value.as_buffer_like())

    async def delete(self, key: str) -> None:
        """Remove an object."""
        self._check_writable()
        (self.path / key).unlink()

    async def delete_dir(self, prefix: str) -> None:
        """Remove all objects below a key."""
        self._check_writable()
        self._below(prefix).remove_below()

    def list(self) -> AsyncIterator[str]:
        """Return all keys."""
        return self.list_prefix("")

    async def list_prefix(self, prefix: str) -> AsyncGenerator[str, None]:
        """Return all keys below one."""
        start = f"{prefix.rstrip('/')}/" if prefix else ""
        for name in self._below(prefix).objects_below():
            yield start + name

    async def list_dir(self, prefix: str) -> AsyncGenerator[str, None]:
        """Return the names directly below a key."""
        for place in self._below(prefix).iterdir():
            yield place.name

    def _below(self, prefix: str) -> ObjectPath:
        return self.path / prefix.rstrip("/") if prefix else self.path


def _range(place: ObjectPath, byte_range: ByteRequest | None) -> dict[str, Any] | None:
    """Return the range of an object as obstore asks for it, None for all of it."""
    if isinstance(byte_range, RangeByteRequest):
        return {"range": (byte_range.start, byte_range.end)}
    if isinstance(byte_range, OffsetByteRequest):
        return {"range": {"offset": byte_range.offset}}
    if isinstance(byte_range, SuffixByteRequest):
        if place.scheme == "az":  # which has no ranges from the end
            return {"range": {"offset": max(0, place.stat().st_size - byte_range.suffix)}}
        return {"range": {"suffix": byte_range.suffix}}
    return None


class KeptFiles(LocalStore):
    """The folder of an array.

    Parameters
    ----------
    root : str or Path
    read_only : bool, default=False
    owner : Scratch or None, default=None
        Of the folder, which lives as long as this object.
    """

    def __init__(
        self, root: str | Path, *, read_only: bool = False, owner: Scratch | None = None
    ) -> None:
        super().__init__(root, read_only=read_only)
        self.owner = owner

    def with_read_only(self, read_only: bool = False) -> KeptFiles:
        """Return the same store, with or without the right to write."""
        return KeptFiles(self.root, read_only=read_only, owner=self.owner)

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """Return a file or a range of it."""
        return self._checked(key, await super().get(key, prototype, byte_range))

    def get_sync(self, key: str, **options: Any) -> Buffer | None:
        """Return a file or a range of it."""
        return self._checked(key, super().get_sync(key, **options))

    def _checked(self, key: str, content: Buffer | None) -> Buffer | None:
        if content is None and key.startswith("c/"):
            chunk = key.split("/")[1]
            raise StorageError(
                f"{self.root}: chunk {chunk} is missing. Run again: the stage that writes it has "
                "not finished, or its files were removed."
            )
        return content

    def __reduce__(self) -> tuple[Any, ...]:
        from bigfs.store.scratch import ArrayRef

        if self.owner is None:
            return KeptFiles, (self.root,)
        return _opened, (ArrayRef.at(self.root).carried(self.owner),)


def _opened(array: ArrayRef | Carried) -> KeptFiles:
    """Return the store of a pickled array, in a folder of its own if it was carried."""
    from bigfs.store.scratch import Carried, Scratch

    if isinstance(array, Carried):
        owner = Scratch()
        return KeptFiles(array.put(owner).path, read_only=True, owner=owner)
    return KeptFiles(array.path, read_only=True)
