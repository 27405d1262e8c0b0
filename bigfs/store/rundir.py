"""The run directory: finished stages and nothing else, whatever happens to the run.

A stage writes below ``attempts/ID/`` and is committed by one rename followed by one write of the
manifest; in a bucket, which has no renames, it writes below ``NAME-ID.zarr`` and the manifest says
so. Only what the manifest names is ever read. An interrupted run leaves what it was writing, which
the next run removes, and finished stages that it takes over.

What is recorded, and so may be removed, is said in `bigfs.store.runfolder`. A stage whose place is
taken by something that is not the run's is stored under ``NAME-ID.zarr`` on disk too.
"""

from __future__ import annotations

import hashlib
import json
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bigfs.core.errors import CorruptStoreError, StorageError
from bigfs.core.files import parse_json
from bigfs.runtime.interrupt import check_interrupt
from bigfs.store.location import (
    Location,
    files_below,
    remove_tree,
    sync_path,
    sync_tree,
    write_atomic,
)
from bigfs.store.objects import ObjectPath
from bigfs.store.records import (
    CHECKPOINTS,
    CHECKSUMS,
    OBJECTS,
    contents,
    is_taken,
    write_stamp,
)
from bigfs.store.runfolder import RunFolder
from bigfs.store.scratch import Scratch

_PART_BYTES = 2**20


def stage_key(name: str, version: int, settings: dict[str, Any], *upstream: str) -> str:
    """Return the key of a stage: equal keys mean equal results.

    Parameters
    ----------
    name : str
        The stage.
    version : int
        Version of its algorithm, raised when its results change.
    settings : dict
        The settings it depends on, JSON-serializable.
    *upstream : str
        Keys of the stages (or the fingerprint of the data) it reads.
    """
    record = json.dumps([name, version, settings, list(upstream)], sort_keys=True)
    return hashlib.sha256(record.encode()).hexdigest()[:16]


