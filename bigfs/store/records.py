"""Ownership: the mark of a run directory, and the names in it that belong to the run.

A mark is only written into an empty folder, and a folder without a mark is never treated as a run.
The following names belong to a run; everything else is left alone, whatever its name:

| name | known by | removed |
| --- | --- | --- |
| ``.bigfs-run`` | its id, which is also the manifest's | with the run |
| ``lease.json``, ``lease.beat-OWNER`` | the owner | at the end |
| ``lease.stale-DIGEST`` | a dead lease's text | by the one that takes it over |
| ``manifest.json`` | the id | with the run, as the last file |
| `OUTPUTS` | the manifest's list ``files``, made before them | when a run replaces them |
| ``NAME.partial-ATTEMPT`` of the above | the manifest's ``attempts`` | by the next run |
| ``report.html`` | the id in its head | with the run |
| ``attempts/ATTEMPT/`` | the manifest's ``attempts`` | at the end, or by the next run |
| ``checkpoints/STAGE-KEY[-ATTEMPT]/`` | the manifest's ``checkpoints`` | with the stage's commit |
| ``STAGE[-ATTEMPT].zarr`` | the manifest's ``stages``, and its stamp | when it is replaced |
| the same, not committed | its stamp; in a bucket ``attempts`` | by the next run |

A name read from a file is only accepted if it is a plain name, below the run directory.

The last file that a commit writes into the folder of a stage lists all others: their sizes and,
unless something else verifies them, their CRC-32. The manifest holds the checksum of the list, so
that changed or added files are detected.
"""

from __future__ import annotations

import html
import json
import os
import re
import uuid
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from bigfs.core.errors import InputError, StorageError
from bigfs.core.paths import is_plain, is_there, parse_json, read_head
from bigfs.store.location import Location, create_text, files_below, write_atomic
from bigfs.store.objects import ObjectPath

MARK = ".bigfs-run"
MANIFEST = "manifest.json"
CONFIG = "config.yaml"
FEATURES = "features.csv"
TABLE = "table.txt"
REPORT = "report.html"
# In a bucket, which has no renames: marks the store that contains it as still being written.
UNFINISHED = "ingest.unfinished"
# All files that runs and comparisons write beside their stages.
OUTPUTS = (CONFIG, FEATURES, TABLE, "table.csv", "table.json", "curves.svg", "curves.png")
ATTEMPTS = "attempts"
CHECKPOINTS = "checkpoints"
FORMAT = 1
_SHOWN = 60
_HEAD_BYTES = 2**16
_LARGEST = 2**63
_NUMBER = (int, float)
# Types of the other manifest entries, and of those in the record of a stage.
_OF_MANIFEST: dict[str, Any] = {
    "status": str,
    "error": str,
    "versions": dict,
    "data": dict,
    **dict.fromkeys(("method", "series"), (str, type(None))),
    **dict.fromkeys(("notes", "files"), list),
    **dict.fromkeys(("updated_from", "compared", "earlier"), dict),
    "stages": dict,
    "attempts": dict,
    "checkpoints": dict,
}
_OF_STAGE: dict[str, Any] = {
    **dict.fromkeys(("settings", "stored", "versions"), dict),
    **dict.fromkeys(("seconds", "committed"), _NUMBER),
    **dict.fromkeys(("version", "passes", "bytes_read", "measured_peak_bytes"), int),
    **dict.fromkeys(("dropped_rows", "filled_values", "n_samples", "n_features"), int),
    **dict.fromkeys(("baseline_bytes", "predicted_peak_bytes"), (int, type(None))),
    "data_key": (str, type(None)),
    "notes": list,
    "strategy": str,
}
_IN_EVERY_STAGE = {"key", "attempt", "folder", "stored"}
_MEASURED = {"settings", "seconds", "measured_peak_bytes", "passes"}
_ID = re.compile(r"[0-9a-f]{12}")
# Files that an ingest writes: a group with one array, or with three for each block of a sparse
# matrix.
_OF_STORE = re.compile(
    r"zarr\.json|(X|index|dropped)/(zarr\.json|c(/\d+)*)"
    r"|X/\d+/(zarr\.json|(data|indices|indptr)/(zarr\.json|c/0))"
)
FILES = "checksums.json"
# Prefix of entity tags in it; other entries are CRC-32 in hexadecimal.
_TAG = "tag:"
# Manifest entry: configuration of a result that a later, unfinished run may replace.
EARLIER = "earlier"
# Method named in the manifest of a comparison of several methods.
COMPARISON = "a comparison"
# File in the folder of a stage on disk: the run, stage and attempt that created it.
STAMP = ".bigfs-stage"
_PART_BYTES = 2**20
# Metadata and chunks of zarr, version 3.
_OF_ZARR = re.compile(r"(.*/)?(zarr\.json|c([/.]\d+)*)")
# An interrupt that comes sooner is not due to a time limit.
LONG_SECONDS = 300.0
# Manifest entry: digest of what was kept when a run was last interrupted after LONG_SECONDS or
# more.
KEPT = "kept"


