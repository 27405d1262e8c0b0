"""pynndescent's search with code that is kept on disk: the same neighbors, compiled once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pynndescent
import pytest

pytestmark = pytest.mark.full

SEARCH = """
import hashlib, json, time
import numpy as np
from bigfs.graph import descent

X = np.random.default_rng(0).normal(size=(3000, 20)).astype(np.float32)
was_compiled = descent.is_compiled()
began = time.process_time()
neighbors = descent.descend(X, 10, seed=1)
seconds = time.process_time() - began
digest = hashlib.sha256(neighbors.tobytes()).hexdigest()
errors = [type(error).__name__ for error in descent._unusable]
print(json.dumps({"neighbors": digest, "seconds": seconds, "errors": errors,
                  "was_compiled": was_compiled, "is_compiled": descent.is_compiled()}))
"""


def _start(folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    return subprocess.Popen(
        [sys.executable, "-c", SEARCH], stdout=subprocess.PIPE, env=environment, text=True
    )


def _result(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = process.communicate(timeout=420)
    assert process.returncode == 0
    result: dict[str, Any] = json.loads(out)
    return result


@pytest.mark.timeout(900)  # two compilations
@pytest.mark.slow
@pytest.mark.parametrize("n_at_once", [1, 2])
def test_the_code_is_compiled_once_and_a_damaged_file_changes_nothing(
    tmp_path: Path, n_at_once: int
) -> None:
    compiling = [_start(tmp_path) for _ in range(n_at_once)]
    compiled = [_result(process) for process in compiling]
    [kept] = tmp_path.rglob(f"*_run_{pynndescent.__version__}*.nbc")
    loaded = _result(_start(tmp_path))
    # What is said before: "Compiling the neighbor search (about 30 s, once)", or nothing.
    assert not any(result["was_compiled"] for result in compiled)
    assert loaded["was_compiled"] and all(result["is_compiled"] for result in compiled)
    assert loaded["seconds"] < min(result["seconds"] for result in compiled) / 4
    kept.write_bytes(kept.read_bytes()[:1000])
    by_pynndescent_alone = _result(_start(tmp_path))
    assert by_pynndescent_alone["errors"] == ["UnpicklingError"]
    assert not any(result["errors"] for result in [*compiled, loaded])
    results = [*compiled, loaded, by_pynndescent_alone]
    assert len({result["neighbors"] for result in results}) == 1
