"""Storage and clusters that fail: the exit code, the message, and that a later run succeeds."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml
from sklearn.datasets import load_digits

from bigfs import ingest, run
from bigfs.cli import main
from bigfs.core.errors import ClusterError, CorruptStoreError, StorageError
from bigfs.pipeline.inspect import inspect
from bigfs.runtime import interrupt, workers
from tests._canary import own
from tests.cluster import _processes
from tests.cluster._jobs import PATIENCE, in_stage, manifest_of, meanwhile, write_config


class Outcome(NamedTuple):
    code: int
    said: str


@pytest.fixture
def bigfs_run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Give a configuration to the command line in this process."""

    def call(config: dict[str, Any], *options: str) -> Outcome:
        path = Path(config["run"]).with_name("pipeline.yaml")
        path.write_text(yaml.safe_dump(config))
        with pytest.raises(SystemExit) as stopped:
            main(["run", str(path), "--quiet", *options])
        return Outcome(stopped.value.code, capsys.readouterr().err)

    return call


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "X.zarr"
    ingest(load_digits().data, path, rows=300)
    return path


def _config(folder: Path, store: Path, **changes: Any) -> dict[str, Any]:
    return {
        "run": str(folder / "run"),
        "input": {"uri": str(store)},
        "method": "mcfs",
        "n_features_to_select": 5,
        "mcfs": {"n_clusters": 4},
        "blocks": {"rows": 300},
        **changes,
    }


