"""Ownership: the marker of a run directory, and the names in it that belong to bigfs.

A run directory carries a mark, ``.bigfs-run``, with an id. It is written into an empty folder
only, or beside the manifest of an earlier version. A folder without a mark is never a run. Only
what the manifest of the same id names is ever removed, and a name that is read from a file counts
only if it is a plain one, below the run directory.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from pathlib import Path
from typing import Any

from bigfs.core.errors import InputError, StorageError
from bigfs.core.files import parse_json
from bigfs.core.paths import is_plain
from bigfs.store.location import Location, files_below, write_atomic
from bigfs.store.objects import ConflictError, ObjectPath

MARK = ".bigfs-run"
MANIFEST = "manifest.json"
CONFIG = "config.yaml"
FEATURES = "features.csv"
TABLE = "table.txt"
REPORT = "report.html"
# In a bucket, which has no renames: the store that this object is in is being written.
UNFINISHED = "ingest.unfinished"
# All that runs and comparisons write beside their stages.
OUTPUTS = (CONFIG, FEATURES, TABLE, "table.csv", "table.json", "curves.svg", "curves.png")
ATTEMPTS = "attempts"
CHECKPOINTS = "checkpoints"
FORMAT = 1
# In the folder of a stage on disk: the run, the stage and the attempt that made it.
STAMP = ".bigfs-stage"
# The checksums of a stage's files on disk.
CHECKSUMS = "checksums.json"
# The objects of a stage in a bucket, where a task that was given up may add more later.
OBJECTS = "objects.json"
_SHOWN = 60
_LARGEST = 2**63
_NUMBER = (int, float)
# Types of what else a manifest holds, and its record of a stage.
_OF_MANIFEST: dict[str, Any] = {
    "status": str,
    "error": str,
    "versions": dict,
    "data": dict,
    **dict.fromkeys(("method", "series"), (str, type(None))),
    **dict.fromkeys(("notes", "files"), list),
    **dict.fromkeys(("updated_from", "compared"), dict),
    "stages": dict,
    "attempts": dict,
    "checkpoints": dict,
}
_OF_STAGE: dict[str, Any] = {
    **dict.fromkeys(("settings", "stored", "metadata"), dict),
    **dict.fromkeys(("seconds", "committed"), _NUMBER),
    **dict.fromkeys(("version", "passes", "bytes_read", "measured_peak_bytes"), int),
    **dict.fromkeys(("dropped_rows", "filled_values", "n_samples", "n_features"), int),
    **dict.fromkeys(("baseline_bytes", "predicted_peak_bytes"), (int, type(None))),
    "notes": list,
    "strategy": str,
}
_IN_EVERY_STAGE = {"key", "attempt", "stored"}
_MEASURED = {"settings", "seconds", "measured_peak_bytes", "passes"}
_ID = re.compile(r"[0-9a-f]{12}")
# Metadata and chunks of zarr, version 3.
_OF_ZARR = re.compile(r"(.*/)?(zarr\.json|c(/\d+)*)")
# What an ingest writes: a group with one array, or with three for each block of a sparse matrix.
_OF_STORE = re.compile(
    r"zarr\.json|(X|index|dropped)/(zarr\.json|c(/\d+)*)"
    r"|X/\d+/(zarr\.json|(data|indices|indptr)/(zarr\.json|c/0))"
)


def is_attempt(value: Any) -> bool:
    """Say whether a value has the form of an attempt's id."""
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def new_id() -> str:
    """Return a unique id."""
    return uuid.uuid4().hex[:12]


