"""Leases on run directories and stores: one writer at a time; that of a dead owner expires."""

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
from bigfs.store.buckets import retrying_briefly
from bigfs.store.location import Location, create_text, read_small, read_version
from bigfs.store.objects import ConflictError, ObjectPath, check_conditions
from bigfs.store.records import MARK, UNFINISHED

logger = logging.getLogger("bigfs")
LEASE = "lease.json"
HEARTBEAT_SECONDS = 10.0
STALE_SECONDS = 60.0
_WATCH_SECONDS = 0.5
_WAIT_SECONDS = 2.0
# Found in a store instead of a mark; its lease is held by an append, and an ingest to a bucket.
_OF_STORE = "zarr.json"


class Lease:
    """Exclusive right to write a run directory, kept alive by a heartbeat.

    The lease is a file (or an object) created exclusively. Its owner rewrites it every 10 seconds.
    It is taken over at once if its process is known to be gone, which can be determined if the
    owner ran in the same process namespace since the last boot of this machine. Otherwise it is
    taken over if it does not change while it is watched for 60 seconds. Clocks of machines differ,
    so a timestamp written by another machine is only used to skip the watching if the lease seems
    alive.

    Parameters
    ----------
    directory : Path or ObjectPath
        The run directory.
    owner : str or None, default=None
        Id of the owner. None: a new id.

    Attributes
    ----------
    former : str or None
        The owner of the dead lease that this one took over.

    Raises
    ------
    RunLockedError
        If another live process holds the lease.
    InputError
        If there is a file of that name that is not a lease.
    """

    def __init__(self, directory: Location, owner: str | None = None) -> None:
        self._directory = directory
        self._owner = owner or uuid.uuid4().hex
        self.former: str | None = None
        self._place = directory / LEASE
        self._stop = threading.Event()
        self._checked = -math.inf
        self._beat: threading.Thread | None = None

    def __enter__(self) -> Lease:
        """Acquire the lease and start the heartbeat."""
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
        """Stop the heartbeat and release the lease."""
        self._stop.set()
        if self._beat is not None:
            # On disk, a heartbeat after the release would recreate the lease. In a bucket, one in a
            # hanging request would only end in a conflict later.
            self._beat.join(_WAIT_SECONDS if isinstance(self._place, ObjectPath) else None)
        self._release()

    def check(self, seconds: float = 0.0) -> None:
        """Raise an error unless this lease is still held, so that a frozen run commits nothing.

        Nothing is done if the last check was less than ``seconds`` ago.

        Raises
        ------
        RunLockedError
            If another run took it over.
        StorageError
            If the directory was removed.
        """
        if time.monotonic() - self._checked < seconds:
            return
        if self._own_version() is not None:
            self._checked = time.monotonic()
            return
        if not any((self._directory / name).exists() for name in (MARK, _OF_STORE)):
            raise StorageError(
                f"{self._directory} was removed while this run was writing to it. Run again."
            )
        raise RunLockedError(lost(self._directory))

    def _acquire(self) -> None:
        for _ in range(3):
            # If the response was lost, the retry conflicts with our own first attempt.
            if self._create(self._place) or self._own_version() is not None:
                return
            held, version = self._read()
            if held is None:  # released in the meantime
                continue
            if not _is_gone(held):
                age = time.time() - held.get("beat", -math.inf)
                if -HEARTBEAT_SECONDS < age < STALE_SECONDS:
                    self._refuse(held, f"last heartbeat {max(age, 0):.0f} s ago")
                if self._is_beating(held):
                    self._refuse(held, "last heartbeat just now")
            if not self._take_over(version):
                self.former = held.get("owner")
                break
        if self._own_version() is None:
            raise RunLockedError(
                f"{self._directory}: another run took the lease first. Wait for it to end."
            )
        if re.fullmatch("[0-9a-f]{12,32}", self.former or ""):
            with suppress(OSError):  # may remain if its owner died while writing
                (self._directory / f"lease.beat-{self.former}").unlink()

    def _create(self, place: Location) -> bool:
        """Create the lease, or a claim on it; return False if it exists already."""
        return create_text(place, self._text(), "the lease ")

    def _take_over(self, version: Any) -> bool:
        """Replace the dead lease that was read; return True if the caller should try again.

        On disk, only one process at a time may do so, and only if the lease is still the one that
        was read. So nobody replaces the lease of a winner, or one that is alive again.
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
        except FileNotFoundError:  # released in the meantime
            return True
        finally:
            claim.unlink(missing_ok=True)
        return False

    def _replace(self, version: Any) -> None:
        """Rewrite the lease; in a bucket, only if it still is the given version.

        On disk, where the version is the text, the caller has just compared it.
        """
        if isinstance(self._place, ObjectPath):
            with suppress(ConflictError):
                self._place.write_if(self._text(), version)
            return
        new = self._place.with_name(f"lease.beat-{self._owner}")
        new.write_text(self._text())
        new.replace(self._place)

    def _read(self) -> tuple[dict[str, Any] | None, Any]:
        """Return the record stored in the lease, and its version.

        The record is None if there is no lease, and empty while it is being written.

        Raises
        ------
        InputError
            If the file is not a lease.
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
                f"{self._place} is not the lease of a bigfs run, but a run needs this "
                "name. Move the file, or use another run directory."
            ) from None

    def _own_version(self) -> Any:
        """Return the version of the lease; None if this owner does not hold it."""
        try:
            held, version = self._read()
        except InputError:
            return None
        return version if held and held["owner"] == self._owner else None

    def _release(self) -> None:
        # Buckets have no conditional deletes. But an owner who has just read its own name in a
        # lease renewed every 10 s has most of a minute to delete it. If the storage is gone, the
        # lease soon expires.
        with retrying_briefly(), suppress(StorageError):
            if self._own_version() is not None:
                self._place.unlink(missing_ok=True)

    def _refuse(self, held: dict[str, Any], sign: str) -> None:
        holder, cure = "another run holds this directory", "or use another run directory"
        if any((self._directory / name).exists() for name in (_OF_STORE, UNFINISHED)):
            holder, cure = "another process writes to this store", "then run the command again"
        raise RunLockedError(
            f"{self._directory}: {holder} (process {held.get('pid', '?')} on "
            f"{held.get('host', '?')}, {sign}). Wait for it to end, {cure}."
        )

    def _is_beating(self, held: dict[str, Any]) -> bool:
        """Watch a lease that looks dead; return True if it changes.

        Polls are counted instead of time, so that clock jumps make the watch neither shorter nor
        longer.
        """
        logger.info(
            "%s: held by process %s on %s, which may be gone; its lease is watched for %.0f s",
            self._directory, held.get("pid", "?"), held.get("host", "?"), STALE_SECONDS,
        )  # fmt: skip
        pause = min(_WATCH_SECONDS, STALE_SECONDS / 4)
        for _ in range(math.ceil(STALE_SECONDS / pause)):
            try:
                time.sleep(pause)
            except OSError:  # may fail while the system clock is being set
                self._stop.wait(pause)
            current, _ = self._read()
            if current != held:
                return current is not None  # None: it was released
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
    """Return the error message for a run whose lease was taken over by another one."""
    return (
        f"{directory}: this run was frozen for over {STALE_SECONDS:.0f} s and another one took "
        "its place. Nothing more is written."
    )


