"""Runs as processes of their own, to be interrupted, killed and looked at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import yaml

from bigfs.store.location import Location, as_location
from tests import _canary

PATIENCE = 120.0
# Run directories by process.
_runs: dict[int, Location] = {}


def write_config(folder: Path, config: dict[str, Any]) -> Path:
    """Write a pipeline file beside the run directory."""
    path = folder / "pipeline.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def start(
    path: Path, *options: str, new_session: bool = False, **environment: str
) -> subprocess.Popen[str]:
    """Start ``bigfs run``, in a session of its own if asked; a canary is in its run directory.

    `finish` looks after it.
    """
    run = as_location(yaml.safe_load(path.read_text())["run"])
    if not run.exists():
        _canary.plant(run)
    process = subprocess.Popen(
        [sys.executable, "-m", "bigfs", "run", str(path), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=new_session,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    if (run / "notes.txt").exists():
        _runs[process.pid] = run
    return process


def finish(process: subprocess.Popen[str], seconds: float = PATIENCE) -> str:
    """Wait for the end and return what was said on stderr."""
    try:
        output = process.communicate(timeout=seconds)[1]
        if process.pid in _runs:
            _canary.check(_runs[process.pid])
        return output
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"still running: {process.communicate(timeout=60)[1]}") from None


def wait_until(
    ready: Callable[[], Any], process: subprocess.Popen[str], seconds: float = PATIENCE
) -> Any:
    """Return what ``ready`` returns once it is true; the process must not end before."""
    deadline = time.monotonic() + seconds
    while not (value := ready()):
        assert process.poll() is None, process.communicate(timeout=60)
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return value


@contextmanager
def meanwhile(work: Callable[[threading.Event], Any]) -> Iterator[None]:
    """Run a function in a thread during the block; it returns soon once its event is set."""
    over = threading.Event()
    # A daemon: if it hangs all the same, the tests can still end.
    thread = threading.Thread(target=work, args=(over,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)
    assert not thread.is_alive()


def manifest_of(run: Location) -> dict[str, Any]:
    """Return the manifest of a run, or an empty one."""
    try:
        return json.loads((run / "manifest.json").read_text())
    except (OSError, ValueError):
        return {"stages": {}}


def in_stage(run: Path, name: str) -> Callable[[], bool]:
    """Say whether a stage is being written."""
    return lambda: any((run / "attempts").glob(f"*/{name}.zarr"))


def workers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return the worker processes that a run started, without those that have just ended."""

    def is_worker(child: psutil.Process) -> bool:
        try:
            return "spawn_main" in " ".join(child.cmdline())
        except psutil.NoSuchProcess:  # a zombie is one too
            return False

    return [*filter(is_worker, psutil.Process(process.pid).children(recursive=True))]
