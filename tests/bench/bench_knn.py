"""The partitioned neighbor graph against one in-memory pynndescent index: CPU, memory, recall.

    python -m tests.bench.bench_knn FOLDER --manifold 1000000 --partitions 64 --eps 0.2
    python -m tests.bench.bench_knn FOLDER --data MNIST.npz --partitions 1
    python -m tests.bench.bench_knn FOLDER --data MNIST.npz --partitions 8 --eps 0.085
    python -m tests.bench.bench_knn FOLDER --manifold 300000 --memory "1 GiB"

Both read the same zarr, k = 15. Exact neighbors of 1,000 rows are computed first, in a process of
their own. Then the two alternate, each time in a new process that first warms up on a small part
(imports and compilation); medians of the repetitions. CPU seconds are those of the process, the
estimation of recall apart; memory is the peak above the warmed process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.core.memory import peak_bytes, reset_peak
from bigfs.core.threads import single_thread
from bigfs.core.units import MIB
from tests.bench._manifold import write_manifold

N_NEIGHBORS = 15
N_CHECKED = 1000


def main(arguments: list[str] | None = None) -> dict[str, dict[str, float]]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--manifold", type=int, default=1_000_000, help="rows of the manifold")
    parser.add_argument("--data", type=Path, help="an npz with X instead")
    parser.add_argument("--partitions", type=int, help="default: as few as the memory allows")
    parser.add_argument("--eps", type=float, help="default: that of knn_graph")
    parser.add_argument("--memory", default="16 GiB", help="limit of the partitioned search")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--one", choices=["exact", "memory", "bigfs"], help="internal")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    path = _store(options)
    truth = path.with_suffix(".truth.npy")
    if options.one:
        run = {"exact": _exact, "memory": _in_memory, "bigfs": _partitioned}[options.one]
        print(json.dumps(run(path, truth, options)))
        return {}
    if not truth.exists():
        _in_a_process(options, "exact")
    figures: dict[str, list[dict[str, float]]] = {"memory": [], "bigfs": []}
    for _ in range(options.repetitions):
        for contender, results in figures.items():
            results.append(_in_a_process(options, contender))
    medians = {
        contender: {key: statistics.median(result[key] for result in results) for key in results[0]}
        for contender, results in figures.items()
    }
    _print(path, medians)
    return medians


def _print(path: Path, medians: dict[str, dict[str, float]]) -> None:
    memory, ours = medians["memory"], medians["bigfs"]
    print(f"{path.name}, k = {N_NEIGHBORS}: medians")
    for name, row in (("in memory", memory), ("partitions", ours)):
        print(f"{name:<10}  recall {row['recall']:.4f}  CPU {row['cpu_seconds']:7.2f} s  "
              f"peak {row['peak_mib']:6.0f} MiB above the warmed process")  # fmt: skip
    print(f"CPU {ours['cpu_seconds'] / memory['cpu_seconds']:.2f}, memory "
          f"{ours['peak_mib'] / memory['peak_mib']:.2f} of the in-memory index; "
          f"{ours['partitions']:.0f} partitions, {ours['copies']:.2f} copies of each row, "
          f"estimating recall took {ours['recall_seconds']:.1f} s of CPU apart")  # fmt: skip


def _store(options: argparse.Namespace) -> Path:
    """Return the zarr to read, written on the first call."""
    if options.data is None:
        path = options.folder / f"manifold-{options.manifold}.zarr"
        if not path.exists():
            write_manifold(path, options.manifold)
        return path
    import zarr

    path = options.folder / f"{options.data.stem}.zarr"
    if not path.exists():
        X = np.load(options.data)["X"].astype(np.float32)
        rows = max(1, 16_000_000 // X[0].nbytes)
        array = zarr.create_array(
            store=str(path), shape=X.shape, dtype="f4", compressors=None,
            chunks=(min(rows, len(X)), X.shape[1]),
        )  # fmt: skip
        array[...] = X
    return path


def _in_a_process(options: argparse.Namespace, contender: str) -> dict[str, float]:
    command = [
        sys.executable, __file__, str(options.folder), "--manifold", str(options.manifold),
        "--memory", options.memory, "--one", contender,
    ]  # fmt: skip
    for name in ("partitions", "eps"):
        if getattr(options, name) is not None:
            command += [f"--{name}", str(getattr(options, name))]
    if options.data is not None:
        command += ["--data", str(options.data)]
    root = str(Path(__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _read(path: Path) -> np.ndarray:
    import zarr

    return np.asarray(zarr.open_array(str(path), mode="r")[...])


def _checked_rows(n: int) -> np.ndarray:
    count = min(n, N_CHECKED)
    return np.sort(np.random.default_rng(99).choice(n, count, replace=False))


def _exact(path: Path, truth: Path, options: argparse.Namespace) -> dict[str, float]:
    """Store the distance of the k-th true neighbor of the checked rows."""
    from bigfs.graph.local import search_exact

    X = _read(path)
    rows = _checked_rows(len(X))
    _, squared = search_exact(X, N_NEIGHBORS, X[rows], rows)
    np.save(truth, np.sqrt(squared[:, -1]))
    return {}


def _recall(distances: np.ndarray, truth: Path) -> float:
    """Return the share of found neighbors that are as near as the k-th true one."""
    return float((distances <= np.load(truth)[:, None] * (1 + 1e-6)).mean())


def _resident() -> int:
    reset_peak()
    return peak_bytes()


def _index(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the neighbors and distances of an index of all rows, a row itself among them."""
    from pynndescent import NNDescent

    index = NNDescent(rows, n_neighbors=N_NEIGHBORS + 1, n_jobs=1, random_state=0)
    indices, distances = index.neighbor_graph
    return indices, distances


