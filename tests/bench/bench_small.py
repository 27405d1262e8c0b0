"""Processor seconds of every method on small sets: nobody should wait for a thousand rows.

Each fit has a process of its own with one thread, so that one without an end can be stopped; it
fits a tiny set first, which pays for compilation. Sets are those of FOLDER (``NAME.npz``) and
scikit-learn's, larger ones cut to 2,000 rows drawn by a fixed seed. Clusters are as many as
classes, 20 at most; half of the features are selected, 50 at most; all else is left as it is::

    python -m tests.bench.bench_small FOLDER --limit 90 --write before.json
    python -m tests.bench.bench_small FOLDER --methods UDFS QAlpha --sets ORL Prostate_GE
    python -m tests.bench.bench_small FOLDER --paths  # MCFS's paths beside scikit-learn's
    python -m tests.bench.bench_small --digits  # M3FS at every C and smoothness
    python -m tests.bench.bench_small --pairs  # the same on all 45 pairs of digits
    python -m tests.bench.bench_small --compile  # of our loops: a first process and a second one
    python -m tests.bench.bench_small --large  # that nothing is lost there: compare two states
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import logging
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

MAX_ROWS = 2_000
MAX_CLUSTERS = 20
METHODS = (
    "MaxVariance", "LaplacianScore", "SPEC", "MCFS", "NDFS", "UDFS", "QAlpha", "M3FS",
    "MaximumMarginClustering", "FSGMM", "LFS", "GFSKMeans",
)  # fmt: skip
SMOOTHNESS = (0.0, 0.1, 1.0)
COMPILED = (
    "bigfs.blocks.lloyd",
    "bigfs.spectral.kernels",
)


def small_sets(folder: Path | None, names: list[str] | None = None) -> dict[str, Any]:
    """Return what opens each set, by name: X and the number of its classes."""
    from sklearn import datasets

    ours = {name: getattr(datasets, f"load_{name}") for name in ("iris", "wine", "digits")}
    sets: dict[str, Any] = {name: lambda load=load: _cut(*load(return_X_y=True))
                            for name, load in ours.items()}  # fmt: skip
    for number, digits in {"17": (1, 7), "0689": (0, 6, 8, 9)}.items():
        sets[f"digits {number}"] = lambda digits=digits: _digits(digits)
    for file in sorted(folder.glob("*.npz")) if folder else ():
        sets[file.stem] = lambda file=file: _cut(*_load(file))
    return {name: sets[name] for name in names or sets}


def _load(file: Path) -> tuple[Any, np.ndarray]:
    from scipy.sparse import csr_matrix

    with np.load(file) as stored:
        if "X" in stored.files:
            return stored["X"], stored["y"]
        parts = (stored["data"], stored["indices"], stored["indptr"])
        return csr_matrix(parts, shape=tuple(stored["shape"])), stored["y"]


def _cut(X: Any, y: np.ndarray) -> tuple[np.ndarray, int]:
    """Return at most `MAX_ROWS` rows, dense, and the number of classes."""
    if len(y) > MAX_ROWS:
        kept = np.sort(np.random.default_rng(0).choice(len(y), MAX_ROWS, replace=False))
        X = X[kept]
    X = X if isinstance(X, np.ndarray) else X.toarray()
    return X, len(np.unique(y))


def _digits(wanted: tuple[int, ...]) -> tuple[np.ndarray, int]:
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    return X[np.isin(y, wanted)], len(wanted)


def settings_of(name: str, X: np.ndarray, n_classes: int) -> dict[str, Any]:
    """Return the arguments of a method's estimator."""
    import bigfs

    known = getattr(bigfs, name)().get_params()
    wanted = {"n_clusters": min(n_classes, MAX_CLUSTERS)}
    wanted["n_features_to_select"] = max(1, min(50, X.shape[1] // 2))
    return {key: value for key, value in wanted.items() if key in known}


def _fit(pipe: Connection, name: str, settings: dict[str, Any], X: np.ndarray, limit: int) -> None:
    """Fit in this process, after a tiny set; the kernel ends it at the limit."""
    import bigfs
    from bigfs.core.errors import BigfsError
    from bigfs.core.threads import single_thread

    warnings.simplefilter("ignore")
    logging.disable()
    made = getattr(bigfs, name)
    with single_thread():
        warm = np.random.default_rng(0).normal(size=(40, 6)) + (np.arange(40) % 2)[:, None] * 4
        made(**{key: min(value, 2) for key, value in settings.items()}).fit(warm)
        used = time.process_time()
        resource.setrlimit(resource.RLIMIT_CPU, (int(used) + limit + 1,) * 2)
        try:
            made(**settings).fit(X)
        except BigfsError as error:
            pipe.send(f"{type(error).__name__[:-5]}")
        else:
            pipe.send(time.process_time() - used)


def seconds(name: str, X: np.ndarray, n_classes: int, limit: int) -> float | str:
    """Return processor seconds of a fit, or why there are none."""
    # Processes are forked from one that has imported what takes seconds, and has no threads yet.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bigfs.selectors.lfs.strategies", "sklearn.cluster", "numba"])
    here, there = context.Pipe(duplex=False)
    settings = settings_of(name, X, n_classes)
    process = context.Process(target=_fit, args=(there, name, settings, X, limit), daemon=True)
    process.start()
    there.close()
    try:
        measured: float | str = here.recv()
        return measured
    except EOFError:
        process.join()
        return f"> {limit}" if process.exitcode in (-9, -24) else "failed"
    finally:
        process.join()


def paths(X: np.ndarray, n_nonzero: int, n_paths: int = 10, repeats: int = 3) -> dict[str, float]:
    """Return processor seconds of our paths and scikit-learn's to the same lambda, side by side.

    The targets are leading left singular vectors with noise, as MCFS's are smooth functions of
    the rows; ``apart`` is the largest relative difference of coefficients.
    """
    from sklearn.linear_model import lars_path_gram as theirs

    from bigfs.core.threads import single_thread
    from bigfs.solvers.lars import lars_path_gram as ours

    X = X[:, X.std(axis=0) > 0].astype(np.float64)
    X -= X.mean(axis=0)
    # Near the end of a path scikit-learn stops early, with a warning.
    n_nonzero = min(n_nonzero, 3 * X.shape[1] // 4, len(X) - 2)
    Y = np.linalg.svd(X, full_matrices=False)[0][:, :n_paths]
    Y += np.random.default_rng(0).normal(scale=0.01, size=Y.shape)
    gram, products = X.T @ X, X.T @ (Y - Y.mean(axis=0))
    totals: dict[str, list[float]] = {"bigfs": [], "scikit-learn": []}
    apart = 0.0
    with single_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(repeats):
            used = {"bigfs": 0.0, "scikit-learn": 0.0}
            for xty in products.T:
                begun = time.process_time()
                mine = ours(gram, xty, n_nonzero)
                middle = time.process_time()
                steps = {"max_iter": 100 * n_nonzero, "method": "lasso", "return_path": False}
                # It stops up to 1.2e-7 above its alpha, whatever the unit of y: with this unit the
                # last alpha is one, and the paths end at the same place.
                unit = len(X) / mine.lambda_
                coef = theirs(xty * unit, gram, n_samples=len(X), alpha_min=1.0, **steps)[2] / unit
                used["bigfs"] += middle - begun
                used["scikit-learn"] += time.process_time() - middle
                apart = max(apart, float(np.abs(mine.coef - coef).max() / np.abs(coef).max()))
            for name, value in used.items():
                totals[name].append(value)
    return {name: statistics.median(values) for name, values in totals.items()} | {"apart": apart}


def margins(wanted: tuple[int, ...], n_selected: int, C: float) -> list[float]:
    """Return processor seconds of M3FS on some digits, for each of `SMOOTHNESS`."""
    import bigfs
    from bigfs.core.threads import single_thread

    X, n_clusters = _digits(wanted)
    measured = []
    with single_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for smoothness in SMOOTHNESS:
            made = bigfs.M3FS(n_selected, n_clusters=n_clusters, C=C, smoothness=smoothness)
            begun = time.process_time()
            made.fit(X)
            measured.append(time.process_time() - begun)
    return measured


def large(scale: int = 1) -> dict[str, tuple[float, str]]:
    """Return processor seconds on made data of more rows, and a checksum of each result."""
    from sklearn.datasets import make_blobs

    import bigfs
    from bigfs.core.threads import single_thread

    def blobs(n: int, d: int, c: int, spread: float) -> np.ndarray:
        X = make_blobs(n // scale, d, centers=c, cluster_std=spread, random_state=0)[0]
        return X.astype(np.float32)

    def fit(name: str, X: np.ndarray, n_clusters: int) -> np.ndarray:
        made = getattr(bigfs, name)(10, n_clusters=n_clusters, verbose=0)
        return np.asarray(made.fit(X).scores_)

    rows, tall = blobs(12_000, 60, 10, 1.0), blobs(8_000, 200, 10, 6.0)
    graph = bigfs.knn_graph(rows, 10)
    work = {
        "graph": lambda: bigfs.knn_graph(rows, 10).indices[:],
        "eigenvectors": lambda: np.asarray(bigfs.spectral_embedding(graph, 10).eigenvalues),
        "MCFS": lambda: fit("MCFS", tall, 10),
        "NDFS": lambda: fit("NDFS", tall, 10),
        "M3FS": lambda: fit("M3FS", blobs(20_000, 40, 4, 4.0), 4),
    }
    measured = {}
    with single_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit("M3FS", tall[:200], 3)  # compiles
        for name, task in work.items():
            begun = time.process_time()
            result = np.ascontiguousarray(task())
            seconds = time.process_time() - begun
            measured[name] = seconds, hashlib.sha256(result.tobytes()).hexdigest()[:12]
    return measured


def compile_seconds(module: str) -> list[float]:
    """Return what loading the compiled loops of a module takes: a first process, a second one."""
    code = (
        f"import time, numba, {module} as loops\n"
        "used = time.process_time(); loops.warm_up(); print(time.process_time() - used)"
    )
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"NUMBA_CACHE_DIR": folder}
        runs = [
            subprocess.run(
                [sys.executable, "-c", code], env=environment, check=True, capture_output=True
            )
            for _ in range(2)
        ]
    return [float(run.stdout) for run in runs]


def _print_digits() -> None:
    margins((1, 7), 5, 1.0)  # what is loaded once
    for wanted, n_selected in (((1, 7), 10), ((2, 7), 10), ((0, 6, 8, 9), 20)):
        for C in (1.0, 10.0, 100.0, 1000.0):
            row = " ".join(f"{value:6.2f}" for value in margins(wanted, n_selected, C))
            print(f"{wanted!s:14} C = {C:<6g} {row}", flush=True)


def _print_pairs() -> None:
    margins((1, 7), 5, 1.0)
    for C in (1.0, 10.0, 100.0, 1000.0, 10_000.0):
        pairs = list(itertools.combinations(range(10), 2))
        measured = np.array([margins(pair, 10, C) for pair in pairs])
        medians = " ".join(f"{value:5.2f}" for value in np.median(measured, axis=0))
        slowest = " ".join(f"{value:5.2f}" for value in measured.max(axis=0))
        worst = pairs[int(measured.max(axis=1).argmax())]
        print(f"C = {C:<6g} median {medians}  slowest {slowest} {worst}", flush=True)


def _print_large() -> None:
    for name, (used, checksum) in large().items():
        print(f"{name:14} {used:7.3g} s  {checksum}")


def _print_compile() -> None:
    for module in COMPILED:
        print(module, *(f"{value:.2g}" for value in compile_seconds(module)))


def main() -> None:
    """Print the table, that of the paths, or what compilation takes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--limit", type=int, default=90, help="processor seconds of a fit")
    parser.add_argument("--write", type=Path, help="also keep the seconds as JSON, and go on there")
    parser.add_argument("--paths", action="store_true", help="MCFS's paths beside scikit-learn's")
    parser.add_argument("--compile", action="store_true", help="what compiled loops take to load")
    parser.add_argument("--large", action="store_true", help="seconds and checksums of more rows")
    parser.add_argument("--digits", action="store_true", help="M3FS at every C and smoothness")
    parser.add_argument("--pairs", action="store_true", help="M3FS on all pairs of digits")
    arguments = parser.parse_args()
    for asked, printed in (("digits", _print_digits), ("pairs", _print_pairs),
                           ("large", _print_large), ("compile", _print_compile)):  # fmt: skip
        if getattr(arguments, asked):
            printed()
            return
    kept = arguments.write and arguments.write.exists()
    table: dict[str, dict[str, Any]] = json.loads(arguments.write.read_text()) if kept else {}
    columns = ("bigfs", "scikit-learn", "apart") if arguments.paths else arguments.methods
    print(" ".join(["set".ljust(24), *(name[:12].rjust(12) for name in columns)]))
    for name, opened in small_sets(arguments.folder, arguments.sets).items():
        X, n_classes = opened()
        label = f"{name} {X.shape[0]}x{X.shape[1]} c={n_classes}"
        print(f"{label:24}", end="", flush=True)
        measured = table.setdefault(label, {})
        if arguments.paths and "apart" not in measured:
            measured |= paths(X, 200)
        for column in columns:
            if column not in measured:
                measured[column] = seconds(column, X, n_classes, arguments.limit)
            if arguments.write:
                arguments.write.write_text(json.dumps(table, indent=1) + "\n")
            value = measured[column]
            text = value if isinstance(value, str) else f"{value:.3g}"
            print(f" {text:>12}", end="", flush=True)
        print(flush=True)


if __name__ == "__main__":
    main()
