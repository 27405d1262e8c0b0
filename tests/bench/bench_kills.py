"""Kills at random times: of workers within a run, and of the whole job, resumed each time.

    python -m tests.bench.bench_kills FOLDER [--methods mcfs ndfs] [--worker-kills 20]
                                      [--job-kills 30] [--rows 6000] [--workers 2] [--seed 0]

For each method a run on two worker processes (0: on threads) is left undisturbed first. Then (a)
random workers are killed with -9 at random times, through as many runs as it takes; a run that Dask
gives up (one task was with four workers that died) is started again, as its exit code says; and (b)
the job is killed with -9 at random times and started again: a third of the times from its start on,
the others from its first stage on. Every run must end with the same scores, bit for bit; no stage
that was finished may be done again; afterwards there is no lease, no process and no file in the run
directory that the undisturbed run does not have.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bigfs.results.result import open_result
from bigfs.store.ingest import ingest
from tests.cluster._jobs import finish, manifest_of, start, workers_of, write_config

_POLL_SECONDS = 0.02


@dataclass
class Undisturbed:
    """What the run is that every other one must equal.

    Its seconds are those of the latest run without a kill: the load of a machine changes.
    """

    folder: Path
    config: dict[str, Any]
    seconds: float
    work_seconds: float
    scores: bytes
    files: Counter[str]


@dataclass
class Series:
    """What was done to a series of runs, and what it found."""

    kills: int = 0
    runs: int = 0
    starts: int = 0
    in_stage: Counter[str] = field(default_factory=Counter)
    began: float = field(default_factory=time.monotonic)

    def line(self, what: str) -> str:
        """Return the series in a line."""
        stages = ", ".join(f"{name} {count}" for name, count in sorted(self.in_stage.items()))
        return (
            f"{what}: {self.kills} kills in {self.runs} runs ({self.starts} starts), same scores, "
            f"nothing left; by stage: {stages}; {time.monotonic() - self.began:.0f} s"
        )


def main(arguments: list[str] | None = None) -> None:
    """Run the series that were asked for and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--methods", nargs="+", default=["mcfs", "ndfs"])
    parser.add_argument("--worker-kills", type=int, default=20)
    parser.add_argument("--job-kills", type=int, default=30)
    parser.add_argument("--rows", type=int, default=6000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    for method in chosen.methods:
        dice = random.Random(f"{chosen.seed} {method}")
        whole = undisturbed(chosen.folder, method, chosen.rows, chosen.workers)
        print(f"{method}: {whole.seconds:.1f} s undisturbed", flush=True)
        if chosen.worker_kills and chosen.workers:
            found = kill_workers(whole, chosen.worker_kills, dice)
            print(found.line(f"{method}, workers"), flush=True)
        if chosen.job_kills:
            found = kill_jobs(whole, chosen.job_kills, dice)
            print(found.line(f"{method}, job"), flush=True)


def undisturbed(folder: Path, method: str, rows: int, workers: int) -> Undisturbed:
    """Write the data and run the method without a kill."""
    data, block = folder / "X.zarr", -(-rows // 6)
    if not data.exists():
        rng = np.random.default_rng(0)
        centers = rng.normal(scale=2.0, size=(6, 40))
        X = centers[rng.integers(6, size=rows)] + rng.normal(size=(rows, 40))
        ingest(X.astype(np.float32), data, rows=block)
    config = {
        "run": str(folder / method),
        "input": {"uri": str(data)},
        "method": method,
        "n_features_to_select": 10,
        "graph": {"n_neighbors": 8, "algorithm": "exact"},
        method: {"n_clusters": 6},
        "blocks": {"rows": block},
        "cluster": {"kind": "local", "n_workers": workers} if workers else None,
    }
    if method == "ndfs":
        config["ndfs"] = {"n_clusters": 6, "max_iter": 40, "tol": 0.0}
    began = time.monotonic()
    process = _start(folder, config)
    said = finish(process, 600)
    assert process.returncode == 0, said
    seconds = time.monotonic() - began
    run = folder / method
    work = sum(stage["seconds"] for stage in manifest_of(run)["stages"].values())
    return Undisturbed(folder, config, seconds, work, scores_of(run), files_of(run))


def _start(folder: Path, config: dict[str, Any]) -> subprocess.Popen[str]:
    return start(write_config(folder, config))


def scores_of(run: Path) -> bytes:
    """Return the scores of a finished run."""
    return open_result(run).scores.tobytes()


def files_of(run: Path) -> Counter[str]:
    """Return the files below a run directory, with random parts of their names left out."""
    names = (path.relative_to(run).as_posix() for path in run.rglob("*"))
    return Counter(re.sub(r"[0-9a-f]{12,}", "*", name) for name in names)


def _in_stage(run: Path) -> str:
    """Return the stage that is being written, as far as the run directory shows."""
    found = sorted(path.stem for path in run.glob("attempts/*/*.zarr"))
    if found:
        return found[-1]
    attempts = [path.name for path in run.glob("attempts/*")]
    return "between" if manifest_of(run).get("attempt") in attempts else "start"


def _disturbed(whole: Undisturbed, number: int) -> tuple[Path, dict[str, Any]]:
    run = whole.folder / f"{whole.config['method']}-{number}"
    return run, {**whole.config, "run": str(run)}


def _check_end(whole: Undisturbed, run: Path) -> None:
    """Compare a run that was disturbed with the one that was not."""
    assert scores_of(run) == whole.scores, f"{run}: other scores"
    files = files_of(run)
    assert files == whole.files, f"{run}: {files - whole.files} more, {whole.files - files} less"
    assert manifest_of(run)["status"] == "done"


def kill_workers(whole: Undisturbed, kills: int, dice: random.Random) -> Series:
    """Kill random workers until there were so many kills; every run must complete."""
    series = Series()
    while series.kills < kills:
        run, config = _disturbed(whole, series.runs)
        series.runs += 1
        code, said = 4, ""
        began, before = time.monotonic(), series.kills
        while code == 4:
            process = _start(whole.folder, config)
            series.starts += 1
            _disturb(process, run, whole.seconds / 2, kills, dice, series)
            said = finish(process)
            code = process.returncode
        assert code == 0, said
        if series.kills == before:
            whole.seconds = time.monotonic() - began
        _check_end(whole, run)
    return series


def _disturb(
    process: subprocess.Popen[str],
    run: Path,
    pause: float,
    kills: int,
    dice: random.Random,
    series: Series,
) -> None:
    """Kill workers of a run until it ends, with this mean pause in seconds."""
    due = time.monotonic() + dice.expovariate(1 / pause)
    while process.poll() is None:
        time.sleep(_POLL_SECONDS)
        # Times count from when all workers are there: before, there is nothing to lose.
        if _in_stage(run) == "start":
            due = max(due, time.monotonic() + 0.1)
        if time.monotonic() < due or series.kills == kills:
            continue
        if workers := _alive(process):
            series.in_stage[_in_stage(run)] += 1
            dice.choice(workers).kill()
            series.kills += 1
            due = time.monotonic() + dice.expovariate(1 / pause)


def _alive(process: subprocess.Popen[str]) -> list[psutil.Process]:
    try:
        return workers_of(process)
    except psutil.NoSuchProcess:
        return []


def kill_jobs(whole: Undisturbed, kills: int, dice: random.Random) -> Series:
    """Kill the job at random times and start it again, until there were so many kills."""
    series = Series()
    while series.kills < kills:
        run, config = _disturbed(whole, 1000 + series.runs)
        series.runs += 1
        before: dict[str, str] = {}
        while True:
            process = _start(whole.folder, config)
            series.starts += 1
            if series.kills < kills:
                _kill_later(process, whole, dice, run, series)
            said = finish(process)
            after = {n: r["attempt"] for n, r in manifest_of(run)["stages"].items()}
            redone = {name for name, attempt in before.items() if after.get(name) != attempt}
            assert not redone, f"{run}: {redone} were finished, and done again"
            before = after
            if process.returncode != -9:
                assert process.returncode == 0, said
                stages = manifest_of(run)["stages"].values()
                whole.work_seconds = sum(stage["seconds"] for stage in stages)
                break
        _check_end(whole, run)
    return series


def _kill_later(
    process: subprocess.Popen[str],
    whole: Undisturbed,
    dice: random.Random,
    run: Path,
    series: Series,
) -> None:
    """Kill a job after a while, unless it has ended; its workers must end with it."""
    from_start = dice.random() < 1 / 3
    pause = dice.uniform(0.0, whole.seconds if from_start else 3 * whole.work_seconds)
    deadline = time.monotonic() + pause
    while time.monotonic() < deadline:
        if process.poll() is not None:
            return
        if not from_start and _in_stage(run) == "start":
            deadline = time.monotonic() + pause
        time.sleep(_POLL_SECONDS)
    family = psutil.Process(process.pid).children(recursive=True)
    stage = _in_stage(run)
    process.kill()
    process.wait()
    if process.returncode != -9:
        return
    series.kills += 1
    series.in_stage[stage] += 1
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive, f"processes outlive the job: {alive}"


if __name__ == "__main__":
    main()