def _first_rows(path: Path) -> np.ndarray:
    """Return rows to compile with."""
    import zarr

    return np.asarray(zarr.open_array(str(path), mode="r")[:9000])


def _in_memory(path: Path, truth: Path, options: argparse.Namespace) -> dict[str, float]:
    with single_thread():
        _index(_first_rows(path))
        base, began = _resident(), time.process_time()
        indices, distances = _index(_read(path))
    cpu, peak = time.process_time() - began, peak_bytes() - base
    rows = _checked_rows(len(indices))
    values = np.where(indices[rows] == rows[:, None], np.inf, distances[rows])
    best = np.sort(values, axis=1)[:, :N_NEIGHBORS]
    return {"recall": _recall(best, truth), "cpu_seconds": cpu, "peak_mib": peak / MIB}


def _partitioned(path: Path, truth: Path, options: argparse.Namespace) -> dict[str, float]:
    import dask

    from bigfs.blocks import RowBlocks
    from bigfs.graph import build, knn_graph
    from tests.graph._local import knn_local

    with single_thread():
        knn_local(_first_rows(path), N_NEIGHBORS, algorithm="pynndescent")
    blocks = RowBlocks.from_any(path)  # the check for NaN is ingest's work, not the graph's
    apart = {"seconds": 0.0}
    estimate = build.true_neighbors

    def timed(*args: Any) -> Any:
        start = time.process_time()
        measured = estimate(*args)
        apart["seconds"] += time.process_time() - start
        return measured

    build.true_neighbors = timed
    base, began = _resident(), time.process_time()
    with dask.config.set(scheduler="synchronous"):
        graph = knn_graph(
            blocks, N_NEIGHBORS, n_partitions=options.partitions, eps=options.eps,
            memory_limit=options.memory,
        )  # fmt: skip
    cpu = time.process_time() - began - apart["seconds"]
    peak = peak_bytes() - base
    rows = _checked_rows(blocks.n_samples)
    distances = np.asarray(graph.distances.oindex[rows])
    return {
        "recall": _recall(distances, truth),
        "cpu_seconds": cpu,
        "peak_mib": peak / MIB,
        "partitions": graph.n_partitions,
        "copies": graph.details["rows_searched"] / blocks.n_samples,
        "recall_seconds": apart["seconds"],
    }


if __name__ == "__main__":
    main()
