"""The run directory: finished stages and nothing else, whatever happens to the run.

A stage writes below ``attempts/ID/`` and is committed by one rename followed by one write of the
manifest; in a bucket, which has no renames, it writes below ``NAME-ID.zarr`` and the manifest says
so. Only what the manifest names is ever read. An interrupted run leaves what it was writing, which
the next run removes, and finished stages that it takes over.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bigfs.core.errors import InputError, RunLockedError, StorageError
from bigfs.core.paths import check_writable, is_there
from bigfs.runtime.interrupt import check_interrupt
from bigfs.store.lease import LEASE, Lease, lost
from bigfs.store.location import (
    Location,
    as_location,
    files_below,
    remove_tree,
    write_atomic,
)
from bigfs.store.objects import ConflictError, ObjectPath, ObjectStatus, hurried
from bigfs.store.scratch import Scratch

MANIFEST = "manifest.json"
CONFIG = "config.yaml"
FEATURES = "features.csv"
TABLE = "table.txt"
CHECKPOINTS = "checkpoints"
# The objects of a stage in a bucket, where a task that was given up may add more later.
_OBJECTS = "objects.json"
# The checksums of a stage's files on disk.
_CHECKSUMS = "checksums.json"
_PART_BYTES = 2**20
_FORMAT = 1


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


class RunDirectory:
    """One run's folder, with its manifest, finished stages and attempt scratch.

    Parameters
    ----------
    path : str, Path or ObjectPath
        The folder, also ``s3://BUCKET/NAME``; `open` creates it.

    Attributes
    ----------
    manifest : dict
        What ``manifest.json`` holds.
    """

    def __init__(self, path: str | Location) -> None:
        self.path = as_location(path).absolute()
        self._version: ObjectStatus | None = None  # of the manifest in a bucket
        self._is_gone = False  # a bucket that does not answer any more
        self.attempt = uuid.uuid4().hex[:12]
        self._lease = Lease(self.path)
        self.manifest: dict[str, Any] = {"format": _FORMAT, "stages": {}}

    @contextmanager
    def open(self, *, fresh: bool = False) -> Iterator[RunDirectory]:
        """Hold the lease, drop what earlier attempts left unfinished, and clean up at the end.

        Parameters
        ----------
        fresh : bool, default=False
            Forget finished stages and start over.

        Raises
        ------
        RunLockedError
            If another run holds the directory.
        InputError
            If the path holds something that is not a run directory.
        """
        is_new = self._create()
        try:
            with self._lease:
                if fresh:
                    self._clear()
                self.read()
                self._sweep()
                self.attempt_path.mkdir(parents=True)
                try:
                    yield self
                except BaseException as error:
                    self._record_end(error)
                    raise
                finally:
                    self._clean_up()
        finally:
            # A folder that this run made and that holds no finished stage is of no use to anyone.
            if is_new and not self.manifest["stages"] and not self._is_gone:
                with hurried(), suppress(StorageError):
                    if not (self.path / LEASE).exists():  # of a run that took this one's place
                        remove_tree(self.path)

    @property
    def attempt_path(self) -> Location:
        """Folder of this attempt; nothing else is ever written by its tasks."""
        return self.path / "attempts" / self.attempt

    def read(self) -> RunDirectory:
        """Read the manifest, if there is one.

        Raises
        ------
        InputError
            If it cannot be read as one.
        """
        path = self.path / MANIFEST
        text = self._read_manifest(path)
        if text is not None:
            try:
                manifest = json.loads(text)
                if manifest["format"] != _FORMAT:
                    raise ValueError(f"its format is {manifest['format']}, not {_FORMAT}")
                manifest["stages"].items()
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise InputError(
                    f"{path} is not a manifest this bigfs can read: {error}. "
                    "Start over with --fresh, or use another run directory."
                ) from None
            self.manifest = manifest
        return self

    def finished(self, name: str, key: str) -> dict[str, Any] | None:
        """Return the record of a finished stage if it is there and its key is the same.

        What an earlier attempt left is taken over only if its checksums match.
        """
        record = self.manifest["stages"].get(name)
        if record is None or record["key"] != key or not self.is_intact(name):
            return None
        if record["attempt"] != self.attempt and self.damaged(name) is not None:
            return None
        return dict(record)

    def damaged(self, name: str) -> str | None:
        """Return the name of a file of a finished stage whose bytes have changed, None if none.

        Data brought in are not read here: each of their chunks is checked whenever it is read.
        A bucket keeps checksums itself.
        """
        folder = self.stage_path(name)
        sums = folder / _CHECKSUMS
        if name == "data" or isinstance(folder, ObjectPath) or not sums.exists():
            return None
        try:
            stored = dict(json.loads(sums.read_text()))
        except (ValueError, TypeError):
            return _CHECKSUMS
        found = _checksums(folder)
        return next((file for file in sorted(found) if stored.get(file) != found[file]), None)

    def is_intact(self, name: str) -> bool:
        """Say whether a stage is finished and all its files are there, with their sizes."""
        record = self.manifest["stages"].get(name)
        return record is not None and record["stored"] == _contents(self.stage_path(name))

    def _read_manifest(self, path: Location) -> str | None:
        """Return the text of the manifest, None if there is none."""
        try:
            if isinstance(path, ObjectPath):
                text, self._version = path.read_status()
                return text
            return path.read_text()
        except FileNotFoundError:
            return None
        except (ValueError, OSError) as error:
            if isinstance(error, StorageError):
                raise
            raise InputError(
                f"{path} cannot be read: {error}. Start over with --fresh, or use another run "
                "directory."
            ) from None

    def why_stale(self, name: str, key: str, version: int, settings: dict[str, Any]) -> str:
        """Say in a few words why a stage has to run."""
        record = self.manifest["stages"].get(name)
        if record is None:
            return "not yet run"
        if record["key"] == key:
            if not self.is_intact(name):
                return "files of its result are missing"
            file = self.damaged(name)
            return "finished" if file is None else f"{file} of its result was changed"
        if record.get("version") != version:
            return "its algorithm is another version"
        changes = _changes(record["settings"], json.loads(json.dumps(settings)))
        return "; ".join(changes) or "what it reads changed"

    def stage_path(self, name: str) -> Location:
        """Return where a finished stage lives."""
        record = self.manifest["stages"].get(name, {})
        return self.path / record.get("folder", f"{name}.zarr")

    def stage_target(self, name: str) -> Location:
        """Return where a stage writes its result before it is committed."""
        if isinstance(self.path, ObjectPath):
            return self.path / f"{name}-{self.attempt}.zarr"
        return self.attempt_path / f"{name}.zarr"

    def stage_scratch(self, name: str) -> Scratch:
        """Return the folder a stage writes its result to before it is committed."""
        return Scratch(self.stage_target(name))

    def work_scratch(self, name: str) -> Scratch:
        """Return a folder for what a stage needs only while it runs."""
        return Scratch(self.attempt_path / f"{name}.scratch")

    def checkpoint_path(self, name: str, key: str) -> Location:
        """Return a folder in which an unfinished stage may keep what a later run goes on from.

        It outlives an interrupted run, and is removed when the stage is committed; those of
        the same stage with other settings are removed here.
        """
        wanted = self.path / CHECKPOINTS / f"{name}-{key}"
        for other in wanted.parent.glob(f"{name}-*"):
            if other != wanted:
                remove_tree(other)
        return wanted

    def commit(self, name: str, key: str, record: dict[str, Any]) -> None:
        """Make a stage's result permanent: one rename, then one write of the manifest."""
        check_interrupt()
        self._lease.check()
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
            if name != "data":
                write_atomic(source / _CHECKSUMS, json.dumps(_checksums(source)))
            self._commit_folder(name, source, {**record, "stored": _contents(source)})
        self._drop_checkpoint(name, key)

    def _drop_checkpoint(self, name: str, key: str) -> None:
        checkpoints = self.path / CHECKPOINTS
        remove_tree(checkpoints / f"{name}-{key}")
        if checkpoints.exists() and not any(checkpoints.iterdir()):
            checkpoints.rmdir()

    def _commit_folder(self, name: str, source: Path, record: dict[str, Any]) -> None:
        final = self.path / f"{name}.zarr"
        assert isinstance(final, Path)
        try:
            if final.exists():
                self.drop(name)
            source.rename(final)
        except OSError as error:
            raise StorageError(f"Cannot commit stage '{name}' to {final}: {error}.") from error
        self.manifest["stages"][name] = record
        self.write()

    def _commit_objects(self, name: str, source: ObjectPath, record: dict[str, Any]) -> None:
        """Name a new stage in the manifest, then remove the one it replaces."""
        former = self.stage_path(name) if name in self.manifest["stages"] else None
        sizes = {key: size for key, (size, _) in source.objects_below().items()}
        write_atomic(source / _OBJECTS, json.dumps(sizes))
        stored = {"files": len(sizes), "bytes": sum(sizes.values())}
        self.manifest["stages"][name] = {**record, "folder": source.name, "stored": stored}
        self.write()
        if former is not None and former != source:
            remove_tree(former)

    def drop(self, name: str) -> None:
        """Forget a finished stage: first its record, then its files."""
        path = self.stage_path(name)
        self.manifest["stages"].pop(name, None)
        self.write()
        remove_tree(path)

    def write(self) -> None:
        """Write the manifest atomically.

        Raises
        ------
        RunLockedError
            If another run has written the manifest in a bucket since this one read it.
        """
        path, text = self.path / MANIFEST, json.dumps(self.manifest, indent=2) + "\n"
        if not isinstance(path, ObjectPath):
            write_atomic(path, text)
            return
        try:
            self._version = path.write_if(text, self._version)
        except ConflictError:
            # An answer that was lost makes the second attempt a conflict with the first.
            if self._read_manifest(path) != text:
                raise RunLockedError(lost(self.path)) from None

    def _record_end(self, error: BaseException) -> None:
        """Note how a run ended that did not finish, where that can still be written."""
        if isinstance(self.path, ObjectPath) and isinstance(error, StorageError):
            self._is_gone = True  # what failed for a minute is not asked again: the next run sweeps
            return
        if isinstance(error, RunLockedError):
            return
        interrupted = not isinstance(error, Exception)
        self.manifest["status"] = "interrupted" if interrupted else "failed"
        if not interrupted:
            self.manifest["error"] = f"{type(error).__name__}: {error}"
        try:
            with hurried(), suppress(RunLockedError):
                if (self.path / MANIFEST).exists():
                    self._lease.check()
                    self.write()
        except StorageError:
            self._is_gone = isinstance(self.path, ObjectPath)

    def _create(self) -> bool:
        """Make sure that the folder is there and is for a run; say whether it is new."""
        if isinstance(self.path, ObjectPath):
            is_new = not self.path.exists()
        else:
            is_new = not is_there(self.path, "the run")
        if not is_new:
            if not self.path.is_dir():
                raise InputError(f"{self.path} is a file. Give a folder for the run.")
            ours = {MANIFEST, "attempts", LEASE}
            names = {path.name for path in self.path.iterdir()}
            if names and not names & ours:
                raise InputError(
                    f"{self.path} holds files that are not a bigfs run. Give another folder."
                )
            if isinstance(self.path, Path):
                check_writable(self.path, "the run")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"Cannot create the run directory {self.path}: {error.strerror}."
            ) from error
        return is_new

    def _sweep(self) -> None:
        """Remove what no record names: old attempts and stages that were never recorded."""
        remove_tree(self.path / "attempts")
        named = {self.stage_path(name).name for name in self.manifest["stages"]}
        for path in self.path.glob("*.zarr"):
            if path.name not in named:
                remove_tree(path)
        for name, record in self.manifest["stages"].items():
            if (self.path / CHECKPOINTS).exists():  # what a task wrote after the stage was finished
                self._drop_checkpoint(name, record["key"])
        # Of lives that ended in the middle of a beat; this one's lease is not beaten yet.
        for pattern in ("*.partial-*", "lease.beat-*"):
            for path in self.path.glob(pattern):
                path.unlink(missing_ok=True)

    def _clear(self) -> None:
        """Remove a run's own files; anything else a user put here stays."""
        for path in (*self.path.glob("*.zarr"), *self.path.glob(CHECKPOINTS)):
            remove_tree(path)
        for name in (MANIFEST, CONFIG, FEATURES):
            (self.path / name).unlink(missing_ok=True)

    def _clean_up(self) -> None:
        """Remove this attempt's unfinished work, and nothing of a run that took its place."""
        attempts = self.path / "attempts"
        if isinstance(attempts, Path):
            _remove(attempts / self.attempt)
            with suppress(OSError):  # another attempt's
                attempts.rmdir()
        elif not self._is_gone:
            named = {self.stage_path(name).name for name in self.manifest["stages"]}
            with hurried(), suppress(StorageError):
                remove_tree(attempts / self.attempt)
                for path in self.path.glob(f"*-{self.attempt}.zarr"):
                    if path.name not in named:
                        remove_tree(path)


