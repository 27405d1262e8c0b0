"""Objects in a bucket (S3, GCS, Azure) with the interface of a path, through obstore.

Credentials, region and endpoint come from the environment or from ~/.aws and stay inside
obstore: an `ObjectPath` is an address only, and so is its pickle. A request that fails is made
again, with growing pauses, for up to a minute; then it is a `StorageError`.
"""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

from bigfs.core.context import set_within
from bigfs.core.errors import InputError, StorageError

SCHEMES = ("s3", "gs", "az")
RETRY_SECONDS = 60.0
HURRIED_SECONDS = 3.0
_patience: ContextVar[float] = ContextVar("bigfs_patience", default=math.inf)
# Smaller files are one request; of larger ones two parts are held in memory.
_PART_BYTES = 8 * 2**20
_READ_BYTES = 4 * 2**20
# What is copied at once from an answer that is still coming.
_PIECE_BYTES = 2**20


class ConflictError(Exception):
    """A conditional write came second: somebody else has written the object."""


@dataclass(frozen=True)
class ObjectPath:
    """The address of an object, or of all objects below a name.

    Attributes
    ----------
    scheme, bucket, key : str
    """

    scheme: str
    bucket: str
    key: str

    def __str__(self) -> str:
        """Return the URI, which never holds credentials."""
        return f"{self.scheme}://{self.bucket}/{self.key}"

    def __truediv__(self, name: str) -> ObjectPath:
        """Return the address below this one."""
        return replace(self, key=f"{self.key}/{name}")

    @property
    def name(self) -> str:
        """Last part of the key."""
        return self.key.rpartition("/")[2]

    @property
    def stem(self) -> str:
        """The name without its last ending."""
        return self.name.rpartition(".")[0] or self.name

    @property
    def parent(self) -> ObjectPath:
        """The address above."""
        return replace(self, key=self.key.rpartition("/")[0])

    def with_name(self, name: str) -> ObjectPath:
        """Return the address of a neighbor."""
        return self.parent / name if "/" in self.key else replace(self, key=name)

    def absolute(self) -> ObjectPath:
        """Return the address itself: there are no relative ones."""
        return self

    def is_absolute(self) -> bool:
        """Say that the address is the same for every process."""
        return True

    def mkdir(self, **_: bool) -> None:
        """Do nothing: a bucket has no folders."""

    def rmdir(self) -> None:
        """Do nothing: a folder is gone with its last object."""

    def exists(self) -> bool:
        """Say whether there is an object of this name or below it."""
        return self.is_dir() or self.is_file()

    def is_file(self) -> bool:
        """Say whether there is an object of this name."""
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        """Say whether there are objects below this name.

        Raises
        ------
        InputError
            If there is no such bucket.
        """
        try:
            with self._requests("read"):
                return bool(next(iter(obstore_package().list(self._client, self.key)), None))
        except FileNotFoundError:
            raise InputError(
                f"{self}: there is no bucket {self.bucket!r}. Create it, or correct the address."
            ) from None

    def stat(self) -> ObjectStatus:
        """Return the size and the tags of the object.

        Raises
        ------
        FileNotFoundError
            If there is none.
        """
        with self._requests("read"):
            return ObjectStatus.of(obstore_package().head(self._client, self.key))

    def read_bytes(self) -> bytes:
        """Read the whole object, in one request."""
        with self._requests("read"):
            return bytes(obstore_package().get(self._client, self.key).bytes())

    def read_text(self) -> str:
        """Read the whole object as text."""
        return self.read_bytes().decode()

    def read_into(self, view: memoryview, begin: int) -> tuple[int, int]:
        """Fill memory from a place of the object, in one request.

        Returns
        -------
        count : int
            Bytes there were: fewer than asked for where the object ends.
        size : int
            Of the object.
        """
        options = {"range": (begin, begin + len(view))}
        count = 0
        with self._requests("read"):
            try:
                response = obstore_package().get(self._client, self.key, options=options)
                for part in response.stream(min_chunk_size=_PIECE_BYTES):
                    view[count : count + len(part)] = memoryview(part).cast("B")
                    count += len(part)
                return count, int(response.meta["size"])
            except obstore_package().exceptions.GenericError as error:
                if "416" not in str(error):  # the object ends before the range
                    raise
        return 0, self.stat().st_size

    def write_bytes(self, content: Any) -> None:
        """Write the object as a whole, in one request."""
        with self._requests("write"):
            obstore_package().put(self._client, self.key, content, use_multipart=False)

    def write_text(self, text: str) -> None:
        """Write the object as a whole."""
        self.write_bytes(text.encode())

    def read_status(self) -> tuple[str, ObjectStatus]:
        """Return the text of the object with the tags of exactly this version of it."""
        with self._requests("read"):
            response = obstore_package().get(self._client, self.key)
            return bytes(response.bytes()).decode(), ObjectStatus.of(response.meta)

    def write_if(self, text: str, version: ObjectStatus | None) -> ObjectStatus:
        """Write the object only if it still is a known version (None: only if it is not there).

        Raises
        ------
        ConflictError
            If it is another one. After a failed request it may be the one this call wrote.
        """
        errors = obstore_package().exceptions
        mode: Any = "create" if version is None else version.condition()
        try:
            with self._requests("write"):
                done = obstore_package().put(
                    self._client, self.key, text.encode(), mode=mode, use_multipart=False
                )
        except (errors.AlreadyExistsError, errors.PreconditionError, FileNotFoundError):
            raise ConflictError(str(self)) from None
        return ObjectStatus(len(text.encode()), done.get("e_tag"), done.get("version"))

    def unlink(self, missing_ok: bool = True) -> None:
        """Remove the object."""
        with self._requests("remove"):
            try:
                obstore_package().delete(self._client, self.key)
            except FileNotFoundError:
                if not missing_ok:
                    raise

    def remove_below(self) -> None:
        """Remove all objects below this name."""
        with self._requests("remove"):
            for batch in obstore_package().list(self._client, self.key):
                obstore_package().delete(self._client, [entry["path"] for entry in batch])

    def iterdir(self) -> Iterator[ObjectPath]:
        """Return the names directly below this one."""
        with self._requests("read"):
            listing = obstore_package().list_with_delimiter(self._client, self.key)
        keys = [entry["path"] for entry in listing["objects"]]
        return iter([replace(self, key=key) for key in (*keys, *listing["common_prefixes"])])

    def glob(self, pattern: str) -> list[ObjectPath]:
        """Return the names directly below this one that match a pattern."""
        return [path for path in self.iterdir() if fnmatchcase(path.name, pattern)]

    def objects_below(self) -> dict[str, tuple[int, str]]:
        """Return size and tag of all objects below this name, by their names relative to it."""
        with self._requests("read"):
            entries = obstore_package().list(self._client, self.key).collect()
        start = len(self.key) + 1
        return {e["path"][start:]: (int(e["size"]), e["e_tag"] or "") for e in entries}

    def open(self, mode: str = "rb", buffering: int = -1) -> Any:
        """Open the object for ranged reads, or for one write of the whole.

        Parameters
        ----------
        mode : {"rb", "wb"}
        buffering : int, default=-1
            0: every read is one request of exactly its range. Otherwise reads go by 4 MiB.

        Returns
        -------
        file : binary file
            What is written appears when a ``with`` block ends without an error.
        """
        if mode == "wb":
            return _Upload(self)
        if mode != "rb":
            raise ValueError(f"mode must be 'rb' or 'wb'. Got {mode!r}.")
        raw = _Reader(self)
        return raw if buffering == 0 else io.BufferedReader(raw, _READ_BYTES)

    @property
    def _client(self) -> Any:
        return client(self.scheme, self.bucket)

    @contextmanager
    def _requests(self, verb: str) -> Iterator[None]:
        """Turn the failures of obstore into ours."""
        with requests(self, verb):
            yield


