"""The run directory: finished stages and nothing else, whatever happens to the run.

A stage writes below ``attempts/ID/`` and is committed by one rename followed by one write of the
manifest; only what the manifest names is ever read. An interrupted run leaves an attempt folder
that the next run removes, and finished stages that it takes over.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bigfs.core.errors import InputError, RunLockedError, StorageError
from bigfs.core.interrupt import check_interrupt
from bigfs.store.lease import LEASE, Lease
from bigfs.store.scratch import Scratch

MANIFEST = "manifest.json"
CONFIG = "config.yaml"
FEATURES = "features.csv"
TABLE = "table.txt"
CHECKPOINTS = "checkpoints"
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
    path : str or Path
        The folder; `open` creates it.

    Attributes
    ----------
    manifest : dict
        What ``manifest.json`` holds.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
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
        is_new = not self.path.exists()
        self._create()
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
                    _remove(self.path / "attempts")
        finally:
            # A folder that this run made and that holds no finished stage is of no use to anyone.
            if is_new and not self.manifest["stages"]:
                shutil.rmtree(self.path, ignore_errors=True)

    @property
    def attempt_path(self) -> Path:
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
        if path.exists():
            try:
                manifest = json.loads(path.read_text())
                if manifest["format"] != _FORMAT:
                    raise ValueError(f"its format is {manifest['format']}, not {_FORMAT}")
                manifest["stages"].items()
            except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
                raise InputError(
                    f"{path} is not a manifest this bigfs can read: {error}. "
                    "Start over with --fresh, or use another run directory."
                ) from None
            self.manifest = manifest
        return self

    def finished(self, name: str, key: str) -> dict[str, Any] | None:
        """Return the record of a finished stage if it is there and its key is the same."""
        record = self.manifest["stages"].get(name)
        if record is None or record["key"] != key or not self.is_intact(name):
            return None
        return dict(record)

    def is_intact(self, name: str) -> bool:
        """Say whether a stage is finished and all its files are there, with their sizes."""
        record = self.manifest["stages"].get(name)
        return record is not None and record["stored"] == _contents(self.stage_path(name))

    def why_stale(self, name: str, key: str) -> str:
        """Say in a few words why a stage has to run."""
        record = self.manifest["stages"].get(name)
        if record is None:
            return "not yet run"
        if record["key"] != key:
            return "its settings or its input changed"
        return "finished" if self.is_intact(name) else "files of its result are missing"

    def stage_path(self, name: str) -> Path:
        """Return where a finished stage lives."""
        return self.path / f"{name}.zarr"

    def stage_scratch(self, name: str) -> Scratch:
        """Return the folder a stage writes its result to before it is committed."""
        return Scratch(self.attempt_path / f"{name}.zarr")

    def work_scratch(self, name: str) -> Scratch:
        """Return a folder for what a stage needs only while it runs."""
        return Scratch(self.attempt_path / f"{name}.scratch")

    def checkpoint_path(self, name: str, key: str) -> Path:
        """Return a folder in which an unfinished stage may keep what a later run goes on from.

        It outlives an interrupted run, and is removed when the stage is committed; those of
        the same stage with other settings are removed here.
        """
        wanted = self.path / CHECKPOINTS / f"{name}-{key}"
        for other in wanted.parent.glob(f"{name}-*"):
            if other != wanted:
                shutil.rmtree(other, ignore_errors=True)
        return wanted

    def commit(self, name: str, key: str, record: dict[str, Any]) -> None:
        """Make a stage's result permanent: one rename, then one write of the manifest."""
        check_interrupt()
        self._lease.check()
        source = self.attempt_path / f"{name}.zarr"
        final = self.stage_path(name)
        record = {
            **record,
            "key": key,
            "attempt": self.attempt,
            "committed": time.time(),
            "stored": _contents(source),
        }
        try:
            if final.exists():
                self.drop(name)
            source.rename(final)
        except OSError as error:
            raise StorageError(f"Cannot commit stage '{name}' to {final}: {error}.") from error
        self.manifest["stages"][name] = record
        self.write()
        checkpoints = self.path / CHECKPOINTS
        shutil.rmtree(checkpoints / f"{name}-{key}", ignore_errors=True)
        if checkpoints.exists() and not any(checkpoints.iterdir()):
            checkpoints.rmdir()

    def drop(self, name: str) -> None:
        """Forget a finished stage: first its record, then its files."""
        self.manifest["stages"].pop(name, None)
        self.write()
        shutil.rmtree(self.stage_path(name), ignore_errors=True)

    def write(self) -> None:
        """Write the manifest atomically."""
        write_atomic(self.path / MANIFEST, json.dumps(self.manifest, indent=2) + "\n")

    def _record_end(self, error: BaseException) -> None:
        """Note how a run ended that did not finish, where that can still be written."""
        if isinstance(error, RunLockedError) or not (self.path / MANIFEST).exists():
            return
        interrupted = not isinstance(error, Exception)
        self.manifest["status"] = "interrupted" if interrupted else "failed"
        if not interrupted:
            self.manifest["error"] = f"{type(error).__name__}: {error}"
        with suppress(StorageError, RunLockedError):
            self._lease.check()
            self.write()

    def _create(self) -> None:
        if self.path.exists():
            if not self.path.is_dir():
                raise InputError(f"{self.path} is a file. Give a folder for the run.")
            ours = (MANIFEST, "attempts", LEASE)
            if any(self.path.iterdir()) and not any((self.path / n).exists() for n in ours):
                raise InputError(
                    f"{self.path} holds files that are not a bigfs run. Give another folder."
                )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"Cannot create the run directory {self.path}: {error.strerror}."
            ) from error

    def _sweep(self) -> None:
        """Remove what no record names: old attempts and stages that were never recorded."""
        shutil.rmtree(self.path / "attempts", ignore_errors=True)
        for path in self.path.glob("*.zarr"):
            if path.stem not in self.manifest["stages"]:
                shutil.rmtree(path, ignore_errors=True)
        for path in self.path.glob("*.partial-*"):
            path.unlink()

    def _clear(self) -> None:
        """Remove a run's own files; anything else a user put here stays."""
        for path in (*self.path.glob("*.zarr"), *self.path.glob(CHECKPOINTS)):
            shutil.rmtree(path)
        for name in (MANIFEST, CONFIG, FEATURES):
            (self.path / name).unlink(missing_ok=True)


def _contents(path: Path) -> dict[str, int]:
    """Return how many files a folder holds, and their bytes."""
    sizes = [file.stat().st_size for file in path.rglob("*") if file.is_file()]
    return {"files": len(sizes), "bytes": sum(sizes)}


def _remove(path: Path) -> None:
    """Remove a folder that threads of an interrupted stage may still be writing to."""
    for _ in range(200):
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return
        time.sleep(0.05)


def write_atomic(path: Path, text: str) -> None:
    """Write a text file beside its name and rename it: readers see the old or the new one.

    Raises
    ------
    StorageError
        If the disk is full or the folder cannot be written.
    """
    partial = path.with_name(f"{path.name}.partial-{uuid.uuid4().hex[:8]}")
    try:
        with partial.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise StorageError(f"Cannot write {path}: {error}.") from error
