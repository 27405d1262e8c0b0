"""Stability of selections: consensus of small fits, coverage of the interval, quick runs.

    python -m tests.bench.bench_stability halves FOLDER [--sets USPS MNIST]
    python -m tests.bench.bench_stability coverage [--sets-of-data 50]
    python -m tests.bench.bench_stability quick FOLDER [--rows 10000000]

halves: each half of a data set has fits of MCFS on small samples, with 50 features. Printed are the
stability, what the consensus rankings of the two halves have in common for several numbers of
pairs, and the same of single fits. The fits are made once, with the most pairs; fewer pairs are
the first of them. Samples of more than 8,192 rows are searched by pynndescent, which compiles once.

coverage: simulated data of which the truth is known: what selections on independent samples have in
common, from 2,000 pairs. How often does the interval hold it?

quick: writes float32 rows of ten groups that differ in 20 of 100 features, block by block, and runs
``quick: true`` on two workers of 1.5 GiB, beside passes that make the Gram matrix.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np

import bigfs
from bigfs import MCFS, MaxVariance, StabilitySelection
from bigfs.blocks import RowBlocks
from bigfs.core.units import MIB, parse_bytes
from bigfs.runtime.connection import local_cluster
from bigfs.runtime.workers import on_every_process
from bigfs.selectors.stability.rows import Draw
from bigfs.solvers.agreement import (
    Agreement,
    agreement_of_pairs,
    consensus_ranking,
    stability_of,
    step_of,
)
from bigfs.store.ingest import ingest
from bigfs.store.source import Source, is_store

# Rows of a sample, and pairs. None: half of the rows that there are.
_GRID: dict[str, tuple[tuple[int | None, int], ...]] = {
    "USPS": ((1000, 50), (None, 50)),
    "MNIST": ((1000, 50), (3000, 50), (5000, 50), (10_000, 50)),
}
_PAIRS = (5, 10, 25, 50)


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Measure, print and return the figures, one dict a line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    of_halves = kinds.add_parser("halves")
    of_halves.add_argument("folder", type=Path)
    of_halves.add_argument("--sets", nargs="+", default=list(_GRID))
    of_halves.add_argument("--rows", type=int, default=None, help="take the first rows only")
    of_halves.add_argument("--selected", type=int, default=50)
    of_halves.add_argument("--pairs", type=int, default=50, help="the most pairs")
    of_coverage = kinds.add_parser("coverage")
    of_coverage.add_argument("--sets-of-data", type=int, default=50)
    of_coverage.add_argument("--truth", type=int, default=2000)
    of_quick = kinds.add_parser("quick")
    of_quick.add_argument("folder", type=Path)
    of_quick.add_argument("--rows", type=int, default=10_000_000)
    of_quick.add_argument("--features", type=int, default=100)
    of_quick.add_argument("--pairs", type=int, default=25)
    of_quick.add_argument("--memory", default="1.5 GiB")
    of_quick.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(arguments)
    return list({"halves": halves, "coverage": coverage, "quick": quick}[options.kind](options))


def halves(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a line for each set and sample size, and one of fits on all rows of each half."""
    m = options.selected
    print("set      rows of a fit  fits  stability  interval      single fits  consensus by pairs")
    for name in options.sets:
        X = np.load(options.folder / f"{name}.npz")["X"].astype(np.float32)[: options.rows]
        order = np.random.default_rng(0).permutation(len(X))
        parts = [X[np.sort(order[: len(X) // 2])], X[np.sort(order[len(X) // 2 :])]]
        selector = MCFS(m, n_clusters=10)
        for size, n_pairs in _GRID.get(name, ((None, 50),)):
            n_pairs = min(n_pairs, options.pairs)
            began, figures = time.process_time(), []
            with dask.config.set(scheduler="synchronous"):
                for part in parts:
                    sure = StabilitySelection(selector, n_pairs, size)
                    figures.append(sure.fit(part))
            seconds = (time.process_time() - began) / 4 / n_pairs
            both = {
                n: len(np.intersect1d(*(_first(item, n, m) for item in figures))) / m
                for n in _PAIRS
                if n <= n_pairs
            }
            d, value = X.shape[1], [item.stability_ for item in figures]
            line = {
                "set": name,
                "rows": figures[0].sample_size_,
                "fits": 2 * n_pairs,
                "stability": value,
                "intervals": [item.stability_interval_.tolist() for item in figures],
                "single": statistics.mean(value) * (1 - m / d) + m / d,
                "consensus": both,
                "seconds": seconds,
            }
            low, high = figures[0].stability_interval_
            shares = ", ".join(f"{n}: {100 * share:.0f} %" for n, share in both.items())
            print(
                f"{name:<8} {line['rows']:>13,}  {line['fits']:>4}  {value[0]:>9.2f}  "
                f"{low:.2f} to {high:.2f}  {100 * line['single']:>9.0f} %  {shares}; "
                f"{seconds:.2f} s a fit",
                flush=True,
            )
            yield line


def _first(fitted: Any, n_pairs: int, m: int) -> np.ndarray:
    """Return the consensus of the first pairs; ties by mean rank, as scores are not kept."""
    rankings = fitted.rankings_[: 2 * n_pairs]
    masks = _masks(rankings, m)
    return consensus_ranking(masks.mean(axis=0), np.zeros(masks.shape[1]), rankings)[:m]


def _masks(rankings: np.ndarray, m: int) -> np.ndarray:
    masks = np.zeros(rankings.shape, dtype=bool)
    np.put_along_axis(masks, rankings[:, :m], True, axis=1)
    return masks


def _by_variance(X: np.ndarray, m: int) -> np.ndarray:
    return np.argsort(-X.var(axis=0), kind="stable")[:m]


def _by_components(X: np.ndarray, m: int) -> np.ndarray:
    """Return the features of largest loading on three principal components."""
    centered = X - X.mean(axis=0)
    vectors = np.linalg.eigh(centered.T @ centered)[1][:, -3:]
    return np.argsort(-np.abs(vectors).max(axis=1), kind="stable")[:m]


def _normal(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    return rng.standard_normal((n, d)) * (1 + 0.3 * np.linspace(1, 0, d) ** 2)


def _heavy(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    return rng.standard_t(4, size=(n, d)) * (1 + 0.5 * np.linspace(1, 0, d))


def _factors(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    fixed = np.random.default_rng(5)
    loadings = fixed.standard_normal((5, d)) * (fixed.random((5, d)) < 0.4)
    return rng.standard_normal((n, 5)) @ loadings + rng.standard_normal((n, d))


_FAMILIES: dict[str, tuple[Callable[..., np.ndarray], Callable[..., np.ndarray]]] = {
    "normal, variance": (_normal, _by_variance),
    "heavy tails, variance": (_heavy, _by_variance),
    "factors, components": (_factors, _by_components),
}


def coverage(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a line for each family and size: the truth, the mean stated, and the coverage."""
    d, m = 60, 10
    print("data, method             rows  a fit  pairs  truth  stated  width  holds the truth")
    for name, (make, select) in _FAMILIES.items():
        for n, size, n_pairs in ((600, 300, 10), (600, 300, 25), (600, 150, 25), (3000, 50, 25)):
            rng = np.random.default_rng(17)
            pairs = [
                [select(make(rng, size, d), m) for _ in range(2)] for _ in range(options.truth)
            ]
            truth = float(agreement_of_pairs(_chosen([f for p in pairs for f in p], d)).mean())
            stated = []
            for seed in range(options.sets_of_data):
                draw = Draw(n, size, n_pairs, seed)
                X = make(rng, n, d)
                rows = draw.rows_of(0, n, draw.counts(), range(2 * n_pairs))
                fits = [select(X[rows[fit]], m) for fit in range(2 * n_pairs)]
                measured = agreement_of_pairs(_chosen(fits, d))
                stated.append(stability_of(measured, draw.shared_rows, step_of(m, d)))
            yield _covered(name, n, size, n_pairs, truth, stated)
    # The same by the estimator, whose selection here is that of the first family.
    size, n_pairs = 300, 10
    rng = np.random.default_rng(17)
    pairs = [[_by_variance(_normal(rng, size, d), m) for _ in "ab"] for _ in range(options.truth)]
    truth = float(agreement_of_pairs(_chosen([f for p in pairs for f in p], d)).mean())
    stated = []
    with dask.config.set(scheduler="synchronous"):
        for seed in range(options.sets_of_data):
            sure = StabilitySelection(MaxVariance(m), n_pairs, random_state=seed)
            sure.fit(_normal(rng, 600, d))
            low, high = sure.stability_interval_
            stated.append(Agreement(sure.stability_, low, high))
    yield _covered("StabilitySelection", 600, size, n_pairs, truth, stated)


def _chosen(selections: list[np.ndarray], d: int) -> np.ndarray:
    masks = np.zeros((len(selections), d), dtype=bool)
    for mask, selection in zip(masks, selections, strict=True):
        mask[selection] = True
    return masks


def _covered(
    name: str, n: int, size: int, n_pairs: int, truth: float, stated: list[Any]
) -> dict[str, Any]:
    held = sum(interval.low <= truth <= interval.high for interval in stated)
    mean = statistics.mean(interval.value for interval in stated)
    width = statistics.mean(interval.high - interval.low for interval in stated)
    print(
        f"{name:<23} {n:>5}  {size:>5}  {n_pairs:>5}  {truth:>5.2f}  {mean:>6.2f}  {width:>5.2f}  "
        f"{held} of {len(stated)}",
        flush=True,
    )
    return {"name": name, "truth": truth, "mean": mean, "held": held / len(stated)}


class Groups(Source):
    """Rows of ten groups whose centers differ in every fifth feature, made as they are read."""

    def __init__(self, n_samples: int, n_features: int) -> None:
        self.uri = "groups"
        self.n_samples, self.n_features = n_samples, n_features
        self.dtype = np.dtype(np.float32)
        self.planted = np.arange(0, n_features, 5)
        shape = (10, len(self.planted))
        self._centers = 1.5 * np.random.default_rng(1).standard_normal(shape, dtype=np.float32)

    def iter_rows(self, rows: int) -> Iterator[np.ndarray]:
        """Yield consecutive arrays of at most ``rows`` rows."""
        for start in range(0, self.n_samples, rows):
            draw = np.random.default_rng([2, start])
            size = min(rows, self.n_samples - start)
            X = draw.standard_normal((size, self.n_features), dtype=np.float32)
            X[:, self.planted] += self._centers[draw.integers(10, size=size)]
            yield X


def _processor_seconds() -> float:
    """Return the processor seconds of all processes so far."""
    return float(sum(on_every_process(time.process_time).values()))


class _Seconds(logging.Handler):
    """Keeps the seconds of each piece of work that is reported."""

    def __init__(self) -> None:
        super().__init__()
        self.of: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        fields = getattr(record, "fields", {})
        if fields.get("event") == "done":
            self.of[fields["work"]] = fields["seconds"]


def quick(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the figures of a quick run beside passes that make the Gram matrix."""
    from distributed import Client

    options.folder.mkdir(parents=True, exist_ok=True)
    store = options.folder / f"groups-{options.rows}x{options.features}.zarr"
    data = Groups(options.rows, options.features)
    if not is_store(store):
        ingest(data, store)
    memory, heard = parse_bytes(options.memory), _Seconds()
    logger = logging.getLogger("bigfs")
    level = logger.level
    logger.addHandler(heard)
    logger.setLevel(logging.INFO)
    try:
        with local_cluster(2, 1, memory) as cluster, Client(cluster):
            passes, busy = [], []
            for _ in range(options.repeats):
                began, before = time.perf_counter(), _processor_seconds()
                RowBlocks.from_any(store).gram()
                passes.append(time.perf_counter() - began)
                busy.append(_processor_seconds() - before)
            began, before = time.perf_counter(), _processor_seconds()
            result = bigfs.run(
                {
                    "run": str(options.folder / "run"),
                    "input": {"uri": str(store)},
                    "method": "mcfs",
                    "mcfs": {"n_clusters": 9},
                    "n_features_to_select": len(data.planted),
                    "stability": {"n_pairs": options.pairs},
                    "quick": True,
                    "memory_limit": options.memory,
                },
                fresh=True,
            )
            seconds, worked = time.perf_counter() - began, _processor_seconds() - before
    finally:
        logger.removeHandler(heard)
        logger.setLevel(level)
    record, sure = result.stages["result"], result.stability
    assert sure is not None
    row = {
        "gram": passes,
        "samples": heard.of["samples"],
        "fits": heard.of["stability"],
        "seconds": seconds,
        "right": int(np.isin(result.selected, data.planted).sum()),
        "peak": record["measured_peak_bytes"],
        "predicted": record["predicted_peak_bytes"],
    }
    once = statistics.median(passes)
    print(
        f"{options.rows:,} x {options.features}: one Gram pass {once:.1f} s of {passes}, "
        f"{statistics.median(busy):.1f} s of processors"
    )
    print(
        f"quick: {seconds:.1f} s; of these rows drawn {row['samples']:.1f} s, {sure.n_fits} fits "
        f"{row['fits']:.1f} s; without the fits {(seconds - row['fits']) / once:.2f} passes; "
        f"{worked:.1f} s of processors"
    )
    print(f"{row['right']} of {len(data.planted)} features are right; {sure.share_line()}")
    print(f"largest worker {row['peak'] / MIB:.0f} MiB, predicted {row['predicted'] / MIB:.0f}")
    yield row


if __name__ == "__main__":
    main()
