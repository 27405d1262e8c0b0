"""A batch job larger than the memory of its workers, as a scheduler would start it.

    python -m tests.bench.bench_batch_20gb FOLDER [--rows 4000000] [--features 1280]

Writes a float32 store of that shape block by block into FOLDER (20 GB by default; fewer rows where
the disk is too small, and says so), with a manifold on every fourth feature and noise on the
others. Then it gives `bigfs run` the pipeline that it puts beside the store: MCFS on two worker
processes of 2 GiB. It prints predicted and measured peak per stage, bytes read over bytes of X and
their share of the disk's rate, the most that the run directory ever took over X, seconds, and the
floors of `tests.bench._floors` below them.

Stopped or killed, it goes on when the same command is given again: the store is kept once it is
complete, the run continues at its last finished stage, and what was measured adds up in FOLDER.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from bigfs.core.errors import RunLockedError
from bigfs.core.units import MIB, format_bytes
from bigfs.core.yamltext import write_yaml
from bigfs.results.result import open_result
from bigfs.store.ingest import ingest
from bigfs.store.source import is_store, open_matrix
from tests.bench._floors import measure_floors
from tests.bench._manifold import PlantedManifold

_POLL_SECONDS = 1.0
# What the store and the run may take on the disk, in units of X.
_DISK_OVER_X = 2.8


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Write the store, run the pipeline, print and return the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--features", type=int, default=1280)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--memory", default="2 GiB")
    parser.add_argument("--clusters", type=int, default=20)
    parser.add_argument("--neighbors", type=int, default=5)
    parser.add_argument("--selected", type=int, default=50)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="handed to bigfs run"
    )
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    store = _store(options)
    name = f"run-{options.rows}x{options.features}"
    pipeline = options.folder / f"{name}.yaml"
    pipeline.write_text(write_yaml(_settings(options, store, options.folder / name)))
    watch = Watch(options.folder / name, options.folder / f"{name}-watched.json")
    command = [sys.executable, "-m", "bigfs.cli", "run", str(pipeline)]
    code = _run([*command, *(word for change in options.set for word in ("--set", change))], watch)
    if code:
        raise SystemExit(code)
    figures = _figures(options, store, watch.seen)
    figures["floors"] = measure_floors(store, options.folder / name, options.workers)
    (options.folder / f"{name}-figures.json").write_text(json.dumps(figures, indent=2) + "\n")
    _print(figures)
    return figures


def _store(options: argparse.Namespace) -> Path:
    """Return the store, written if it is not there yet."""
    path = options.folder / f"X-{options.rows}x{options.features}.zarr"
    if is_store(path):
        return Path(path)
    for left in options.folder.glob(f"{path.name}.partial-*"):  # of a killed call
        shutil.rmtree(left)
    free = shutil.disk_usage(options.folder).free
    rows = min(options.rows, int(free / _DISK_OVER_X / (4 * options.features)))
    if rows < options.rows:
        print(
            f"{format_bytes(free)} are free: {rows:,} rows instead of {options.rows:,}", flush=True
        )
    began = time.perf_counter()
    report = ingest(PlantedManifold(rows, options.features), path)
    print(
        f"{path.name}: {rows:,} x {options.features:,} float32, {format_bytes(report.nbytes)}, "
        f"written in {time.perf_counter() - began:.0f} s",
        flush=True,
    )
    return report.path


def _settings(options: argparse.Namespace, store: Path, run: Path) -> dict[str, Any]:
    return {
        "run": str(run.absolute()),
        "input": {"uri": str(store.absolute())},
        "n_features_to_select": options.selected,
        "mcfs": {"n_clusters": options.clusters},
        "graph": {"n_neighbors": options.neighbors},
        "memory_limit": options.memory,
        "cluster": {"n_workers": options.workers},
    }


class Watch:
    """Measurements of a run from outside, kept in a file so that they add up over kills.

    ``seconds`` and ``read_bytes`` (system calls of the run's processes) are sums over all calls,
    ``scratch_bytes`` is the largest size of the run directory, ``workers`` the processes started.
    """

    def __init__(self, run: Path, path: Path) -> None:
        self._run, self._path = run, path
        self.seen = {"seconds": 0.0, "read_bytes": 0, "scratch_bytes": 0, "workers": 0, "calls": 0}
        if path.exists():
            self.seen = json.loads(path.read_text())
        self._before = dict(self.seen)
        self._began = time.perf_counter()
        self._read = 0
        self._workers: set[int] = set()
        self.seen["calls"] += 1

    def look(self, parent: int) -> None:
        """Look once at the run directory and the processes below ``parent``.

        A process that has ended counts in the one that started it: only those alive are added up.
        """
        living = 0
        for pid in _family(parent):
            try:
                counters = Path(f"/proc/{pid}/io").read_text().split()
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:  # it ended meanwhile
                continue
            living += int(counters[counters.index("rchar:") + 1])
            if b"spawn_main" in command:
                self._workers.add(pid)
        self._read = max(self._read, living)
        size, before = folder_bytes(self._run), self._before
        self.seen.update(
            seconds=before["seconds"] + time.perf_counter() - self._began,
            read_bytes=before["read_bytes"] + self._read,
            scratch_bytes=max(self.seen["scratch_bytes"], size),
            workers=before["workers"] + len(self._workers),
        )
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(self.seen))
        partial.replace(self._path)


def _family(parent: int) -> list[int]:
    """Return a process and all below it."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(text.rpartition(")")[2].split()[1])
    family = [parent]
    for pid in family:
        family.extend(child for child, above in parents.items() if above == pid)
    return family


