"""Schedulers and workers as processes of their own, started by Dask's own commands."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

REPO = Path(__file__).parents[2]


@contextmanager
def process(*command: str, log: Path, **settings: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command within the block; its output goes to a file."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **settings.pop("env", {})}
    cwd = settings.pop("cwd", REPO)
    with log.open("wb") as file:
        started = subprocess.Popen(
            command, cwd=cwd, env=environment, stdout=file, stderr=file, **settings
        )
    try:
        yield started
    finally:
        started.terminate()
        try:
            started.wait(20)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait(timeout=60)


@contextmanager
def scheduler(folder: Path, *options: str, **settings: Any) -> Iterator[Path]:
    """Run a scheduler on a free port of the loopback; give the file that names it."""
    file = folder / "scheduler.json"
    host = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard")
    command = (sys.executable, "-m", "dask", "scheduler", *host, "--scheduler-file", str(file))
    with process(*command, *options, log=folder / "scheduler.log", **settings):
        deadline = time.monotonic() + 60
        while not (file.exists() and file.read_text().strip().endswith("}")):
            assert time.monotonic() < deadline, (folder / "scheduler.log").read_text()
            time.sleep(0.1)
        yield file


@contextmanager
def worker(
    where: str | Path,
    folder: Path,
    *options: str,
    name: str = "worker",
    python: tuple[str, ...] = ("-m", "dask", "worker"),
    memory: str = "4GiB",
    before: tuple[str, ...] = (),
    **settings: Any,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker of one thread without a nanny for a scheduler's address or file."""
    at = ("--scheduler-file", str(where)) if isinstance(where, Path) else (where,)
    fixed = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--memory-limit", memory)
    place = ("--name", name, "--local-directory", str(folder / f"local-{name}"))
    command = (*before, sys.executable, *python, *at, *fixed, *place, *options)
    with process(*command, log=folder / f"{name}.log", **settings) as started:
        yield started


def pretend(folder: Path, package: str, version: str) -> dict[str, str]:
    """Return the environment of a process that has another version of a package."""
    name = package.replace("-", "_")
    record = folder / f"pretend-{name}" / f"{name}-{version}.dist-info" / "METADATA"
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    return {"PYTHONPATH": str(record.parents[1])}
