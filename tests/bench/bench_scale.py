"""Scales of features: which of them makes a selection free of units, and what it costs elsewhere.

    BIGFS_DATA=FOLDER python -m tests.bench.bench_scale [--sets A B]

Sets of scikit-learn, and of FOLDER, at most 1,500 rows each. MCFS and NDFS with as many clusters as
classes select a sixth, a third and a half of the features (20 and 50 of more than 100) from the
values as they are and from six scales of them. A cell has NMI (single-start k-means, eight times) /
1-NN error in percent, the mean of the three numbers and both methods, judged on standardized
columns. ``units`` is how often the largest range of a feature has the 5th percentile of all ranges,
and ``other units`` the values as they are, after each column was multiplied by a number from 0.01
to 100. The last lines leave one set out: which scale is best on the others (mean rank in NMI and
1-NN error among the scales, over sets of several units and all in other units), and its figures.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from scipy.stats import rankdata

from bigfs import MCFS, NDFS
from bigfs.evaluate.protocols import kmeans_scores
from bigfs.metrics import nearest_neighbor_error

OWN = ("wine", "breast_cancer", "diabetes", "iris", "digits")
SHARED = ("glass", "sonar", "ionosphere", "letter", "satimage", "lung_discrete", "USPS", "UMIST")
ROWS, REPETITIONS, DRAWS = 1500, 8, 5
AS_THEY_ARE, OTHER_UNITS, CHANCE = "none", "other units", "chance"


def _divided(X: np.ndarray, shift: np.ndarray, spread: np.ndarray) -> np.ndarray:
    return (X - shift) / np.where(spread > 0, spread, 1.0)


def _quartiles(X: np.ndarray) -> np.ndarray:
    low, middle, high = np.quantile(X, (0.25, 0.5, 0.75), axis=0)
    return _divided(X, middle, np.where(high > low, high - low, X.std(axis=0)))


SCALES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    AS_THEY_ARE: lambda X: X,
    "standardize": lambda X: _divided(X, X.mean(axis=0), X.std(axis=0)),
    "minmax": lambda X: _divided(X, X.min(axis=0), np.ptp(X, axis=0)),
    "largest": lambda X: _divided(X, np.zeros(X.shape[1]), np.abs(X).max(axis=0)),
    "quartiles": _quartiles,
    "ranks": lambda X: rankdata(X, axis=0) / len(X),
}


def labeled(names: list[str]) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield name, X without constant columns, and y of each set."""
    import sklearn.datasets

    for name in names:
        if name in OWN:
            more = {"scaled": False} if name == "diabetes" else {}
            X, y = getattr(sklearn.datasets, f"load_{name}")(return_X_y=True, **more)
            y = np.digitize(y, np.quantile(y, (1 / 3, 2 / 3))) if name == "diabetes" else y
        else:
            with np.load(Path(os.environ["BIGFS_DATA"]) / f"{name}.npz") as stored:
                X, y = stored["X"].astype(np.float64), stored["y"]
        kept = np.random.default_rng(0).permutation(len(X))[:ROWS]
        yield (
            name,
            X[kept][:, np.ptp(X[kept], axis=0) > 0],
            np.unique(y[kept], return_inverse=True)[1],
        )


def units_of(X: np.ndarray) -> float:
    """Return the largest range of a column over the 5th percentile of all ranges."""
    spans = np.ptp(X, axis=0)
    return float(spans.max() / np.quantile(spans, 0.05))


def judge(X: np.ndarray, y: np.ndarray, kept: np.ndarray) -> tuple[float, float]:
    """Return NMI and 1-NN error of standardized columns, in percent."""
    part, k = SCALES["standardize"](X)[:, kept], int(y.max()) + 1
    nmi = [
        kmeans_scores(part, y, n_clusters=k, n_init=1, seed=i)["nmi"] for i in range(REPETITIONS)
    ]
    return 100 * float(np.mean(nmi)), 100 * nearest_neighbor_error(part, y)


def measure(X: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """Return mean NMI and 1-NN error of every scale, of values in other units, and of chance."""
    d, k, generator = X.shape[1], int(y.max()) + 1, np.random.default_rng(0)
    sizes = [20, 50] if d > 100 else sorted({max(2, d // part) for part in (6, 3, 2)})
    data = {name: scale(X) for name, scale in SCALES.items()}
    data[OTHER_UNITS] = X * 10 ** generator.uniform(-2, 2, d)
    figures = {}
    for name, Z in data.items():
        fits = [
            kind(max(sizes), n_clusters=k, preprocess="none", verbose=0).fit(Z)
            for kind in (MCFS, NDFS)
        ]
        figures[name] = np.mean([judge(X, y, f.support(m)) for f in fits for m in sizes], axis=0)
    draws = [generator.permutation(d)[:m] for m in sizes for _ in range(DRAWS)]
    figures[CHANCE] = np.mean([judge(X, y, draw) for draw in draws], axis=0)
    return figures


def best_scale(figures: list[dict[str, np.ndarray]], of_units: list[dict[str, np.ndarray]]) -> str:
    """Return the scale of the best mean rank, in NMI and 1-NN error, over sets.

    Parameters
    ----------
    figures : list of dict
        Of sets, in other units: there, scales that are free of units stay as they are.
    of_units : list of dict
        Of sets of several units, as they are.
    """
    cases = [{**case, AS_THEY_ARE: case[OTHER_UNITS]} for case in figures] + of_units
    table = np.array([[case[name] * (-1, 1) for name in SCALES] for case in cases])
    return list(SCALES)[int(rankdata(table, axis=1).mean(axis=(0, 2)).argmin())]


def main(arguments: list[str] | None = None) -> dict[str, str]:
    """Print a line for every set; return the scale that the others choose for each."""
    parser = argparse.ArgumentParser("bench_scale", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--sets", nargs="+", default=[*OWN, *SHARED])
    options = parser.parse_args(arguments)
    columns = [*SCALES, OTHER_UNITS, CHANCE]
    print(f"{'set':<14}{'units':>9}" + "".join(f"{name:>14}" for name in columns))
    figures, units = {}, {}
    for name, X, y in labeled(options.sets):
        figures[name], units[name] = measure(X, y), units_of(X)
        cells = [f"{nmi:.1f} / {error:.1f}" for nmi, error in (figures[name][c] for c in columns)]
        print(f"{name:<14}{units[name]:>9.3g}" + "".join(f"{c:>14}" for c in cells), flush=True)
    chosen = {}
    for name in figures:
        others = [other for other in figures if other != name]
        several = [figures[other] for other in others if units[other] > 100]
        chosen[name] = best_scale([figures[other] for other in others], several)
        nmi, error = figures[name][chosen[name]]
        print(f"left out {name:<14} the others choose {chosen[name]:<12} {nmi:.1f} / {error:.1f}")
    return chosen


if __name__ == "__main__":
    main()