@dataclass(frozen=True)
class ObjectStatus:
    """The version of an object, and its size in bytes."""

    st_size: int
    e_tag: str | None
    version: str | None

    @classmethod
    def of(cls, meta: Any) -> ObjectStatus:
        """Return the status in what obstore says of an object."""
        return cls(int(meta["size"]), meta.get("e_tag"), meta.get("version"))

    def condition(self) -> dict[str, str]:
        """Return the tags that there are."""
        tags = {"e_tag": self.e_tag, "version": self.version}
        return {name: tag for name, tag in tags.items() if tag is not None}


class _Reader(io.RawIOBase):
    """Ranged reads of an object: a request for each, of exactly what is asked for."""

    def __init__(self, path: ObjectPath) -> None:
        super().__init__()
        self.name, self._path = str(path), path
        self._position = 0
        self._size: int | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END:
            if self._size is None:
                self._size = self._path.stat().st_size
            offset += self._size
        elif whence == io.SEEK_CUR:
            offset += self._position
        self._position = max(0, offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        if self._size is not None:
            view = view[: max(0, self._size - self._position)]
        if not view:
            return 0
        n_read, self._size = self._path.read_into(view, self._position)
        self._position += n_read
        return n_read

    def readall(self) -> bytes:
        if self._size is None:
            self._size = self._path.stat().st_size
        count = self._size - self._position
        if count <= 0:
            return b""
        content = bytearray(count)
        n_read, _ = self._path.read_into(memoryview(content), self._position)
        self._position += n_read
        return bytes(content[:n_read])


class _Upload(io.RawIOBase):
    """Writes an object in parts; it appears when the block ends well, and only then."""

    def __init__(self, path: ObjectPath) -> None:
        super().__init__()
        self.name, self._path = str(path), path
        self._parts = bytearray()
        self._upload: Any = None

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        view = memoryview(content).cast("B")
        if self._upload is None and len(self._parts) + len(view) <= _PART_BYTES:
            self._parts += view
            return len(view)
        with requests(self._path, "write"):
            if self._upload is None:
                self._upload = obstore_package().open_writer(
                    client(self._path.scheme, self._path.bucket), self._path.key,
                    buffer_size=_PART_BYTES, max_concurrency=1,
                )  # fmt: skip
                self._upload.write(bytes(self._parts))
                self._parts.clear()
            self._upload.write(view)
        return len(view)

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None:
            if self._upload is None:
                self._path.write_bytes(bytes(self._parts))
            else:
                with requests(self._path, "write"):
                    self._upload.close()
        self._upload = None
        self.close()


def obstore_package() -> Any:
    """Return the obstore package, which is an extra."""
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError:
        raise InputError(
            "s3://, gs:// and az:// need obstore. Install it with: pip install 'bigfs[s3]'."
        ) from None
    return obstore


def hurried() -> AbstractContextManager[None]:
    """Give up on requests of this thread soon: it cleans up, and the next run would, too."""
    return set_within(_patience, HURRIED_SECONDS)


def client(scheme: str, bucket: str) -> Any:
    """Return the client of a bucket in this process, with what the environment says."""
    seconds = float(os.environ.get("BIGFS_STORAGE_RETRY_SECONDS", RETRY_SECONDS))
    return _client(scheme, bucket, min(seconds, _patience.get()))


@lru_cache(maxsize=16)
def _client(scheme: str, bucket: str, seconds: float) -> Any:
    obstore = obstore_package()
    options: dict[str, Any] = {
        # Only an endpoint that is spelled http:// is asked without encryption.
        "client_options": {
            "allow_http": True,
            "connect_timeout": "10s",
            "read_timeout": "60s",
            "timeout": "300s",
        },
        "retry_config": {
            "max_retries": 20,
            "retry_timeout": timedelta(seconds=seconds),
            "backoff": {"max_backoff": timedelta(seconds=5)},
        },
    }
    if scheme == "s3" and _has_profile():
        options |= _profile()
    try:
        return obstore.store.from_url(f"{scheme}://{bucket}", **options)
    except (obstore.exceptions.BaseError, ValueError) as error:
        raise InputError(f"{scheme}://{bucket} cannot be opened: {_reason(error)}.") from None


def _has_profile() -> bool:
    """Say whether the credentials are those of ~/.aws: the environment comes first."""
    named = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE")
    if any(os.environ.get(name) for name in named):
        return False
    files = {"AWS_SHARED_CREDENTIALS_FILE": "credentials", "AWS_CONFIG_FILE": "config"}
    places = [Path(os.environ.get(name, f"~/.aws/{end}")) for name, end in files.items()]
    return "AWS_PROFILE" in os.environ or any(place.expanduser().exists() for place in places)


def _profile() -> dict[str, Any]:
    """Return how obstore gets the credentials and the region of ~/.aws."""
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        raise InputError(
            "the credentials in ~/.aws are read by boto3. Install it with: pip install "
            "'bigfs[s3]', or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
        ) from None
    session = boto3.Session()
    if session.get_credentials() is None:
        return {}
    region = {"region": session.region_name} if session.region_name else {}
    return {"credential_provider": Boto3CredentialProvider(session), **region}


@contextmanager
def requests(path: ObjectPath, verb: str) -> Iterator[None]:
    """Turn the failures of obstore into ours, without what may be in its own messages.

    Raises
    ------
    FileNotFoundError
        If there is no such object.
    StorageError
        If the bucket refuses, or still fails after all attempts.
    """
    errors = obstore_package().exceptions
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(2, "No such object", str(path)) from None
    except (errors.AlreadyExistsError, errors.PreconditionError):
        raise
    except (errors.PermissionDeniedError, errors.UnauthenticatedError):
        raise StorageError(
            f"Cannot {verb} {path}: access is denied. Check the credentials (AWS_ACCESS_KEY_ID, "
            "AWS_SECRET_ACCESS_KEY, ~/.aws) of this process and their rights, and run again."
        ) from None
    except (errors.BaseError, OSError) as error:
        if "404 Not Found" in str(error):
            raise FileNotFoundError(2, "No such bucket", str(path)) from None
        raise StorageError(
            f"Cannot {verb} {path}: {_reason(error)}. Finished stages are kept: run again when "
            "the storage answers."
        ) from None


def _reason(error: Exception) -> str:
    """Return why a request failed, in words and without addresses."""
    text = str(error)
    status = re.search(r"status code: (\d+(?: [A-Z][\w-]*)+)", text)
    if status is not None:
        hint = ""
        if status[1].startswith("301"):
            hint = " (the bucket is in another region: set AWS_REGION)"
        return f"the server answers {status[1]}{hint}"
    if "error sending request" in text or "HTTP error" in text:
        return "the server does not answer"
    first = re.sub(r"\w+://\S+", "...", text.partition("\n")[0])
    return first.rstrip(". ")[:200]