def is_attempt(value: Any) -> bool:
    """Return True if a value has the form of an attempt id."""
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def new_id() -> str:
    """Return a unique id."""
    return uuid.uuid4().hex[:12]


def read_mark(folder: Location) -> str | None:
    """Return the id in a folder's mark: "" if the mark is empty, None if there is no mark.

    Raises
    ------
    InputError
        If the mark is not one of ours.
    """
    path = folder / MARK
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        if isinstance(error, StorageError):
            raise
        raise InputError(f"{path} cannot be read: {error}. Give another folder.") from None
    if not text:  # the run was killed between creating the file and writing it
        return ""
    try:
        run_id = parse_json(text)["id"]
    except (ValueError, KeyError, TypeError):
        run_id = None
    if not is_attempt(run_id):
        raise InputError(f"{path} is not the marker file of a bigfs run. Give another folder.")
    return str(run_id)


def mark_text(run_id: str) -> str:
    """Return the content of a mark with this id."""
    return json.dumps({"format": FORMAT, "id": run_id}) + "\n"


def create_mark(folder: Location, run_id: str) -> None:
    """Mark a folder as a run directory unless it already is one.

    Raises
    ------
    StorageError
        If it cannot be written.
    """
    create_text(folder / MARK, mark_text(run_id))


def empty_manifest() -> dict[str, Any]:
    """Return the manifest of a run without results; the caller adds the id of the mark."""
    return {"format": FORMAT, "stages": {}, "attempts": {}, "checkpoints": {}, "files": []}


def check_manifest(manifest: Any) -> None:
    """Check that a manifest is valid and that all names in it lie below its run directory.

    Raises
    ------
    ValueError, KeyError, TypeError, AttributeError
        If it is not valid; the message names the value.
    """
    if manifest["format"] != FORMAT:
        raise ValueError(f"its format is {manifest['format']}, not {FORMAT}")
    _check(is_attempt(manifest["id"]), "invalid id", manifest["id"])
    _check_types(manifest, _OF_MANIFEST, "")
    # A manifest without a status is not of a run: nothing was measured.
    needed = _IN_EVERY_STAGE | (_MEASURED if "status" in manifest else set())
    for name, record in manifest["stages"].items():
        _check_types(record, _OF_STAGE, f" of stage {name[:_SHOWN]}")
        lacking = sorted(needed - record.keys())
        _check(not lacking, f"missing in stage {name[:_SHOWN]}", lacking)
        key, attempt = record["key"], record["attempt"]
        _check(is_plain(name), "invalid stage name", name)
        _check(is_plain(key), f"invalid key of stage {name}", key)
        _check(is_attempt(attempt), f"invalid attempt of stage {name}", attempt)
        folder = record["folder"]
        known = (f"{name}.zarr", f"{name}-{attempt}.zarr")
        _check(folder in known, f"invalid folder of stage {name}", folder)
    if "updated_from" in manifest:
        base = manifest["updated_from"]
        keys = base.get("keys")
        _check(is_plain(base.get("run")), "invalid run in updated_from", base.get("run"))
        are_plain = isinstance(keys, dict) and all(map(is_plain, keys))
        _check(are_plain, "invalid keys in updated_from", keys)
        lacking = sorted({"rows", "data", "rows_of_full", "in_a_row"} - base.keys())
        _check(not lacking, "missing in updated_from", lacking)
    for record in (manifest, *manifest["stages"].values()):
        notes = record.get("notes", [])
        _check(all(isinstance(note, str) for note in notes), "invalid notes", notes)
    for attempt, folders in manifest["attempts"].items():
        _check(is_attempt(attempt), "invalid attempt", attempt)
        for folder in folders:
            ours = is_plain(folder) and folder.endswith(f"-{attempt}.zarr")
            _check(ours, f"invalid folder of attempt {attempt}", folder)
    for name, record in manifest["checkpoints"].items():
        folder = record["folder"]
        ours = is_plain(name) and is_plain(folder) and folder.startswith(f"{name}-")
        _check(ours, f"invalid checkpoint of stage {name}", folder)
    for name in manifest["files"]:
        _check(name in OUTPUTS, "invalid file name", name)


def _check_types(record: dict[str, Any], types: dict[str, Any], of_stage: str) -> None:
    for name, kinds in types.items():
        if name in record:
            value = record[name]
            is_right = isinstance(value, kinds) and not isinstance(value, bool)
            is_right &= not isinstance(value, (int, float)) or abs(value) < _LARGEST
            _check(is_right, f"invalid {name}{of_stage}", value)


