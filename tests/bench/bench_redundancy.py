"""Selections with and without features that say the same as better ones.

    BIGFS_DATA=FOLDER python -m tests.bench.bench_redundancy [--sets A B] [--limit 0.95]

USPS and MNIST (5,000 rows each), sonar (60 bands), worm_neuron (counts of cells), and made spectra:
1,500 mixtures of eight smooth curves at 200 bands, with noise of a hundredth, of eight classes.
With as many clusters as classes, 20 and 50 features. A cell has the mean absolute correlation of
the pairs of selected features / NMI (single-start k-means, 20 times) / 1-NN error in percent, and
how many of the selected features are others.
"""

from __future__ import annotations

import argparse
import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from bigfs.blocks import RowBlocks
from bigfs.evaluate.protocols import Protocol
from bigfs.evaluate.selection import measure_selection
from bigfs.selectors.registry import METHODS
from tests.bench.bench_methods import load

SETS = ("USPS-5000", "MNIST-5000", "sonar", "spectra", "worm_neuron")
CHOSEN, SIZES = ("mcfs", "ndfs", "column_subset", "max_variance"), (20, 50)


def spectra(n: int = 1500, n_bands: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Return mixtures of smooth curves, and the curve that each is mostly of."""
    rng, band = np.random.default_rng(0), np.linspace(0, 1, n_bands)
    peaks, widths = rng.random((8, 3, 1)), rng.uniform(0.03, 0.15, (8, 3, 1))
    curves = np.exp(-(((band - peaks) / widths) ** 2)).sum(axis=1)
    y = rng.integers(8, size=n)
    shares = rng.dirichlet(np.full(8, 0.5), n) + 0.7 * np.eye(8)[y]
    return shares @ curves + 0.01 * rng.standard_normal((n, n_bands)), y


def labeled(names: list[str]) -> Iterator[tuple[str, Any, np.ndarray]]:
    """Yield name, X and classes of each set."""
    folder = Path(os.environ.get("BIGFS_DATA", "."))
    for name in names:
        if name == "spectra":
            yield name, *spectra()
        elif name == "worm_neuron":
            with np.load(folder / f"{name}.npz") as z:
                X = csr_array((z["data"], z["indices"], z["indptr"]), shape=tuple(z["shape"]))
                yield name, X, z["y"]
        else:
            yield name, *load(folder, name)


def measure(
    X: Any, y: np.ndarray, name: str, m: int, limit: float | None, repetitions: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the selected features, and redundancy, NMI and 1-NN error in percent."""
    kind, k = METHODS[name].estimator_class(), int(y.max()) + 1
    settings = {"n_clusters": k} if "n_clusters" in inspect.signature(kind).parameters else {}
    fitted = kind(m, redundancy=limit, verbose=0, **settings).fit(X)
    blocks = RowBlocks.from_any(X, transform=fitted.preprocess_, sparse=True)
    protocol = Protocol(k, repetitions, 1, "random")
    scores = measure_selection(blocks, y, fitted.support(m), protocol, "4 GiB")
    names = ("redundancy", "nmi_mean", "nearest_neighbor_error")
    return fitted.support(m), 100 * np.array([scores[name] for name in names])


def main(arguments: list[str] | None = None, repetitions: int = 20) -> dict[Any, np.ndarray]:
    """Print a line for every set, method and size; return the figures with and without."""
    parser = argparse.ArgumentParser(
        "bench_redundancy", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--methods", nargs="+", default=list(CHOSEN))
    parser.add_argument("--limit", type=float, default=0.95)
    options = parser.parse_args(arguments)
    figures = {}
    for name, X, y in labeled(options.sets):
        for method in options.methods:
            for m in [m for m in SIZES if m < X.shape[1]]:
                kept, plain = measure(X, y, method, m, None, repetitions)
                other, less = measure(X, y, method, m, options.limit, repetitions)
                figures[name, method, m] = np.array([plain, less])
                cells = "".join("  {:>5.1f} /{:>5.1f} /{:>5.1f}".format(*f) for f in (plain, less))
                n_others = len(np.setdiff1d(other, kept))
                print(f"{name:<13}{method:<15}{m:>3}{cells}{n_others:>6} others", flush=True)
    return figures


if __name__ == "__main__":
    main()
