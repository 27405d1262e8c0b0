"""Cost of an iteration of NDFS: against the dense algorithm, per pass, and as rows grow.

    python -m tests.bench.bench_ndfs FOLDER dense       # seconds an iteration, n = 2,000 to 8,000
    python -m tests.bench.bench_ndfs FOLDER overhead    # of Dask and storage, per pass
    python -m tests.bench.bench_ndfs FOLDER rows        # 100,000 to 1,000,000, 2 workers of 1.5 GiB
    python -m tests.bench.bench_ndfs FOLDER mnist       # FOLDER/MNIST.npz whole, and all features

FOLDER takes the synthetic data of ``rows`` (1.3 GB). The dense algorithm is that of
tests/reference, n x n. Times are processor seconds where they say so; everything runs BLAS on one
thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.blocks.kernels import tile_rows
from bigfs.core.threads import single_thread
from bigfs.graph import AffinityMatrix, affinity, affinity_from_csr, knn_graph
from bigfs.selectors.ndfs.passes import Update, block_step
from bigfs.selectors.ndfs.strategies import check_init
from bigfs.solvers.l21 import GramSolver, row_weights
from bigfs.store.scratch import Scratch
from tests.bench._processor import processor_seconds
from tests.reference.ndfs import ndfs as dense_ndfs
from tests.selectors._ndfs import ndfs_scores


def blobs(n: int, d: int, c: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Return n rows around c centers in [0, 1]^d, and their labels."""
    rng = np.random.default_rng(0)
    labels = rng.integers(c, size=n)
    return np.clip(rng.random((c, d))[labels] + 0.3 * rng.normal(size=(n, d)), 0, 1), labels


def ring(n: int, k: int = 5, scratch: Scratch | None = None) -> AffinityMatrix:
    """Return a graph whose rows' neighbors are anywhere: the worst order for reading F.

    In a folder of ``scratch`` tasks get its address, in a temporary one its content.
    """
    from scipy.sparse import csr_array

    ends = np.random.default_rng(1).integers(n, size=(n, k))
    heads = np.repeat(np.arange(n), k)
    keep = heads != ends.ravel()
    W = csr_array((np.ones(keep.sum()), (heads[keep], ends.ravel()[keep])), shape=(n, n))
    return affinity_from_csr(W.maximum(W.T), scratch=scratch)


def dense(sizes: tuple[int, ...] = (2000, 4000, 8000), d: int = 256) -> list[tuple[float, float]]:
    """Print seconds per iteration of both at growing n."""
    print("     n   dense s/it   ours s/it   times less")
    figures = []
    for n in sizes:
        X, labels = blobs(n, d)
        F = check_init(labels, n, 10)
        blocks = RowBlocks.from_any(X)
        W = affinity(knn_graph(blocks, 5), weight="heat", blocks=blocks)
        with single_thread():
            matrix = W.load().toarray()
            single = _slope(partial(_iterate_dense, X, matrix, F), 1, 5)
            ours = _slope(partial(_iterate, blocks, W, F), 5, 65)
        figures.append((single, ours))
        print(f"{n:>6,}{single:>13.3f}{ours:>12.4f}{single / ours:>13.0f}", flush=True)
    return figures


def _iterate_dense(X: np.ndarray, W: np.ndarray, F: np.ndarray, count: int) -> None:
    dense_ndfs(X, W, F, n_iter=count)


def _iterate(blocks: RowBlocks, W: AffinityMatrix, F: np.ndarray, count: int) -> None:
    ndfs_scores(blocks, W, F, F.shape[1], max_iter=count, tol=0.0)


def _slope(run: Callable[[int], Any], few: int, many: int, repetitions: int = 3) -> float:
    """Return processor seconds of one iteration: the start is in both runs; median of three."""
    run(few)  # compiles
    slopes = []
    for _ in range(repetitions):
        times = [time.process_time()]
        for count in (few, many):
            run(count)
            times.append(time.process_time())
        slopes.append((times[2] - 2 * times[1] + times[0]) / (many - few))
    return float(np.median(slopes))


