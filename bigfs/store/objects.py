"""Objects in a bucket (S3, GCS, Azure) with the interface of a path, through obstore.

An `ObjectPath` and its pickle hold only an address; `buckets.py` makes the connections.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from bigfs.core.errors import InputError, StorageError
from bigfs.store.buckets import again, check_answer, client, obstore_package, requests, server_of

SCHEMES = ("s3", "gs", "az")
# Size of the pieces in which a response is copied while it arrives.
_PIECE_BYTES = 2**20


class ConflictError(Exception):
    """A conditional write failed, since another writer has changed the object."""


@dataclass(frozen=True)
class ObjectPath:
    """The address of an object, or of all objects below a prefix.

    Attributes
    ----------
    scheme, bucket, key : str
    """

    scheme: str
    bucket: str
    key: str

    def __str__(self) -> str:
        """Return the URI, which never contains credentials."""
        return f"{self.scheme}://{self.bucket}/{self.key}"

    def __truediv__(self, name: str) -> ObjectPath:
        """Return the address of a name below this one."""
        return replace(self, key=f"{self.key}/{name}")

    @property
    def name(self) -> str:
        """Last part of the key."""
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> ObjectPath:
        """The address one level up."""
        return replace(self, key=self.key.rpartition("/")[0])

    def with_name(self, name: str) -> ObjectPath:
        """Return the address with the last part replaced."""
        return self.parent / name if "/" in self.key else replace(self, key=name)

    def absolute(self) -> ObjectPath:
        """Return the address itself: all addresses are absolute."""
        return self

    def mkdir(self, **_: bool) -> None:
        """Do nothing: a bucket has no folders."""

    def rmdir(self) -> None:
        """Do nothing: a folder vanishes with its last object."""

    def exists(self) -> bool:
        """Return True if there is an object at this address or below it."""
        return self.is_dir() or self.is_file()

    def is_file(self) -> bool:
        """Return True if there is an object at this address."""
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        """Return True if there are objects below this address.

        Raises
        ------
        InputError
            If there is no such bucket.
        """
        try:
            return again(self, "read", lambda: any(self._client.list(self.key)))
        except FileNotFoundError:
            raise InputError(
                f"{self}: there is no bucket {self.bucket!r}. Create it, or correct the address."
            ) from None

    def stat(self) -> ObjectStatus:
        """Return the size and version tags of the object.

        Raises
        ------
        FileNotFoundError
            If there is no such object.
        """
        return again(self, "read", lambda: ObjectStatus.of(self._client.head(self.key)))

    def read_bytes(self) -> bytes:
        """Read the whole object, in one request."""
        return self.fetch()[0]

    def fetch(self, options: Any = None, is_proved: bool = True) -> tuple[bytes, ObjectStatus]:
        """Read the object and its version tags in one request.

        Parameters
        ----------
        options : dict or None, default=None
            Options of obstore, such as the range to read. None: the whole object.
        is_proved : bool, default=True
            Whether to check the bytes against the entity tag, which covers the whole object.
        """
        former: set[str] = set()

        def get() -> tuple[bytes, ObjectStatus]:
            response = self._client.get(self.key, options=options)
            content, status = bytes(response.bytes()), ObjectStatus.of(response.meta)
            if is_proved:
                check_answer(content, status.e_tag, former)
            return content, status

        return again(self, "read", get)

    def read_text(self) -> str:
        """Read the whole object as text."""
        return self.read_bytes().decode()

    def read_into(self, view: memoryview, begin: int) -> tuple[int, int]:
        """Fill a buffer from an offset in the object, in one request.

        Returns
        -------
        count : int
            Bytes read: fewer than requested if the object ends.
        size : int
            Size of the object.
        """

        def fill() -> tuple[int, int]:
            count = size = 0
            for part, object_bytes in self.pieces(begin, begin + len(view)):
                view[count : count + len(part)] = part
                count, size = count + len(part), object_bytes
            return count, size

        return again(self, "read", fill)

    def pieces(self, begin: int, end: int) -> Iterator[tuple[memoryview, int]]:
        """Yield parts of a byte range as they arrive, each with the size of the object.

        A range beyond the end of the object yields a single, empty part.
        """
        try:
            response = self._client.get(self.key, options={"range": (begin, end)})
        except obstore_package().exceptions.GenericError as error:
            if "416" not in str(error):
                raise
            yield memoryview(b""), self.stat().st_size
            return
        for part in response.stream(min_chunk_size=_PIECE_BYTES):
            yield memoryview(part).cast("B"), int(response.meta["size"])

    def write_bytes(self, content: Any) -> None:
        """Write the object as a whole, in one request."""
        with requests(self, "write"):
            self._client.put(self.key, content, use_multipart=False)

    def write_text(self, text: str) -> None:
        """Write the object as a whole."""
        self.write_bytes(text.encode())

    def write_if(self, text: str, version: ObjectStatus | None) -> ObjectStatus:
        """Write the object only if it still has the given version (None: only if it is missing).

        Raises
        ------
        ConflictError
            If it has another version. After a retried request, this may be the one that this call
            wrote.
        """
        errors = obstore_package().exceptions
        mode: Any = "create" if version is None else version.condition(_quoted.get(server_of(self)))
        try:
            with requests(self, "write"):
                done = self._client.put(self.key, text.encode(), mode=mode, use_multipart=False)
        except (errors.AlreadyExistsError, errors.PreconditionError, FileNotFoundError):
            raise ConflictError(str(self)) from None
        except StorageError as error:
            if "501 Not Implemented" not in str(error):
                raise
            raise InputError(_no_conditions(self)) from None
        return ObjectStatus(len(text.encode()), done.get("e_tag"), done.get("version"))

    def unlink(self, missing_ok: bool = True) -> None:
        """Remove the object, if it exists."""
        with suppress(FileNotFoundError):
            again(self, "remove", lambda: self._client.delete(self.key))

    def remove_below(self, kept: str = "") -> None:
        """Remove all objects below this address, except the one with the name ``kept``."""

        def remove() -> None:
            for batch in self._client.list(self.key):
                keys = [entry["path"] for entry in batch]
                self._client.delete([key for key in keys if key != f"{self.key}/{kept}"])

        again(self, "remove", remove)

    def iterdir(self) -> Iterator[ObjectPath]:
        """Return the addresses directly below this one."""
        listing = again(self, "read", lambda: self._client.list_with_delimiter(self.key))
        keys = [entry["path"] for entry in listing["objects"]]
        return iter([replace(self, key=key) for key in (*keys, *listing["common_prefixes"])])

    def glob(self, pattern: str) -> list[ObjectPath]:
        """Return the addresses directly below this one whose names match a pattern."""
        return [path for path in self.iterdir() if fnmatchcase(path.name, pattern)]

    def objects_below(self) -> dict[str, tuple[int, str]]:
        """Return size and entity tag of all objects below this address, by relative name."""
        entries = again(self, "read", lambda: self._client.list(self.key).collect())
        start = len(self.key) + 1
        return {e["path"][start:]: (int(e["size"]), e["e_tag"] or "") for e in entries}

    def open(self, mode: str = "rb", buffering: int = -1) -> Any:
        """Open the object for ranged reads; use `bigfs.store.pages.Upload` for writing.

        Parameters
        ----------
        mode : {"rb"}
        buffering : int, default=-1
            0: every read is one request for exactly its range. Otherwise reads are buffered by 4
            MiB.

        Returns
        -------
        file : binary file
        """
        from bigfs.store import pages

        if mode != "rb":
            raise ValueError(f"mode must be 'rb'. Got {mode!r}.")
        return pages.open_object(self, buffering)

    @property
    def _client(self) -> Any:
        return client(self.scheme, self.bucket)


@dataclass(frozen=True)
class ObjectStatus:
    """The size of an object in bytes, and its version."""

    st_size: int
    e_tag: str | None
    version: str | None

    @classmethod
    def of(cls, meta: Any) -> ObjectStatus:
        """Return the status from the metadata that obstore returns for an object."""
        return cls(int(meta["size"]), meta.get("e_tag"), meta.get("version"))

    def condition(self, quoted: bool | None) -> dict[str, str]:
        """Return the version tags as a write condition.

        If ``quoted`` is False, the entity tag has no quotes, as Ceph expects it.
        """
        tag = self.e_tag.strip('"') if self.e_tag and quoted is False else self.e_tag
        tags = {"e_tag": tag, "version": self.version}
        return {name: tag for name, tag in tags.items() if tag is not None}


# Servers and buckets already tested: whether entity tags keep their quotes in conditions.
_quoted: dict[tuple[str, str, str | None], bool] = {}


def check_conditions(path: ObjectPath, texts: Iterator[str]) -> None:
    """Raise InputError unless a bucket supports conditional writes; tested once per process.

    Parameters
    ----------
    path : ObjectPath
        An existing object of ours, which the test overwrites.
    texts : iterator of str
        Valid contents for it, each one different.
    """
    server = server_of(path)
    if server in _quoted:
        return
    former = path.stat()
    for _quoted[server] in (True, False):
        if _replaces(path, next(texts), former):
            if _replaces(path, next(texts), former) or _replaces(path, next(texts), None):
                break
            return
    del _quoted[server]
    raise InputError(_no_conditions(path))


def _replaces(path: ObjectPath, text: str, version: ObjectStatus | None) -> bool:
    """Write conditionally; return True if the object has the new content.

    The object is read back, since a response may be lost.
    """
    with suppress(ConflictError):
        path.write_if(text, version)
    return path.read_text() == text


def _no_conditions(path: ObjectPath) -> str:
    return (
        f"{path.parent}: this storage does not support conditional writes (If-Match and "
        "If-None-Match), by which bigfs locks what it writes. Use one that does (a list is in "
        "deploy/README.md), or a run directory or store on a disk that all processes share; "
        "inputs may stay in the bucket."
    )
