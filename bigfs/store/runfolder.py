"""The folder of a run: its lease, the files in its records, and which of them may be removed.

Everything a run creates is recorded before it is created: an attempt by its id, a checkpoint by its
name, a file beside the stages by its name; a stamp in the folder of a stage tells which run and
attempt created it. Only what is recorded is removed or replaced. Everything else in the folder is
foreign and left alone, whatever its name.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from bigfs.core.errors import BigfsError, ClusterError, InputError, RunLockedError, StorageError
from bigfs.core.paths import check_writable, is_there, parse_json
from bigfs.store.buckets import retrying_briefly
from bigfs.store.lease import LEASE, Lease, lost
from bigfs.store.location import Location, as_location, read_version, remove_tree, write_atomic
from bigfs.store.objects import ConflictError, ObjectPath
from bigfs.store.records import (
    ATTEMPTS,
    CHECKPOINTS,
    KEPT,
    MANIFEST,
    MARK,
    OUTPUTS,
    check_manifest,
    create_mark,
    empty_manifest,
    foreign_files,
    is_attempt,
    is_complete,
    is_taken,
    mark_text,
    new_id,
    read_mark,
    read_stamp,
    refuse_foreign_files,
    refuse_links,
    refuse_nested,
    remove_report,
    why_stalled,
)
from bigfs.store.values import refusing, storing


class RunFolder:
    """The folder of one run and its records, with a lease on it.

    Parameters
    ----------
    path : str, Path or ObjectPath
        The folder, or ``s3://BUCKET/NAME``; `open` creates it.

    Attributes
    ----------
    manifest : dict
        Content of ``manifest.json``.
    attempt : str
        Id of the attempt made while the folder is open.
    lease : Lease
    """

    def __init__(self, path: str | Location) -> None:
        self.path = as_location(path).absolute()
        self._version: Any = None  # version of the manifest when it was last read or written
        self._is_gone = False  # True if a bucket no longer responds
        self.attempt = new_id()
        self.lease = Lease(self.path, self.attempt)
        self.manifest = empty_manifest()
        self._began = time.monotonic()

    @contextmanager
    def open(self, *, fresh: bool = False, outputs: Sequence[str] = ()) -> Iterator[Self]:
        """Hold the lease, remove unfinished work of earlier attempts, and clean up at the end.

        Parameters
        ----------
        fresh : bool, default=False
            Reuse no finished stage; each is kept until it is replaced or the run is done.
        outputs : sequence of str, default=()
            Names of the files, from `bigfs.store.records.OUTPUTS`, that the run writes beside its
            stages.

        Raises
        ------
        RunLockedError
            If another run holds the directory.
        InputError
            If the path contains something that is not a run directory, or a foreign file has the
            name of one that the run would write.
        """
        is_new, was_empty = self._create()
        try:
            with self.lease:
                self._begin(fresh, outputs)
                try:
                    yield self
                except BaseException as error:
                    if isinstance(error, Exception):
                        self._check_lease(error)
                    if stalled := self._record_end(error):
                        raise ClusterError(f"{self.path}: {stalled}") from error
                    raise
                finally:
                    self._clean_up()
                    # A run without finished stages is of no use.
                    is_useless = not self.manifest["stages"] and KEPT not in self.manifest
                    if was_empty and is_useless and not self._is_gone:
                        self._leave_nothing()
        finally:
            if was_empty and not self._is_gone:
                self.unmark(is_new)

    @property
    def attempt_path(self) -> Location:
        """Folder of this attempt; its tasks never write anywhere else."""
        return self.path / ATTEMPTS / self.attempt

    def read(self) -> Self:
        """Read the manifest, if it exists.

        Raises
        ------
        InputError
            If it is not a valid manifest, or names anything outside the run directory.
        """
        path = self.path / MANIFEST
        try:
            manifest = parse_json(self._stored_text())
            check_manifest(manifest)
        except FileNotFoundError:
            return self
        except StorageError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path} is not a manifest this bigfs can read: {error}. "
                "Start over with --fresh, or use another run directory."
            ) from None
        self.manifest = manifest
        links = [f"{CHECKPOINTS}/{entry['folder']}" for entry in manifest["checkpoints"].values()]
        refuse_links(self.path, [*links, *(self.stage_path(n).name for n in manifest["stages"])])
        return self

    def _stored_text(self) -> str:
        """Return the text of the manifest, and store its version for the next write in a bucket."""
        text, self._version = read_version(self.path / MANIFEST)
        return text

    def write(self) -> None:
        """Write the manifest atomically.

        Raises
        ------
        RunLockedError
            If another run holds the lease or, in a bucket, has written the manifest since this one
            read it.
        """
        path, text = self.path / MANIFEST, json.dumps(self.manifest, indent=2) + "\n"
        if not isinstance(path, ObjectPath):
            self.lease.check()
            write_atomic(path, text, self.attempt)
            return
        try:
            self._version = path.write_if(text, self._version)
        except ConflictError:
            # If the response was lost, the retry conflicts with our own first attempt.
            if self._stored_text() != text:
                raise RunLockedError(lost(self.path)) from None

    def write_file(self, name: str, content: str | bytes) -> None:
        """Write one of the output files that the run was opened with."""
        if name not in self.manifest["files"]:
            raise ValueError(f"{name} is not one of the files of this run")
        write_atomic(self.path / name, content, self.attempt)

    def remove_files(self, names: Sequence[str]) -> None:
        """Remove the given output files, if a former run of this directory wrote them."""
        for name in set(names) & set(self.manifest["files"]):
            (self.path / name).unlink(missing_ok=True)

    def stage_path(self, name: str) -> Location:
        """Return the location of a finished stage."""
        record = self.manifest["stages"].get(name, {"folder": f"{name}.zarr"})
        return self.path / str(record["folder"])

    def is_intact(self, name: str) -> bool:
        """Return True if a stage is finished and all its files exist, with the recorded sizes."""
        record = self.manifest["stages"].get(name)
        if record is None:
            return False
        path = self.stage_path(name)
        stamp = read_stamp(path) if isinstance(path, Path) else None
        if stamp is not None and stamp["attempt"] != record["attempt"]:
            return False  # from a later attempt that was killed before recording it
        return is_complete(path)

    def remove(self) -> None:
        """Remove everything that the records of this run name; the lease must be held.

        Nothing else is removed. The manifest is removed last, so that an interrupted removal can be
        completed later.
        """
        self._begin(False, ())
        for name in self.manifest["stages"]:
            remove_tree(self._put_away(name, self.stage_path(name)))
        for name in self.manifest["checkpoints"]:
            self._drop_checkpoint(name)
        self._clean_up()
        self.remove_files(OUTPUTS)
        remove_report(self.path, self.manifest["id"])
        (self.path / MANIFEST).unlink()

    def unmark(self, remove: bool) -> None:
        """Remove the mark of a folder without records and, if ``remove``, the empty folder."""
        with retrying_briefly(), suppress(OSError):
            names = {path.name for path in self.path.iterdir()}
            if MANIFEST not in names and LEASE not in names:
                (self.path / MARK).unlink(missing_ok=True)
                if remove:
                    self.path.rmdir()

    def _create(self) -> tuple[bool, bool]:
        """Create and mark the folder if necessary; return whether it is new and was empty."""
        if isinstance(self.path, ObjectPath):
            is_new = not self.path.exists()
        else:
            refuse_nested(self.path)
            is_new = not is_there(self.path, "the run")
        was_empty, run_id = True, new_id()
        if not is_new:
            if not self.path.is_dir():
                raise InputError(f"{self.path} is a file. Give a folder for the run.")
            names = {path.name for path in self.path.iterdir()}
            was_empty, mark = names <= {MARK}, read_mark(self.path)
            # A mark is empty only if a run was killed while it created its first file.
            if not was_empty and (mark is None or (not mark and MANIFEST not in names)):
                raise InputError(
                    f"{self.path} holds files but is not a bigfs run: it has no {MARK}. Nothing in "
                    "it was changed. Give another folder."
                )
            if isinstance(self.path, Path):
                check_writable(self.path, "the run")
        with refusing(f"Cannot create the run directory {self.path}", OSError, cure=""):
            self.path.mkdir(parents=True, exist_ok=True)
        # Before the lease: a run that is killed in between leaves a folder that is recognized as
        # ours.
        create_mark(self.path, run_id)
        return is_new, was_empty

    def _begin(self, fresh: bool, outputs: Sequence[str]) -> None:
        """Check the directory, then remove what former attempts left."""
        refuse_links(self.path, [ATTEMPTS, CHECKPOINTS])
        self._read_own(fresh)
        for stage, record in self.manifest["stages"].items():
            path = self.stage_path(stage)
            if isinstance(path, Path) and path.is_dir():
                refuse_foreign_files(path, record["stored"])
        files = self.manifest["files"]
        for name in outputs:
            path = self.path / name
            if name not in files and is_taken(path):
                raise InputError(
                    f"{path} was not written by this run and would be replaced. Move it, or give "
                    "another run directory."
                )
        self.manifest["files"] = sorted({*files, *outputs})
        if fresh:
            for record in self.manifest["stages"].values():
                record["stale"] = True
            for record in self.manifest["checkpoints"].values():
                record["key"] = ""
        self._sweep_attempts()
        self.manifest["attempts"][self.attempt] = []
        self.write()
        self.attempt_path.mkdir(parents=True)
        self._sweep_stages()

    def _read_own(self, fresh: bool) -> None:
        """Read the records of this run directory, which must have the id of its mark."""
        run_id = read_mark(self.path)
        try:
            self.read()
            stored_id = self.manifest.get("id", run_id)
            if run_id and stored_id != run_id:
                raise InputError(
                    f"{self.path / MANIFEST} is from another run: its id is {stored_id!r}, but "
                    f"{MARK} has {run_id!r}. Start over with --fresh, or use another run directory."
                )
            if self._has_lost_records(run_id):
                raise InputError(
                    f"{self.path}: its {MANIFEST}, which names the files of the run, is lost. "
                    "Start over with --fresh, or use another run directory."
                )
        except InputError:
            if not fresh:
                raise
            self._set_aside()
        self.manifest.setdefault("id", run_id or new_id())
        if not run_id:
            (self.path / MARK).write_text(mark_text(self.manifest["id"]))

    def _has_lost_records(self, run_id: str | None) -> bool:
        """Return True if stages and possible output files of this run exist, but no manifest."""
        if isinstance(self.path, ObjectPath) or (self.path / MANIFEST).exists():
            return False
        stamps = [read_stamp(path) for path in self.path.glob("*.zarr")]
        is_run = any(stamp is not None and stamp["run"] == run_id for stamp in stamps)
        return is_run and any(is_taken(self.path / name) for name in OUTPUTS)

    def _set_aside(self) -> None:
        """Rename unreadable records, and the files that they may have named."""
        for name in (MANIFEST, *OUTPUTS):
            path, aside = self.path / name, self.path / f"{name}.damaged-{self.attempt}"
            if not is_taken(path):
                continue
            if isinstance(path, ObjectPath):
                aside.write_bytes(path.read_bytes())
                path.unlink()
            else:
                path.rename(aside)  # type: ignore[arg-type]
        self._version = None
        self.manifest = empty_manifest()

    def _sweep_attempts(self) -> None:
        """Remove what former attempts left: scratch, partly written files, stages in a bucket.

        An attempt is dropped from the records only once nothing of it is found, since a late task
        may recreate something.
        """
        attempts = self.manifest["attempts"]
        if is_attempt(self.lease.former):
            attempts.setdefault(self.lease.former, [])
        for attempt in list(attempts):
            if isinstance(self.path, Path):
                for name in (MANIFEST, *OUTPUTS):
                    with suppress(OSError):  # missing, or not a file
                        (self.path / f"{name}.partial-{attempt}").unlink()
            leftovers = [place for place in self._places_of(attempt) if place.exists()]
            for place in leftovers:
                remove_tree(place)
            if not leftovers:
                del attempts[attempt]

    def _places_of(self, attempt: str) -> list[Location]:
        """Return the folders of an attempt that hold no finished stage."""
        named = {self.stage_path(name).name for name in self.manifest["stages"]}
        folders = self.manifest["attempts"].get(attempt, [])
        unfinished = [self.path / folder for folder in folders if folder not in named]
        return [self.path / ATTEMPTS / attempt, *unfinished]

    def _sweep_stages(self) -> None:
        """Remove checkpoints of finished stages, and stages whose commit was interrupted."""
        stages = self.manifest["stages"]
        for name, record in self.manifest["checkpoints"].items():
            if name in stages and stages[name]["key"] == record["key"]:
                self._drop_checkpoint(name)
        if isinstance(self.path, ObjectPath):
            return
        for path in self.path.glob("*.zarr"):
            stamp = read_stamp(path)
            if stamp is None:
                continue
            name, attempt = stamp["stage"], stamp["attempt"]
            recorded = stages.get(name, {}).get("attempt")
            is_known = path == self.stage_path(name) and attempt == recorded
            if not is_known and path.name in (f"{name}.zarr", f"{name}-{attempt}.zarr"):
                remove_tree(self._put_away(name, path))

    def _put_away(self, name: str, path: Location) -> Location | None:
        """Mark a stage's folder for removal with this attempt; return its path, or None.

        None is returned if the folder is not ours. On disk the folder is moved at once. In a bucket
        the next write of the manifest records it.
        """
        record = self.manifest["stages"].get(name)
        if isinstance(path, ObjectPath):
            if record is None or not path.name.endswith(f"-{record['attempt']}.zarr"):
                return None
            self.manifest["attempts"].setdefault(record["attempt"], []).append(path.name)
            return path
        stamp = read_stamp(path)
        if stamp is None or (stamp["run"], stamp["stage"]) != (self.manifest["id"], name):
            return None
        stored = record["stored"] if record and record["attempt"] == stamp["attempt"] else None
        if foreign_files(path, stored):  # foreign files, put there since the run began
            return None
        former = self.attempt_path / f"former-{new_id()}"
        assert isinstance(former, Path)
        with storing(f"Cannot remove {path}"):
            path.rename(former)
        return former

    def _drop_checkpoint(self, name: str) -> None:
        record = self.manifest["checkpoints"].get(name)
        if record is None:
            return
        checkpoint = self.path / CHECKPOINTS / record["folder"]
        if checkpoint.parent.exists():
            remove_tree(checkpoint)
            with suppress(OSError):  # other checkpoints, or foreign files
                checkpoint.parent.rmdir()

    def _check_lease(self, error: Exception) -> None:
        """Raise the error of a lost lease in place of an error that it caused."""
        if isinstance(error, RunLockedError):
            return
        try:
            with retrying_briefly():
                self.lease.check()
        except (StorageError, RunLockedError) as reason:
            # Otherwise the storage is gone, which the original error already reports.
            if isinstance(reason, RunLockedError) or isinstance(self.path, Path):
                raise reason from error

    def _record_end(self, error: BaseException) -> str | None:
        """Record how an unfinished run ended, if the manifest can still be written.

        Returns
        -------
        stalled : str or None
            Reason why it will never finish, if repeated interruptions prevent it.
        """
        if isinstance(self.path, ObjectPath) and isinstance(error, StorageError):
            self._is_gone = True  # failed for a minute: not retried; the next run cleans up
            return None
        if isinstance(error, RunLockedError):
            return None
        stalled, interrupted = None, not isinstance(error, Exception)
        self.manifest["status"] = "interrupted" if interrupted else "failed"
        if not interrupted:
            self.manifest["error"] = f"{type(error).__name__}: {error}"
        try:
            with retrying_briefly(), suppress(RunLockedError):
                if interrupted:
                    seconds = time.monotonic() - self._began
                    stalled = why_stalled(self.manifest, self.path / CHECKPOINTS, seconds)
                if (self.path / MANIFEST).exists():
                    self.lease.check()
                    self.write()
        except StorageError:
            self._is_gone = isinstance(self.path, ObjectPath)
        return stalled

    def _clean_up(self) -> None:
        """Remove this attempt's unfinished work, but nothing of a run that took over."""
        if self._is_gone:
            return
        with (
            retrying_briefly(),
            suppress(OSError),
        ):  # the folder holds another attempt's or foreign files
            for place in self._places_of(self.attempt):
                _remove(place)
            (self.path / ATTEMPTS).rmdir()
        with retrying_briefly(), suppress(OSError, BigfsError):
            self._drop_late_checkpoints()

    def _drop_late_checkpoints(self) -> None:
        """Remove checkpoints that this run wrote to after a run that took over had dropped them.

        A process frozen in the middle of a write completes it when it resumes.
        """
        ours = {record["folder"] for record in self.manifest["checkpoints"].values()}
        present = type(self)(str(self.path)).read().manifest["checkpoints"].values()
        for folder in ours - {record["folder"] for record in present}:
            remove_tree(self.path / CHECKPOINTS / folder)
        (self.path / CHECKPOINTS).rmdir()

    def _leave_nothing(self) -> None:
        """Remove the records of a run without stages, unless the folder contains foreign files."""
        with retrying_briefly(), suppress(StorageError, RunLockedError):
            self.lease.check()
            ours = {MARK, LEASE, MANIFEST, *self.manifest["files"]}
            if {path.name for path in self.path.iterdir()} <= ours:
                self.remove_files(OUTPUTS)
                (self.path / MANIFEST).unlink(missing_ok=True)


def _remove(path: Location) -> None:
    """Remove a folder to which threads of an interrupted stage may still be writing."""
    for _ in range(200):
        remove_tree(path)
        if isinstance(path, ObjectPath) or not path.exists():
            return
        time.sleep(0.05)
