"""ColumnSubset and PivotedQR: what they cost beyond the Gram matrix, and beside other libraries.

    python -m tests.bench.bench_picks large FOLDER
    python -m tests.bench.bench_picks large FOLDER --rows 20000 --features 20000
    python -m tests.bench.bench_picks sketch FOLDER
    python -m tests.bench.bench_picks peers FOLDER

``large`` writes a matrix into FOLDER (kept for the next call) and fits from it on two workers of
1 GiB, beside the Gram pass alone where that fits, in turns. ``sketch`` compares the picks of a
sketch of the rows with the exact ones, and ``peers`` both methods with fastcan and PySensors
(``pip install fastcan python-sensors``), on sets in FOLDER, NAME.npz with ``X`` and ``y``, in this
process on one thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import bigfs
from bigfs import ColumnSubset, PivotedQR
from bigfs.blocks import RowBlocks
from bigfs.core.memory import peak_bytes, reset_peak, task_budget
from bigfs.core.threads import single_thread
from bigfs.runtime.connection import local_cluster
from bigfs.selectors.picks import strategies as picks
from bigfs.store.scratch import Scratch
from tests.bench.bench_methods import load
from tests.bench.bench_out_of_core import write_matrix

SETS = ("ORL", "COIL20", "USPS", "MNIST-5000")
MIB = 2**20


def explained(X: np.ndarray, selected: np.ndarray) -> float:
    """Return the share of the variance that some columns explain, in percent."""
    X = np.asarray(X, dtype=np.float64)
    X = X - X.mean(axis=0)
    Q = np.linalg.svd(X[:, np.asarray(selected, dtype=int)], full_matrices=False)[0]
    return 100 * float(np.linalg.norm(Q.T @ X) ** 2 / np.linalg.norm(X) ** 2)


def large(folder: Path, rows: int, features: int, turns: int = 3) -> dict[str, Any]:
    """Print elapsed seconds and workers' peaks of the stage, and of the Gram pass alone."""
    from distributed import Client

    path, store = (folder / f"picks-{rows}-{features}{ending}.zarr" for ending in ("", "-checked"))
    write_matrix(path, rows, features)
    if not store.exists():
        bigfs.ingest(path, store)
    figures: dict[str, list[tuple[float, float, int]]] = {}
    with local_cluster(2, 1, 2**30) as cluster, Client(cluster) as client:
        client.wait_for_workers(2, timeout=60)
        for _ in range(turns):
            client.run(reset_peak)
            blocks = RowBlocks.from_any(store, scratch=Scratch())
            if picks.gram_bytes(blocks.layout, 0) <= task_budget(2**30):
                began = time.perf_counter()
                blocks.gram()
                took, peak = time.perf_counter() - began, max(client.run(peak_bytes).values())
                alone = (took, peak / MIB, blocks.passes)
                figures.setdefault("the Gram pass alone", []).append(alone)
            for method in ("column_subset", "pivoted_qr"):
                settings = {
                    "run": str(folder / f"picks-{method}"),
                    "input": {"uri": str(store)},
                    "method": method,
                    "n_features_to_select": min(50, features // 2),
                    "memory_limit": "1 GiB",
                }
                record = bigfs.run(settings, fresh=True).stages["result"]
                peak = record["measured_peak_bytes"] / MIB
                figures.setdefault(method, []).append((record["seconds"], peak, record["passes"]))
    print(f"{rows:,} x {features}, two workers of 1 GiB, medians of {turns}")
    for name, item in figures.items():
        seconds, peak, passes = np.median(item, axis=0)
        print(f"{name:<22}{seconds:>8.1f} s{peak:>8.0f} MiB in a worker, passes: {passes:.0f}")
    return figures


def sketch(sets: dict[str, np.ndarray], m: int = 50) -> dict[str, tuple[float, float, float]]:
    """Print what the exact picks and those of a sketch explain, and how many they share."""
    figures = {}
    print(f"{'set':<14}{'exact':>8}{'sketch':>8}{'shared':>8}   (percent)")
    for name, X in sets.items():
        exact = ColumnSubset(m).fit(X)
        with mock.patch.object(picks, "gram_bytes", lambda *sizes: 2**60):
            other = ColumnSubset(m).fit(X)
        shared = 100 * len(np.intersect1d(exact.support(m), other.support(m))) / m
        of_both = [100 * item.explained_variance_ratio_.sum() for item in (exact, other)]
        figures[name] = (*of_both, shared)
        print(f"{name:<14}{of_both[0]:>8.1f}{of_both[1]:>8.1f}{shared:>8.0f}")
    return figures


def peer_fits(X: np.ndarray, m: int) -> dict[str, Callable[[], np.ndarray]]:
    """Return the fits that are compared, each of which returns the selected columns."""
    centered = X - X.mean(axis=0)

    def fastcan() -> np.ndarray:
        from fastcan import FastCan
        from sklearn.decomposition import PCA

        targets = PCA(m, random_state=0).fit_transform(centered)
        return FastCan(m, verbose=0).fit(centered, targets).get_support(indices=True)

    def pysensors() -> np.ndarray:
        from pysensors import SSPOR
        from pysensors.basis import SVD

        model = SSPOR(basis=SVD(n_basis_modes=m, algorithm="arpack", random_state=0), n_sensors=m)
        return model.fit(centered, quiet=True).get_selected_sensors()

    return {
        "ColumnSubset": lambda: ColumnSubset(m).fit(X).support(m),
        "fastcan, on components": fastcan,
        "PivotedQR": lambda: PivotedQR(m).fit(X).support(m),
        "PivotedQR(n_components)": lambda: PivotedQR(m, n_components=m).fit(X).support(m),
        "PySensors SSPOR": pysensors,
    }


def peers(sets: dict[str, np.ndarray], m: int = 50, turns: int = 3) -> dict[Any, Any]:
    """Print processor seconds (medians), explained variance, and what is shared with the first."""
    figures = {}
    print(f"{'set':<12}{'':<26}{'seconds':>9}{'explained':>11}   same as PivotedQR(n_components)")
    for name, X in sets.items():
        X = np.asarray(X, dtype=np.float64)
        fits = peer_fits(X, m)
        seconds: dict[str, list[float]] = {label: [] for label in fits}
        kept: dict[str, np.ndarray] = {}
        with single_thread():
            for turn in range(turns + 1):
                for label, work in fits.items():
                    began = time.process_time()
                    kept[label] = np.asarray(work())
                    if turn:  # the first loads libraries
                        seconds[label].append(time.process_time() - began)
        ours = kept["PivotedQR(n_components)"]
        for label in fits:
            took, share = float(np.median(seconds[label])), explained(X, kept[label])
            same = len(np.intersect1d(ours, kept[label]))
            figures[name, label] = (took, share, same)
            print(f"{name:<12}{label:<26}{took:>9.3f}{share:>11.2f}{same:>6} of {m}", flush=True)
    return figures


def main(arguments: list[str] | None = None) -> Any:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["large", "sketch", "peers"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--features", type=int, default=128)
    options = parser.parse_args(arguments)
    if options.part == "large":
        return large(options.folder, options.rows, options.features)
    sets = {name: load(options.folder, name)[0] for name in SETS}
    return {"sketch": sketch, "peers": peers}[options.part](sets)


if __name__ == "__main__":
    main()
