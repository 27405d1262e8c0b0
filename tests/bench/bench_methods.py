"""All methods at their defaults on the shared sets: quality, processor seconds, mean ranks.

    python -m tests.bench.bench_methods FOLDER OUT.json              # all sets and methods
    python -m tests.bench.bench_methods FOLDER OUT.json --sets ORL USPS --methods mcfs ndfs
    python -m tests.bench.bench_methods FOLDER OUT.json --print      # the tables of what is there

FOLDER holds the sets as NAME.npz with ``X`` and ``y``; OUT.json keeps what is finished, so that the
same command continues. Every method is fitted in another process, on one thread, and is told the
number of classes where it has ``n_clusters``; all else is its default. A method that takes more
than ``--limit`` seconds on a set is given up. Processor seconds are those of one fit, its graph
included, for the largest number of features; methods whose order depends on the number are fitted
for each.
A selection is judged by k-means from one random start, 20 times, and by its 1-NN error.
"""

from __future__ import annotations

import argparse
import inspect
import json
import multiprocessing
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import bigfs
from bigfs.blocks import RowBlocks
from bigfs.core.errors import BigfsError
from bigfs.core.seeds import rng
from bigfs.core.threads import single_thread
from bigfs.evaluate.protocols import Protocol
from bigfs.evaluate.selection import measure_selections
from bigfs.pipeline.table import BETTER, NEITHER, WORSE, RankSummary, Row
from bigfs.selectors.registry import METHODS

SETS = ("ORL", "COIL20", "USPS", "UMIST", "ATT", "MNIST-5000", "letter", "satimage",
        "lung_discrete", "Prostate_GE", "ionosphere", "glass", "sonar")  # fmt: skip
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in METHODS},
    "mcfs lasso": ("mcfs", {"regression": "lasso"}),
    "spec phi3": ("spec", {"ranking": "phi3"}),
    "fsgmm 30": ("fsgmm", {"n_clusters": 30}),  # its default: components at the start, not classes
}
# Labels are not selections; phi2 is the Laplacian score, and chance has a row of its own; some of
# the sets are no counts; components of a mixture at the start are not classes.
LEFT_OUT = ("spec", "random_selection", "highly_variable", "fsgmm")
ALL, CHANCE = "all features", "chance"
SCORES = ("nmi", "acc", "nearest_neighbor_error")


