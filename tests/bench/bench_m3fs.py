"""M3FS: figure 1 of its paper, planes against rows, and a million rows.

    python -m tests.bench.bench_m3fs iris [DRAWS]
    python -m tests.bench.bench_m3fs planes
    python -m tests.bench.bench_m3fs scale SCRATCH [ROWS [SMOOTHNESS]]

The paper's tables are `bigfs compare pipelines/paper/m3fs.yaml`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bigfs import M3FS


def iris(draws: int = 10) -> int:
    """Figure 1: the four features of iris among ten of noise; return in how many draws they win.

    C is small: the norm then decides, and it shares the weight among features that say the same.
    """
    from sklearn.datasets import load_iris

    X, won = load_iris().data, 0
    for draw in range(draws):
        noise = np.random.default_rng(draw).normal(size=(len(X), 10))
        fitted = M3FS(4, n_clusters=3, C=0.1, n_neighbors=10, preprocess="standardize")
        fitted.fit(np.column_stack([X, noise]))
        alone = bool(((fitted.scores_ > 0.5) == (np.arange(14) < 4)).all())
        won += alone
        print(f"draw {draw}: sigma {np.round(fitted.scores_, 2)}", flush=True)
    print(f"sigma above 0.5 for the four features and no other: {won} of {draws} draws")
    return won


def mixture(n: int, d: int = 64, seed: int = 0) -> np.ndarray:
    """Two clusters of n rows that overlap a little in 8 of d features, float32."""
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(n, d)).astype(np.float32)
    X[:, :8] += np.where(generator.random(n) < 0.4, 1.0, -1.0)[:, None].astype(np.float32)
    return X


def planes(sizes: tuple[int, ...] = (10_000, 100_000, 1_000_000)) -> list[int]:
    """Lemma 2: the number of planes does not grow with the rows."""
    counts = []
    for n in sizes:
        begun = time.perf_counter()
        fitted = M3FS(8, init="kmeans", n_init=1, smoothness=0.0, criterion="objective").fit(
            mixture(n)
        )
        counts.append(fitted.n_planes_)
        print(f"n = {n:,}: {fitted.n_planes_} planes, {fitted.n_cccp_steps_} CCCP steps, "
              f"{fitted.n_iter_} rounds, violation {fitted.violation_:.4f}, "
              f"{time.perf_counter() - begun:.1f} s", flush=True)  # fmt: skip
    return counts


def scale(source: str, n_selected: int, n_clusters: int, **settings: Any) -> None:
    """Run stored data on two workers of 1.5 GiB; print passes, seconds and peak memory."""
    from distributed import Client

    from bigfs.core.memory import peak_bytes
    from bigfs.runtime.connection import local_cluster
    from bigfs.runtime.workers import on_every_process

    limit = 3 * 2**29
    with local_cluster(2, 1, limit) as running, Client(running.scheduler_address):
        begun = time.perf_counter()
        fitted = M3FS(n_selected, n_clusters=n_clusters, memory_limit=limit, **settings).fit(source)
        seconds = time.perf_counter() - begun
        peaks = {k: round(v / 2**20) for k, v in on_every_process(peak_bytes).items()}
    print(f"{source}: {seconds:.0f} s, {fitted.n_passes_} passes, {fitted.n_planes_} planes, "
          f"{fitted.n_iter_} rounds, violation {fitted.violation_:.4f}, sizes "
          f"{np.bincount(fitted.labels_[:])}, peaks {peaks} MiB", flush=True)  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    """Run one of the parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("iris").add_argument("draws", nargs="?", type=int, default=10)
    parts.add_parser("planes")
    scaled = parts.add_parser("scale")
    scaled.add_argument("scratch", type=Path)
    scaled.add_argument("rows", nargs="?", type=int, default=1_000_000)
    scaled.add_argument("smoothness", nargs="?", type=float, default=1.0)
    options = parser.parse_args(arguments)
    if options.part == "iris":
        iris(options.draws)
    elif options.part == "planes":
        planes()
    else:
        with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
            path = Path(folder) / "X.npy"
            np.save(path, mixture(options.rows))
            settings = {"init": "kmeans", "n_init": 3, "smoothness": options.smoothness}
            scale(str(path), 8, 2, **settings)


if __name__ == "__main__":
    main()
