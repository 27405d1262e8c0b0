"""Nights of a series that is updated, beside full runs: processor seconds, recall, overlap, disk.

    python -m tests.bench.bench_update FOLDER [--rows 1000000] [--new 10000] [--nights 30]
        [--features 128] [--full 10 20 30] [--seeds 3] [--drift 15] [--workers 2]
        [--memory-limit "1.5 GiB"]

A planted manifold (every fourth feature) is stored, and rows are appended to it every night. Each
night is a run with ``update: auto``; after some of them full runs on the same rows follow, each
with another seed. From the night of the drift on, half of the new rows are a new cluster: they lie
around one row of the manifold, and four features without a structure until then are different in
them. Each run has workers of its own, which do a small run before: imports and loading compiled
code are not in the processor seconds of this process and its workers. A series that is in FOLDER
goes on where it ended.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import bigfs
from bigfs.core.threads import single_thread
from bigfs.core.units import parse_bytes
from bigfs.pipeline.diff import diff_runs
from bigfs.runtime.connection import local_cluster
from tests.bench._manifold import PlantedManifold
from tests.bench._processor import processor_seconds

# Of the small run, and of its chunks, of which each worker has some.
WARM_ROWS, WARM_CHUNK = 10_000, 1000


@dataclass(frozen=True)
class Night:
    """What one night took.

    Attributes
    ----------
    night, n_samples : int
    seconds : float
        Of the processor.
    full_seconds : list of float
        The same of the full runs, one per seed; the first has the series' own.
    was_updated : bool
    recall : float
    full_recall : list of float
    kept : float
        Share of the selection of the night before that is selected still.
    stored : int
        Bytes of the run directory.
    shared, shared_by_seed : list of int
        Features that the update and each full run selected, and each two full runs.
    line : str
        What the manifest says of it.
    """

    night: int
    n_samples: int
    seconds: float
    was_updated: bool
    recall: float
    kept: float
    stored: int
    line: str
    full_seconds: list[float] = field(default_factory=list)
    full_recall: list[float] = field(default_factory=list)
    shared: list[int] = field(default_factory=list)
    shared_by_seed: list[int] = field(default_factory=list)


def main(arguments: list[str] | None = None) -> list[Night]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--new", type=int, default=10_000)
    parser.add_argument("--nights", type=int, default=30)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--full", type=int, nargs="*", default=[10, 20, 30])
    parser.add_argument("--seeds", type=int, default=3, help="full runs after such a night")
    parser.add_argument("--drift", type=int, default=15)
    parser.add_argument("--workers", type=int, default=0, help="0: threads of this process")
    parser.add_argument("--memory-limit", default="1.5 GiB")
    options = parser.parse_args(arguments)
    store, nights = options.folder / "X.zarr", []
    for place, rows in ((store, options.rows), (options.folder / "warm.zarr", WARM_ROWS)):
        if not place.exists():
            planted, chunk = PlantedManifold(rows, options.features), WARM_CHUNK
            bigfs.ingest(planted, place, rows=chunk if rows == WARM_ROWS else None)
    results = options.folder.glob("series-????-*/result.zarr")
    finished = sorted(result.parent for result in results)
    with single_thread():
        if finished:
            last = bigfs.open_result(finished[-1])
        else:
            seconds, last = _run(options, 0, "series")
            print(
                f"full run of {last.n_samples:,} rows: {seconds:.1f} s, {last.recall}", flush=True
            )
        for night in range(max(1, len(finished)), options.nights + 1):
            if bigfs.open_matrix(store).n_samples < options.rows + night * options.new:
                _grow(options, store, night)
            seconds, result = _run(options, night, "series")
            row = Night(
                night, result.n_samples, seconds, "updated_from" in result.manifest,
                (result.recall or {})["value"], diff_runs(last.path, result.path).overlap.share,
                sum(file.stat().st_size for file in result.path.rglob("*") if file.is_file()),
                " ".join(result.manifest["notes"]),
            )  # fmt: skip
            if night in options.full:
                row = _compare(options, row, result)
            print(json.dumps(asdict(row)), flush=True)
            nights.append(row)
            last = result
    return nights


def _compare(options: argparse.Namespace, row: Night, updated: Any) -> Night:
    """Return the row of a night with what full runs took and selected."""
    seconds, full = zip(
        *(
            _run(options, row.night, f"full-{seed}", update="never", random_state=seed)
            for seed in range(options.seeds)
        ),
        strict=True,
    )
    selections = [set(result.selected.tolist()) for result in full]
    return replace(
        row,
        full_seconds=list(seconds),
        full_recall=[result.recall["value"] for result in full],
        shared=[len(set(updated.selected.tolist()) & selection) for selection in selections],
        shared_by_seed=[len(a & b) for a, b in itertools.combinations(selections, 2)],
    )


def _grow(options: argparse.Namespace, store: Path, night: int) -> None:
    """Append the rows of a night."""
    first = options.rows + (night - 1) * options.new
    planted = PlantedManifold(options.rows, options.features)
    X = planted.rows(first, first + options.new)
    if night >= options.drift:
        center = planted.rows(0, 1)[0, ::4]
        X[::2, ::4] = center + 0.1 * X[::2, 1::4]
        X[::2, 1:17:4] += 2.0
    bigfs.ingest(X, store, append=True)


def _run(options: argparse.Namespace, night: int, name: str, **settings: Any) -> tuple[float, Any]:
    """Return the processor seconds of a run, and its result."""
    date = datetime.date(2026, 1, 1) + datetime.timedelta(night)
    config: dict[str, Any] = {
        "run": str(options.folder / f"{name}-{{date}}"), "date": date, "method": "mcfs",
        "input": {"uri": str(options.folder / "X.zarr")}, "n_features_to_select": 20,
        "mcfs": {"n_clusters": 10}, "curves": False, "report": None, "update": "auto",
        "memory_limit": options.memory_limit, **settings,
    }  # fmt: skip
    small: dict[str, Any] = {
        "run": str(options.folder / "warm"), "date": None, "update": "never",
        "input": {"uri": str(options.folder / "warm.zarr")}, "blocks": {"rows": WARM_CHUNK},
    }  # fmt: skip
    if settings and options.rows > 100_000:  # the full search compiles what the update does not
        small["graph"] = {"algorithm": "pynndescent"}
    with ExitStack() as stack:
        if options.workers:
            from distributed import Client

            limit = parse_bytes(options.memory_limit)
            cluster = stack.enter_context(local_cluster(options.workers, 1, limit))
            stack.enter_context(Client(cluster))
        bigfs.run({**config, **small}, fresh=True)
        began = processor_seconds()
        result = bigfs.run(config)
        return processor_seconds() - began, result


if __name__ == "__main__":
    main()
