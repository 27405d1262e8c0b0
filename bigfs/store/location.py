"""Locations of files: a folder on disk, or objects in an S3, GCS or Azure bucket.

A local location is a `pathlib.Path`, one in a bucket an `ObjectPath` with the same methods.
Operations that differ (renaming, exclusive creation, removing trees, free space) are functions
here.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

from bigfs.core import paths
from bigfs.core.errors import InputError, StorageError
from bigfs.store.objects import SCHEMES, ConflictError, ObjectPath
from bigfs.store.pages import Upload
from bigfs.store.values import refusing, storing

if TYPE_CHECKING:
    import numpy as np

Location: TypeAlias = Path | ObjectPath
# Size limit of zarr metadata: enough for the names of a million features and the checksums of as
# many chunks.
METADATA_BYTES = 64 * 2**20


def as_location(uri: str | Location) -> Location:
    """Return the location that a path or URI refers to.

    Parameters
    ----------
    uri : str, Path or ObjectPath
        A local path (``~/`` is the home directory), ``file://PATH``, or ``s3://BUCKET/KEY``
        (``gs://``, ``az://``).

    Raises
    ------
    InputError
        If the scheme is not supported, the bucket or key is missing, or the URI contains
        credentials.
    """
    if isinstance(uri, (Path, ObjectPath)):
        return uri
    if not isinstance(uri, str):
        raise InputError(f"a place must be a path or an address. Got {uri!r}.")
    scheme, separator, rest = uri.partition("://")
    if uri.startswith("~/"):
        return Path(uri).expanduser()
    if not separator or scheme == "file":
        return Path(rest if separator else uri)
    scheme = scheme.lower()
    uri = f"{scheme}://{rest}"
    if scheme not in SCHEMES:
        raise InputError(
            f"{shown(uri)}: only local paths and {', '.join(f'{s}://' for s in SCHEMES)} can be "
            "read and written. Copy the data there."
        )
    if shown(uri) != uri:
        raise InputError(
            f"{shown(uri)}: an address must not contain a user, a password, '?' or '#'. "
            "Credentials are taken from the environment (AWS_ACCESS_KEY_ID, ...) or from ~/.aws."
        )
    bucket, _, key = rest.partition("/")
    key = key.rstrip("/")
    if not bucket or not key or any(part in ("", ".", "..") for part in key.split("/")):
        raise InputError(f"{uri}: must be {scheme}://BUCKET/NAME, without empty parts or dots.")
    return ObjectPath(scheme, bucket, key)


def shown(uri: str) -> str:
    """Return a URI without user, password, query and fragment, which may contain credentials."""
    if "://" not in uri or uri.startswith("file://"):
        return uri
    try:
        parts = urlsplit(uri)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    except ValueError:
        return uri.partition("://")[0] + "://..."


def is_remote(place: Location | str) -> bool:
    """Return True if a location is in a bucket."""
    return isinstance(as_location(place), ObjectPath)


def remove_tree(place: str | Location | None) -> None:
    """Remove a folder and its content, ignoring what cannot be removed."""
    if place is None:
        return
    place = as_location(place)
    if isinstance(place, Path):
        shutil.rmtree(place, ignore_errors=True)
    else:
        with suppress(StorageError):
            place.remove_below()


def copy_tree(source: Location, target: Location) -> None:
    """Copy a folder to a location that does not exist yet."""
    if isinstance(source, Path) and isinstance(target, Path):
        shutil.copytree(source, target)
        return
    for name in files_below(source):
        with replaced_file(target / name, sync=False) as file:
            file.write((source / name).read_bytes())


def is_within(place: Location, folder: Location) -> bool:
    """Return True if a location is a folder or lies inside it, with links resolved or not."""
    if isinstance(place, ObjectPath) or isinstance(folder, ObjectPath):
        return place == folder or str(place).startswith(f"{folder}/")
    try:
        return any(
            Path(resolved(place)).is_relative_to(resolved(folder))
            for resolved in (os.path.abspath, os.path.realpath)
        )
    except (ValueError, OSError):  # not a valid path, which is reported when it is opened
        return False


def free_bytes(place: Location) -> int | None:
    """Return the free bytes of the file system; None in a bucket, which has no limit."""
    return shutil.disk_usage(place).free if isinstance(place, Path) else None


def files_below(place: Location) -> dict[str, tuple[int, str]]:
    """Return the size and a version stamp of every file in a folder, by relative name.

    The stamp is the modification time of a file or the entity tag of an object.
    """
    if isinstance(place, ObjectPath):
        return place.objects_below()
    files = {}
    for path in sorted(Path(top) / name for top, _, names in os.walk(place) for name in names):
        with suppress(FileNotFoundError):  # removed meanwhile, or a broken link
            status = path.stat()
            if stat.S_ISREG(status.st_mode):
                times = str(status.st_mtime_ns)
                files[path.relative_to(place).as_posix()] = (status.st_size, times)
    return files


def create_text(place: Location, text: str, what: str = "") -> bool:
    """Write a text file unless it exists; return True if it was written.

    Parameters
    ----------
    place : Path or ObjectPath
    text : str
    what : str, default=""
        Description of the file, put before its name in error messages.

    Raises
    ------
    StorageError
        If it cannot be written.
    """
    with storing(f"Cannot write {what}{place}"):
        try:
            if isinstance(place, ObjectPath):
                place.write_if(text, None)
            else:
                with place.open("x") as file:
                    file.write(text)
        except (FileExistsError, ConflictError):
            return False
    return True


def read_into(file: Any, begin: int, out: np.ndarray, ended: str = "") -> None:
    """Fill an array from an offset in a file; ``ended`` is the message if the file is too short."""
    if not out.size:
        return
    file.seek(begin)
    view = out.view("u1").data.cast("B")  # raises an error if not contiguous
    while len(view):
        count = file.readinto(view)
        if not count:
            raise StorageError(ended or f"{file.name} ends too early. Run again.")
        view = view[count:]


@contextmanager
def replaced_file(
    place: Location, *, sync: bool = True, token: str | None = None, own: bool = False
) -> Iterator[IO[bytes]]:
    """Open a file that atomically replaces the old one when the context exits normally.

    Parameters
    ----------
    place : Path or ObjectPath
    sync : bool, default=True
        Whether the content must survive a power failure.
    token : str or None, default=None
        Part of the name of the temporary file beside the old one. None: a random one.
    own : bool, default=False
        Whether only `open_own` will read it, so that it is paged in a bucket.

    Raises
    ------
    StorageError
        If the disk is full or the folder cannot be written.
    """
    if isinstance(place, ObjectPath):
        upload: Any = Upload(place, own=own)
        with upload as file:
            yield file
        return
    partial = place.with_name(f"{place.name}.partial-{token or uuid.uuid4().hex[:8]}")
    try:
        with partial.open("wb") as file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(place)
        if sync:
            sync_path(place.parent)
    except BaseException as error:
        with suppress(OSError):  # if nothing can be written, there is nothing to remove
            partial.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise StorageError(
            f"Cannot write {place}: {error}. Free space there, or give another place."
        ) from error


def sync_tree(folder: Path) -> None:
    """Sync a folder and its content to disk, so that it survives a power failure.

    Raises
    ------
    StorageError
        If the disk reports an error: what was written is lost.
    """
    with storing(f"Cannot write {folder}"):
        for path, _, names in os.walk(folder, topdown=False):
            for name in names:
                sync_path(Path(path) / name)
            sync_path(Path(path))


def sync_path(path: Path) -> None:
    """Sync a file, or the entries of a folder, to disk."""
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # this file system cannot sync folders
            raise
    finally:
        os.close(number)


@contextmanager
def unnamed_file(place: Path, *, overwrite: bool = False) -> Iterator[IO[bytes]]:
    """Open a file that gets its name when the context exits normally.

    If the file system supports it, the file has no name until then, so that even a killed process
    leaves nothing behind. A file that is overwritten passes on its mode, owner and group.

    Raises
    ------
    FileExistsError
        If the location exists by then and ``overwrite`` is False.
    InputError
        If owner or group of an overwritten file cannot be preserved.
    """
    beside = place.with_name(f"{place.name}.partial-{uuid.uuid4().hex[:8]}")
    try:
        number = os.open(place.parent, os.O_TMPFILE | os.O_RDWR, 0o666)
        has_name = False
    except (AttributeError, OSError):  # not supported by the system or file system
        number = os.open(beside, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        has_name = True
    try:
        with os.fdopen(number, "w+b") as file:
            yield file
            file.flush()
            os.fsync(number)
            if overwrite and place.exists():
                keep_rights(number, place.stat(), place)
            target = beside if overwrite else place
            if not has_name:
                # With a directory descriptor this is linkat(2), which follows the link to the file.
                os.link(f"/proc/self/fd/{number}", target, src_dir_fd=number, follow_symlinks=True)
            elif not overwrite:
                os.link(beside, place)
        if overwrite:
            beside.replace(place)
    finally:
        beside.unlink(missing_ok=True)


def keep_rights(copy: int | Path, original: os.stat_result, place: Path) -> None:
    """Set owner, group and mode of a copy to those of the original that it replaces.

    Raises
    ------
    InputError
        If this user lacks the permission.
    """
    status = os.stat(copy)
    if (status.st_uid, status.st_gid) != (original.st_uid, original.st_gid):
        try:
            os.chown(copy, original.st_uid, original.st_gid)
        except PermissionError:
            raise InputError(
                f"{place} belongs to another user or group (uid {original.st_uid}, gid "
                f"{original.st_gid}), which its replacement would lose. Write a copy under "
                "another name."
            ) from None
    os.chmod(copy, stat.S_IMODE(original.st_mode))


def read_small(place: Location, most_bytes: int = paths.SMALL_BYTES) -> str:
    """Return the text of a file of limited size; see `bigfs.core.paths.read_small`."""
    if isinstance(place, ObjectPath):
        size = place.stat().st_size
        if size > most_bytes:
            raise ValueError(f"it has {size:,} bytes")
        return place.read_text()
    return paths.read_small(place, most_bytes)


def read_version(place: Location) -> tuple[str, Any]:
    """Return the text of a small file and its version: its tags in a bucket, else the text."""
    if isinstance(place, ObjectPath):
        content, status = place.fetch()
        return content.decode(), status
    text = read_small(place)
    return text, text


def read_output(place: Location) -> str:
    """Return the text of an output file that a run wrote beside its stages.

    Raises
    ------
    InputError
        If it does not exist, is not text or is too large.
    StorageError
        If a bucket does not respond.
    """
    cure = "Run again: it will be rewritten."
    with refusing(f"{place} cannot be read", ValueError, OSError, cure=cure):
        return read_small(place)


def write_atomic(place: Location, content: str | bytes, token: str | None = None) -> None:
    """Write a file atomically: readers see either the old or the new content.

    ``token`` is that of `replaced_file`.

    Raises
    ------
    StorageError
        If the disk is full or the folder cannot be written.
    """
    with replaced_file(place, token=token) as file:
        file.write(content if isinstance(content, bytes) else content.encode())


def zarr_store(place: str | Location, *, strict: bool = False) -> Any:
    """Return the store with which zarr opens a location.

    Parameters
    ----------
    place : str, Path or ObjectPath
    strict : bool, default=False
        Whether a missing chunk is an error; otherwise it reads as zeros.
    """
    place = as_location(place)
    if isinstance(place, Path) and not strict:
        return str(place)
    from bigfs.store.formats.zarr_stores import KeptFiles, ZarrObjects

    return KeptFiles(place) if isinstance(place, Path) else ZarrObjects(place, strict)