def folder_bytes(path: Path) -> int:
    """Return the size of all files below a folder that may change meanwhile."""
    total = 0
    for folder, _, files in os.walk(path):
        for file in files:
            try:
                total += os.lstat(os.path.join(folder, file)).st_size
            except OSError:
                continue
    return total


def _run(command: list[str], watch: Watch) -> int:
    """Run the command to its end; wait where a killed call's run still holds the directory."""
    old = signal.signal(signal.SIGTERM, _stop)
    try:
        while True:
            process = subprocess.Popen(command)
            try:
                while process.poll() is None:
                    watch.look(process.pid)
                    time.sleep(_POLL_SECONDS)
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait()
            if process.returncode != RunLockedError.exit_code:
                return process.returncode
            time.sleep(10)
    finally:
        signal.signal(signal.SIGTERM, old)


def _stop(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _figures(options: argparse.Namespace, store: Path, seen: dict[str, float]) -> dict[str, Any]:
    """Return what the run says of itself and what was seen from outside."""
    result = open_result(options.folder / f"run-{options.rows}x{options.features}")
    matrix = open_matrix(store)
    nbytes = result.n_samples * matrix.n_features * 4
    planted = PlantedManifold(2, matrix.n_features).planted
    counted = sum(stage.get("bytes_read") or 0 for stage in result.stages.values())
    return {
        "rows": result.n_samples,
        "features": result.n_features,
        "bytes_of_X": nbytes,
        "stages": result.stages,
        "passes_bytes_over_X": counted / nbytes,
        "all_reads_over_X": seen["read_bytes"] / nbytes,
        "scratch_over_X": seen["scratch_bytes"] / nbytes,
        "seconds": seen["seconds"],
        "calls": seen["calls"],
        "workers_started": seen["workers"],
        "planted_selected": int(np.isin(result.selected, planted).sum()),
        "selected": len(result.selected),
    }


def _print(figures: dict[str, Any]) -> None:
    print(
        f"{figures['rows']:,} x {figures['features']:,} float32, "
        f"{format_bytes(figures['bytes_of_X'])}"
    )
    rate = figures["floors"]["disk_rate"]
    print(
        "stage      predicted MiB   measured MiB   passes   read / X     seconds   of disk's rate"
    )
    for name, stage in figures["stages"].items():
        predicted = stage.get("predicted_peak_bytes")
        print(
            f"{name:<10}{'-' if predicted is None else format(predicted / MIB, '.0f'):>14}"
            f"{stage['measured_peak_bytes'] / MIB:>15.0f}{stage['passes']:>9}"
            f"{stage['bytes_read'] / figures['bytes_of_X']:>11.2f}{stage['seconds']:>12.0f}"
            f"{stage['bytes_read'] / max(stage['seconds'], 1e-3) / rate:>14.3f}"
        )
    print(
        f"read by passes: {figures['passes_bytes_over_X']:.2f} x X; by all processes, with scratch "
        f"and libraries: {figures['all_reads_over_X']:.2f} x X; "
        f"run directory at most {figures['scratch_over_X']:.2f} x X"
    )
    print(
        f"{figures['seconds']:.0f} s in {figures['calls']} call(s), "
        f"{figures['workers_started']} worker processes started; {figures['planted_selected']} of "
        f"{figures['selected']} selected features carry the structure"
    )
    floors = figures["floors"]
    disk = figures["passes_bytes_over_X"] * figures["bytes_of_X"] / rate
    least = disk + floors["gram"] + floors["search"]
    print(
        f"floors: {disk:.0f} s for the bytes that passes read at {rate / MIB:.0f} MiB/s, "
        f"{floors['gram']:.0f} s for X'X, {floors['search']:.0f} s for pynndescent on all "
        f"partitions; {figures['seconds'] / least:.2f} times their sum"
    )


if __name__ == "__main__":
    main()