def load(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a set; NAME-ROWS are so many rows of it, drawn by a fixed seed."""
    stem, _, n_rows = name.partition("-")
    with np.load(folder / f"{stem}.npz") as stored:
        X, y = stored["X"], stored["y"]
    if n_rows:
        kept = np.sort(rng(0, name).choice(len(X), int(n_rows), replace=False))
        X, y = X[kept], y[kept]
    return X, y


def sizes_of(n_features: int) -> list[int]:
    """Return 10, 25, 50 and 100, or a quarter and a half of few features."""
    if n_features > 200:
        return [10, 25, 50, 100]
    return [n_features // 4, n_features // 2]


def fit(variant: str, X: np.ndarray, n_classes: int, sizes: list[int]) -> dict[str, Any]:
    """Return the selections of a method, and the processor seconds of a fit."""
    name, settings = VARIANTS[variant]
    method = METHODS[name]
    kind = method.estimator_class()
    if "n_clusters" in inspect.signature(kind).parameters:
        settings = {"n_clusters": n_classes, **settings}
    each = method.one_fit_up_to(method.parameters(**settings)) < max(sizes)
    figures: dict[str, Any] = {"selected": {}}
    with single_thread():
        with suppress(BigfsError):  # loads what a fit loads
            kind(1, **settings).fit(X[:60, :20])
        for wanted in [[m] for m in sizes] if each else [sizes]:
            used = time.process_time()
            selector = kind(max(wanted), **settings).fit(X)
            figures["seconds"] = time.process_time() - used
            figures["selected"] |= {str(m): selector.support(m).tolist() for m in wanted}
    return figures


def judge(X: np.ndarray, y: np.ndarray, selections: list[Any], repetitions: int) -> dict[str, Any]:
    """Return the scores of a selection, or of several that were drawn."""
    protocol = Protocol(int(y.max()) + 1, repetitions, 1, "random")
    blocks = RowBlocks.from_any(X)
    kept = [None if selection is None else np.asarray(selection) for selection in selections]
    with single_thread():
        return measure_selections(blocks, y, kept, protocol, "4 GiB")


class Results:
    """Finished fits, in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def add(self, name: str, variant: str, measured: dict[str, Any]) -> None:
        """Keep what was found of a method on a set."""
        self.data.setdefault(name, {})[variant] = measured
        self.path.write_text(json.dumps(self.data))


def measure_set(
    results: Results, name: str, X: np.ndarray, y: np.ndarray, variants: list[str], limit: float,
    repetitions: int = 20, n_draws: int = 10,
) -> None:  # fmt: skip
    """Fit and judge methods on one set, those that are not there yet."""
    done, sizes = results.data.get(name, {}), sizes_of(X.shape[1])
    if ALL not in done:
        results.add(name, ALL, {"scores": {"": judge(X, y, [None], repetitions)}})
    if CHANCE not in done:
        draws = bigfs.RandomSelection(1, n_draws=n_draws).fit(X).draws_
        scores = {str(m): judge(X, y, [d[:m] for d in draws], repetitions) for m in sizes}
        results.add(name, CHANCE, {"scores": scores})
    context, pool = multiprocessing.get_context("spawn"), None
    for variant in variants:
        if variant in done:
            continue
        pool = pool or context.Pool(1)
        try:
            measured = pool.apply_async(fit, (variant, X, int(y.max()) + 1, sizes)).get(limit)
        except multiprocessing.TimeoutError:
            measured = {"failed": f"more than {limit:.0f} s"}
        except BigfsError as error:
            measured = {"failed": str(error)}
        if "failed" in measured:
            pool.terminate()
            pool = None
        else:
            measured["scores"] = {
                m: judge(X, y, [selected], repetitions)
                for m, selected in measured["selected"].items()
            }
        results.add(name, variant, measured)
        print(name, variant, measured.get("failed") or f"{measured['seconds']:.1f} s", flush=True)
    if pool is not None:
        pool.terminate()


def value(measured: dict[str, Any], score: str) -> float:
    """Return a score in percent, the mean over all numbers of features."""
    values = [item.get(f"{score}_mean", item.get(score)) for item in measured["scores"].values()]
    return 100 * float(np.mean(values))


def than_chance(data: dict[str, Any], variant: str) -> dict[str, str]:
    """Return by score how many selections are better than chance, neither, and worse."""
    words: dict[str, list[str]] = {score: [] for score in SCORES}
    for actual in data.values():
        for m, scores in actual.get(variant, {}).get("scores", {}).items():
            rows = [
                Row(variant, variant, int(m), np.empty(0), item, 0.0)
                for item in (scores, actual[CHANCE]["scores"][m])
            ]
            for score, word in rows[0].than(rows[1]).items():
                words[score].append(word)
    return {
        score: " / ".join(str(all_of.count(word)) for word in (BETTER, NEITHER, WORSE))
        for score, all_of in words.items()
    }


def tables(data: dict[str, Any], folder: Path | None = None) -> str:
    """Return a table for each score, with mean ranks, and one of processor seconds.

    ``folder`` gets the files of `RankSummary.write`, the picture among them.
    """
    sets, lines = list(data), []
    variants = list(dict.fromkeys(v for actual in data.values() for v in actual))
    complete = [v for v in variants if all("scores" in data[s].get(v, {}) for s in sets)]
    ranked = [v for v in complete if v != ALL]
    header = f"{'':<27}" + "".join(f"{s[:10]:>11}" for s in sets)
    values = {
        score: {s: {v: value(data[s][v], score) for v in ranked} for s in sets} for score in SCORES
    }
    summary = RankSummary.of_values(values)
    if folder is not None:
        summary.write(folder)
    for score in SCORES:
        lines += [
            "",
            f"{score} (percent, mean over the numbers of features)",
            header + "  mean rank",
        ]
        actual = summary.ranks[score]
        order = [ranked[i] for i in np.argsort(actual.mean_ranks, kind="stable")]
        for variant in [ALL, *order, *(v for v in variants if v not in complete)]:
            there = [data[s].get(variant, {}) for s in sets]
            cells = "".join(
                f"{value(part, score):>11.1f}" if "scores" in part else f"{'-':>11}"
                for part in there
            )
            rank = actual.mean_ranks[ranked.index(variant)] if variant in ranked else None
            lines.append(f"{variant:<27}{cells}" + (f"{rank:>11.2f}" if rank else ""))
    lines += ["", summary.text()]
    lines += ["", "selections that are better than chance / neither / worse"]
    lines.append(f"{'':<27}" + "".join(f"{score[:16]:>18}" for score in SCORES))
    for variant in (v for v in variants if v not in (ALL, CHANCE)):
        counts = than_chance(data, variant)
        lines.append(f"{variant:<27}" + "".join(f"{counts[score]:>18}" for score in SCORES))
    lines += ["", "processor seconds of one fit", header]
    for variant in variants:
        there = [data[s].get(variant, {}) for s in sets]
        if any("seconds" in part for part in there):
            cells = "".join(
                f"{part['seconds']:>11.2f}" if "seconds" in part else f"{'-':>11}" for part in there
            )
            lines.append(f"{variant:<27}{cells}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> Any:
    """Fit, judge and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sets", nargs="+", default=SETS)
    known = [name for name in VARIANTS if name not in LEFT_OUT]
    parser.add_argument("--methods", nargs="+", default=known, choices=VARIANTS)
    parser.add_argument("--limit", type=float, default=120.0)
    parser.add_argument("--ranks", type=Path, help="folder for the ranks and their picture")
    parser.add_argument("--print", dest="only_print", action="store_true")
    options = parser.parse_args(arguments)
    results = Results(options.out)
    if not options.only_print:
        for name in options.sets:
            X, y = load(options.folder, name)
            measure_set(results, name, X, y, options.methods, options.limit)
    if len(results.data) > 1:  # ranks need two sets
        print(tables(results.data, options.ranks))
    return results.data


if __name__ == "__main__":
    main()
