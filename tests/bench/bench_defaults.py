"""Every method with its defaults on sets with labels, and how the defaults were chosen.

    BIGFS_DATA=FOLDER python -m tests.bench.bench_defaults WHAT [--sets A B]

NMI of k-means (three starts, three times) and 1-nearest-neighbor error in percent, with 50 features
(half of them where there are fewer than 100), as many clusters as classes; MNIST, letter, USPS and
satimage are 5,000 or 3,000 rows drawn with seed 0. WHAT is ``methods``; ``mcfs``, ways to scale
coefficients; ``ndfs``, values of sparsity; ``udfs``, of ridge and sparsity; ``fsgmm``, those of the
least variance; ``clusters``, what ``n_clusters: auto`` takes; ``gaps``, the two numbers of its rule
(mean of MCFS and NDFS); ``planted``, which counts features that MCFS finds among noise; or
``runs``, which times runs of its template on such data and counts what they find.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np

import bigfs
from bigfs.core.seeds import derive_seed
from bigfs.evaluate.protocols import kmeans_scores
from bigfs.metrics import nearest_neighbor_error
from bigfs.selectors.registry import METHODS
from bigfs.spectral.choice import relative_gaps, suggest_n_clusters

SETS = ("ORL", "ATT", "COIL20", "USPS", "UMIST", "MNIST")
MORE = ("ionosphere", "letter", "satimage", "glass", "sonar", "lung_discrete")
ROWS = {"MNIST": 5000, "USPS": 3000, "letter": 3000, "satimage": 3000}
SPARSITIES = (0.003, 0.01, 0.03, 0.06, 0.12, 0.2, 0.3, 0.5)
LEAST_VARIANCES = (1e-4, 0.01, 0.1, 0.3)
RIDGES, PENALTIES = (0.01, 0.3, 3.0), (0.01, 0.03, 0.1)
CLEAR_GAPS, NO_FEWER = (0.3, 0.4, 0.5, 0.6, 0.7), (2, 4, 6, 8, 10, 12)
WHAT = ("methods", "mcfs", "ndfs", "udfs", "fsgmm", "clusters", "gaps", "planted", "runs")
SCALES = ("none", "l1", "l2", "max", "explained")
# Searches over subsets of features, and mixtures, take minutes on sets like these.
SLOW = ("lfs", "gfs_kmeans", "fsgmm", "m3fs", "maximum_margin_clustering")


def labeled(names: list[str]) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield name, X and y of each set."""
    for name in names:
        if name in ("digits", "wine", "breast_cancer", "iris"):
            import sklearn.datasets

            yield name, *getattr(sklearn.datasets, f"load_{name}")(return_X_y=True)
            continue
        if name.startswith("planted"):
            X, _, y = planted(1000, n_groups=int(name.removeprefix("planted")))
            yield name, X, y
            continue
        stored = np.load(Path(os.environ["BIGFS_DATA"]) / f"{name}.npz")
        X, y = np.asarray(stored["X"], dtype=np.float32), stored["y"]
        if name in ROWS:
            kept = np.random.default_rng(0).choice(len(X), ROWS[name], replace=False)
            X, y = X[np.sort(kept)], y[np.sort(kept)]
        yield name, X, y


