"""The files of a finished stage: what was committed is told from what was changed or added.

The last file that a commit writes into the folder of a stage is a list of all others: their sizes
and, where nothing else checks them, their CRC-32. The manifest holds the checksum of the list.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from typing import Any

from bigfs.core.errors import InputError
from bigfs.core.paths import parse_json
from bigfs.store.location import Location, files_below, write_atomic

FILES = "checksums.json"
# In the folder of a stage on disk: the run, the stage and the attempt that made it.
STAMP = ".bigfs-stage"
_PART_BYTES = 2**20
# Metadata and chunks of zarr, version 3.
_OF_ZARR = re.compile(r"(.*/)?(zarr\.json|c(/\d+)*)")


def is_metadata(name: str) -> bool:
    """Say whether a file holds metadata of zarr."""
    return name.rpartition("/")[2] == "zarr.json"


def write_list(folder: Location, checked: Callable[[str], bool]) -> dict[str, Any]:
    """List the files of a stage; return what the manifest says of them.

    Parameters
    ----------
    folder : Path or ObjectPath
    checked : callable
        Says of the name of a file whether its checksum is listed.
    """
    listed: dict[str, Any] = {
        name: [size, _checksum(folder / name) if checked(name) else None]
        for name, (size, _) in files_below(folder).items()
    }
    text = json.dumps(listed)
    write_atomic(folder / FILES, text)
    total = sum(size for size, _ in listed.values())
    return {"files": len(listed), "bytes": total, "list": f"{zlib.crc32(text.encode()):08x}"}


def is_complete(folder: Location) -> bool:
    """Say whether the list and all files that it names are there, with their sizes."""
    there = {name: size for name, (size, _) in files_below(folder).items()}
    listed = _read_list(folder, None) or {}
    return FILES in there and all(there.get(name) == size for name, (size, _) in listed.items())


def changed_file(folder: Location, stored: dict[str, Any]) -> str | None:
    """Return the name of a file whose bytes are not those that were committed, None if none."""
    listed = _read_list(folder, stored.get("list"))
    if listed is None:
        return FILES
    for name, (_, checksum) in sorted(listed.items()):
        if checksum is not None and checksum != _checksum(folder / name):
            return name
    return None


def foreign_files(folder: Location, stored: dict[str, Any] | None) -> list[str]:
    """Return the files below a stage's folder that bigfs did not write there.

    Ours are the list and what it names. Where it is damaged, or the stage is in no record, they
    are the files of zarr groups and arrays.
    """
    names = set(files_below(folder)) - {STAMP, FILES}
    listed = None if stored is None else _read_list(folder, stored.get("list"))
    if listed is not None:
        return sorted(names - set(listed))
    return sorted(name for name in names if _OF_ZARR.fullmatch(name) is None)


def refuse_foreign_files(folder: Location, stored: dict[str, Any]) -> None:
    """Raise InputError if a stage's folder, which is replaced as a whole, holds files of others."""
    others = foreign_files(folder, stored)
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise InputError(
            f"{folder} holds {others[0]}{more}, which bigfs did not write. A stage's folder is "
            "replaced as a whole: move these files elsewhere, then run again. Nothing was "
            "touched."
        )


def _read_list(folder: Location, checksum: str | None) -> dict[str, Any] | None:
    """Return the list of a stage's files, None if it is damaged or not there.

    ``checksum`` is what the manifest says of it. None: not compared.
    """
    try:
        text = (folder / FILES).read_text()
        if checksum not in (None, f"{zlib.crc32(text.encode()):08x}"):
            return None
        return {str(name): (int(size), crc) for name, (size, crc) in parse_json(text).items()}
    except (FileNotFoundError, ValueError, TypeError, AttributeError, OverflowError):
        return None


def _checksum(file: Location) -> str | None:
    """Return the CRC-32 of a file, None if it is not there."""
    value = 0
    try:
        with file.open("rb") as content:
            while part := content.read(_PART_BYTES):
                value = zlib.crc32(part, value)
    except FileNotFoundError:
        return None
    return f"{value:08x}"
