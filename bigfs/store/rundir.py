"""The run directory: holds only finished stages, whatever happens to the run.

A stage writes below ``attempts/ID/`` and is committed by one rename followed by one write of the
manifest. In a bucket, which has no renames, it writes below ``NAME-ID.zarr``, and writing the
manifest commits it. Only what the manifest names is ever read. An interrupted run leaves its
unfinished work, which the next run removes, and its finished stages, which the next run reuses.

`bigfs.store.runfolder` describes what is recorded and may therefore be removed. If the name of a
stage is taken by something that does not belong to the run, the stage is stored as ``NAME-ID.zarr``
on disk too.
"""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

from bigfs.core.errors import CorruptStoreError
from bigfs.runtime.interrupt import check_interrupt
from bigfs.store.location import (
    Location,
    remove_tree,
    sync_path,
    sync_tree,
)
from bigfs.store.objects import ObjectPath
from bigfs.store.records import (
    CHECKPOINTS,
    changed_file,
    is_metadata,
    is_taken,
    write_list,
    write_stamp,
)
from bigfs.store.runfolder import RunFolder
from bigfs.store.scratch import Scratch
from bigfs.store.values import storing


def stage_key(name: str, version: int, settings: dict[str, Any], *upstream: str) -> str:
    """Return the key of a stage: equal keys mean equal results.

    Parameters
    ----------
    name : str
        Name of the stage.
    version : int
        Version of its algorithm, incremented when its results change.
    settings : dict
        The settings that the stage depends on, JSON-serializable.
    *upstream : str
        Keys of the stages (or the fingerprint of the data) that it reads.
    """
    record = json.dumps([name, version, settings, list(upstream)], sort_keys=True)
    return hashlib.sha256(record.encode()).hexdigest()[:16]


