"""Is a graph of principal components as good as one of all features, where rows are wide?

    python -m tests.bench.bench_representation FOLDER [--rows 20000]

FOLDER holds the npz files below, with X and y. For each, and for data with planted features: the
components that the rule of `graph.representation: auto` takes whatever the number of rows, the
share of the 5 true neighbors (all features) that their graph has, and NMI and 1-NN error, in
percent, of features that MCFS selects with either graph (means over 20, 50 and 100 features; as
many clusters as classes; k-means as in `evaluate`). Of planted data the share of the 50 selected
that are planted. Then the mean of the differences.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bigfs import MCFS, knn_graph
from bigfs.blocks import RowBlocks
from bigfs.evaluate.protocols import Protocol
from bigfs.evaluate.selection import measure_selection
from bigfs.graph import representation
from bigfs.store.source import open_matrix
from tests.bench._manifold import PlantedManifold
from tests.bench.bench_defaults import planted

SETS = ("ATT", "ORL", "UMIST", "COIL20", "MNIST", "lung_discrete", "Prostate_GE")
SIZES, MOST_CHECKED = (20, 50, 100), 2000


def data_of(folder: Path, n_rows: int) -> Iterator[tuple[str, np.ndarray, np.ndarray | None, set]]:
    """Yield name, X, classes and planted features of each set."""
    for path in [folder / f"{name}.npz" for name in SETS]:
        if path.exists():
            with np.load(path) as z:
                yield path.stem, z["X"], z["y"].astype(int), set()
    for d in (300, 1280):
        manifold = PlantedManifold(n_rows, d)
        yield f"manifold, {d}", manifold.rows(0, n_rows), None, set(manifold.planted.tolist())
        X, features, y = planted(n_rows, d)
        yield f"groups, {d}", X, y, set(features.tolist())


def main(arguments: list[str] | None = None) -> dict[str, tuple[str, float, list[list[float]]]]:
    """Print the table; return what was taken, recall and figures of both graphs, of each set."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--repetitions", type=int, default=10)
    options = parser.parse_args(arguments)
    print(f"{'set':<14} {'auto':>8} {'recall':>7} {'NMI raw':>8} {'auto':>6} {'1-NN raw':>9} "
          f"{'auto':>6} {'planted raw':>12} {'auto':>6}")  # fmt: skip
    everything = {}
    for name, X, y, features in data_of(options.folder, options.rows):
        taken = f"pca:{enough}" if (enough := components_of(X)) else "raw"
        figures = [_judged(X, y, features, form, options.repetitions) for form in ("raw", taken)]
        recall = _recall(X, taken)
        everything[name] = taken, recall, figures
        cells = "".join(f"{a:10.1f}{b:7.1f}" for a, b in zip(*figures, strict=True))
        print(f"{name:<14} {taken:>8} {recall:7.3f}{cells}", flush=True)
    changes = np.array([np.subtract(b, a) for _, _, (a, b) in everything.values()])
    print("mean of the differences: NMI {:+.2f}, 1-NN error {:+.2f}, planted {:+.2f}".format(
        *np.nanmean(changes, axis=0)))  # fmt: skip
    return everything


def components_of(X: np.ndarray) -> int | None:
    """Return what the rule takes, for data of any number of rows and features."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(representation, "WIDE", 0)
        patch.setattr(representation, "MANY_ROWS", 0)
        return representation.components_enough(open_matrix(X), "none", 5, 2**32)


def _recall(X: np.ndarray, taken: str) -> float:
    """Return the share of true neighbors that a graph of components has."""
    rows = np.random.default_rng(0).permutation(len(X))[: 5 * MOST_CHECKED]
    graphs = [knn_graph(X[rows], 5, representation=form, algorithm="exact").indices[...]
              for form in ("raw", taken)]  # fmt: skip
    pairs = zip(*(graph[:MOST_CHECKED] for graph in graphs), strict=True)
    return float(np.mean([np.isin(true, found).mean() for true, found in pairs]))


def _judged(
    X: np.ndarray, y: np.ndarray | None, features: set[int], form: str, repetitions: int
) -> list[float]:
    """Return NMI and 1-NN error, and planted among the selected, in percent; NaN where unknown."""
    n_clusters = 20 if y is None else int(y.max()) + 1
    ranking = MCFS(100, n_clusters=n_clusters, representation=form, verbose=0).fit(X).ranking_
    found = [100 * float(np.isin(ranking[:50], list(features)).mean())] if features else [np.nan]
    if y is None or features:
        return [np.nan, np.nan, *found]
    rows = np.random.default_rng(0).permutation(len(X))[: 5 * MOST_CHECKED]
    blocks, protocol = RowBlocks.from_any(X[rows]), Protocol(n_clusters, repetitions)
    judged = [measure_selection(blocks, y[rows], ranking[:m], protocol, "4 GiB") for m in SIZES]
    names = ("nmi_mean", "nearest_neighbor_error")
    return [100 * float(np.mean([of[name] for of in judged])) for name in names] + found


if __name__ == "__main__":
    main()
