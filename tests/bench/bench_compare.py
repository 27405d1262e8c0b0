"""Costs of the methods beside scikit-learn's selectors; savings of a comparison by sharing.

    python -m tests.bench.bench_compare FOLDER methods    # USPS: seconds, processor, peak memory
    python -m tests.bench.bench_compare FOLDER sharing    # USPS: compare against single runs

FOLDER holds USPS.npz with ``X`` and ``y``. ``methods`` fits every selector of bigfs that is
registered and what scikit-learn has for data without labels, each in a fresh process with BLAS on
one thread: the peak is that of the fit alone, beyond the process with its imports and the data.
SequentialFeatureSelector keeps 3 features instead of 50: its time grows with the number.
"""

from __future__ import annotations

import argparse
import inspect
import multiprocessing
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import bigfs
from bigfs.core.memory import peak_bytes, reset_peak
from bigfs.selectors.registry import METHODS

ESTIMATORS = sorted(method.estimator for method in METHODS.values())
PEERS = ("VarianceThreshold", "FeatureAgglomeration", "SequentialFeatureSelector")


def build(name: str, m: int, n_clusters: int) -> Any:
    """Return a selector of bigfs or of scikit-learn."""
    if name in ESTIMATORS:
        kind = getattr(bigfs, name)
        known = inspect.signature(kind).parameters
        return kind(m, **({"n_clusters": n_clusters} if "n_clusters" in known else {}))
    if name == "VarianceThreshold":
        from sklearn.feature_selection import VarianceThreshold

        return VarianceThreshold()
    if name == "FeatureAgglomeration":
        from sklearn.cluster import FeatureAgglomeration

        return FeatureAgglomeration(m)
    from sklearn.cluster import KMeans
    from sklearn.feature_selection import SequentialFeatureSelector

    model = KMeans(n_clusters, n_init=1, random_state=0)
    return SequentialFeatureSelector(model, n_features_to_select=3, cv=2)


def measure(name: str, X: np.ndarray, m: int, n_clusters: int) -> tuple[float, float, float]:
    """Return seconds, processor seconds and MiB of one fit; in a process of its own."""
    from bigfs.core.threads import single_thread

    with single_thread():
        # Libraries are loaded and compiled by a small fit before.
        build(name, m, n_clusters).fit(X[:300])
        reset_peak()
        before, began, used = peak_bytes(), time.perf_counter(), time.process_time()
        build(name, m, n_clusters).fit(X)
    seconds, processor = time.perf_counter() - began, time.process_time() - used
    return seconds, processor, (peak_bytes() - before) / 2**20


def methods(X: np.ndarray, y: np.ndarray, m: int = 50, names: Any = None) -> dict[str, Any]:
    """Print the cost of every method."""
    n_clusters = int(y.max()) + 1
    os.environ["OMP_NUM_THREADS"] = "1"
    print(f"{X.shape[0]:,} x {X.shape[1]}, {m} features\n")
    print(f"{'method':<28}{'seconds':>9}{'processor':>11}{'memory (MiB)':>14}")
    figures = {}
    context = multiprocessing.get_context("spawn")
    for name in names or [*ESTIMATORS, *PEERS]:
        with context.Pool(1) as pool:
            figures[name] = pool.apply(measure, (name, X, m, n_clusters))
        seconds, processor, memory = figures[name]
        print(f"{name:<28}{seconds:>9.2f}{processor:>11.2f}{memory:>14.0f}", flush=True)
    return figures


def sharing(X: np.ndarray, y: np.ndarray, sizes: tuple[int, ...] = (25, 50, 100)) -> tuple:
    """Print the time of one comparison, and of a run for each method and number of features."""
    n_clusters = int(y.max()) + 1
    clusters = {"n_clusters": n_clusters}
    entries = [
        {"method": "mcfs", "mcfs": clusters},
        {"method": "ndfs", "ndfs": clusters},
        {"method": "laplacian_score"},
        {"method": "max_variance"},
    ]
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/X.npy", X)
        np.save(f"{folder}/y.npy", y)
        common = {
            "input": {"uri": f"{folder}/X.npy"},
            "evaluate": {"labels": f"{folder}/y.npy", "n_repetitions": 1, "n_init": 1},
        }
        began = time.perf_counter()
        bigfs.compare(
            {**common, "run": f"{folder}/c", "methods": entries, "n_features_to_select": [*sizes]}
        )
        together = time.perf_counter() - began
        began = time.perf_counter()
        for i, entry in enumerate(entries):
            for m in sizes:
                run = {**common, **entry, "run": f"{folder}/{i}-{m}", "n_features_to_select": m}
                bigfs.run(run)
        apart = time.perf_counter() - began
    print(f"one comparison {together:.1f} s, {len(entries) * len(sizes)} runs {apart:.1f} s")
    return together, apart


def main(arguments: list[str] | None = None) -> Any:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("part", choices=["methods", "sharing"])
    options = parser.parse_args(arguments)
    with np.load(options.folder / "USPS.npz") as stored:
        X, y = stored["X"], stored["y"]
    return {"methods": methods, "sharing": sharing}[options.part](X, y)


if __name__ == "__main__":
    main()
