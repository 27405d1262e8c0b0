"""Processor seconds until something is on the screen, each with a wide margin; ends are clean."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bigfs.core.errors import EXIT_INTERRUPTED

BIGFS = [sys.executable, "-m", "bigfs"]
# What is aimed at, times this, for busy and for slow machines.
MARGIN = 3.0


def seconds(command: list[str], folder: Path) -> float:
    """Return the least processor seconds of two starts."""
    results = []
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=200)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        results.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(results)


@pytest.mark.full
def test_commands_start_soon(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", np.random.default_rng(0).normal(size=(2000, 50)))
    assert seconds([*BIGFS, "--help"], tmp_path) < MARGIN * 0.3
    assert seconds([*BIGFS, "inspect", "X.npy"], tmp_path) < MARGIN * 1.0
    run = [*BIGFS, "run", "mcfs", "--set", "input.uri=X.npy", "--quiet"]
    subprocess.run(run, cwd=tmp_path, check=True, capture_output=True, timeout=200)
    assert seconds(run, tmp_path) < MARGIN * 1.5
    again = [*BIGFS, "run", "max_variance.yaml", "--quiet"]
    np.save(tmp_path / "y.npy", np.arange(2000) % 5)
    settings = "run: runs/d\ninput: {uri: X.npy}\nmethod: max_variance\nreport: null\n"
    labels = "n_features_to_select: 5\nevaluate: {labels: y.npy, n_repetitions: 1}\n"
    (tmp_path / "max_variance.yaml").write_text(settings + labels)
    subprocess.run(again, cwd=tmp_path, check=True, capture_output=True, timeout=200)
    command = [sys.executable, "-X", "importtime", *again[1:]]
    output = subprocess.run(
        command, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=200
    ).stderr
    assert "bigfs.pipeline" in output and "sklearn.base" not in output, (
        "a second of loading for nothing"
    )
    base = seconds([sys.executable, "-c", "import sklearn.base"], tmp_path)
    ours = seconds([sys.executable, "-c", "from bigfs import MCFS"], tmp_path)
    assert ours - base < MARGIN * 0.5


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux")
@pytest.mark.parametrize("library", ["_multiarray_umath", "sklearn"])
def test_an_interrupt_while_the_program_loads_is_clean(library: str, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*BIGFS, "run", "quickstart"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    loaded = Path(f"/proc/{process.pid}/maps")
    while library not in loaded.read_text():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, output = process.communicate(timeout=60)
    assert process.returncode == EXIT_INTERRUPTED
    assert "Traceback" not in output and "interrupted" in output
