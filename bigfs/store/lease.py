"""Leases on run directories: one run at a time; the lease of a dead owner expires."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import socket
import sys
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from bigfs.core.errors import InputError, RunLockedError, StorageError
from bigfs.core.paths import parse_json
from bigfs.store.buckets import hurried
from bigfs.store.location import Location, create_text, read_small, read_version
from bigfs.store.objects import ConflictError, ObjectPath, check_conditions
from bigfs.store.records import MARK

logger = logging.getLogger("bigfs")
LEASE = "lease.json"
HEARTBEAT_SECONDS = 10.0
STALE_SECONDS = 60.0
_WATCH_SECONDS = 0.5
_WAIT_SECONDS = 2.0
# A store has no mark: rows are being appended to it.
_OF_STORE = "zarr.json"


class Lease:
    """Exclusive right to write a run directory, kept alive by a heartbeat.

    The lease is a file (or an object) created exclusively. Its owner rewrites it every 10
    seconds. One whose process is gone is taken over, where that can be told: the owner ran in the
    same process namespace since the last start of this machine. So is one that does not change
    while it is watched for 60 seconds. Clocks of machines differ: a time that another one wrote
    only ever saves the watching of a lease that is alive.

    Parameters
    ----------
    directory : Path or ObjectPath
        The run directory.
    owner : str or None, default=None
        Who holds it. None: a new id.

    Attributes
    ----------
    former : str or None
        The owner of the dead lease that this one took over.

    Raises
    ------
    RunLockedError
        If another live process holds the lease.
    InputError
        If there is a file of that name that is no lease.
    """

    def __init__(self, directory: Location, owner: str | None = None) -> None:
        self._directory = directory
        self._owner = owner or uuid.uuid4().hex
        self.former: str | None = None
        self._place = directory / LEASE
        self._stop = threading.Event()
        self._beat: threading.Thread | None = None

    def __enter__(self) -> Lease:
        """Take the lease and start the heartbeat."""
        self._acquire()
        try:
            if isinstance(self._place, ObjectPath):
                check_conditions(self._place, iter(self._text, ""))
        except BaseException:
            self._release()
            raise
        self._beat = threading.Thread(target=self._keep, name="bigfs-lease", daemon=True)
        self._beat.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the heartbeat and give the lease back."""
        self._stop.set()
        if self._beat is not None:
            # On disk a beat after the release would bring the lease back; in a bucket one in a
            # request that hangs is a conflict later.
            self._beat.join(_WAIT_SECONDS if isinstance(self._place, ObjectPath) else None)
        self._release()

    def check(self) -> None:
        """Raise unless the lease is this one's still, so that a frozen run commits nothing.

        Raises
        ------
        RunLockedError
            If another run took it.
        StorageError
            If the directory is gone.
        """
        if self._own_version() is not None:
            return
        if not any((self._directory / name).exists() for name in (MARK, _OF_STORE)):
            raise StorageError(
                f"{self._directory} was removed while this run was writing to it. Run again."
            )
        raise RunLockedError(lost(self._directory))

    def _acquire(self) -> None:
        for _ in range(3):
            # An answer that was lost makes the second attempt a conflict with the first.
            if self._create(self._place) or self._own_version() is not None:
                return
            held, version = self._read()
            if held is None:  # given back in the meantime
                continue
            if not _is_gone(held):
                age = time.time() - held.get("beat", -math.inf)
                if -HEARTBEAT_SECONDS < age < STALE_SECONDS:
                    self._refuse(held, f"last sign of life {max(age, 0):.0f} s ago")
                if self._is_beating(held):
                    self._refuse(held, "which gave a sign of life just now")
            if not self._take_over(version):
                self.former = held.get("owner")
                break
        if self._own_version() is None:
            raise RunLockedError(
                f"{self._directory}: another run took the lease first. Wait for it to end."
            )
        if re.fullmatch("[0-9a-f]{12,32}", self.former or ""):
            with suppress(OSError):  # what its owner was writing when it died
                (self._directory / f"lease.beat-{self.former}").unlink()

    def _create(self, place: Location) -> bool:
        """Create the lease, or a claim on it, unless there is one."""
        return create_text(place, self._text(), "the lease ")

    def _take_over(self, version: Any) -> bool:
        """Replace the dead lease that was read; say whether to try again.

        On disk one taker at a time may, and only if the lease is still the one that was read: none
        replaces a winner's lease, or one that beats again.
        """
        if isinstance(self._place, ObjectPath):
            self._replace(version)
            return False
        digest = hashlib.blake2b(version.encode(), digest_size=16).hexdigest()
        claim = self._place.with_name(f"lease.stale-{digest}")
        if not self._create(claim):
            return _remove_dead(claim)
        try:
            if read_small(self._place) == version:
                self._replace(version)
        except FileNotFoundError:  # given back in the meantime
            return True
        finally:
            claim.unlink(missing_ok=True)
        return False

    def _replace(self, version: Any) -> None:
        """Renew the lease, in a bucket only if it is this version still.

        On disk, where its version is its text, it was this one a moment ago.
        """
        if isinstance(self._place, ObjectPath):
            with suppress(ConflictError):
                self._place.write_if(self._text(), version)
            return
        new = self._place.with_name(f"lease.beat-{self._owner}")
        new.write_text(self._text())
        new.replace(self._place)

    def _read(self) -> tuple[dict[str, Any] | None, Any]:
        """Return the record in the lease, and its version.

        The record is None if there is no lease, and empty while it is being written.

        Raises
        ------
        InputError
            If it is no lease.
        """
        try:
            text, version = read_version(self._place)
            return _record(text) if text else {}, version
        except FileNotFoundError:
            return None, None
        except StorageError:
            raise
        except (OSError, ValueError):
            raise InputError(
                f"{self._place} is not the lease of a bigfs run, and a run needs that "
                "name. Move the file, or use another run directory."
            ) from None

    def _own_version(self) -> Any:
        """Return the version of the lease, None if it is not this one's."""
        try:
            held, version = self._read()
        except InputError:
            return None
        return version if held and held["owner"] == self._owner else None

    def _release(self) -> None:
        # Nothing can be removed on condition. Who reads its own name in a lease that is renewed
        # every 10 s has most of a minute to do it. Where storage is gone it is soon stale.
        with hurried(), suppress(StorageError):
            if self._own_version() is not None:
                self._place.unlink(missing_ok=True)

    def _refuse(self, held: dict[str, Any], sign: str) -> None:
        holder, cure = "another run holds this directory", "or use another run directory"
        if (self._directory / _OF_STORE).exists():
            holder, cure = "another process appends to this store", "then append again"
        raise RunLockedError(
            f"{self._directory}: {holder} (process {held.get('pid', '?')} on "
            f"{held.get('host', '?')}, {sign}). Wait for it to end, {cure}."
        )

    def _is_beating(self, held: dict[str, Any]) -> bool:
        """Watch a lease that looks dead; say whether it changes.

        Looks are counted, not the time: a clock that jumps makes the watch neither short nor long.
        """
        logger.info(
            "%s: held by process %s on %s, which may be gone; its lease is watched for %.0f s",
            self._directory, held.get("pid", "?"), held.get("host", "?"), STALE_SECONDS,
        )  # fmt: skip
        pause = min(_WATCH_SECONDS, STALE_SECONDS / 4)
        for _ in range(math.ceil(STALE_SECONDS / pause)):
            try:
                time.sleep(pause)
            except OSError:  # the system may refuse it while its clock is set
                self._stop.wait(pause)
            current, _ = self._read()
            if current != held:
                return current is not None  # else it was given back
        return False

    def _keep(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            with suppress(OSError):  # storage may come back before the lease is stale
                version = self._own_version()
                if version is None:
                    return
                self._replace(version)

    def _text(self) -> str:
        return json.dumps(
            {
                "owner": self._owner,
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "kernel": _kernel(),
                "beat": time.time(),
            }
        )


def lost(directory: Location) -> str:
    """Return the error of a run whose lease another one took."""
    return (
        f"{directory}: this run was frozen for over {STALE_SECONDS:.0f} s and another one took "
        "its place. Nothing more is written."
    )


def is_left(directory: Path, owner: str | None = None) -> bool:
    """Say whether the lease of a folder has this owner (None: any), and its process is gone."""
    try:
        held = _record(read_small(directory / LEASE))
    except (OSError, ValueError):
        return False
    return owner in (None, held["owner"]) and _is_gone(held)


def _remove_dead(claim: Path) -> bool:
    """Remove the claim of a taker that died; say whether it is one, or has gone meanwhile."""
    try:
        is_old = time.time() - claim.stat().st_mtime > STALE_SECONDS
        if not is_old and not _is_gone(_record(read_small(claim))):
            return False
    except FileNotFoundError:
        return True
    except (OSError, ValueError):  # it is being written
        return False
    claim.unlink(missing_ok=True)
    return True


def _record(text: str) -> dict[str, Any]:
    """Return the record in a lease's text; a ValueError if it is none."""
    record = parse_json(text)
    try:
        is_lease = (
            all(isinstance(record[name], str) for name in ("owner", "host"))
            and type(record["pid"]) is int
            and type(record["beat"]) in (int, float)
            and math.isfinite(record["beat"])
        )
    except (TypeError, KeyError, OverflowError):
        is_lease = False
    if not is_lease:
        raise ValueError("it is no lease")
    return dict(record)


def _kernel() -> str:
    """Return the scope of process ids: the boot of this machine, and the process namespace.

    Containers may have the machine's name and ids of their own. Empty where nothing tells.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return "" if Path("/proc").exists() else sys.platform


def _is_gone(held: dict[str, Any]) -> bool:
    """Say whether the owner was a process that this one could see and that no longer exists."""
    kernel = _kernel()
    if not kernel or (held.get("host"), held.get("kernel")) != (socket.gethostname(), kernel):
        return False
    try:
        os.kill(held["pid"], 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        return False
    return False
