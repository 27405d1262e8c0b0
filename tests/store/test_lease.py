"""Leases of a run directory: processes, machines, wrong clocks, and runs that lost theirs."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import socket
import threading
import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bigfs.core.errors import (
    ClusterError,
    InputError,
    NumericalError,
    RunLockedError,
    StorageError,
)
from bigfs.pipeline.inspect import inspect
from bigfs.store import lease
from bigfs.store.lease import Lease
from bigfs.store.rundir import RunDirectory

PATIENCE = 0.2


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Watch a lease for a fifth of a second instead of a minute."""
    monkeypatch.setattr(lease, "STALE_SECONDS", PATIENCE)


def _write(folder: Path, **record: object) -> dict[str, Any]:
    held = {"owner": "o", "pid": os.getpid(), "host": "elsewhere", "beat": time.time(), **record}
    (folder / "lease.json").write_text(json.dumps(held))
    return held


def _dead_pid() -> int:
    child = os.spawnlp(os.P_NOWAIT, "true", "true")
    os.waitpid(child, 0)
    return child


@pytest.mark.parametrize("age", [61.0, 1e6, -90.0, -1e9], ids=str)
def test_a_lease_that_does_not_change_is_taken_over_whatever_time_it_names(
    tmp_path: Path, age: float
) -> None:
    _write(tmp_path, beat=time.time() - age)
    began = time.monotonic()
    with Lease(tmp_path):
        assert json.loads((tmp_path / "lease.json").read_text())["pid"] == os.getpid()
    assert time.monotonic() - began >= PATIENCE, "it was not watched"


@pytest.mark.parametrize("ahead", [-90.0, 90.0])
def test_a_lease_that_changes_is_not_taken_whatever_time_it_names(
    tmp_path: Path, ahead: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the other machine is wrong by 90 seconds, or that of this one is."""
    _write(tmp_path, beat=time.time() + ahead)
    beats = iter(range(1, 10**6))
    over = threading.Event()

    def beat() -> None:
        while not over.wait(0.02):
            new = tmp_path / "lease.new"
            new.write_text(
                json.dumps(
                    {"owner": "o", "pid": 1, "host": "elsewhere"}
                    | {"beat": time.time() + ahead + next(beats)}
                )
            )
            new.replace(tmp_path / "lease.json")

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(RunLockedError, match="last heartbeat just now"), Lease(tmp_path):
            pass
    finally:
        over.set()
        thread.join(timeout=60)
    assert json.loads((tmp_path / "lease.json").read_text())["owner"] == "o"


def _dead(folder: Path) -> None:
    held = {"pid": _dead_pid(), "host": socket.gethostname(), "kernel": lease._kernel()}
    _write(folder, **held, beat=0.0)


def test_a_taker_that_comes_late_never_moves_the_lease_of_the_winner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read the dead lease, and another one takes that before it does."""
    _dead(tmp_path)
    late = Lease(tmp_path)
    dead = late._read()
    with Lease(tmp_path) as winner:
        held = (tmp_path / "lease.json").read_text()
        answers = iter([None, dead])  # whether it is its own, and whose it is
        monkeypatch.setattr(late, "_read", lambda: next(answers, None) or Lease._read(late))
        for name in ("rename", "replace", "unlink"):
            change = getattr(Path, name)

            def checked(path: Path, *given: Any, change: Any = change, **options: Any) -> Any:
                result = change(path, *given, **options)
                assert (tmp_path / "lease.json").read_text() == held
                return result

            monkeypatch.setattr(Path, name, checked)
        with pytest.raises(RunLockedError, match="another run took the lease first"), late:
            pass
        monkeypatch.undo()
        winner.check()
    assert not list(tmp_path.iterdir())


def test_a_taker_that_died_within_its_claim_stops_nobody(tmp_path: Path) -> None:
    _dead(tmp_path)
    text = (tmp_path / "lease.json").read_text()
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    claim = tmp_path / f"lease.stale-{digest}"
    claim.write_text(json.dumps({**json.loads(text), "pid": os.getpid()}))
    with pytest.raises(RunLockedError, match="another run took the lease first"), Lease(tmp_path):
        pass
    for left in (text, ""):  # of a process that is gone, and of one that had not written it yet
        claim.write_text(left)
        if not left:
            os.utime(claim, (0, 0))
        with Lease(tmp_path):
            assert not claim.exists()
        (tmp_path / "lease.json").write_text(text)


@pytest.mark.parametrize("jump", [1e6, -1e6], ids=["forward", "back"])
def test_a_watch_lasts_as_long_under_a_clock_that_jumps(
    tmp_path: Path, jump: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reading of the clock jumps on, and the system refuses every other sleep."""
    readings, sleeps = count(), count()

    def sleep(seconds: float) -> None:
        if next(sleeps) % 2:
            raise OSError(errno.EINVAL, "Invalid argument")
        time.sleep(seconds)

    faked = SimpleNamespace(
        sleep=sleep, time=time.time, monotonic=lambda: time.monotonic() + jump * next(readings)
    )
    monkeypatch.setattr(lease, "time", faked)
    _write(tmp_path, beat=time.time() - 1e6)
    began = time.monotonic()
    with Lease(tmp_path):
        pass
    assert PATIENCE <= time.monotonic() - began < 30


def test_a_fresh_lease_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "STALE_SECONDS", 60.0)
    _write(tmp_path, pid=_dead_pid())
    with (
        pytest.raises(RunLockedError, match="on elsewhere, last heartbeat 0 s"),
        Lease(tmp_path),
    ):
        pass


def test_a_process_that_is_gone_is_known_in_its_own_namespace_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers may have the name of the machine, and process ids of their own."""
    monkeypatch.setattr(lease, "STALE_SECONDS", 60.0)
    held = {"host": socket.gethostname(), "pid": _dead_pid()}
    for kernel in ("another boot pid:[1]", None, lease._kernel() + "0"):
        _write(tmp_path, **held, kernel=kernel)
        with pytest.raises(RunLockedError, match="another run holds"), Lease(tmp_path):
            pass
    _write(tmp_path, **held, kernel=lease._kernel())
    with Lease(tmp_path):
        pass


@pytest.mark.parametrize(
    "record",
    [
        {"pid": "1"},
        {"pid": 1.5},
        {"beat": "now"},
        {"beat": float("nan")},
        {"beat": 10**400},
        {"owner": ["o"]},
        {"host": None},
    ],
    ids=str,
)
def test_a_damaged_lease_is_no_lease(tmp_path: Path, record: dict[str, object]) -> None:
    _write(tmp_path, **record)
    with pytest.raises(InputError, match="is not the lease of a bigfs run"), Lease(tmp_path):
        pass


@pytest.mark.parametrize("text", ["[]", "{", "[" * 10**5, '{"beat": ' + "9" * 5000 + "}"])
def test_what_is_no_lease_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "lease.json").write_text(text)
    with pytest.raises(InputError, match="is not the lease of a bigfs run"), Lease(tmp_path):
        pass


def test_a_lease_that_never_ends_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "lease.json").symlink_to("/dev/zero")
    with pytest.raises(InputError, match="is not the lease"), Lease(tmp_path):
        pass


