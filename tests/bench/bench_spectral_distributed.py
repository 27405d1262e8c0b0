"""The Chebyshev iteration on row blocks: eigenvalues, time, and bytes that blocks fetch.

    python -m tests.bench.bench_spectral_distributed FOLDER [--rows 50000 200000] [--workers 4]

Writes the synthetic manifold of the neighbor-graph figures and its graph (k = 10, binary weights)
into FOLDER, solves it in one process without a limit and then on a cluster with its rows in
partition order and in the order they came in. ``CPU`` is the processor time of the client and all
workers as a multiple of that of the one process. With ``--chosen`` the workers solve as a run with
this limit would: as one task, in strips, or on row blocks. ``fetched / nK4`` is what the filter
reads of other blocks per product, as a share of the n x K block in float32; ``boundary / n`` the
rows that blocks need of others. Both must be the same number, and the eigenvalues those of one
process.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bigfs import knn_graph, spectral_embedding
from bigfs.core.units import parse_bytes
from bigfs.graph import AffinityMatrix, affinity
from bigfs.runtime import local_cluster
from bigfs.store.scratch import ArrayRef, Scratch, read_attributes
from tests.bench._processor import processor_seconds


def load_affinity(folder: Path, rows: int, n_partitions: int) -> AffinityMatrix:
    """Return W of the manifold, in storage; computed at the first call."""
    path = folder / f"affinity-{rows}-{n_partitions}"
    if not (path / "zarr.json").exists():
        from tests.bench._manifold import write_manifold

        data, stored = folder / f"manifold-{rows}.zarr", Scratch(path)
        if not data.exists():
            write_manifold(data, rows)
        graph = knn_graph(data, 10, n_partitions=n_partitions, scratch=stored)
        W = affinity(graph, scratch=stored.child("W"))
        stored.describe(affinity=W.describe())
    attributes = read_attributes(path)["affinity"]
    return AffinityMatrix.open(path / "W", attributes, ArrayRef.at(path / "partitions"))


def solve(
    W: AffinityMatrix, options: argparse.Namespace, distributed: bool | None
) -> dict[str, Any]:
    """Run the solver; return what is compared."""
    scratch = Scratch(tempfile.mkdtemp(dir=options.folder))
    began, used = time.perf_counter(), processor_seconds()
    embedding = spectral_embedding(
        W, options.components, solver="chebyshev", distributed=distributed, tol=options.tol,
        memory_limit="16 GiB" if distributed is False else options.memory, scratch=scratch,
    )  # fmt: skip
    seconds, used = time.perf_counter() - began, processor_seconds() - used
    vectors = embedding.embedding[:].tobytes()
    scratch.close()
    details = embedding.details
    columns = max(1, details.get("fetched_columns", 1))
    return {
        "seconds": seconds,
        "processor": used,
        "values": embedding.eigenvalues,
        "bits": (embedding.eigenvalues.tobytes(), hash(vectors)),
        "residual": float(embedding.residuals.max()),
        "blocks": details.get("n_blocks", 1),
        "fetched": details.get("fetched_bytes", 0) / (columns * W.n_samples * 4),
        "boundary": details.get("halo_rows", 0) / W.n_samples,
    }


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Print one line per size, order of rows and number of workers."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, nargs="+", default=[50_000, 200_000])
    parser.add_argument("--partitions", type=int, default=64)
    parser.add_argument("--components", type=int, default=20)
    parser.add_argument("--tol", type=float, default=1e-4)
    parser.add_argument("--workers", type=int, nargs="+", default=[4])
    parser.add_argument("--threads", action="store_true", help="also the threads of this process")
    parser.add_argument("--memory", default="1.5 GiB")
    parser.add_argument("--chosen", action="store_true", help="not on row blocks, but as fits")
    options = parser.parse_args(arguments)
    graphs = {
        rows: load_affinity(options.folder, rows, options.partitions) for rows in options.rows
    }
    single = {rows: solve(W, options, distributed=False) for rows, W in graphs.items()}
    print(
        "     rows  order      where      blocks  seconds  one process   CPU  fetched / nK4  "
        "boundary / n  residual  eigenvalues differ by"
    )
    results = []
    for n_workers in [*options.workers, *([0] if options.threads else [])]:
        for row in _on(n_workers, graphs, options):
            reference = single[row["rows"]]
            row["difference"] = float(np.abs(row["values"] - reference["values"]).max())
            where = f"{n_workers} workers" if n_workers else "threads"
            print(
                f"{row['rows']:>9,}  {row['order']:<9}  {where:<10} {row['blocks']:>6} "
                f"{row['seconds']:>8.1f} {reference['seconds']:>12.1f} "
                f"{row['processor'] / reference['processor']:>5.2f} {row['fetched']:>14.4f}"
                f" {row['boundary']:>13.4f} {row['residual']:>9.1e}  {row['difference']:.1e}",
                flush=True,
            )
            results.append(row)
    return results


def _on(
    n_workers: int, graphs: dict[int, AffinityMatrix], options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Solve every graph in both orders, on a cluster or, with no workers, in this process."""
    from distributed import Client

    if not n_workers:
        yield from _all(graphs, options)
        return
    limit = parse_bytes(options.memory)
    with local_cluster(n_workers, 1, limit) as cluster, Client(cluster):
        yield from _all(graphs, options)


def _all(
    graphs: dict[int, AffinityMatrix], options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    orders = {
        (rows, order): dataclasses.replace(W, partitions=W.partitions if order != "given" else None)
        for rows, W in graphs.items()
        for order in ("partition", "given")
    }
    for (rows, order), W in orders.items():
        if options.chosen and order == "given":
            continue  # a run has partitions
        distributed = None if options.chosen else True
        yield {"rows": rows, "order": order, **solve(W, options, distributed)}


if __name__ == "__main__":
    main()
