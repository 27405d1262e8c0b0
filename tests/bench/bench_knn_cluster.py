"""The neighbor graph on worker processes: memory promise, scratch, scaling, the same bits.

    python -m tests.bench.bench_knn_cluster FOLDER --rows 8000000 --workers 2 --memory "1.5 GiB"
    python -m tests.bench.bench_knn_cluster FOLDER --rows 200000 --workers 1 2 4 --threads

Writes the synthetic manifold (128 features, float32) into FOLDER, builds the graph (k = 15) on a
cluster of each size, and prints seconds, recall, the peak of any worker, what was spilled, scratch,
and a digest of the graph, which must be the same for all. Workers compile before the clock starts.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.config.sections import GraphConfig
from bigfs.core.cost import Shape
from bigfs.core.memory import baseline_bytes, peak_bytes, reset_peak, task_budget
from bigfs.core.units import MIB, format_bytes, parse_bytes
from bigfs.graph import KNNGraph, knn_graph
from bigfs.graph.cost import graph_cost
from bigfs.runtime.connection import local_cluster
from bigfs.runtime.workers import on_every_process
from bigfs.store.scratch import Scratch, block_rows
from tests.bench._manifold import write_manifold
from tests.graph._local import knn_local

N_NEIGHBORS = 15


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[2])
    parser.add_argument("--threads", action="store_true", help="also the threads of this process")
    parser.add_argument("--memory", default="1.5 GiB")
    parser.add_argument("--partitions", type=int, default=None)
    parser.add_argument("--eps", type=float, default=0.15)
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    path = options.folder / f"manifold-{options.rows}.zarr"
    if not path.exists():
        write_manifold(path, options.rows)
    results = [_on_cluster(path, count, options) for count in options.workers]
    if options.threads:
        results.append({"where": "threads", **_measure(path, options)})
    for result in results:
        print(result["line"])
    same = len({result["digest"] for result in results}) == 1
    print("the same graph, bit for bit" if same else "THE GRAPHS DIFFER")
    return results


def _on_cluster(path: Path, n_workers: int, options: argparse.Namespace) -> dict[str, Any]:
    from distributed import Client

    limit = parse_bytes(options.memory)
    with local_cluster(n_workers, 1, limit) as cluster, Client(cluster) as client:
        workers = set(client.scheduler_info(n_workers=-1)["workers"])
        client.run(_compile)
        measured = _measure(path, options)
        spilled = sum(client.run(_spilled).values())
        restarts = len(set(client.scheduler_info(n_workers=-1)["workers"]) - workers)
        paused = _pauses(client)
    measured["line"] = (
        f"{n_workers} workers: {measured['line']}; spilled {spilled} bytes, paused {paused} times, "
        f"{restarts} workers restarted"
    )
    return {**measured, "spilled": spilled, "paused": paused, "restarts": restarts}


def _pauses(client: Any) -> int:
    """Return how often a worker has logged that it paused."""
    logs = client.get_worker_logs()
    return sum("Pausing worker" in text for log in logs.values() for _, text in log)


def _measure(path: Path, options: argparse.Namespace) -> dict[str, Any]:
    scratch = Scratch(path.parent / "scratch")
    on_every_process(reset_peak)
    began = time.perf_counter()
    graph = knn_graph(
        path, N_NEIGHBORS, memory_limit=options.memory, n_partitions=options.partitions,
        eps=options.eps, scratch=scratch, algorithm="pynndescent",
    )  # fmt: skip
    seconds = time.perf_counter() - began
    measured = _describe(graph, seconds, options)
    scratch.close()
    return measured


def _describe(graph: KNNGraph, seconds: float, options: argparse.Namespace) -> dict[str, Any]:
    details = graph.details
    size = graph.n_samples * 128 * 4
    digest = hashlib.sha256()
    for start, stop in graph.row_bounds:
        digest.update(graph.indices_ref.read(start, stop).tobytes())
        digest.update(graph.distances_ref.read(start, stop).tobytes())
    rows = block_rows(128, 4)
    shape = Shape(graph.n_samples, 128, 4, rows, rows)
    limit = parse_bytes(options.memory)
    planned = graph_cost(
        shape, GraphConfig(n_neighbors=N_NEIGHBORS, algorithm="pynndescent"), limit
    )
    figures = {
        "seconds": seconds,
        "recall": graph.recall_.value,
        "peak_mib": max(on_every_process(peak_bytes).values()) / MIB,
        "predicted_mib": (baseline_bytes(compiled=True) + planned.task_bytes) / MIB,
        "scratch_share": details["scratch_bytes"] / size,
        "digest": digest.hexdigest(),
    }
    budget = task_budget(limit)
    line = (
        f"{graph.n_samples:,} rows in {seconds:.1f} s, {graph.n_partitions} partitions, "
        f"{details['rows_searched'] / graph.n_samples:.2f} copies; {graph.recall_}; peak "
        f"{figures['peak_mib']:.0f} MiB, predicted {figures['predicted_mib']:.0f} (a task's "
        f"budget is {format_bytes(budget)}); scratch {figures['scratch_share']:.2f} x X; "
        f"seconds {details['seconds']}"
    )
    return {**figures, "line": line}


def _compile() -> None:
    from bigfs.core.threads import single_thread

    X = np.random.default_rng(0).normal(size=(3000, 128)).astype(np.float32)
    with single_thread():
        knn_local(X, N_NEIGHBORS, algorithm="pynndescent")


def _spilled(dask_worker: Any) -> int:
    return int(dask_worker.data.spilled_total.disk) if hasattr(dask_worker.data, "slow") else 0


if __name__ == "__main__":
    main()
