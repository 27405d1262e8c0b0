"""The fuzz runs at toy size: every kind of file twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.bench.bench_fuzz import KINDS


def test_fuzz(tmp_path: Path) -> None:
    # Its cases are forks, so it must not share a process with the threads of other tests.
    command = [sys.executable, "-m", "tests.bench.bench_fuzz", str(tmp_path)]
    done = subprocess.run(
        [*command, "--cases", str(2 * len(KINDS))],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(kind in done.stdout for kind in KINDS) and "bigfs" not in done.stdout
