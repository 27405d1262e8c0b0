"""Numbers of selected features that change when the data are multiplied or shifted.

    BIGFS_DATA=FOLDER python -m tests.bench.bench_invariance [--methods A B] [--sets A B]

Each method with its defaults, half of the features; a count of features that differ, per set. For
powers of two "=" says that the whole ranking has the same bits.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from bigfs.selectors.registry import METHODS

CHANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "x 2^10": lambda X: X * X.dtype.type(2.0**10),
    "x 2^-20": lambda X: X * X.dtype.type(2.0**-20),
    "x 255": lambda X: X * X.dtype.type(255),
    "x 1e-6": lambda X: X * X.dtype.type(1e-6),
    "x 1e6": lambda X: X * X.dtype.type(1e6),
    "+ 10 s": lambda X: X + X.dtype.type(10 * X.std()),
    "+ 1000 s": lambda X: X + X.dtype.type(1000 * X.std()),
}
# Searches over subsets of features, and mixtures, see fewer features.
FEW = {"lfs": 10, "gfs_kmeans": 12, "m3fs": 40, "maximum_margin_clustering": 40}


def sets() -> Iterator[tuple[str, np.ndarray]]:
    """Yield the data: planted, of scikit-learn and stored ones, in float64 and float32."""
    from sklearn.datasets import load_breast_cancer, load_digits, load_wine

    rng = np.random.default_rng(3)
    X = rng.standard_normal((200, 60)) * (1 + rng.random(60))
    X[:, :20] += 2.5 * rng.standard_normal((4, 20))[np.arange(200) % 4]
    yield "planted", X
    yield "digits", load_digits().data[:300]
    yield "wine", load_wine().data
    yield "breast", load_breast_cancer().data[:200]
    yield "counts", rng.poisson(0.5, (150, 60)).astype(np.float64)
    yield "flags", (rng.random((150, 60)) < 0.3).astype(np.float64)
    yield "planted32", X.astype(np.float32)
    if "BIGFS_DATA" in os.environ:
        folder = Path(os.environ["BIGFS_DATA"])
        for name, n in (("ionosphere", 300), ("USPS", 300)):
            yield name + "32", np.load(folder / f"{name}.npz")["X"][:n].astype(np.float32)


def fit(name: str, X: np.ndarray, m: int) -> np.ndarray:
    """Return the ranking."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return METHODS[name].estimator_class()(n_features_to_select=m).fit(X).ranking_


def compare(name: str, X: np.ndarray, changes: dict[str, Callable]) -> list[str]:
    """Return a cell for each change: features that differ, "=" for the same ranking."""
    X = X[:, : FEW.get(name, X.shape[1])]
    m = X.shape[1] // 2
    expected = fit(name, X, m)
    cells = []
    for change in changes.values():
        ranking = fit(name, change(X), m)
        n_others = len(set(ranking[:m]) - set(expected[:m]))
        cells.append("=" if (ranking == expected).all() else f"{n_others}/{m}")
    return cells


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--sets", nargs="+", default=None)
    options = parser.parse_args(arguments)
    print(f"{'':<28}{'':<12}" + "".join(f"{change:>9}" for change in CHANGES))
    for name in options.methods:
        for data, X in sets():
            if options.sets is None or data in options.sets:
                begun = time.process_time()
                cells = compare(name, X, CHANGES)
                seconds = time.process_time() - begun
                line = "".join(f"{cell:>9}" for cell in cells)
                print(f"{name:<28}{data:<12}{line}{seconds:8.1f} s", flush=True)


if __name__ == "__main__":
    main()
