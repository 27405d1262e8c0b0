"""MCFS from zarr to ranking on two small workers, and against the paper's algorithm in memory.

    python -m tests.bench.bench_mcfs_large FOLDER [--rows 250000 500000 1000000 2000000]
    python -m tests.bench.bench_mcfs_large FOLDER --rows --dense 2000 4000 8000

The data are the synthetic manifold (float32, 128 features), written into FOLDER and kept for the
next call. The first table is `bigfs.run` on worker processes of 1.5 GiB, two unless told: seconds
of each stage, processor seconds of all processes, the largest resident size of a worker, bytes
spilled and workers restarted. The slopes below it fit seconds ~ rows^slope. Figures of each run are
kept in FOLDER too, so that sizes may be measured one at a time; --report prints all that are there.

The second table sets one process of MCFS with an exact graph beside dense linear algebra: all
pairs, a dense eigensolver, lasso paths on the data (`tests/reference/mcfs_dense.py`).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import bigfs
from bigfs.core.threads import single_thread
from bigfs.core.units import MIB, parse_bytes
from bigfs.graph.descent import EXACT_ROWS
from bigfs.runtime.connection import local_cluster
from tests.bench._manifold import write_manifold
from tests.bench._processor import processor_seconds
from tests.bench.bench_knn_cluster import _compile as compile_search
from tests.bench.bench_out_of_core import spilled
from tests.reference.mcfs_dense import mcfs_dense

STAGES = ("data", "graph", "spectral", "result")


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measure what is asked for; return the figures of both tables and the slopes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, nargs="*", default=[250_000, 500_000, 1_000_000])
    parser.add_argument("--dense", type=int, nargs="*", default=[])
    parser.add_argument("--report", action="store_true", help="print all runs kept in FOLDER")
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--clusters", type=int, default=20)
    parser.add_argument("--selected", type=int, default=50)
    parser.add_argument("--neighbors", type=int, default=10)
    parser.add_argument("--solver", default="auto")
    parser.add_argument("--memory", default="1.5 GiB")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    runs = [] if options.report else [large(options, rows) for rows in options.rows]
    if options.report:
        kept = sorted(options.folder.glob("run-*.json"), key=lambda p: int(p.stem[4:]))
        runs = [json.loads(path.read_text()) for path in kept]
    slopes = _print_runs(runs) if runs else {}
    pairs = [beside_dense(options, rows) for rows in options.dense]
    if pairs:
        _print_pairs(pairs)
    return {"runs": runs, "slopes": slopes, "dense": pairs}


def large(options: argparse.Namespace, rows: int) -> dict[str, Any]:
    """Run the pipeline on the cluster; return its figures, kept in the folder as well."""
    from distributed import Client

    limit = parse_bytes(options.memory)
    with local_cluster(options.workers, 1, limit) as cluster, Client(cluster) as client:
        # Workers import, and compile the search of neighbors, before the clock starts.
        if rows > EXACT_ROWS:
            client.run(compile_search)
        bigfs.run(_settings(options, min(rows, 5_000), "warm"), fresh=True)
        workers = set(client.scheduler_info(n_workers=-1)["workers"])
        settings = _settings(options, rows, f"run-{rows}")
        began, used = time.perf_counter(), processor_seconds()
        result = bigfs.run(settings, fresh=True)
        figures: dict[str, Any] = {
            "rows": rows,
            "seconds": time.perf_counter() - began,
            "processor": processor_seconds() - used,
            "stages": {name: result.stages[name]["seconds"] for name in STAGES},
            "peaks": {name: result.stages[name]["measured_peak_bytes"] for name in STAGES},
            "spilled": sum(client.run(spilled).values()),
            "restarts": len(set(client.scheduler_info(n_workers=-1)["workers"]) - workers),
            "selected": result.selected.tolist(),
        }
    (options.folder / f"run-{rows}.json").write_text(json.dumps(figures))
    return figures


def _settings(options: argparse.Namespace, rows: int, name: str) -> dict[str, Any]:
    """Return the pipeline for so many rows, whose data are written if they are not there."""
    path = options.folder / f"manifold-{rows}.zarr"
    if not path.exists():
        write_manifold(path, rows, options.features)
    return {
        "run": str(options.folder / name),
        "input": {"uri": str(path)},
        "n_features_to_select": options.selected,
        "mcfs": {"n_clusters": options.clusters},
        "graph": {"n_neighbors": options.neighbors},
        "spectral": {"solver": options.solver},
        "memory_limit": options.memory,
    }


def _print_runs(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Print the first table; return the slopes of elapsed and processor seconds."""
    titles = "".join(f"{name:>10}" for name in STAGES)
    print(f"      rows{titles}     total  processor s  peak MiB  spilled  restarts")
    for run in runs:
        cells = "".join(f"{run['stages'][name]:>10.1f}" for name in STAGES)
        print(
            f"{run['rows']:>10,}{cells}{run['seconds']:>10.1f}{run['processor']:>13.1f}"
            f"{max(run['peaks'].values()) / MIB:>10.0f}{run['spilled']:>9}{run['restarts']:>10}"
        )
    if len(runs) < 2:
        return {}
    sizes = np.log([run["rows"] for run in runs])
    slopes = {
        what: float(np.polyfit(sizes, np.log([run[what] for run in runs]), 1)[0])
        for what in ("seconds", "processor")
    }
    print(f"slopes: elapsed rows^{slopes['seconds']:.2f}, processor rows^{slopes['processor']:.2f}")
    return slopes


def beside_dense(options: argparse.Namespace, rows: int) -> dict[str, Any]:
    """Time MCFS in one process, and the dense algorithm, on rows in memory."""
    import dask
    import zarr

    _settings(options, rows, "unused")
    X = zarr.open_array(str(options.folder / f"manifold-{rows}.zarr"), mode="r")[:]
    selector = bigfs.MCFS(
        options.selected,
        n_clusters=options.clusters,
        n_neighbors=options.neighbors,
        regression="lasso",
    )
    with dask.config.set(scheduler="synchronous"), single_thread():
        selector.fit(X[:1000])  # compiles
        began = time.process_time()
        selector.fit(X)
        ours = time.process_time() - began
        began = time.process_time()
        expected = mcfs_dense(X, options.clusters, options.selected, options.neighbors)
        dense = time.process_time() - began
    return {
        "rows": rows,
        "ours": ours,
        "dense": dense,
        "components": selector.n_connected_components_,
        "common": len(np.intersect1d(selector.support(options.selected), expected)),
        "selected": options.selected,
    }


def _print_pairs(pairs: list[dict[str, Any]]) -> None:
    print("      rows   MCFS s   dense s   dense / MCFS   features in common   components")
    for pair in pairs:
        print(
            f"{pair['rows']:>10,}{pair['ours']:>9.2f}{pair['dense']:>10.2f}"
            f"{pair['dense'] / pair['ours']:>15.1f}"
            f"{pair['common']:>15} of {pair['selected']:<3}{pair['components']:>11}"
        )


if __name__ == "__main__":
    main()
