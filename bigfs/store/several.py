"""The sources that a URI refers to: lists, globs, and folders with the parts of a table."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import unquote

from bigfs.core.errors import InputError, StorageError
from bigfs.core.paths import listed_in
from bigfs.store.formats import PARTS, TABLES, format_of_folder
from bigfs.store.location import Location, as_location
from bigfs.store.objects import ObjectPath

# A folder that contains one of these is a bigfs run.
_RUN = (".bigfs-run", "manifest.json")
# Hive, and therefore Spark, writes this for a missing value of a partition column.
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_NAMES_OF = re.compile(r"[^/=]+=[^/]*")


def sources_of(uri: str) -> list[str] | None:
    """Return the sources that a URI refers to, in order; None if it is a single source.

    A list refers to its entries, a glob to its matches, and a folder to the parts of the table in
    it, as written by Spark and Dask, or to its .npy files if there is no table. Matches and parts
    are sorted naturally: numbers in names count as numbers.

    Raises
    ------
    InputError
        If a list is empty, a glob matches nothing, or a folder has parts of several kinds.
    """
    entries = listed_in(uri)
    if entries is not None:
        if not entries:
            raise InputError("input.uri is an empty list. Name at least one source.")
        return entries
    if uri.startswith("sklearn:") or uri.rstrip("/").endswith(".zarr") and not glob.has_magic(uri):
        return None
    place = as_location(uri)
    try:
        if glob.has_magic(uri) and not place.exists():
            return _matches(uri)
        if not place.is_dir() or any((place / name).exists() for name in _RUN):
            return None
        if format_of_folder(place) is not None:
            return None
        names = _parts_below(place)
    except (InputError, StorageError):
        raise
    except (OSError, ValueError):  # reported when it is opened
        return None
    kinds = {ending for name in names for ending in PARTS if name.lower().endswith(ending)}
    if len(kinds) > 1:
        raise InputError(
            f"{uri} holds files of several kinds ({', '.join(sorted(kinds))}). Select one kind "
            f"with a pattern: '{uri.rstrip('/')}/*{min(kinds)}'."
        )
    base = uri.rstrip("/")
    return [f"{base}/{name}" for name in names] or None


def flattened(uri: str) -> list[str]:
    """Return all single sources that a URI refers to."""
    entries = sources_of(uri)
    return [uri] if entries is None else [uri for entry in entries for uri in flattened(entry)]


def is_table(uri: str) -> bool:
    """Return True if the first source that a URI refers to is a table, judging by its name."""
    sources = sources_of(uri)
    return is_table(sources[0]) if sources else uri.lower().endswith(TABLES)


def partition_columns(uri: str, part: str) -> dict[str, str | None]:
    """Return the partition columns in the folder names between a folder and a part of its table."""
    base = uri.rstrip("/")
    if listed_in(uri) is not None:
        return {}
    if not part.startswith(f"{base}/"):
        base = _base_of(uri)
    folders = [f for f in part[len(base) :].split("/")[:-1] if _NAMES_OF.fullmatch(f)]
    pairs = (folder.split("=", 1) for folder in folders)
    return {name: None if value == _NO_VALUE else unquote(value) for name, value in pairs}


def _natural(name: str) -> list[Any]:
    """Return a sort key that puts part.2 before part.10."""
    return [int(piece) if piece.isdigit() else piece for piece in re.split(r"(\d+)", name)]


def _base_of(pattern: str) -> str:
    """Return the folder above the first component of a pattern that contains a wildcard."""
    parts = pattern.split("/")
    first = next(i for i, part in enumerate(parts) if glob.has_magic(part))
    return "/".join(parts[:first])


def _matches(pattern: str) -> list[str]:
    place = as_location(pattern)
    if isinstance(place, ObjectPath):
        base = _base_of(pattern)
        if base.count("/") < 3:
            raise InputError(
                f"{pattern}: a pattern must be below a folder of the bucket, such as "
                f"{base}/FOLDER/*.csv."
            )
        below = [name.split("/") for name in as_location(base).objects_below()]  # type: ignore[union-attr]
        # A store is a folder of objects, so the pattern is matched against prefixes of their names.
        prefixes = {tuple(names[: i + 1]) for names in below for i in range(len(names))}
        parts = pattern[len(base) + 1 :].rstrip("/").split("/")
        paths = [f"{base}/{'/'.join(names)}" for names in prefixes if _fits(names, parts)]
    else:
        paths = [path.rstrip("/") for path in glob.glob(str(place), recursive=True)]
    # The rows of a folder whose files match as well would be read twice.
    above = {path[: match.start()] for path in paths for match in re.finditer("/", path)}
    paths = sorted(set(paths) - above, key=_natural)
    if not paths:
        raise InputError(f"{pattern} matches no file. Check the pattern.")
    return paths


def _fits(names: Sequence[str], parts: Sequence[str]) -> bool:
    """Return True if a path matches a pattern, both in components, by the rules of `glob.glob`."""
    if not parts or not names:
        return not names and all(part == "**" for part in parts)
    is_shown = parts[0].startswith(".") or not names[0].startswith(".")
    if parts[0] == "**":
        return _fits(names, parts[1:]) or (is_shown and _fits(names[1:], parts))
    return is_shown and fnmatchcase(names[0], parts[0]) and _fits(names[1:], parts[1:])


def _parts_below(folder: Location) -> list[str]:
    """Return the sorted names of the parts in a folder and in the partition folders below it."""
    if isinstance(folder, ObjectPath):
        names = list(folder.objects_below())
    else:
        names, folders = [], [folder]
        for below in folders:
            for path in below.iterdir():
                if path.is_dir():
                    folders += [path] if _NAMES_OF.fullmatch(path.name) else []
                else:
                    names.append(path.relative_to(folder).as_posix())
    tables = [name for name in names if _is_part(name, PARTS)]
    return sorted(tables or [name for name in names if _is_part(name, (".npy",))], key=_natural)


def _is_part(name: str, endings: tuple[str, ...]) -> bool:
    """Return True if a file is a part: neither hidden nor a marker such as _SUCCESS."""
    *folders, last = name.split("/")
    in_partitions = all(_NAMES_OF.fullmatch(folder) for folder in folders)
    return in_partitions and not last.startswith(("_", ".")) and last.lower().endswith(endings)