def drawn(X: np.ndarray, y: np.ndarray, n_values: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows at random that have so many values at most, but 150 of them at least."""
    n_rows = max(150, n_values // X.shape[1])
    kept = np.sort(np.random.default_rng(0).permutation(len(X))[:n_rows])
    return X[kept], np.unique(y[kept], return_inverse=True)[1]


def judge(X: np.ndarray, y: np.ndarray, kept: np.ndarray) -> tuple[float, float]:
    """Return NMI and 1-NN error of some features, in percent."""
    part, n_classes = X[:, kept], int(y.max()) + 1
    nmi = [
        kmeans_scores(part, y, n_clusters=n_classes, n_init=3, seed=derive_seed(0, "e", i))["nmi"]
        for i in range(3)
    ]
    return 100 * float(np.mean(nmi)), 100 * nearest_neighbor_error(part, y)


def select(name: str, X: np.ndarray, m: int, n_clusters: int, **options: object) -> np.ndarray:
    """Return the features that a method selects."""
    if "n_clusters" in METHODS[name].parameters.model_fields:
        options["n_clusters"] = min(n_clusters, X.shape[1])
    fitted = METHODS[name].estimator_class()(n_features_to_select=m, **options).fit(X)
    return np.asarray(fitted.ranking_[:m])


def chance(X: np.ndarray, y: np.ndarray, m: int, n_draws: int = 10) -> tuple[str, tuple]:
    """Return the mean over draws of m features."""
    rng = np.random.default_rng(0)
    draws = [judge(X, y, rng.choice(X.shape[1], m, replace=False)) for _ in range(n_draws)]
    return "chance", tuple(np.mean(draws, axis=0))


def cases(
    what: str, X: np.ndarray, y: np.ndarray, m: int
) -> Iterator[tuple[str, tuple[float, float]]]:
    """Yield the rows of a table for one set."""
    n_classes = int(y.max()) + 1
    yield chance(X, y, m)
    yield "all features", judge(X, y, np.arange(X.shape[1]))
    if what == "methods":
        for name in METHODS:
            if name not in (*SLOW, "random_selection", "highly_variable"):
                yield name, judge(X, y, select(name, X, m, n_classes))
    for value in SCALES if what == "mcfs" else ():
        yield (
            value,
            judge(X, y, select("mcfs", X, m, n_classes, regression="lasso", coef_scale=value)),
        )
    for sparsity in SPARSITIES if what == "ndfs" else ():
        kept = select("ndfs", X, m, n_classes, sparsity=sparsity)
        yield f"sparsity {sparsity:g}", judge(X, y, kept)
    for ridge, sparsity in product(RIDGES, PENALTIES) if what == "udfs" else ():
        kept = select("udfs", X, m, n_classes, ridge=ridge, sparsity=sparsity)
        yield f"ridge {ridge:g}, {sparsity:g}", judge(X, y, kept)
    if what == "clusters":
        yield from numbers_of_clusters(X, y, m)
    if what == "gaps":
        yield from rules_of_auto(X, y, m)
    for least in LEAST_VARIANCES if what == "fsgmm" else ():
        n_start = min(30, len(X) - 1)
        kind = METHODS["fsgmm"].estimator_class()
        fitted = kind(m, n_clusters=n_start, least_variance=least).fit(X)
        yield f"least variance {least:g}", judge(X, y, fitted.ranking_[:m])


def numbers_of_clusters(
    X: np.ndarray, y: np.ndarray, m: int
) -> Iterator[tuple[str, tuple[float, float]]]:
    """Yield MCFS and NDFS with the clusters of the largest gap, with eight and with "auto"."""
    embedding = bigfs.spectral_embedding(bigfs.knn_graph(X, 5), "auto")
    gaps, auto = relative_gaps(embedding.spectrum), len(embedding.eigenvalues)
    at_gap, share = int(gaps.argmax()) + 2, gaps.max()
    print(f"{len(np.unique(y))} classes, a gap of {share:.2f} after {at_gap}: auto takes {auto}")
    for name in ("mcfs", "ndfs"):
        judged = {k: judge(X, y, select(name, X, m, k)) for k in {at_gap, 8, auto}}
        for row, k in (("largest gap", at_gap), ("8", 8), ("auto", auto)):
            yield f"{name} {row}", judged[k]


def rules_of_auto(
    X: np.ndarray, y: np.ndarray, m: int
) -> Iterator[tuple[str, tuple[float, float]]]:
    """Yield the mean of MCFS and NDFS for each rule of "auto": its clear gap, and no fewer."""
    spectrum = bigfs.spectral_embedding(bigfs.knn_graph(X, 5), "auto").spectrum
    judged: dict[int, tuple] = {}
    for gap, least in product(CLEAR_GAPS, NO_FEWER):
        k = suggest_n_clusters(spectrum, gap, least)
        if k not in judged:
            both = [judge(X, y, select(name, X, m, k)) for name in ("mcfs", "ndfs")]
            judged[k] = tuple(np.mean(both, axis=0))
        yield f"gap {gap:g}, {least}", judged[k]
    print(f"numbers of clusters: {sorted(judged)}, of classes: {len(np.unique(y))}")


def planted(
    n: int, d: int = 100, seed: int = 0, n_groups: int = 10
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return noise in which 25 features tell groups apart, which do, and the groups."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)).astype(np.float32)
    features = rng.choice(d, 25, replace=False)
    centers = np.sqrt(2) * rng.standard_normal((n_groups, 25)).astype(np.float32)
    y = rng.integers(n_groups, size=n)
    X[:, features] += centers[y]
    return X, features, y


def print_planted(sizes: tuple[int, ...], n_seeds: int = 3) -> None:
    """Print how many of 25 planted features MCFS finds, by rows, clusters and scale."""
    print("rows      K   " + "".join(f"{scale:>11}" for scale in SCALES))
    for n in sizes:
        data = [planted(n, seed=seed) for seed in range(n_seeds)]
        for K in (5, 9, 10, 20):
            measured = [
                np.mean([
                    np.isin(select("mcfs", X, 25, K, regression="lasso", coef_scale=scale), f).sum()
                    for X, f, _ in data
                ])
                for scale in SCALES
            ]  # fmt: skip
            print(
                f"{n:<8,}{K:>3}   " + "".join(f"{value:>11.1f}" for value in measured), flush=True
            )


def print_runs(sizes: tuple[int, ...], n_features: int) -> None:
    """Print processor seconds of runs of the template on planted data, and features they find."""
    template = Path(__file__).parents[2] / "pipelines" / "mcfs.yaml"
    print("rows     K       seconds  of which graph   recall   K used   features of 25")
    for n in sizes:
        with tempfile.TemporaryDirectory() as folder:
            X, features, _ = planted(n, n_features)
            bigfs.ingest(X, f"{folder}/X.zarr")
            del X
            shared = [f"run={folder}/run", f"input.uri={folder}/X.zarr", "report=null"]
            for K in (5, 9, 10, 20, "auto"):
                wanted = [*shared, "n_features_to_select=25", f"mcfs.n_clusters={K}"]
                begun = time.process_time()
                result = bigfs.run(template, overrides=wanted)
                seconds = time.process_time() - begun
                # The runs share a directory: the first one makes the graph for all.
                graph = result.stages["graph"]["seconds"] if K == 5 else 0.0
                recall = (result.recall or {})["value"]
                used = result.details.get("n_clusters", K)
                n_found = np.isin(result.selected, features).sum()
                cells = f"{n:<9,}{K!s:<6}{seconds:>9.1f}{graph:>16.1f}{recall:>9.2f}"
                print(f"{cells}{used!s:>9}{n_found:>17}", flush=True)


def leave_one_out(table: dict[str, dict[str, tuple[float, float]]]) -> None:
    """Print what each set gets if the other ones choose, by the mean of NMI less 1-NN error."""
    settings = [key for key in next(iter(table.values())) if key not in ("chance", "all features")]

    def best(sets: list[str]) -> str:
        return max(settings, key=lambda s: sum(table[n][s][0] - table[n][s][1] for n in sets))

    print(f"best of all sets: {best(list(table))}; of all but one:")
    for left in table:
        chosen = best([name for name in table if name != left])
        print(
            f"  {left:<14}{chosen:<18}{table[left][chosen][0]:6.1f} /{table[left][chosen][1]:5.1f}"
        )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=WHAT)
    parser.add_argument("--sets", nargs="+", default=None)
    parser.add_argument("--values", type=int, default=None, help="of a set, at most")
    parser.add_argument("--rows", nargs="+", type=int, default=[1000, 4000, 20_000])
    parser.add_argument("--columns", type=int, default=100, help="of runs")
    options = parser.parse_args(arguments)
    if options.what == "planted":
        print_planted(tuple(options.rows))
        return
    if options.what == "runs":
        print_runs(tuple(options.rows), options.columns)
        return
    default = [*SETS] if options.what == "methods" else [*SETS, *MORE, "digits"]
    table: dict[str, dict[str, tuple[float, float]]] = {}
    for name, X, y in labeled(options.sets or default):
        table[name] = {}
        if options.values is not None:
            X, y = drawn(X, y, options.values)
        for row, scores in cases(options.what, X, y, min(50, X.shape[1] // 2)):
            table[name][row] = scores
            print(f"{name:<14}{row:<18}{scores[0]:6.1f} /{scores[1]:5.1f}", flush=True)
    for row in next(iter(table.values())):
        nmi, error = np.mean([rows[row] for rows in table.values()], axis=0)
        print(f"{'mean':<14}{row:<18}{nmi:6.1f} /{error:5.1f}")
    if options.what not in ("methods", "clusters"):
        leave_one_out(table)


if __name__ == "__main__":
    main()
