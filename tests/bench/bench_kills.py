"""Kills at random times: of workers, of the whole job, and runs that are frozen and replaced.

    python -m tests.bench.bench_kills FOLDER [--methods mcfs ndfs] [--worker-kills 20]
        [--job-kills 30] [--takeovers 0] [--rows 6000] [--columns 40] [--algorithm exact]
        [--workers 2] [--seed 0] [--bucket]

For each method a run on two worker processes (0: on threads) is left undisturbed first. Then (a)
random workers are killed with -9 at random times, through as many runs as it takes; a run that Dask
gives up (one task was with four workers that died) is started again, as its exit code says; (b) the
job is killed with -9 and started again: a fifth of the times while it starts, the others within its
next stage; and (c) a job is stopped within a stage, a second one takes its place, and the first one
wakes up while the second one works, or later: it must end with 75. Every run must end with the same
scores, bit for bit; no stage that was finished may be done again; afterwards there is no lease, no
process and no file in the run directory that the undisturbed run does not have, and the files of
somebody else in and beside it are as they were. With ``--bucket`` data and runs are in a bucket of
a real S3 server (moto) where one request in a hundred fails, is cut short or is answered late.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bigfs.results.result import open_result
from bigfs.store.ingest import ingest
from bigfs.store.lease import LEASE
from bigfs.store.location import Location, as_location, files_below
from tests._s3 import Proxy, create_bucket, environment, server
from tests.cluster._jobs import finish, manifest_of, start, workers_of, write_config

# Between two looks at a run directory on a disk, and in a bucket.
_POLL_SECONDS = (0.02, 0.5)
_SECONDS = 900.0
# A run is refused as long as the lease of another one is younger than a minute; then it watches
# the lease for a minute. So many wait at a time.
_LEASE_SECONDS = 55.0
_FROZEN_AT_ONCE = 4
# Variables of the jobs' environment.
_of_jobs: dict[str, str] = {}
_FAIL_EVERY, _FAILURES = 100, ("500", "503", "cut", "lost", "half", "slow")


@dataclass
class Undisturbed:
    """The undisturbed run that all others must equal.

    Its seconds are those of the latest run without a kill: the load of a machine changes.
    """

    folder: Path
    place: Location
    config: dict[str, Any]
    seconds: float
    stage_seconds: dict[str, float]
    scores: bytes
    files: Counter[str]


@dataclass
class Series:
    """Faults in a series of runs, and the results."""

    action: str
    kills: int = 0
    runs: int = 0
    starts: int = 0
    in_stage: Counter[str] = field(default_factory=Counter)
    began: float = field(default_factory=time.monotonic)

    def line(self, what: str) -> str:
        """Return the series in a line."""
        stages = ", ".join(f"{name} {count}" for name, count in sorted(self.in_stage.items()))
        return (
            f"{what}: {self.kills} {self.action} in {self.runs} runs ({self.starts} starts), same "
            f"scores, nothing left; by stage: {stages}; {time.monotonic() - self.began:.0f} s"
        )


def main(arguments: list[str] | None = None) -> None:
    """Run the series that were asked for and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--methods", nargs="+", default=["mcfs", "ndfs"])
    parser.add_argument("--worker-kills", type=int, default=20)
    parser.add_argument("--job-kills", type=int, default=30)
    parser.add_argument("--takeovers", type=int, default=0)
    parser.add_argument("--rows", type=int, default=6000)
    parser.add_argument("--columns", type=int, default=40)
    parser.add_argument("--algorithm", default="exact")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bucket", action="store_true")
    chosen = parser.parse_args(arguments)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        place: Location = chosen.folder
        proxy = _failing_bucket(stack) if chosen.bucket else None
        if proxy is not None:
            place = as_location("s3://kills/lab")
        measure(chosen, place)
        if proxy is not None:
            print(f"{proxy.n_requests:,} requests, {proxy.n_failed:,} of them failed")


def _failing_bucket(stack: ExitStack) -> Proxy:
    """Start a server with a bucket; jobs reach it through a proxy, and we do without."""
    endpoint = stack.enter_context(server())
    create_bucket(endpoint, "kills")
    proxy = stack.enter_context(Proxy(endpoint, _FAIL_EVERY, _FAILURES))
    os.environ |= environment(endpoint)
    _of_jobs.update(environment(proxy.endpoint))
    return proxy


