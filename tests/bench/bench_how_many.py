"""Numbers that n_features_to_select: auto chooses, on data with a planted number and on others.

    python -m tests.bench.bench_how_many planted [--criteria stability] [--methods mcfs]
    python -m tests.bench.bench_how_many sets FOLDER
    python -m tests.bench.bench_how_many cost

``planted`` draws data of 1,000 x 200 with 5, 20 and 60 features that matter, ten times each, and
counts how often each criterion is within 20 % of the truth. Of three kinds: ``mixtures``, where
all others are mixtures of three of them with noise; ``both``, where half of the others are such
mixtures and half are noise; and ``clusters``, where they carry eight clusters and all others are
noise. ``sets`` prints what the criteria say on sets in FOLDER, NAME.npz with ``X`` (labels are not
read), and on digits. ``cost`` compares processor seconds of runs with and without curves.

The criterion ``stability`` has ten pairs of halves here, and all others one fit.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dask
import numpy as np
from sklearn.datasets import load_digits

import bigfs
from bigfs import StabilitySelection
from bigfs.config.sections import Auto
from bigfs.core.threads import single_thread
from bigfs.selectors.number import CRITERIA, choose_number

KINDS = ("mixtures", "both", "clusters")
SETS = ("USPS", "COIL20")
METHODS: dict[str, Any] = {
    "column_subset": lambda number: bigfs.ColumnSubset(number),
    "mcfs": lambda number: bigfs.MCFS(number),
    "mcfs, omp": lambda number: bigfs.MCFS(number, regression="omp"),
    "max_variance": lambda number: bigfs.MaxVariance(number),
    "laplacian_score": lambda number: bigfs.LaplacianScore(number),
}


def planted(kind: str, m: int, n: int, d: int, seed: int) -> np.ndarray:
    """Return data in which m features matter, in a random order of the columns."""
    rng = np.random.default_rng(seed)
    if kind == "clusters":
        X = rng.normal(size=(n, d))
        X[:, :m] += rng.normal(scale=2.0, size=(8, m))[rng.integers(8, size=n)]
        return X[:, rng.permutation(d)]
    n_mixed = d - m if kind == "mixtures" else (d - m) // 2
    sources, weights = rng.normal(size=(n, m)), np.zeros((m, n_mixed))
    for j in range(n_mixed):
        of = rng.choice(m, min(m, 3), replace=False)
        weights[of, j] = rng.normal(size=len(of))
    weights /= np.linalg.norm(weights, axis=0)
    mixed = sources @ weights + 0.3 * rng.normal(size=(n, n_mixed))
    noise = rng.normal(size=(n, d - m - n_mixed))
    return np.hstack([sources, mixed, noise])[:, rng.permutation(d)]


def numbers(
    method: str, X: np.ndarray, criteria: Sequence[str] = tuple(CRITERIA), n_pairs: int = 10
) -> dict[str, int]:
    """Return what each of some criteria chooses, where the method has it."""
    figures = {}
    with dask.config.set(scheduler="synchronous"):
        if "stability" in criteria:
            of_fits = StabilitySelection(METHODS[method]({"auto": "stability"}), n_pairs).fit(X)
            figures["stability"] = int(of_fits.n_features_to_select_)
        others = [name for name in criteria if name != "stability"]
        curves = METHODS[method]("auto").fit(X).curves_ if others else None
    for name in others:
        stage = CRITERIA[name].stage
        if not stage or "explained_eigenvectors" in curves.values:
            number = choose_number(
                Auto(auto=name), curves.sizes, curves.values, curves.errors, len(X)
            )
            figures[name] = number["n_features_to_select"]
    return figures


def on_planted(
    truths: tuple[int, ...] = (5, 20, 60),
    draws: int = 10,
    n: int = 1000,
    d: int = 200,
    criteria: Sequence[str] = tuple(CRITERIA),
    methods: Sequence[str] = tuple(METHODS),
    n_pairs: int = 10,
) -> dict[tuple[str, str, str, int], list[int]]:
    """Print how often each criterion is within 20 % of the truth, and its median."""
    figures: dict[tuple[str, str, str, int], list[int]] = {}
    head = "".join(f"{f'm = {m}':>14}" for m in truths)
    print(f"{'kind':<10}{'method':<17}{'criterion':<24}{head}   (of {draws} draws; median)")
    for kind in KINDS:
        for method in methods:
            for m in truths:
                for seed in range(draws):
                    X = planted(kind, m, n, d, seed)
                    for name, number in numbers(method, X, criteria, n_pairs).items():
                        figures.setdefault((kind, method, name, m), []).append(number)
            for name in criteria:
                if (kind, method, name, truths[0]) not in figures:
                    continue
                cells = ""
                for m in truths:
                    chosen = np.array(figures[kind, method, name, m])
                    hits = int((np.abs(chosen - m) <= 0.2 * m).sum())
                    cells += f"{f'{hits}; {np.median(chosen):g}':>14}"
                print(f"{kind:<10}{method:<17}{name:<24}{cells}", flush=True)
    return figures


def on_sets(
    sets: dict[str, np.ndarray],
    criteria: Sequence[str] = tuple(CRITERIA),
    methods: Sequence[str] = tuple(METHODS),
) -> dict[tuple[str, str], dict[str, int]]:
    """Print what each criterion says of data without a known number."""
    figures = {}
    print(f"{'set':<10}{'method':<17}" + "".join(f"{name:>24}" for name in criteria))
    for name, X in sets.items():
        for method in methods:
            figures[name, method] = numbers(method, X, criteria)
            cells = "".join(f"{figures[name, method].get(c, '-'):>24}" for c in criteria)
            print(f"{name:<10}{method:<17}{cells}", flush=True)
    return figures


def cost(sets: dict[str, np.ndarray], turns: int = 5) -> dict[tuple[str, str, bool], float]:
    """Print processor seconds of runs without and with curves, in turns, medians."""
    figures = {}
    print(f"{'data':<24}{'method':<17}{'without':>9}{'with':>9}   processor seconds")
    for name, X in sets.items():
        for method in ("max_variance", "mcfs"):
            seconds: dict[bool, list[float]] = {False: [], True: []}
            with tempfile.TemporaryDirectory() as folder, single_thread():
                np.save(f"{folder}/X.npy", X)
                for turn in range(turns + 1):
                    for curves, taken in seconds.items():
                        settings = {"run": f"{folder}/run", "input": {"uri": f"{folder}/X.npy"},
                                    "method": method, "n_features_to_select": min(20, X.shape[1]),
                                    "curves": curves}  # fmt: skip
                        began = time.process_time()
                        bigfs.run(settings, fresh=True)
                        if turn:  # the first loads libraries
                            taken.append(time.process_time() - began)
            for curves, taken in seconds.items():
                figures[name, method, curves] = float(np.median(taken))
            without, with_curves = (figures[name, method, curves] for curves in (False, True))
            print(f"{name:<24}{method:<17}{without:>9.2f}{with_curves:>9.2f}", flush=True)
    return figures


def main(arguments: list[str] | None = None) -> Any:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["planted", "sets", "cost"])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--criteria", nargs="+", choices=list(CRITERIA), default=list(CRITERIA))
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--draws", type=int, default=10)
    options = parser.parse_args(arguments)
    chosen = {"criteria": options.criteria, "methods": options.methods}
    if options.part == "planted":
        return on_planted(draws=options.draws, **chosen)
    digits = load_digits().data
    if options.part == "sets":
        loaded = {name: np.load(options.folder / f"{name}.npz")["X"] for name in SETS}
        return on_sets({"digits": digits, **loaded}, **chosen)
    rng = np.random.default_rng(0)
    large = rng.normal(size=(100_000, 200)).astype(np.float32)
    return cost({"digits": digits, "100,000 x 200": large})


if __name__ == "__main__":
    main()
