"""A lease on a run directory: one run at a time, and a dead owner does not block for long."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from pathlib import Path

from bigfs.core.errors import RunLockedError, StorageError

LEASE = "lease.json"
HEARTBEAT_SECONDS = 10.0
STALE_SECONDS = 60.0


class Lease:
    """Exclusive right to write a run directory, kept alive by a heartbeat.

    The lease is a file created exclusively. Its owner rewrites it every 10 seconds; a lease
    whose last beat is 60 seconds old, or whose process on this machine is gone, is taken over.

    Parameters
    ----------
    directory : Path
        The run directory.

    Raises
    ------
    RunLockedError
        If another live process holds the lease.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / LEASE
        self._owner = uuid.uuid4().hex
        self._stop = threading.Event()
        self._beat: threading.Thread | None = None

    def __enter__(self) -> Lease:
        """Take the lease and start the heartbeat."""
        self._acquire()
        self._beat = threading.Thread(target=self._keep, name="bigfs-lease", daemon=True)
        self._beat.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the heartbeat and give the lease back."""
        self._stop.set()
        if self._beat is not None:
            self._beat.join()
        if _read(self._path).get("owner") == self._owner:
            self._path.unlink(missing_ok=True)

    def _acquire(self) -> None:
        for _ in range(3):
            try:
                with self._path.open("x") as file:
                    file.write(self._record())
                return
            except FileExistsError:
                self._remove_if_stale()
            except OSError as error:
                raise StorageError(f"Cannot write the lease {self._path}: {error}.") from error
        raise RunLockedError(
            f"{self._path.parent}: another run took the lease first. Wait for it to end."
        )

    def _remove_if_stale(self) -> None:
        """Move a dead lease aside, or raise RunLockedError if it is alive."""
        held = _read(self._path)
        if not self._path.exists():
            return
        age = time.time() - held.get("beat", self._path.stat().st_mtime)
        if age < STALE_SECONDS and not _is_gone(held):
            raise RunLockedError(
                f"{self._path.parent}: another run holds this directory (process "
                f"{held.get('pid', '?')} on {held.get('host', '?')}, last sign of life "
                f"{max(age, 0):.0f} s ago). Wait for it to end, or use another run directory."
            )
        # Of several takers one wins the rename. A slower one may move the winner's new lease
        # instead: it sees another owner in what it moved, and puts it back.
        aside = self._path.with_name(f"lease.stale-{self._owner}")
        try:
            self._path.rename(aside)
        except FileNotFoundError:
            return
        if _read(aside).get("owner") != held.get("owner"):
            aside.replace(self._path)
            raise RunLockedError(
                f"{self._path.parent}: another run took the lease first. Wait for it to end."
            )
        aside.unlink()

    def check(self) -> None:
        """Raise RunLockedError if the lease was lost, so that a frozen run commits nothing."""
        if _read(self._path).get("owner") != self._owner:
            raise RunLockedError(
                f"{self._path.parent}: this run was frozen for over {STALE_SECONDS:.0f} s and "
                "another one took its place. Nothing more is written."
            )

    def _keep(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            if _read(self._path).get("owner") != self._owner:
                return
            new = self._path.with_name(f"lease.beat-{self._owner}")
            new.write_text(self._record())
            new.replace(self._path)

    def _record(self) -> str:
        return json.dumps(
            {
                "owner": self._owner,
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "beat": time.time(),
            }
        )


def _read(path: Path) -> dict[str, object]:
    """Return what a lease says; a lease being written or removed says nothing."""
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _is_gone(held: dict[str, object]) -> bool:
    """Say whether the owner was a process of this machine that no longer exists."""
    pid = held.get("pid")
    if held.get("host") != socket.gethostname() or not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