def _changes(before: dict[str, Any], now: dict[str, Any], section: str = "") -> list[str]:
    """Return in words how settings differ, sections within them one by one."""
    found: list[str] = []
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            found += _changes(old, new, f"{section}{name}.")
        elif old != new:
            words = " changed" if "content" in name else f" is {_shown(new)}, was {_shown(old)}"
            found.append(f"{section}{name}{words}")
    return found


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)


def _contents(path: Location) -> dict[str, int]:
    """Return how many files a folder holds, and their bytes; in a bucket, of those committed."""
    sizes = {name: size for name, (size, _) in files_below(path).items()}
    if isinstance(path, ObjectPath):
        if _OBJECTS not in sizes:
            return {"files": 0, "bytes": 0}
        committed = json.loads((path / _OBJECTS).read_text())
        sizes = {name: size for name, size in committed.items() if sizes.get(name) == size}
    return {"files": len(sizes), "bytes": sum(sizes.values())}


def _checksums(folder: Path) -> dict[str, str]:
    """Return the CRC-32 of every file of a folder, by its name relative to it."""
    found = {}
    for name in files_below(folder):
        if name != _CHECKSUMS:
            value = 0
            with (folder / name).open("rb") as file:
                while part := file.read(_PART_BYTES):
                    value = zlib.crc32(part, value)
            found[name] = f"{value:08x}"
    return found


def _remove(path: Path) -> None:
    """Remove a folder that threads of an interrupted stage may still be writing to."""
    for _ in range(200):
        remove_tree(path)
        if not path.exists():
            return
        time.sleep(0.05)