def _check(is_right: bool, what: str, value: Any) -> None:
    if not is_right:
        shown = repr(value)
        shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
        raise ValueError(f"it is damaged ({what}: {shown})")


def write_stamp(folder: Path, run_id: str, stage: str, attempt: str) -> None:
    """Record in a stage's folder which run, stage and attempt created it."""
    record = {"run": run_id, "stage": stage, "attempt": attempt}
    write_atomic(folder / STAMP, json.dumps(record) + "\n")


def refuse_inside_ours(place: Location) -> None:
    """Raise InputError if a new file would lie in a run directory, a stage or a zarr store."""
    if not isinstance(place, Path):
        return
    for folder in place.absolute().parents:
        if any((folder / name).is_file() for name in (MARK, STAMP, "zarr.json", ".zgroup")):
            raise InputError(
                f"{place} lies in {folder}, which is a run or a store. Give another place."
            )


def check_new_file(place: Path, own: bytes | None = None) -> Path:
    """Return the target path of a file that a command may write; links are followed and kept.

    Parameters
    ----------
    place : Path
    own : bytes or None, default=None
        Bytes near the start of files of this kind that bigfs wrote: such files may be replaced.

    Raises
    ------
    InputError
        If the folder does not exist or belongs to a run or store, or another file has this name.
    """
    target = Path(os.path.realpath(place))
    if not place.name or target.is_dir():
        raise InputError(f"{place} is a folder. Give the name of a file.")
    if not target.parent.is_dir():
        raise InputError(f"{place}: there is no folder {target.parent}. Make it first.")
    refuse_inside_ours(target)
    if not is_there(target, "the file"):
        return target
    with suppress(OSError, ValueError):
        if own is not None and own in read_head(target, _HEAD_BYTES):
            return target
    whose = "" if own is None else ", and bigfs did not write it"
    raise InputError(f"{place} already exists{whose}. Give another name.")


def report_mark(run_id: str) -> str:
    """Return the mark near the start of a report that identifies its run."""
    return f'<meta name="bigfs-run" content="{html.escape(run_id)}">'


def is_own_report(place: Location, run_id: str) -> bool:
    """Return True if a file is the report of this run."""
    if not place.is_file():
        return False
    with place.open("rb") as file:
        return report_mark(run_id).encode() in file.read(500)


def remove_report(folder: Location, run_id: str) -> None:
    """Remove the report of a run, but no other file of that name."""
    if is_own_report(folder / REPORT, run_id):
        (folder / REPORT).unlink(missing_ok=True)


def read_stamp(folder: Path) -> dict[str, str] | None:
    """Return the stamp in a stage's folder; None if there is none or the folder is a link."""
    if folder.is_symlink():
        return None
    try:
        stamp = parse_json((folder / STAMP).read_text())
        return {name: str(stamp[name]) for name in ("run", "stage", "attempt")}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def beside_the_matrix(store: Location) -> list[str]:
    """Return the files below a store that were not written by an ingest."""
    return sorted(name for name in files_below(store) if _OF_STORE.fullmatch(name) is None)


def refuse_links(folder: Location, names: list[str]) -> None:
    """Raise InputError if a folder of a run is a link, which may lead anywhere."""
    for name in names:
        path = folder / name
        if isinstance(path, Path) and path.is_symlink():
            raise InputError(
                f"{path} is a link (to {path.readlink()}). A run directory must contain its "
                "folders themselves, and links are not followed. Move the folder there, or use "
                "another run directory."
            )


def refuse_nested(path: Path) -> None:
    """Raise InputError if a path lies inside a stage folder of another run."""
    stage = next((folder for folder in path.parents if is_taken(folder / STAMP)), None)
    if stage is not None:
        raise InputError(
            f"{path} lies in {stage}, which a stage of another run made and may replace. Give "
            "another folder."
        )


def is_taken(path: Location) -> bool:
    """Return True if anything exists at a path, including a broken link."""
    return path.exists() if isinstance(path, ObjectPath) else os.path.lexists(path)


def is_metadata(name: str) -> bool:
    """Return True if a file holds zarr metadata."""
    return name.rpartition("/")[2] == "zarr.json"


