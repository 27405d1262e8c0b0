"""A job killed with -9 a hundred times, in every stage, with the files of somebody around it."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bigfs.results.result import open_result
from tests._canary import check, own_files
from tests.cluster._jobs import finish, in_stage, manifest_of, start, write_config

KILLS = 100
STAGES = ("data", "graph", "spectral", "result", "evaluation")


def _config(folder: Path, name: str) -> dict[str, Any]:
    return {
        "run": str(folder / name / "run"),
        "input": {"uri": str(folder / "X.npy")},
        "method": "ndfs",
        "n_features_to_select": 10,
        "ndfs": {"n_clusters": 4, "max_iter": 40, "tol": 0.0},
        "evaluate": {"labels": str(folder / "y.npy"), "n_repetitions": 6},
    }


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.timeout(1500)
def test_a_hundred_kills(tmp_path: Path) -> None:
    """Each run is killed in its stages, one after the other, and at any time before them."""
    rng = np.random.default_rng(0)
    y = rng.integers(4, size=1800)
    X = rng.normal(scale=2.0, size=(4, 200))[y] + rng.normal(size=(1800, 200))
    np.save(tmp_path / "X.npy", X.astype(np.float32))
    np.save(tmp_path / "y.npy", y)
    undisturbed = _config(tmp_path, "whole")
    process = start(write_config(tmp_path, undisturbed))
    output = finish(process)
    assert process.returncode == 0, output
    scores = open_result(undisturbed["run"]).scores.tobytes()
    kept = own_files(Path(undisturbed["run"]))
    dice, killed, starts, runs = random.Random(0), Counter[str](), 0, 0
    while killed.total() < KILLS:
        config = _config(tmp_path, f"run-{runs}")
        run, runs = Path(config["run"]), runs + 1
        path = write_config(tmp_path, config)
        # Any time: while it starts, and while it begins or ends a stage.
        for stage in (*STAGES, "any", None):
            if killed.total() == KILLS:
                stage = None
            before = manifest_of(run)["stages"]
            process, starts = start(path), starts + 1
            if stage is not None:
                _kill_in(process, run, stage, dice)
            output = finish(process)  # and the canary is checked
            if process.returncode == -9:
                killed[str(stage)] += 1
            else:
                assert process.returncode == 0, output
            after = manifest_of(run)["stages"]
            assert all(after[name]["attempt"] == item["attempt"] for name, item in before.items())
        check(run)
        assert open_result(run).scores.tobytes() == scores
        assert own_files(run) == kept, own_files(run) ^ kept
    print(f"{killed.total()} kills in {runs} runs, {starts} starts; {dict(killed)}")
    assert set(killed) == {*STAGES, "any"} and min(killed.values()) >= 5, killed


def _kill_in(process: Any, run: Path, stage: str, dice: random.Random) -> None:
    """Kill a job soon after a stage has begun, or at any time."""
    begun = in_stage(run, stage)
    if stage == "any":
        time.sleep(dice.uniform(0.0, 4.0))
    else:
        while process.poll() is None and not begun():
            time.sleep(0.001)
        time.sleep(dice.choice((0.0, dice.uniform(0.0, 0.05), dice.uniform(0.0, 0.3))))
    process.kill()