@pytest.mark.parametrize(
    "error",
    [
        InputError("unit.zarr does not exist. Check the path."),
        ClusterError("lost"),
        StorageError("gone"),
        NumericalError("not finite"),
        FileNotFoundError("attempts/1/graph.zarr"),
        KeyError("stages"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_run_that_lost_its_place_says_so_whatever_it_met_first(
    tmp_path: Path, error: Exception
) -> None:
    with pytest.raises(RunLockedError, match="another one took its place") as caught:
        with RunDirectory(tmp_path / "run").open():
            _write(tmp_path / "run")
            raise error
    assert caught.value.exit_code == 75 and caught.value.__cause__ is error


def test_a_run_that_lost_its_place_writes_no_manifest(tmp_path: Path) -> None:
    with RunDirectory(tmp_path).open() as directory:
        before = (tmp_path / "manifest.json").read_text()
        _write(tmp_path)
        directory.manifest["status"] = "of a run that was frozen"
        with pytest.raises(RunLockedError, match="another one took its place"):
            directory.write()
        assert (tmp_path / "manifest.json").read_text() == before


def test_a_run_whose_directory_is_removed_says_so(tmp_path: Path, bare: None) -> None:
    with pytest.raises(StorageError, match=r"run was removed while .* Run again\.") as caught:
        with RunDirectory(tmp_path / "run").open():
            shutil.rmtree(tmp_path / "run")
            raise FileNotFoundError("graph.zarr")
    assert caught.value.exit_code == 4
    assert not (tmp_path / "run").exists()


def test_inspect_says_of_a_killed_run_that_it_stopped(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run").open() as directory:
        directory.manifest["status"] = "running"
        directory.write()
        assert "run: running\n" in inspect(directory.path)
        held = json.loads((directory.path / "lease.json").read_text())
        _write(directory.path, **{**held, "pid": _dead_pid()})
        assert "run: stopped before it finished; run it again" in inspect(directory.path)