class RunDirectory(RunFolder):
    """A run's folder with its finished stages and the scratch of an attempt.

    Attributes
    ----------
    changes : str
        How the input differs from that of the former run, in words; empty if it does not.
    is_repeat : bool
        Whether the configuration and all versions are those of the former run.
    may_update : bool
        Whether a former run of the series may be taken over.
    """

    changes: str = ""
    is_repeat: bool = False
    may_update: bool = True

    def finished(self, name: str, key: str) -> dict[str, Any] | None:
        """Return the record of a finished stage if it is there and its key is the same.

        What an earlier attempt left is taken over only if its checksums match.
        """
        record = self.manifest["stages"].get(name)
        if record is None or record["key"] != key or not self.is_intact(name):
            return None
        if "stale" in record:
            return None
        if record["attempt"] != self.attempt and self.damaged(name) is not None:
            return None
        return dict(record)

    def damaged(self, name: str) -> str | None:
        """Return the name of a file of a finished stage whose bytes have changed, None if none.

        Of data brought in only the metadata are read here: each of their chunks is checked whenever
        it is read. A bucket keeps checksums itself.
        """
        folder = self.stage_path(name)
        sums = folder / CHECKSUMS
        if isinstance(folder, ObjectPath):
            return None
        if name == "data":
            stored = self.manifest["stages"][name].get("metadata", {})
            actual = _checksums(folder, _is_metadata) if stored else {}
            return next((file for file in sorted(actual) if stored.get(file) != actual[file]), None)
        if not sums.exists():
            return None
        try:
            stored = dict(parse_json(sums.read_text()))
        except (ValueError, TypeError):
            return CHECKSUMS
        actual = _checksums(folder)
        return next((file for file in sorted(actual) if stored.get(file) != actual[file]), None)

    def check_unchanged(self, name: str) -> None:
        """Raise CorruptStoreError if files of a finished stage are missing or were changed."""
        what = "files are missing"
        if self.is_intact(name):
            file = self.damaged(name)
            if file is None:
                return
            what = f"{file} was changed"
        raise CorruptStoreError(
            f"{self.stage_path(name)}: {what}. Give the command of the run again: it does stage "
            f"'{name}' anew."
        )

    def why_stale(self, name: str, key: str, version: int, settings: dict[str, Any]) -> str:
        """Return in words why a stage has to run."""
        record = self.manifest["stages"].get(name)
        if record is None:
            return "not yet run"
        if record["key"] == key:
            if not self.is_intact(name):
                return "files of its result are missing"
            if "stale" in record:
                return "done anew, by --fresh"
            file = self.damaged(name)
            return "finished" if file is None else f"{file} of its result was changed"
        if record.get("version") != version:
            return "its algorithm is another version"
        changes = _changes(record["settings"], json.loads(json.dumps(settings)))
        return "; ".join(changes) or self.changes or "what it reads changed"

    def stage_target(self, name: str) -> Location:
        """Return where a stage writes its result before it is committed."""
        if not isinstance(self.path, ObjectPath):
            return self.attempt_path / f"{name}.zarr"
        folder = f"{name}-{self.attempt}.zarr"
        folders = self.manifest["attempts"][self.attempt]
        if folder not in folders:
            folders.append(folder)
            self.write()
        return self.path / folder

    def stage_scratch(self, name: str) -> Scratch:
        """Return the folder a stage writes its result to before it is committed."""
        return Scratch(self.stage_target(name))

    def work_scratch(self, name: str) -> Scratch:
        """Return a folder for what a stage needs only while it runs."""
        return Scratch(self.attempt_path / f"{name}.scratch")

    def checkpoint_path(self, name: str, key: str) -> Location:
        """Return a folder in which an unfinished stage may keep what a later run goes on from.

        It outlives an interrupted run, and is removed when the stage is committed; one of the
        same stage with other settings is removed here.
        """
        checkpoints = self.manifest["checkpoints"]
        former = checkpoints.get(name)
        if former is None or former["key"] != key:
            self._drop_checkpoint(name)
            folder = f"{name}-{key}"
            if is_taken(self.path / CHECKPOINTS / folder):  # somebody else's
                folder = f"{folder}-{self.attempt}"
            checkpoints[name] = {"key": key, "folder": folder}
            self.write()
        return self.path / CHECKPOINTS / checkpoints[name]["folder"]

    def commit(self, name: str, key: str, record: dict[str, Any]) -> None:
        """Make a stage's result permanent: one rename, then one write of the manifest."""
        check_interrupt()
        self.lease.check()
        source = self.stage_target(name)
        record = {
            **record,
            "key": key,
            "attempt": self.attempt,
            "committed": time.time(),
        }
        if isinstance(source, ObjectPath):
            self._commit_objects(name, source, record)
        else:
            for part in source.rglob("*.partial"):  # of chunks that killed workers were writing
                part.unlink(missing_ok=True)
            write_stamp(source, self.manifest["id"], name, self.attempt)
            if name == "data":
                record["metadata"] = _checksums(source, _is_metadata)
            else:
                write_atomic(source / CHECKSUMS, json.dumps(_checksums(source)))
            sync_tree(source)
            self._commit_folder(name, source, {**record, "stored": contents(source)})
        self._drop_checkpoint(name)

    def _commit_folder(self, name: str, source: Path, record: dict[str, Any]) -> None:
        former = self._put_away(name, self.stage_path(name))
        final = self.path / f"{name}.zarr"
        if is_taken(final):  # somebody else's
            final = self.path / f"{name}-{self.attempt}.zarr"
            record["folder"] = final.name
        assert isinstance(final, Path)
        try:
            source.rename(final)
            sync_path(final.parent)
        except OSError as error:
            raise StorageError(f"Cannot commit stage '{name}' to {final}: {error}.") from error
        self.manifest["stages"][name] = record
        self.write()
        if former is not None:
            remove_tree(former)

    def _commit_objects(self, name: str, source: ObjectPath, record: dict[str, Any]) -> None:
        """Name a new stage in the manifest, then remove the one it replaces."""
        former = self._put_away(name, self.stage_path(name))
        sizes = {key: size for key, (size, _) in source.objects_below().items()}
        write_atomic(source / OBJECTS, json.dumps(sizes))
        stored = {"files": len(sizes), "bytes": sum(sizes.values())}
        self.manifest["stages"][name] = {**record, "folder": source.name, "stored": stored}
        self.write()
        if former is not None and former != source:
            remove_tree(former)

    def drop(self, name: str) -> None:
        """Forget a finished stage and remove its files."""
        former = self._put_away(name, self.stage_path(name))
        self._drop_checkpoint(name)
        self.manifest["stages"].pop(name, None)
        self.write()
        if former is not None:
            remove_tree(former)

    def finish(self) -> None:
        """Note that the run is done, and drop the stages of former runs that it did not replace."""
        for name, record in list(self.manifest["stages"].items()):
            if "stale" in record:
                self.drop(name)
        self.manifest["status"] = "done"
        self.write()


def _changes(before: dict[str, Any], after: dict[str, Any], section: str = "") -> list[str]:
    """Return in words how settings differ, sections within them one by one."""
    changes: list[str] = []
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            changes += _changes(old, new, f"{section}{name}.")
        elif old != new:
            words = " changed" if "content" in name else f" is {_shown(new)}, was {_shown(old)}"
            changes.append(f"{section}{name}{words}")
    return changes


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)


def _is_metadata(name: str) -> bool:
    return name.rpartition("/")[2] == "zarr.json"


def _checksums(folder: Path, which: Callable[[str], bool] | None = None) -> dict[str, str]:
    """Return the CRC-32 of every file of a folder, or of some, by its name relative to it."""
    checksums = {}
    for name in files_below(folder):
        if name != CHECKSUMS and (which is None or which(name)):
            value = 0
            with (folder / name).open("rb") as file:
                while part := file.read(_PART_BYTES):
                    value = zlib.crc32(part, value)
            checksums[name] = f"{value:08x}"
    return checksums
