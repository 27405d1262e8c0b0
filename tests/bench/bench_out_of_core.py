"""Passes over a matrix larger than the workers' memory: spilling, reads, client growth.

    python -m tests.bench.bench_out_of_core FOLDER [--rows 8000000] [--features 128]

Writes a float32 zarr of that shape block by block into FOLDER (4 GB by default, kept for the next
call), then runs MaxVariance and the Gram + X'Y pass on two worker processes of 1.5 GiB and prints
what a person would want to know.
"""

from __future__ import annotations

import argparse
import os
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.core.memory import peak_bytes, reset_peak
from bigfs.core.units import GIB, MIB, format_bytes
from bigfs.runtime.connection import local_cluster
from bigfs.runtime.workers import on_every_process
from bigfs.store.scratch import Scratch, block_bounds, chunk_rows


def write_matrix(path: Path, rows: int, features: int) -> None:
    """Write random values chunk by chunk; an existing matrix of the shape is kept."""
    import zarr

    if path.exists():
        return
    step = chunk_rows(features, 4)
    array = zarr.create_array(
        store=str(path), shape=(rows, features), dtype="f4", chunks=(step, features),
        compressors=None,
    )  # fmt: skip
    for i, (start, stop) in enumerate(block_bounds(rows, step)):
        rng = np.random.default_rng(i)
        block = rng.standard_normal((stop - start, features), dtype=np.float32)
        block *= np.linspace(1, 2, features, dtype=np.float32)
        array[start:stop] = block


def resident_bytes() -> int:
    """Return the resident size of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def read_bytes() -> int:
    """Return the bytes this process has read through system calls."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("rchar:"):
            return int(line.split()[1])
    return 0


def spilled(dask_worker: Any) -> int:
    """Return the bytes a worker has spilled to disk."""
    return int(dask_worker.data.spilled_total.disk) if hasattr(dask_worker.data, "slow") else 0


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--targets", type=int, default=20)
    options = parser.parse_args(arguments)
    path = options.folder / f"X-{options.rows}-{options.features}.zarr"
    options.folder.mkdir(parents=True, exist_ok=True)
    write_matrix(path, options.rows, options.features)
    from distributed import Client

    scratch = Scratch(options.folder / f"scratch-{os.getpid()}")
    try:
        with local_cluster(2, 1, 3 * GIB // 2) as cluster, Client(cluster) as client:
            return measure(client, path, scratch, options.targets)
    finally:
        scratch.close()


def measure(client: Any, path: Path, scratch: Scratch, n_targets: int) -> dict[str, float]:
    """Run both passes and print the figures."""
    workers = set(client.scheduler_info()["workers"])
    start_client = resident_bytes()
    blocks = RowBlocks.from_any(path, scratch=scratch)
    print(f"{path.name}: {format_bytes(blocks.nbytes)}, {len(blocks.bounds)} blocks; the check of "
          "every value has also given the moments")  # fmt: skip
    Y = blocks.create_rows("Y", n_targets, np.float64)
    blocks.map_blocks(_fill_targets, Y, label="Y")
    figures: dict[str, float] = {}
    on_every_process(reset_peak)
    blocks._moments = None
    for title, run in (
        ("MaxVariance", blocks.moments),
        ("Gram + X'Y", lambda: blocks.gram(Y)),
    ):
        before = sum(on_every_process(read_bytes).values())
        passes, began = blocks.passes, time.perf_counter()
        run()
        seconds = time.perf_counter() - began
        share = (sum(on_every_process(read_bytes).values()) - before) / blocks.nbytes
        print(f"{title:<12} {seconds:6.1f} s, {blocks.passes - passes} pass, read {share:.2f} x X, "
              f"{blocks.nbytes / seconds / 1e6:.0f} MB/s")  # fmt: skip
        figures[title] = share
    figures["peak"] = max(on_every_process(peak_bytes).values()) / MIB
    figures["spilled"] = sum(client.run(spilled).values())
    figures["client growth"] = (resident_bytes() - start_client) / MIB
    per_task = len(pickle.dumps((blocks.start_pass(), Y)))
    figures["graph"] = per_task * len(blocks.bounds) / MIB
    figures["restarts"] = len(set(client.scheduler_info()["workers"]) - workers)
    for name in ("peak", "client growth", "graph"):
        print(f"{name:<14} {figures[name]:8.1f} MiB")
    print(f"spilled {figures['spilled']} bytes, {figures['restarts']} workers restarted")
    return figures


def _fill_targets(X: np.ndarray, first_row: int, Y: Any) -> None:
    rng = np.random.default_rng(first_row)
    Y.write(first_row, rng.standard_normal((len(X), Y.shape[1])))


if __name__ == "__main__":
    main()