def read_mark(folder: Location) -> str | None:
    """Return the id in a folder's mark: "" for one that was cut off, None if there is none.

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
    if not text:  # of a run that was killed between creating the file and writing it
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
    """Mark a folder as a run directory unless it is one.

    Raises
    ------
    StorageError
        If it cannot be written.
    """
    path = folder / MARK
    try:
        if isinstance(path, ObjectPath):
            path.write_if(mark_text(run_id), None)
        else:
            with path.open("x") as file:
                file.write(mark_text(run_id))
    except (FileExistsError, ConflictError):
        return
    except OSError as error:
        raise StorageError(f"Cannot write {path}: {error}.") from error


def check_manifest(manifest: Any) -> None:
    """Check that a manifest can be read, and that all it names lies below its run directory.

    Raises
    ------
    ValueError, KeyError, TypeError, AttributeError
        If not; the message names the value.
    """
    if manifest["format"] != FORMAT:
        raise ValueError(f"its format is {manifest['format']}, not {FORMAT}")
    _check(is_attempt(manifest.get("id", "0" * 12)), "it has the id", manifest.get("id"))
    _check_types(manifest, _OF_MANIFEST, "it")
    # A manifest without a status is no run's: nothing was measured.
    needed = _IN_EVERY_STAGE | (_MEASURED if "status" in manifest else set())
    for name, record in manifest["stages"].items():
        _check_types(record, _OF_STAGE, f"stage {name[:_SHOWN]}")
        lacking = sorted(needed - record.keys())
        _check(not lacking, f"stage {name[:_SHOWN]} lacks", lacking)
        key, attempt = record["key"], record["attempt"]
        _check(is_plain(name), "a stage is named", name)
        _check(is_plain(key), f"stage {name} has the key", key)
        _check(is_attempt(attempt), f"stage {name} has the attempt", attempt)
        folder = record.get("folder", f"{name}.zarr")
        known = (f"{name}.zarr", f"{name}-{attempt}.zarr")
        _check(folder in known, f"stage {name} has the folder", folder)
    if "updated_from" in manifest:
        base = manifest["updated_from"]
        keys = base.get("keys")
        _check(is_plain(base.get("run")), "it was updated from", base.get("run"))
        _check(isinstance(keys, dict) and all(map(is_plain, keys)), "its base has the keys", keys)
        lacking = sorted({"rows", "data", "rows_of_full", "in_a_row"} - base.keys())
        _check(not lacking, "its base lacks", lacking)
    for record in (manifest, *manifest["stages"].values()):
        notes = record.get("notes", [])
        _check(all(isinstance(note, str) for note in notes), "it has the notes", notes)
    for attempt, folders in manifest.get("attempts", {}).items():
        _check(is_attempt(attempt), "an attempt has the id", attempt)
        for folder in folders:
            ours = is_plain(folder) and folder.endswith(f"-{attempt}.zarr")
            _check(ours, f"attempt {attempt} has the folder", folder)
    for name, record in manifest.get("checkpoints", {}).items():
        folder = record["folder"]
        ours = is_plain(name) and is_plain(folder) and folder.startswith(f"{name}-")
        _check(ours, f"stage {name} has the checkpoint", folder)
    for name in manifest.get("files", []):
        _check(name in OUTPUTS, "a file is named", name)


def _check_types(record: dict[str, Any], types: dict[str, Any], what: str) -> None:
    for name, kinds in types.items():
        if name in record:
            value = record[name]
            is_right = isinstance(value, kinds) and not isinstance(value, bool)
            is_right &= not isinstance(value, (int, float)) or abs(value) < _LARGEST
            _check(is_right, f"{what} has as {name}", value)


def _check(is_right: bool, what: str, value: Any) -> None:
    if not is_right:
        shown = repr(value)
        shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
        raise ValueError(f"it is damaged: {what} {shown}, which bigfs does not write")


def is_of_earlier_version(folder: Location) -> bool:
    """Say whether a folder without a mark is plainly a run directory of an earlier version.

    Its manifest must have the format, stages that each have key, attempt, files and time of
    commit, a status that runs have, the id of its last attempt and the versions of bigfs and
    Python; ``config.yaml`` must lie beside it. Both must be files, not links.
    """
    places = (folder / MANIFEST, folder / CONFIG)
    if not all(place.is_file() for place in places):
        return False
    if any(isinstance(place, Path) and place.is_symlink() for place in places):
        return False
    try:
        manifest = parse_json(places[0].read_text())
        check_manifest(manifest)
        versions = manifest["versions"]
        return (
            is_attempt(manifest["attempt"])
            and manifest["status"] in ("running", "done", "interrupted", "failed")
            and all(isinstance(versions[name], str) for name in ("bigfs", "python"))
            and all(
                {"stored", "committed", "version", "settings"} <= record.keys()
                for record in manifest["stages"].values()
            )
        )
    except StorageError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        return False


def files_of_earlier_version(folder: Location) -> list[str]:
    """Return the files that an earlier version wrote: features of a run, tables of a comparison."""
    written = [name for name in OUTPUTS if (folder / name).is_file()]
    is_run = FEATURES in written
    return [name for name in written if not is_run or name in (CONFIG, FEATURES)]


def write_stamp(folder: Path, run_id: str, stage: str, attempt: str) -> None:
    """Note in a stage's folder which run, stage and attempt made it."""
    record = {"run": run_id, "stage": stage, "attempt": attempt}
    write_atomic(folder / STAMP, json.dumps(record) + "\n")


