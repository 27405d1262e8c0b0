"""The Gram pass against the floor of reading the data and multiplying it.

    python -m tests.bench.bench_gram FOLDER [--gigabytes 4] [--features 128 1024]

For each width, writes a float32 zarr of that size into FOLDER (kept for the next call) and
measures, in one process and one thread: plain reading of its blocks, and of the 20 columns of Y
beside them, by zarr alone; plain products ``X'X`` (dsyrk) and ``X'Y`` (dgemm) of such blocks in
memory, in float64, the type of the pass; and the Gram pass, which reads, converts, centers and
multiplies. The share of the floor is (read X + read Y + products) / pass: 1 would be
a pass that does nothing else, 0.8 is the bar. Processor seconds say little of a disk, elapsed
seconds little on a busy machine: both are printed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import numpy as np
from scipy.linalg.blas import dgemm, dsyrk

from bigfs.blocks import RowBlocks
from bigfs.core.threads import single_thread
from bigfs.store.scratch import ArrayRef, Scratch
from tests.bench.bench_out_of_core import write_matrix

TARGETS = 20


def seconds(works: list[Callable[[], Any]], repetitions: int) -> np.ndarray:
    """Return processor and elapsed seconds of each work, of the fastest of its repetitions.

    They take turns, so that a machine that slows down does so for all of them.
    """
    values = np.empty((repetitions, len(works), 2))
    for turn in values:
        for row, work in zip(turn, works, strict=True):
            began = time.process_time(), time.perf_counter()
            work()
            row[:] = time.process_time() - began[0], time.perf_counter() - began[1]
    return values.min(axis=0)


def plain_reading(path: str, blocks: RowBlocks) -> None:
    """Read an array block by block, by zarr alone."""
    import zarr

    array = zarr.open_array(path, mode="r")
    for start, stop in blocks.bounds:
        array[start:stop]


def plain_products(blocks: RowBlocks, block: np.ndarray, targets: np.ndarray) -> None:
    """Multiply a float64 block that is in memory as often as the matrix has blocks."""
    gram, cross = (np.zeros((blocks.n_features, n), order="F") for n in (len(block.T), TARGETS))
    for start, stop in blocks.bounds:
        X, Y = block[: stop - start], targets[: stop - start]
        gram = dsyrk(1.0, X.T, beta=1.0, c=gram, overwrite_c=1)
        cross = dgemm(1.0, X.T, Y.T, trans_b=1, beta=1.0, c=cross, overwrite_c=1)


def random_targets(blocks: RowBlocks) -> ArrayRef:
    """Store Y by row blocks."""
    out = blocks.create_rows("targets", TARGETS, np.float64)
    for i, (start, stop) in enumerate(blocks.bounds):
        out.write(start, np.random.default_rng(i).standard_normal((stop - start, TARGETS)))
    return out


def measure(path: Path, repetitions: int) -> tuple[RowBlocks, np.ndarray]:
    """Return processor and elapsed seconds of reading X, reading Y, products and the pass."""
    blocks = RowBlocks.from_any(path, scratch=Scratch())
    targets = random_targets(blocks)
    start, stop = blocks.bounds[0]
    block = blocks.start_pass().read(start, stop).astype(np.float64), targets.read(start, stop)
    works: list[Callable[[], Any]] = [
        lambda: plain_reading(str(path), blocks),
        lambda: plain_reading(targets.path, blocks),
        lambda: plain_products(blocks, *block),
        lambda: blocks.gram(targets),
    ]
    with dask.config.set(scheduler="synchronous"), single_thread():
        return blocks, seconds(works, repetitions)


def main(arguments: list[str] | None = None) -> dict[int, float]:
    """Print one line per width; return the share of the floor that each pass reaches."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--features", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args(arguments)
    shares = {}
    print(
        "                     processor seconds                          share of the floor\n"
        "features       rows  read X  read Y  products   pass   MB/s   processor  elapsed"
    )
    for features in options.features:
        n_rows = int(options.gigabytes * 1e9) // (4 * features)
        path = options.folder / f"gram-{n_rows}-{features}.zarr"
        write_matrix(path, n_rows, features)
        blocks, (read_x, read_y, products, complete) = measure(path, options.repetitions)
        cpu, elapsed = (read_x + read_y + products) / complete
        shares[features] = float(cpu)
        print(
            f"{features:>8,} {n_rows:>10,} {read_x[0]:>7.2f} {read_y[0]:>7.2f} "
            f"{products[0]:>9.2f} {complete[0]:>6.2f} {blocks.nbytes / complete[1] / 1e6:>6.0f} "
            f"{cpu:>11.2f} {elapsed:>8.2f}",
            flush=True,
        )
    return shares


if __name__ == "__main__":
    main()