class RunDirectory(RunFolder):
    """The folder of a run, with its finished stages and the scratch space of an attempt.

    Attributes
    ----------
    changes : str
        Description of how the input differs from that of the former run; empty if it does not.
    is_repeat : bool
        Whether the configuration and all versions are the same as in the former run.
    may_update : bool
        Whether this run may be updated from a former run of the series.
    """

    changes: str = ""
    is_repeat: bool = False
    may_update: bool = True

    def finished(self, name: str, key: str) -> dict[str, Any] | None:
        """Return the record of a finished stage if it exists and has the given key.

        The result of an earlier attempt is reused only if its checksums match.
        """
        record = self.manifest["stages"].get(name)
        if record is None or record["key"] != key or "stale" in record:
            return None
        is_own = record["attempt"] == self.attempt
        is_whole = self.is_intact(name) if is_own else self._fault(name) is None
        return dict(record) if is_whole else None

    def _fault(self, name: str) -> tuple[str, str] | None:
        """Return a fault of a finished stage's files: which files, and what is wrong with them.

        Ingested data verify each chunk when it is read, so only the list and the metadata are
        compared here. In a bucket, entity tags are compared instead of checksums.
        """
        if not self.is_intact(name):
            return "files", "are missing"
        file = changed_file(self.stage_path(name), self.manifest["stages"][name]["stored"])
        return None if file is None else (file, "was changed")

    def check_unchanged(self, name: str) -> None:
        """Raise CorruptStoreError if files of a finished stage are missing or were changed."""
        fault = self._fault(name)
        if fault is not None:
            raise CorruptStoreError(
                f"{self.stage_path(name)}: {' '.join(fault)}. Give the command of the run again: "
                f"it recomputes stage '{name}'."
            )

    def why_stale(self, name: str, key: str, version: int, settings: dict[str, Any]) -> str:
        """Return the reason why a stage has to run, for messages."""
        record = self.manifest["stages"].get(name)
        if record is None:
            return "not yet run"
        if record["key"] == key:
            if "stale" in record:
                return "recomputed because of --fresh"
            fault = self._fault(name)
            return "finished" if fault is None else " of its result ".join(fault)
        # The result of a quick run is the consensus of its stability fits.
        is_quick, was_quick = ("stability" in which for which in (settings, record["settings"]))
        if is_quick != was_quick:
            return "it was a full run" if is_quick else "it was a quick run"
        if record.get("version") != version:
            return "the version of its algorithm changed"
        changes = _changes(record["settings"], json.loads(json.dumps(settings)))
        return "; ".join(changes) or self.changes or "its input changed"

    def stage_target(self, name: str) -> Location:
        """Return the location to which a stage writes its result before it is committed."""
        if not isinstance(self.path, ObjectPath):
            return self.attempt_path / f"{name}.zarr"
        folder = f"{name}-{self.attempt}.zarr"
        folders = self.manifest["attempts"][self.attempt]
        if folder not in folders:
            folders.append(folder)
            self.write()
        return self.path / folder

    def stage_scratch(self, name: str) -> Scratch:
        """Return the scratch folder to which a stage writes its result before it is committed."""
        return Scratch(self.stage_target(name))

    def work_scratch(self, name: str) -> Scratch:
        """Return a scratch folder for data that a stage needs only while it runs."""
        return Scratch(self.attempt_path / f"{name}.scratch")

    def checkpoint_path(self, name: str, key: str) -> Location:
        """Return a folder where an unfinished stage may keep state for a later run to resume.

        It is kept when a run is interrupted, and removed when the stage is committed. A checkpoint
        of the same stage with other settings is removed here.
        """
        checkpoints = self.manifest["checkpoints"]
        former = checkpoints.get(name)
        if former is None or former["key"] != key:
            self._drop_checkpoint(name)
            folder = f"{name}-{key}"
            if is_taken(self.path / CHECKPOINTS / folder):  # not ours
                folder = f"{folder}-{self.attempt}"
            checkpoints[name] = {"key": key, "folder": folder}
            self.write()
        return self.path / CHECKPOINTS / checkpoints[name]["folder"]

    def commit(
        self, name: str, key: str, record: dict[str, Any], *, checks_itself: bool = False
    ) -> None:
        """Make a stage's result permanent by one write of the manifest.

        Parameters
        ----------
        name, key : str
            Name and key of the stage.
        record : dict
            Its record for the manifest.
        checks_itself : bool, default=False
            Whether readers of the result verify checksums of their own.
        """
        check_interrupt()
        self.lease.check()
        source = self.stage_target(name)
        stored = self._seal(name, source, checks_itself)
        former = self._put_away(name, self.stage_path(name))
        self.manifest["stages"][name] = {
            "versions": self.manifest.get("versions", {}),
            **record,
            "data_key": self.manifest.get("data", {}).get("key"),
            "key": key,
            "attempt": self.attempt,
            "committed": time.time(),
            "folder": self._place(name, source),
            "stored": stored,
        }
        self.write()
        if former != source:
            remove_tree(former)
        self._drop_checkpoint(name)

    def _seal(self, name: str, source: Location, checks_itself: bool) -> dict[str, Any]:
        """List the files of a finished stage; on disk, sync them to survive a power failure."""
        if isinstance(source, ObjectPath):
            return write_list(source, lambda file: False)
        for part in source.rglob("*.partial*"):  # chunks left half-written by killed workers
            part.unlink(missing_ok=True)
        write_stamp(source, self.manifest["id"], name, self.attempt)
        stored = write_list(source, is_metadata if checks_itself else lambda file: True)
        sync_tree(source)
        return stored

    def _place(self, name: str, source: Location) -> str:
        """Move a sealed stage to its final name, which the manifest will record; return this name.

        In a bucket it is already there. On disk, until the manifest is written, the stamp marks the
        folder as one whose commit was interrupted.
        """
        if isinstance(source, ObjectPath):
            return source.name
        final = self.path / f"{name}.zarr"
        if is_taken(final):  # not ours
            final = self.path / f"{name}-{self.attempt}.zarr"
        with storing(f"Cannot commit stage '{name}' to {final}"):
            source.rename(str(final))
            sync_path(source.parent)
            sync_path(Path(str(self.path)))
        return final.name

    def drop(self, name: str) -> None:
        """Remove a finished stage from the manifest, and its files."""
        former = self._put_away(name, self.stage_path(name))
        self._drop_checkpoint(name)
        self.manifest["stages"].pop(name, None)
        self.write()
        remove_tree(former)

    def finish(self) -> None:
        """Mark the run as done, and drop the stages of former runs that it did not replace."""
        for name, record in list(self.manifest["stages"].items()):
            if "stale" in record:
                self.drop(name)
        self.manifest["status"] = "done"
        self.write()


def _changes(before: dict[str, Any], after: dict[str, Any], section: str = "") -> list[str]:
    """Return descriptions of the settings that differ, with nested sections compared in turn."""
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
