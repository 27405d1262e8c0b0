"""Every method with its defaults on data that others try first, beside chance.

    python -m tests.bench.bench_outside [--sets A B] [--methods A B]

Sets of scikit-learn as they are, and made ones: blobs and moons beside noise, one-hot, counts, time
series, groups. A cell has NMI and 1-NN error of k-means on the selected features in percent, by how
many deviations of ten random selections they are better than their mean, and how many of the
planted features are selected. Failures, leaked warnings and numbers that are not finite are named.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator

import numpy as np

from bigfs.core.errors import BigfsError
from bigfs.selectors.registry import METHODS
from tests.bench.bench_defaults import judge
from tests.bench.bench_methods import LEFT_OUT

Case = tuple[str, np.ndarray, np.ndarray | None, int]


def cases(rng: np.random.Generator) -> Iterator[Case]:
    """Yield name, X, classes and how many of the first features were planted (0: not known)."""
    from sklearn import datasets

    for name in ("iris", "wine", "breast_cancer", "digits", "diabetes"):
        X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        kept = rng.permutation(len(X))[:600] if name == "digits" else np.arange(len(X))
        yield name, X[kept], None if name == "diabetes" else y[kept], 0
    X, y = datasets.make_blobs(400, 5, centers=4, random_state=0)
    yield "blobs", np.hstack([X, rng.standard_normal((400, 15))]), y, 5
    X, y = datasets.make_moons(400, noise=0.05, random_state=0)
    yield "moons", np.hstack([X, 0.3 * rng.standard_normal((400, 6))]), y, 2
    y = rng.integers(4, size=300)
    yield "one-hot", np.hstack([np.eye(4)[y], np.eye(5)[rng.integers(5, size=300)]]), y, 0
    y = rng.integers(3, size=300)
    rate = np.full((300, 20), 0.5)
    rate[:, :6][y[:, None] == np.arange(6) % 3] = 8
    yield "counts", rng.poisson(rate).astype(float), y, 6
    y, time = rng.integers(3, size=200), np.arange(60) / 60
    waves = np.stack([np.sin(2 * np.pi * (k + 1) * time) for k in range(3)])
    yield "time series", waves[y] + 0.3 * rng.standard_normal((200, 60)), y, 0
    X, y = rng.standard_normal((500, 20)), rng.integers(5, size=500)
    X[:, :6] += 3 * rng.standard_normal((5, 6))[y]
    yield "groups", X, y, 6


def cell(name: str, case: Case, chance: np.ndarray | None, m: int) -> str:
    """Return what a method makes of a set."""
    _, X, y, n_planted = case
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            fitted = METHODS[name].estimator_class()(m, verbose=0).fit(X)
        except (BigfsError, ValueError, Warning) as problem:
            return f"{type(problem).__name__}: {problem}"
    if not np.isfinite(fitted.scores_).all():
        return "scores are not finite"
    kept, text = fitted.ranking_[:m], ""
    if y is not None and chance is not None:
        scores = np.array(judge(X, y, kept))
        spread = np.maximum(chance.std(axis=0), 1e-9)
        above = (scores - chance.mean(axis=0)) / spread * [1, -1]
        text = f"{scores[0]:6.1f} /{scores[1]:5.1f}  ({above[0]:+.1f}, {above[1]:+.1f})"
    return text + (f"  {(kept < n_planted).sum()} of {n_planted}" if n_planted else "")


def main(arguments: list[str] | None = None) -> None:
    """Print a line for each set and method."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", default=None)
    names = [name for name in METHODS if name not in LEFT_OUT or name == "fsgmm"]
    parser.add_argument("--methods", nargs="+", default=names)
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore", "Number of distinct clusters")  # of one-hot rows, when judged
    for case in cases(np.random.default_rng(0)):
        name, X, y, n_planted = case
        if options.sets is not None and name not in options.sets:
            continue
        m, chance, rng = n_planted or max(2, X.shape[1] // 4), None, np.random.default_rng(1)
        if y is not None:
            draws = [rng.choice(X.shape[1], m, replace=False) for _ in range(10)]
            chance = np.array([judge(X, y, kept) for kept in draws])
            mean, spread = chance.mean(axis=0), chance.std(axis=0)
            beside = f"{mean[0]:6.1f} /{mean[1]:5.1f}  (+- {spread[0]:.1f}, {spread[1]:.1f})"
            print(f"{name:<15}{'chance':<27}{beside}")
        for method in options.methods:
            print(f"{name:<15}{method:<27}{cell(method, case, chance, m)}", flush=True)


if __name__ == "__main__":
    main()
