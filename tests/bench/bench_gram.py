"""The Gram pass against the floor of reading the data and multiplying it.

    python tests/bench/bench_gram.py FOLDER [--gigabytes 4] [--features 128 1024]

For each width, writes a float32 zarr of that size into FOLDER (kept for the next call) and
measures in processor seconds of one thread: reading it plainly, block by block, from zarr; the
products ``X'X`` (dsyrk) and ``X'Y`` (dgemm) in float64 on blocks that are in memory; and the Gram
pass itself, with 20 targets. The last column is (reading + products) / pass: 1 would be a pass
that does nothing else.
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

from bigfs._kernels import tile_rows
from bigfs.blocks import RowBlocks
from bigfs.core.threads import single_thread
from bigfs.store.scratch import ArrayRef, Scratch
from tests.bench.bench_out_of_core import write_matrix

TARGETS = 20


def seconds(work: Callable[[], Any], repetitions: int) -> float:
    """Return the processor seconds of the fastest repetition."""
    found = []
    for _ in range(repetitions):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


def plain_reading(path: Path, blocks: RowBlocks) -> None:
    """Read every block by zarr alone."""
    import zarr

    array = zarr.open_array(str(path), mode="r")
    for start, stop in blocks.bounds:
        array[start:stop]


def plain_products(blocks: RowBlocks) -> None:
    """Multiply as many tiles as the matrix has, from memory."""
    rows, width = tile_rows(blocks.n_features), blocks.n_features
    tile = np.ones((rows, width))
    side = np.ones((rows, TARGETS))
    gram, cross = (np.zeros((width, n), order="F") for n in (width, TARGETS))
    for _ in range(-(-blocks.n_samples // rows)):
        gram = dsyrk(1.0, tile.T, beta=1.0, c=gram, overwrite_c=1)
        cross = dgemm(1.0, tile.T, side.T, trans_b=1, beta=1.0, c=cross, overwrite_c=1)


def random_targets(blocks: RowBlocks) -> ArrayRef:
    """Store Y by row blocks."""
    out = blocks.create_rows("targets", TARGETS, np.float64)
    for i, (start, stop) in enumerate(blocks.bounds):
        out.write(start, np.random.default_rng(i).standard_normal((stop - start, TARGETS)))
    return out


def main(arguments: list[str] | None = None) -> dict[int, float]:
    """Print one line per width; return the share of the floor that the pass reaches."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--features", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args(arguments)
    shares = {}
    print("features       rows  reading s  products s  Gram pass s  share of the floor")
    for features in options.features:
        n_rows = int(options.gigabytes * 1e9) // (4 * features)
        path = options.folder / f"gram-{n_rows}-{features}.zarr"
        write_matrix(path, n_rows, features)
        blocks = RowBlocks.from_any(path, scratch=Scratch())
        targets = random_targets(blocks)
        with dask.config.set(scheduler="synchronous"), single_thread():
            reading = seconds(lambda p=path, b=blocks: plain_reading(p, b), options.repetitions)
            products = seconds(lambda b=blocks: plain_products(b), options.repetitions)
            whole = seconds(lambda b=blocks, t=targets: b.gram(t), options.repetitions)
        shares[features] = (reading + products) / whole
        print(
            f"{features:>8,} {n_rows:>10,} {reading:>10.2f} {products:>11.2f} {whole:>12.2f} "
            f"{shares[features]:>19.2f}"
        )
    return shares


if __name__ == "__main__":
    main()
