"""SIGINT and SIGTERM: what runs is dropped within seconds, and the run can go on later."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import scipy.sparse as sp

from tests._canary import own
from tests.cluster._jobs import finish, in_stage, manifest_of, start, wait_until, write_config

pytestmark = pytest.mark.cluster

# The promise is 30 s. On a busy machine with two cores none of this takes half of that.
PROMPT_SECONDS = 15.0
LOCAL = {"kind": "local", "n_workers": 1}


def _in_lapack(folder: Path) -> dict[str, Any]:
    """A run whose client decomposes a Gram matrix in one call of a minute or more."""
    np.save(folder / "X.npy", np.random.default_rng(0).random((4500, 4500), np.float32))
    return {
        "run": str(folder / "run"),
        "input": {"uri": str(folder / "X.npy")},
        "method": "q_alpha",
        "n_features_to_select": 5,
    }


def _compiling(folder: Path) -> dict[str, Any]:
    """A run whose tasks first compile pynndescent, for twenty seconds."""
    return {
        "run": str(folder / "run"),
        "input": {"uri": "sklearn:digits"},
        "method": "mcfs",
        "n_features_to_select": 5,
        "mcfs": {"n_clusters": 4},
        "graph": {"algorithm": "pynndescent"},
    }


def _on_counts(folder: Path) -> dict[str, Any]:
    """A run that takes many principal components of sparse counts, for ten seconds or more."""
    rng = np.random.default_rng(0)
    columns = np.sort(rng.integers(2000, size=(80_000, 100)), axis=1).ravel()
    counts = (np.ones(columns.size, np.float32), columns, np.arange(0, columns.size + 1, 100))
    sp.save_npz(folder / "X.npz", sp.csr_matrix(counts, shape=(80_000, 2000)), compressed=False)
    return {
        "run": str(folder / "run"),
        "input": {"uri": str(folder / "X.npz")},
        "method": "laplacian_score",
        "n_features_to_select": 5,
        "preprocess": "normalize_log1p",
        "graph": {"representation": "pca:900"},
    }


def _assert_cleaned_up(folder: Path, message: str) -> None:
    # Every line is one of ours: a time, or the last word. Of the locks that killed workers leave
    # ("leaked semaphore objects") Python says nothing.
    ours = r"$|\d\d:\d\d:\d\d |bigfs: interrupted"
    assert all(re.match(ours, line) for line in message.splitlines()), message
    assert manifest_of(folder / "run")["status"] == "interrupted"
    names = {".bigfs-run", "config.yaml", "data.zarr", "manifest.json"}
    assert own(folder / "run") == names


@pytest.mark.parametrize(
    "sent, config, stage, changes, environment",
    [
        (signal.SIGTERM, _in_lapack, "result", {}, {"DASK_SCHEDULER": "synchronous"}),
        (signal.SIGINT, _compiling, "graph", {}, {"DASK_SCHEDULER": "threads"}),
        (signal.SIGTERM, _compiling, "graph", {"cluster": LOCAL}, {}),
        (signal.SIGINT, _in_lapack, "result", {"cluster": LOCAL}, {}),
        (signal.SIGINT, _on_counts, "components", {}, {"DASK_SCHEDULER": "threads"}),
        (signal.SIGINT, _on_counts, "components", {"cluster": LOCAL}, {}),
    ],
    ids=["synchronous", "threads", "workers", "client of workers", "counts", "counts on workers"],
)
def test_a_signal_does_not_wait_for_a_compiled_kernel(
    tmp_path: Path, sent: int, config: Any, stage: str, changes: Any, environment: dict[str, str]
) -> None:
    path = write_config(tmp_path, {**config(tmp_path), **changes})
    # In an empty cache folder there is no kept code.
    process = start(path, **environment, NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    wait_until(in_stage(tmp_path / "run", stage), process)
    time.sleep(2)  # by now it is in the kernel
    family = psutil.Process(process.pid).children(recursive=True)
    assert process.poll() is None
    process.send_signal(sent)
    began = time.monotonic()
    output = finish(process)
    assert process.returncode == 130, output
    assert time.monotonic() - began < PROMPT_SECONDS
    assert "run the same command to continue" in output
    _assert_cleaned_up(tmp_path, output)
    psutil.wait_procs(family, timeout=5)
    assert not [child for child in family if child.is_running()], "processes are left"


def test_ctrl_c_of_a_terminal_reaches_the_workers_too(tmp_path: Path) -> None:
    """It goes to every process of the group: only the command itself has something to say."""
    changes = {"cluster": LOCAL | {"n_workers": 2}}
    path = write_config(tmp_path, {**_in_lapack(tmp_path), **changes})
    process = start(path, new_session=True)
    wait_until(in_stage(tmp_path / "run", "result"), process)
    family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    output = finish(process)
    assert process.returncode == 130, output
    _assert_cleaned_up(tmp_path, output)
    psutil.wait_procs(family, timeout=5)
    assert not [child for child in family if child.is_running()], "processes are left"


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    process = start(write_config(tmp_path, _in_lapack(tmp_path)))
    wait_until(in_stage(tmp_path / "run", "result"), process)
    time.sleep(2)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    finish(process)
    assert process.returncode == 130
    assert time.monotonic() - began < 1.5, "the cleanup alone waits longer for the kernel"


_SCRIPT = """
import sys, time, dask, yaml
import bigfs
config = yaml.safe_load(open(sys.argv[1]))
try:
    bigfs.run(config)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.stdin.read()
"""


def test_ctrl_c_in_python(tmp_path: Path) -> None:
    """`bigfs.run` raises KeyboardInterrupt, and the same interpreter may go on."""
    path = write_config(tmp_path, _in_lapack(tmp_path))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, str(path)],
        **pipes,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        wait_until(in_stage(tmp_path / "run", "result"), process)
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        assert process.stdout is not None
        assert process.stdout.readline() == "interrupted\n"
        assert time.monotonic() - began < PROMPT_SECONDS
        _assert_cleaned_up(tmp_path, "")
    finally:
        process.kill()
        process.communicate(timeout=60)