def overhead(n: int = 8000, d: int = 256) -> tuple[float, float]:
    """Print what a pass costs beyond its arithmetic in one block and in several: processor time."""
    X, labels = blobs(n, d)
    F = check_init(labels, n, 10)
    W = ring(n)
    matrix, root = W.load(), 1 / np.sqrt(W.degrees.load())[:, None]
    update, solver = Update("safe", 1.0, 1.0), GramSolver(X.T @ X, 1.0)
    ones, xtf, ftf = np.ones(d), X.T @ F, F.T @ F
    coef, after = solver.solve(ones, xtf), F
    began = time.process_time()
    with single_thread():
        for _ in range(30):
            smoothed = root * (matrix @ (root * after))
            with_intercept = np.vstack([coef, np.zeros(10)])
            after, sums = block_step(X, after, smoothed, with_intercept, ftf, update)
            xtf, ftf = sums.xtf[:-1], sums.ftf
            coef = solver.solve(row_weights(solver.solve(ones, xtf), 1e-12), xtf)
    bare = (time.process_time() - began) / 30
    spent = []
    for rows in (n, n // 8):
        blocks = RowBlocks.from_any(X, rows=rows)
        times = []
        for iterations in (5, 35):
            began = time.process_time()
            ndfs_scores(blocks, W, F, 10, max_iter=iterations, tol=0.0)
            times.append(time.process_time() - began)
        spent.append((times[1] - times[0]) / 30 - bare)
    print(
        f"an iteration in arrays {1000 * bare:.1f} ms of the processor; beyond that, in one block "
        f"{1000 * spent[0]:.1f} ms, in 8 blocks under Dask {1000 * spent[1]:.1f} ms"
    )
    return spent[0], spent[1]


def write_blobs(path: Path, n: int, d: int, rows: int = 50_000) -> None:
    """Write synthetic rows as float32 .npy, block by block."""
    path.parent.mkdir(parents=True, exist_ok=True)
    out = np.lib.format.open_memmap(path, "w+", np.float32, (n, d))
    centers = np.random.default_rng(0).random((10, d), dtype=np.float32)
    for start in range(0, n, rows):
        rng = np.random.default_rng(start)
        count = min(rows, n - start)
        out[start : start + count] = centers[rng.integers(10, size=count)]
        out[start : start + count] += 0.3 * rng.random((count, d), dtype=np.float32)
    del out


def rows(
    folder: Path, sizes: tuple[int, ...] = (100_000, 300_000, 1_000_000), d: int = 256,
    limit: str = "1.5 GiB",
) -> list[float]:  # fmt: skip
    """Print time per iteration as n grows, on two workers, neighbors anywhere.

    Processor time is that of the client and both workers together. A bare pass has the tasks
    read the same blocks and multiply them with a matrix of as many columns, and its result with
    the transposed block.
    """
    from distributed import Client

    from bigfs.core.units import parse_bytes
    from bigfs.runtime.connection import local_cluster

    print(
        "        n   seconds/it  processor s/it  per million rows  bare pass  of it  largest worker"
    )
    figures = []
    for n in sizes:
        path = folder / f"blobs-{n}.npy"
        if not path.exists():
            write_blobs(path, n, d)
        W = ring(n, scratch=Scratch(folder / f"ring-{n}"))
        labels = np.random.default_rng(2).integers(10, size=n)
        with local_cluster(2, 1, parse_bytes(limit)) as cluster, Client(cluster):
            times = []
            for iterations in (2, 2, 8):  # the first compiles
                blocks = RowBlocks.from_any(path)
                began, used = time.perf_counter(), processor_seconds()
                ndfs_scores(blocks, W, labels, 10, max_iter=iterations, tol=0.0, memory_limit=limit)
                times.append((time.perf_counter() - began, processor_seconds() - used))
            peak, bare = _largest_worker(), _bare_pass(RowBlocks.from_any(path))
        wall, used = (np.array(times[2]) - times[1]) / 6
        figures.append(used)
        print(
            f"{n:>9,}{wall:>13.2f}{used:>16.2f}{used / n * 1e6:>18.2f}{bare:>11.2f}"
            f"{used / bare:>7.2f}{peak:>12.0f} MiB",
            flush=True,
        )
    return figures


def _bare_pass(blocks: RowBlocks, n_clusters: int = 10, n_passes: int = 6) -> float:
    """Return processor seconds of one of some passes, after a first one."""
    V = np.random.default_rng(0).random((blocks.n_features, n_clusters))
    blocks.reduce(_two_products, np.add, V)
    began = processor_seconds()
    for _ in range(n_passes):
        blocks.reduce(_two_products, np.add, V)
    return (processor_seconds() - began) / n_passes


def _two_products(X: np.ndarray, first_row: int, V: np.ndarray) -> np.ndarray:
    """Return a block's ``X'(XV)``, in float64, as many rows at a time as NDFS takes."""
    total, step = np.zeros(V.shape), tile_rows(X.shape[1])
    for begin in range(0, len(X), step):
        tile = X[begin : begin + step].astype(np.float64)
        total += tile.T @ (tile @ V)
    return total


def _largest_worker() -> float:
    """Return the largest peak of the workers' resident size, in MiB."""
    from bigfs.core.memory import peak_bytes
    from bigfs.runtime.workers import on_every_process

    peaks = on_every_process(peak_bytes)
    return max(peaks.values()) / 2**20


def mnist(folder: Path, m: int = 100, repetitions: int = 20) -> None:
    """Print the processor time of MNIST whole beyond the graph, and how good m features are."""
    from bigfs.spectral import spectral_embedding

    with np.load(folder / "MNIST.npz") as stored:
        X, y = stored["X"].astype(np.float32) / 255, stored["y"]
    began = time.process_time()
    blocks = RowBlocks.from_any(X)
    graph = knn_graph(blocks, 5)
    W = affinity(graph, weight="heat", blocks=blocks)
    after_graph = time.process_time()
    spectral = spectral_embedding(W, 10, scratch=blocks.scratch.child("s"), chunk_rows=blocks.rows)
    after_spectral = time.process_time()
    # The penalty that was best at 5,000 rows, and the same one at 70,000: F's columns have norm
    # one, so that B shrinks as 1 / sqrt(n).
    for beta in (1.0, float(np.sqrt(len(X) / 5000))):
        begun = time.process_time()
        result = ndfs_scores(blocks, W, spectral, 10, beta=beta, tol=0.0)
        seconds = time.process_time() - begun
        print(
            f"MNIST {len(X):,} x {X.shape[1]}, beta {beta:.2f}: processor seconds: graph "
            f"{after_graph - began:.1f}, eigenvectors {after_spectral - after_graph:.1f}, "
            f"start and {result.details['n_iter']} iterations {seconds:.1f}; "
            f"{result.details['n_labels_changed']} labels moved",
            flush=True,
        )
        _clusters(f"{m} features", X[:, result.support(m)], y, repetitions)
    _clusters("all features", X, y, repetitions)


def _clusters(name: str, X: np.ndarray, y: np.ndarray, repetitions: int) -> None:
    """Print ACC and NMI of k-means from one random start, in the mean."""
    from bigfs.core.seeds import derive_seed
    from bigfs.evaluate.protocols import kmeans_scores

    part, n_clusters = np.ascontiguousarray(X), int(y.max()) + 1
    figures = []
    for i in range(repetitions):
        seed = derive_seed(0, "evaluation", i)
        scores = kmeans_scores(part, y, n_clusters=n_clusters, n_init=1, init="random", seed=seed)
        figures.append((scores["nmi"], scores["acc"]))
    nmi, acc = 100 * np.mean(figures, axis=0)
    print(f"{name}: ACC {acc:.1f}, NMI {nmi:.1f}", flush=True)


def main(arguments: list[str] | None = None) -> Any:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("part", choices=["dense", "overhead", "rows", "mnist"])
    options = parser.parse_args(arguments)
    if options.part == "dense":
        return dense()
    if options.part == "overhead":
        return overhead()
    return {"rows": rows, "mnist": mnist}[options.part](options.folder)


if __name__ == "__main__":
    main()