def is_left(directory: Path, owner: str | None = None) -> bool:
    """Return True if a folder's lease has this owner (None: any) and its process is gone."""
    try:
        held = _record(read_small(directory / LEASE))
    except (OSError, ValueError):
        return False
    return owner in (None, held["owner"]) and _is_gone(held)


def _remove_dead(claim: Path) -> bool:
    """Remove the claim of a dead process; return True if it was removed, now or meanwhile."""
    try:
        is_old = time.time() - claim.stat().st_mtime > STALE_SECONDS
        if not is_old and not _is_gone(_record(read_small(claim))):
            return False
    except FileNotFoundError:
        return True
    except (OSError, ValueError):  # still being written
        return False
    claim.unlink(missing_ok=True)
    return True


def _record(text: str) -> dict[str, Any]:
    """Return the record in a lease's text; raise ValueError if it is not a lease."""
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
        raise ValueError("it is not a lease")
    return dict(record)


def _kernel() -> str:
    """Return the scope of process ids: the boot id of this machine and the process namespace.

    Containers may have the host name of the machine but process ids of their own. Empty if the
    scope is unknown.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return "" if Path("/proc").exists() else sys.platform


def _is_gone(held: dict[str, Any]) -> bool:
    """Return True if the owner was a process in this scope that no longer exists."""
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