def write_list(folder: Location, checked: Callable[[str], bool]) -> dict[str, Any]:
    """Write the list of a stage's files; return their record for the manifest.

    Parameters
    ----------
    folder : Path or ObjectPath
    checked : callable
        ``checked(name)`` returns True if the checksum of a file on disk is to be listed. In a
        bucket the entity tags of all objects are.
    """
    listed: dict[str, Any] = {
        name: [size, _tag(version) if isinstance(folder, ObjectPath)
               else _checksum(folder / name) if checked(name) else None]
        for name, (size, version) in files_below(folder).items()
    }  # fmt: skip
    text = json.dumps(listed)
    write_atomic(folder / FILES, text)
    total = sum(size for size, _ in listed.values())
    record = {"files": len(listed), "bytes": total, "list": f"{zlib.crc32(text.encode()):08x}"}
    # A copy elsewhere may have other tags.
    return {**record, "at": str(folder)} if isinstance(folder, ObjectPath) else record


def is_complete(folder: Location) -> bool:
    """Return True if the list and all files in it exist, with the recorded sizes."""
    there = {name: size for name, (size, _) in files_below(folder).items()}
    listed = _read_list(folder, None) or {}
    return FILES in there and all(there.get(name) == size for name, (size, _) in listed.items())


def changed_file(folder: Location, stored: dict[str, Any]) -> str | None:
    """Return the name of a file whose content changed since the commit; None if there is none."""
    listed = _read_list(folder, stored.get("list"))
    if listed is None:
        return FILES
    in_place = isinstance(folder, ObjectPath) and stored.get("at") == str(folder)
    versions = {n: v for n, (_, v) in files_below(folder).items()} if in_place else {}
    for name, (_, recorded) in sorted(listed.items()):
        is_tag = (recorded or _TAG).startswith(_TAG)
        actual = _tag(versions.get(name, "")) if is_tag else _checksum(folder / name)
        if recorded is not None and actual != recorded and not (is_tag and actual is None):
            return name
    return None


def _tag(version: str) -> str | None:
    """Return the entity tag of an object as it is listed, or None if the store gives none."""
    return f"{_TAG}{version}" if version else None


def foreign_files(folder: Location, stored: dict[str, Any] | None) -> list[str]:
    """Return the files below a stage's folder that bigfs did not write there.

    Files of ours are the list and those in it. If the list is damaged, or the stage is not
    recorded, they are the files of zarr groups and arrays.
    """
    names = set(files_below(folder)) - {STAMP, FILES}
    listed = None if stored is None else _read_list(folder, stored.get("list"))
    if listed is not None:
        return sorted(names - set(listed))
    return sorted(name for name in names if _OF_ZARR.fullmatch(name) is None)


def refuse_foreign_files(folder: Location, stored: dict[str, Any]) -> None:
    """Raise InputError if a stage's folder, which is replaced as a whole, holds foreign files."""
    others = foreign_files(folder, stored)
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise InputError(
            f"{folder} holds {others[0]}{more}, which bigfs did not write. A stage's folder is "
            "replaced as a whole: move these files elsewhere, then run again. Nothing was "
            "touched."
        )


def _read_list(folder: Location, checksum: str | None) -> dict[str, Any] | None:
    """Return the list of a stage's files; None if it is damaged or missing.

    ``checksum`` is the checksum of the list in the manifest. None: not compared.
    """
    try:
        text = (folder / FILES).read_text()
        if checksum not in (None, f"{zlib.crc32(text.encode()):08x}"):
            return None
        entries = parse_json(text).items()
        return {str(name): (int(size), crc and str(crc)) for name, (size, crc) in entries}
    except (FileNotFoundError, ValueError, TypeError, AttributeError, OverflowError):
        return None


def _checksum(file: Location) -> str | None:
    """Return the CRC-32 of a file; None if it does not exist."""
    value = 0
    try:
        with file.open("rb") as content:
            while part := content.read(_PART_BYTES):
                value = zlib.crc32(part, value)
    except FileNotFoundError:
        return None
    return f"{value:08x}"


def why_stalled(manifest: dict[str, Any], checkpoints: Location, seconds: float) -> str | None:
    """Record what an interrupted run has kept; return the reason if it will never finish.

    Parameters
    ----------
    manifest : dict
        Manifest of the run, modified in place.
    checkpoints : Path or ObjectPath
        Folder with the checkpoints of the run.
    seconds : float
        Seconds since the run began.
    """
    if seconds < LONG_SECONDS:
        return None
    stages = {name: record["attempt"] for name, record in manifest["stages"].items()}
    kept = json.dumps([stages, files_below(checkpoints)], sort_keys=True)
    before, manifest[KEPT] = manifest.get(KEPT), f"{zlib.crc32(kept.encode()):08x}"
    if before != manifest[KEPT]:
        return None
    return (
        f"this start was interrupted after {seconds / 60:.0f} minutes, like the one before it, and "
        f"nothing new was saved: the stage after {', '.join(stages) or 'the beginning'} takes "
        "longer than a start may take. Give it more time or more workers, then run again."
    )