def refuse_inside_ours(place: Location) -> None:
    """Raise InputError if a new file would lie in a run directory, a stage or a zarr store."""
    if not isinstance(place, Path):
        return
    for folder in place.absolute().parents:
        if any((folder / name).is_file() for name in (MARK, STAMP, "zarr.json", ".zgroup")):
            raise InputError(f"{place} lies in {folder}, a run or a store. Give another place.")


def report_mark(run_id: str) -> str:
    """Return the mark near the beginning of a report that says which run it belongs to."""
    return f'<meta name="bigfs-run" content="{run_id}">'


def is_own_report(place: Location, run_id: str) -> bool:
    """Say whether a file is the report of a run."""
    if not place.is_file():
        return False
    with place.open("rb") as file:
        return report_mark(run_id).encode() in file.read(500)


def remove_report(folder: Location, run_id: str) -> None:
    """Remove the report of a run; a file of that name that is not the run's stays."""
    if is_own_report(folder / REPORT, run_id):
        (folder / REPORT).unlink(missing_ok=True)


def read_stamp(folder: Path) -> dict[str, str] | None:
    """Return the stamp in a stage's folder, None if it has none or is a link."""
    if folder.is_symlink():
        return None
    try:
        stamp = parse_json((folder / STAMP).read_text())
        return {name: str(stamp[name]) for name in ("run", "stage", "attempt")}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def foreign_files(folder: Location) -> list[str]:
    """Return the files below a stage's folder that bigfs did not write there.

    Ours are the stamp and what the stage's checksums name. Data brought in have no such list: they
    are a store. Where the list is damaged they are the files of zarr groups and arrays.
    """
    names = set(files_below(folder))
    known = {STAMP, CHECKSUMS, OBJECTS}
    try:
        listed = set(parse_json((folder / CHECKSUMS).read_text())) if CHECKSUMS in names else set()
    except (ValueError, TypeError, OSError):
        listed = set()
    ours = _OF_ZARR if CHECKSUMS in names else _OF_STORE
    return sorted(n for n in names - known - listed if listed or ours.fullmatch(n) is None)


def beside_the_matrix(store: Location) -> list[str]:
    """Return the files below a store that an ingest does not write."""
    return sorted(name for name in files_below(store) if _OF_STORE.fullmatch(name) is None)


def refuse_foreign_files(folder: Location) -> None:
    """Raise InputError if a stage's folder, which is replaced as a whole, holds files of others."""
    others = foreign_files(folder)
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise InputError(
            f"{folder} holds {others[0]}{more}, which bigfs did not write. A stage's folder is "
            "replaced as a whole: move these files elsewhere, then run again. Nothing was "
            "touched."
        )


def refuse_links(folder: Location, names: list[str]) -> None:
    """Raise InputError if a folder of a run's own is a link: it may lead anywhere."""
    for name in names:
        path = folder / name
        if isinstance(path, Path) and path.is_symlink():
            raise InputError(
                f"{path} is a link (to {path.readlink()}). A run directory must contain its "
                "folders themselves, and links are not followed. Move the folder there, or use "
                "another run directory."
            )


def refuse_nested(path: Path) -> None:
    """Raise InputError if a folder lies in that of another run's stage."""
    stage = next((folder for folder in path.parents if is_taken(folder / STAMP)), None)
    if stage is not None:
        raise InputError(
            f"{path} lies in {stage}, which a stage of another run made and may replace. Give "
            "another folder."
        )


def contents(path: Location) -> dict[str, int]:
    """Return how many files a folder holds, and their bytes; in a bucket, of those committed."""
    sizes = {name: size for name, (size, _) in files_below(path).items()}
    if isinstance(path, ObjectPath):
        if OBJECTS not in sizes:
            return {"files": 0, "bytes": 0}
        committed = parse_json((path / OBJECTS).read_text())
        sizes = {name: size for name, size in committed.items() if sizes.get(name) == size}
    return {"files": len(sizes), "bytes": sum(sizes.values())}


def is_taken(path: Location) -> bool:
    """Say whether there is anything at a place, be it a link that leads nowhere."""
    return path.exists() if isinstance(path, ObjectPath) else os.path.lexists(path)