def measure(chosen: argparse.Namespace, place: Location) -> None:
    """Run the series of each method and print a line for each."""
    data = write_data(place, chosen.rows, chosen.columns)
    cluster = {"kind": "local", "n_workers": chosen.workers} if chosen.workers else None
    for method in chosen.methods:
        dice = random.Random(f"{chosen.seed} {method}")
        config = {
            "input": {"uri": str(data)},
            "method": method,
            "n_features_to_select": 10,
            "graph": {"n_neighbors": 8, "algorithm": chosen.algorithm},
            method: {"n_clusters": 6},
            "blocks": {"rows": -(-chosen.rows // 6)},
            "cluster": cluster,
        }
        if method == "ndfs":
            config["ndfs"] = {"n_clusters": 6, "max_iter": 40, "tol": 0.0}
        complete = undisturbed(chosen.folder, place, config)
        print(f"{method}: {complete.seconds:.1f} s undisturbed", flush=True)
        if chosen.worker_kills and chosen.workers:
            series = kill_workers(complete, chosen.worker_kills, dice)
            print(series.line(f"{method}, workers"), flush=True)
        if chosen.job_kills:
            series = kill_jobs(complete, chosen.job_kills, dice)
            print(series.line(f"{method}, job"), flush=True)
        if chosen.takeovers:
            series = take_over(complete, chosen.takeovers, dice)
            print(series.line(f"{method}, frozen"), flush=True)


def write_data(folder: Location, rows: int, columns: int) -> Location:
    """Write rows of six groups."""
    data = folder / "X.zarr"
    if not data.exists():
        rng = np.random.default_rng(0)
        centers = rng.normal(scale=2.0, size=(6, columns))
        X = centers[rng.integers(6, size=rows)] + rng.normal(size=(rows, columns))
        ingest(X.astype(np.float32), data, rows=-(-rows // 6))
    return data


def undisturbed(folder: Path, place: Location, settings: dict[str, Any]) -> Undisturbed:
    """Run the method without a kill."""
    run = place / settings["method"] / "run"
    config = {**settings, "run": str(run)}
    began = time.monotonic()
    process = _start(folder, config)
    output = finish(process, _SECONDS)
    assert process.returncode == 0, output
    seconds = time.monotonic() - began
    return Undisturbed(
        folder, place, config, seconds, _stage_seconds(run), scores_of(run), files_of(run)
    )


def _stage_seconds(run: Location) -> dict[str, float]:
    return {name: stage["seconds"] for name, stage in manifest_of(run)["stages"].items()}


def _start(folder: Path, config: dict[str, Any]) -> subprocess.Popen[str]:
    folder = folder / as_location(config["run"]).parent.name
    folder.mkdir(exist_ok=True)
    return start(write_config(folder, config), **_of_jobs)


def scores_of(run: Location) -> bytes:
    """Return the scores of a finished run."""
    return open_result(run).scores.tobytes()


def files_of(run: Location) -> Counter[str]:
    """Return the files below a run directory, with random parts of their names left out."""
    names = (
        (path.relative_to(run).as_posix() for path in run.rglob("*"))
        if isinstance(run, Path)
        else files_below(run)
    )
    return Counter(re.sub(r"[0-9a-f]{12,}", "*", name) for name in names)


def _pause(run: Location) -> None:
    time.sleep(_POLL_SECONDS[not isinstance(run, Path)])


def _in_stage(run: Location) -> str:
    """Return the stage that is being written, as far as the run directory shows."""
    parts = [name.split("/") for name in _below(run / "attempts")]
    measured = sorted(part[1][:-5] for part in parts if part[1:] and part[1].endswith(".zarr"))
    if measured:
        return measured[-1]
    attempts = {part[0] for part in parts}
    return "between" if manifest_of(run).get("attempt") in attempts else "start"


def _below(attempts: Location) -> Iterable[str]:
    """Return names below the attempts of a run, of folders too where there are folders."""
    if isinstance(attempts, Path):
        found = (*attempts.glob("*"), *attempts.glob("*/*.zarr"))
        return [path.relative_to(attempts).as_posix() for path in found]
    return files_below(attempts)


def _disturbed(complete: Undisturbed, number: int) -> tuple[Location, dict[str, Any]]:
    run = complete.place / f"{complete.config['method']}-{number}" / "run"
    return run, {**complete.config, "run": str(run)}


def _check_end(complete: Undisturbed, run: Location) -> None:
    """Compare a run that was disturbed with the one that was not."""
    assert scores_of(run) == complete.scores, f"{run}: other scores"
    files = files_of(run)
    assert files == complete.files, (
        f"{run}: {files - complete.files} more, {complete.files - files} less"
    )
    assert manifest_of(run)["status"] == "done"


def kill_workers(complete: Undisturbed, kills: int, dice: random.Random) -> Series:
    """Kill random workers until there were so many kills; every run must complete."""
    series = Series("kills")
    while series.kills < kills:
        run, config = _disturbed(complete, series.runs)
        series.runs += 1
        code, message = 4, ""
        began, before = time.monotonic(), series.kills
        while code == 4:
            process = _start(complete.folder, config)
            series.starts += 1
            _disturb(process, run, complete.seconds / 2, kills, dice, series)
            message = finish(process, _SECONDS)
            code = process.returncode
        assert code == 0, message
        if series.kills == before:
            complete.seconds = time.monotonic() - began
        _check_end(complete, run)
    return series


def _disturb(
    process: subprocess.Popen[str],
    run: Location,
    pause: float,
    kills: int,
    dice: random.Random,
    series: Series,
) -> None:
    """Kill workers of a run until it ends, with this mean pause in seconds."""
    due = time.monotonic() + dice.expovariate(1 / pause)
    while process.poll() is None:
        _pause(run)
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


def kill_jobs(complete: Undisturbed, kills: int, dice: random.Random) -> Series:
    """Kill the job at random times and start it again, until there were so many kills."""
    series = Series("kills")
    while series.kills < kills:
        run, config = _disturbed(complete, 1000 + series.runs)
        series.runs += 1
        code = -9
        while code == -9:
            with _nothing_done_twice(run):
                process = _start(complete.folder, config)
                series.starts += 1
                if series.kills < kills and _wait_for_moment(process, complete, dice, run, 0.2):
                    _kill(process, run, series)
                output = finish(process, _SECONDS)
            code = process.returncode
        assert code == 0, output
        complete.stage_seconds = _stage_seconds(run)
        _check_end(complete, run)
    return series


@contextmanager
def _nothing_done_twice(run: Location) -> Iterator[None]:
    """Compare the stages that were finished before with those that are there after."""
    before = manifest_of(run)["stages"]
    yield
    after = {name: record["attempt"] for name, record in manifest_of(run)["stages"].items()}
    redone = [name for name in before if after.get(name) != before[name]["attempt"]]
    assert not redone, f"{run}: {redone} were finished, and done again"


def _wait_for_moment(
    process: subprocess.Popen[str],
    complete: Undisturbed,
    dice: random.Random,
    run: Location,
    share_of_starts: float,
) -> bool:
    """Wait for a time while the job starts, or within its next stage; say whether it runs.

    A bucket shows too late which stage has begun: there it is a time of the whole run.
    """
    left = [seconds for name, seconds in complete.stage_seconds.items() if not _is_done(run, name)]
    if not isinstance(run, Path):
        while not share_of_starts and process.poll() is None and not (run / LEASE).exists():
            _pause(run)
        pause = dice.uniform(0.0, (0.8 if share_of_starts else 0.5) * complete.seconds)
    elif dice.random() < share_of_starts or not left:
        pause = dice.uniform(0.0, max(1.0, complete.seconds - sum(complete.stage_seconds.values())))
    else:
        # A little more than the stage took, so that some kills fall between two stages.
        pause = dice.uniform(0.0, 1.2 * left[0] + 0.1)
        while process.poll() is None and _in_stage(run) == "start":
            _pause(run)
    deadline = time.monotonic() + pause
    while process.poll() is None and time.monotonic() < deadline:
        _pause(run)
    return process.poll() is None


def _is_done(run: Location, stage: str) -> bool:
    return stage in manifest_of(run)["stages"]


def _kill(process: subprocess.Popen[str], run: Location, series: Series) -> None:
    """Kill a job, unless it has just ended; its workers must end with it."""
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


def take_over(complete: Undisturbed, takeovers: int, dice: random.Random) -> Series:
    """Freeze jobs within a stage; another one takes the place of each, and the first wakes up."""
    series = Series("takeovers")
    seeds = [dice.random() for _ in range(takeovers)]
    with ThreadPoolExecutor(_FROZEN_AT_ONCE) as pool:
        for stage in pool.map(
            _take_over, [complete] * takeovers, range(2000, 2000 + takeovers), seeds
        ):
            series.in_stage[stage] += 1
            series.kills, series.runs = series.kills + 1, series.runs + 1
            series.starts += 2
    return series


def _take_over(complete: Undisturbed, number: int, seed: float) -> str:
    """Return the stage in which a job was frozen."""
    run, config = _disturbed(complete, number)
    dice = random.Random(seed)
    frozen = _start(complete.folder, config)
    assert _wait_for_moment(frozen, complete, dice, run, 0.0), "the job ended before it was frozen"
    frozen.send_signal(signal.SIGSTOP)
    if manifest_of(run).get("status") == "done":  # it was over: another one
        frozen.send_signal(signal.SIGCONT)
        finish(frozen, _SECONDS)
        return _take_over(complete, number + 100, dice.random())
    try:
        stage, holder = _in_stage(run), (run / "lease.json").read_bytes()
        time.sleep(_LEASE_SECONDS)
        with _nothing_done_twice(run):
            code = 75
            while code == 75:
                second = _start(complete.folder, config)
                while second.poll() is None and _lease(run) == holder:
                    _pause(run)
                if second.poll() is None and dice.random() < 0.5:
                    time.sleep(dice.uniform(0.0, 0.5 * sum(complete.stage_seconds.values())))
                    frozen.send_signal(signal.SIGCONT)
                output = finish(second, _SECONDS)
                code = second.returncode
            assert code == 0, output
    finally:
        frozen.send_signal(signal.SIGCONT)
    output = finish(frozen, _SECONDS)
    assert frozen.returncode == 75, f"{frozen.returncode}: {output}"
    _check_end(complete, run)
    return stage


def _lease(run: Location) -> bytes:
    try:
        return (run / "lease.json").read_bytes()
    except OSError:
        return b""


if __name__ == "__main__":
    main()