def _endless(folder: Path, store: Path) -> dict[str, Any]:
    """A run that writes new arrays as long as it is let."""
    settings = {"n_clusters": 10, "max_iter": 100_000, "tol": 0.0}
    config = _config(folder, store, method="ndfs", ndfs=settings)
    config.pop("mcfs")
    return config


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 32 MiB, in memory."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(disk)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, timeout=200)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if mounted.returncode:
        pytest.skip(f"this user cannot mount a tmpfs: {mounted.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True, timeout=200)


def _fill(disk: Path, ready: Callable[[], Any], over: threading.Event) -> None:
    """Write a file until the disk is full, as another program would."""
    while not ready():
        if over.wait(0.01):
            return
    with (disk / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(2**20))
        except OSError:
            pass


@pytest.mark.cluster
@pytest.mark.parametrize("where", ["threads", "workers"])
def test_a_disk_that_is_full_in_the_middle(
    where: str,
    small_disk: Path,
    store: Path,
    bigfs_run: Callable[..., Outcome],
    request: pytest.FixtureRequest,
) -> None:
    if where == "workers":
        request.getfixturevalue("client")
    config = _endless(small_disk, store)
    folder = small_disk / "run" / "checkpoints"
    with meanwhile(partial(_fill, small_disk, lambda: list(folder.glob("result-*/state.npz")))):
        result = bigfs_run(config)
    assert result.code == 4, result.said
    assert "No space left on device" in result.said and str(small_disk) in result.said
    assert " again" in result.said and "Traceback" not in result.said
    (small_disk / "filler").unlink()
    config["ndfs"]["max_iter"] = 3
    assert bigfs_run(config).code == 0
    assert "attempts" not in own(small_disk / "run")


@pytest.mark.cluster
def test_a_limit_on_the_size_of_files(tmp_path: Path, store: Path) -> None:
    path = write_config(tmp_path, _config(tmp_path, store, blocks={"rows": 1797}))
    completed = subprocess.run(
        # -B: the process would leave compiled modules that end early.
        [sys.executable, "-B", "-m", "bigfs.cli", "run", str(path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
    )
    assert completed.returncode == 4, completed.stderr
    assert "File too large" in completed.stderr and "Traceback" not in completed.stderr


def _chunk(folder: Path, number: int) -> Path:
    return folder / "c" / str(number) / "0"


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage, where",
    [(Path.unlink, "chunk X/c/3/0 is missing"), (_flip, "rows 900 to 1200 cannot be decoded")],
    ids=["missing", "flipped"],
)
def test_a_damaged_chunk_of_the_input(
    damage: Callable[[Path], Any],
    where: str,
    tmp_path: Path,
    store: Path,
    bigfs_run: Callable[..., Outcome],
) -> None:
    copy = tmp_path / "X.zarr"
    shutil.copytree(store, copy)
    damage(_chunk(copy / "X", 3))
    config = _config(tmp_path, copy)
    result = bigfs_run(config)
    assert result.code == 2, result.said
    assert f"{copy}: {where}" in result.said and "Ingest the source again" in result.said
    assert "Traceback" not in result.said
    ingest(load_digits().data, copy, rows=300, overwrite=True)
    assert bigfs_run(config).code == 0


def test_a_truncated_run_directory(
    tmp_path: Path, store: Path, bigfs_run: Callable[..., Outcome]
) -> None:
    config = _config(tmp_path, store)
    expected = run(config).scores
    folder = tmp_path / "run"
    for name in ("graph", "spectral", "result"):
        files = sorted(path for path in (folder / f"{name}.zarr").rglob("*") if path.is_file())
        files[-1].unlink()
        assert bigfs_run(config).code == 0, name
        np.testing.assert_array_equal(run(config).scores, expected)
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text()[:300])
    result = bigfs_run(config)
    assert result.code == 2 and str(manifest) in result.said and "--fresh" in result.said
    assert bigfs_run(config, "--fresh").code == 0
    np.testing.assert_array_equal(run(config).scores, expected)


def test_a_flipped_byte_in_a_finished_stage(
    tmp_path: Path, store: Path, bigfs_run: Callable[..., Outcome]
) -> None:
    config = _config(tmp_path, store)
    expected = run(config).scores
    folder = tmp_path / "run"
    assert "graph: all files are present and unchanged" in inspect(folder, verify=True)
    for name, chunk in (("graph", "indices/c.0.0"), ("spectral", "embedding/c.0.0")):
        _flip(folder / f"{name}.zarr" / chunk)
        with pytest.raises(CorruptStoreError, match=f"{chunk} was changed"):
            inspect(folder, verify=True)
        former = manifest_of(folder)["stages"]
        assert bigfs_run(config).code == 0, name
        np.testing.assert_array_equal(run(config).scores, expected)
        stages = manifest_of(folder)["stages"]
        redone = [stage for stage in stages if stages[stage]["attempt"] != former[stage]["attempt"]]
        assert redone == [name]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a cluster that is gone for three seconds instead of a minute."""
    monkeypatch.setattr(workers, "LOST_SECONDS", 3.0)
    monkeypatch.setattr(interrupt, "WATCH_SECONDS", 0.5)


@pytest.mark.cluster
@pytest.mark.parametrize("lost", ["workers", "scheduler"])
def test_a_cluster_that_goes_away(
    lost: str, tmp_path: Path, store: Path, impatient: None, bigfs_run: Callable[..., Outcome]
) -> None:
    config = _endless(tmp_path, store)
    with (
        _processes.scheduler(tmp_path) as file,
        _processes.worker(file, tmp_path) as worker,
    ):
        killed = []

        def kill(over: threading.Event) -> None:
            while not in_stage(tmp_path / "run", "result")():
                if over.wait(0.05):
                    return
            time.sleep(1)
            if lost == "workers":
                worker.kill()
            else:
                _kill_the_scheduler(file)
            killed.append(time.monotonic())

        with meanwhile(kill):
            result = bigfs_run(config, "--scheduler", str(file))
    assert result.code == 4, result.said
    assert time.monotonic() - killed[0] < 60
    assert "Traceback" not in result.said and "run again" in result.said
    words = ("no worker for 3 s",) if lost == "workers" else ("was lost", "has not answered")
    assert any(word in result.said for word in words), result.said
    assert manifest_of(tmp_path / "run")["status"] == "failed"
    config["ndfs"]["max_iter"] = 3
    assert bigfs_run(config).code == 0


def _kill_the_scheduler(file: Path) -> None:
    import psutil

    for process in psutil.process_iter(["cmdline"]):
        if str(file) in (process.info["cmdline"] or ()) and "scheduler" in process.info["cmdline"]:
            process.kill()


def test_failures_of_storage_name_the_file_and_the_remedy(tmp_path: Path) -> None:
    from bigfs.runtime.execute import storage_failures

    with (
        pytest.raises(StorageError, match="Cannot write here: No space left on device. Free"),
        storage_failures("here"),
    ):
        raise OSError(28, "No space left on device")
    with pytest.raises(FileNotFoundError), storage_failures("here"):
        raise FileNotFoundError(2, "no such file")
    with pytest.raises(StorageError) as caught, storage_failures("here"):
        raise StorageError("Cannot write it.")
    assert caught.value.__notes__ == ["Finished stages are kept: fix the cause and run again."]
    with pytest.raises(ClusterError), storage_failures("here"):
        raise ClusterError("gone.")
