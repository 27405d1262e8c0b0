"""The comparators beside their dense references, and what each costs beside scikit-learn's.

    python -m tests.bench.bench_baselines FOLDER references   # UMIST and glass, 1 and 2 workers
    python -m tests.bench.bench_baselines FOLDER costs        # USPS: seconds and peak memory
    python -m tests.bench.bench_baselines FOLDER q_alpha      # features centered or as they are
    python -m tests.bench.bench_baselines FOLDER spec         # the three ranking functions

FOLDER holds the sets as NAME.npz with ``X`` and ``y``. ``references`` fits each comparator on a
cluster of one worker process and on one of two, from a file in several blocks, and prints the
largest difference from the dense float64 reference (n x n, slow and obvious) and whether both
clusters gave the same bits. Data beyond 400 rows and 120 features are cut to these: the
references take every pair of rows, of features or both. ``costs`` is the table of
bench_compare.py, for the comparators and what scikit-learn has for data without labels.
``q_alpha`` is how the MCFS paper came to its values of Q-alpha, ``spec`` why phi2 is the default.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bigfs import FSGMM, SPEC, UDFS, LaplacianScore, MaxVariance, QAlpha
from bigfs.blocks import RowBlocks
from bigfs.core.seeds import rng
from bigfs.runtime.connection import local_cluster
from bigfs.selectors.one_pass.strategies import q_alpha as solve_q_alpha
from bigfs.selectors.scoring import stages_of_selection
from bigfs.stages.engine import Engine, TemporaryStages
from bigfs.stages.scores import FeatureScores
from tests.bench import bench_compare
from tests.bench._judge import SETS as MCFS_SETS
from tests.bench._judge import measure
from tests.reference import fsgmm, mcfs, qalpha, spec, udfs

SETS = ("UMIST", "glass")
SPEC_SETS = ("USPS", "UMIST", "ATT", "ORL", "COIL20", "satimage", "MNIST")
ROWS, FEATURES, BLOCK = 400, 120, 100
COMPARATORS = ("MaxVariance", "LaplacianScore", "SPEC", "QAlpha", "UDFS", "FSGMM")

Case = tuple[str, Any, Callable[[np.ndarray], np.ndarray]]


def cases() -> list[Case]:
    """Return name, selector and dense reference of every comparator, larger scores better."""
    measured: list[Case] = [
        ("MaxVariance", MaxVariance(5), lambda X: X.var(axis=0)),
        (
            "LaplacianScore",
            LaplacianScore(5),
            lambda X: -mcfs.laplacian_scores(X, mcfs.neighbor_affinity(X, 5)),
        ),
    ]
    for ranking, sign in (("phi1", -1), ("phi2", -1), ("phi3", 1)):

        def dense(X: np.ndarray, ranking: str = ranking, sign: int = sign) -> np.ndarray:
            return sign * spec.spec_scores(X, mcfs.neighbor_affinity(X, 5), ranking)

        measured.append((f"SPEC {ranking}", SPEC(5, ranking=ranking), dense))
    return [
        *measured,
        (
            "QAlpha",
            QAlpha(5, n_clusters=5, max_iter=4, tol=0),
            lambda X: qalpha.q_alpha(X, 5, 4),
        ),
        (
            "UDFS",
            UDFS(5, n_clusters=5, gamma=0.1, ridge=1.0, unit="none", max_iter=5, tol=0),
            lambda X: udfs.udfs_scores(X, 5, 5, 0.1, 1.0, 5),
        ),
        (
            "FSGMM",
            FSGMM(5, n_clusters=6, max_iter=15),
            lambda X: fsgmm.fsgmm(X, _start(len(X), 6), 15, least_variance=FSGMM().least_variance)[
                "saliency"
            ],
        ),
    ]


def _start(n_samples: int, n_clusters: int) -> np.ndarray:
    return np.sort(rng(0, "fsgmm").choice(n_samples, n_clusters, replace=False))


def prepared(X: np.ndarray) -> np.ndarray:
    """Return features that vary, between 0 and 1, cut to what the references can do."""
    X = np.asarray(X, dtype=np.float64)
    step = max(1, len(X) // ROWS)
    X = X[::step][:ROWS]
    X = X[:, X.max(axis=0) > X.min(axis=0)]
    X = X[:, :: max(1, X.shape[1] // FEATURES)][:, :FEATURES]
    return (X - X.min(axis=0)) / (X.max(axis=0) - X.min(axis=0))


def _scores(selector: Any, blocks: RowBlocks) -> np.ndarray:
    """Return what `fit` computes, on blocks that are smaller than it would make them."""
    stages = stages_of_selection(selector._selection())
    folder = blocks.scratch.child(blocks.scratch.unique("stages"))
    finished = Engine(TemporaryStages(folder), blocks).run(stages)
    return FeatureScores.open(finished["result"]).scores


def references(sets: dict[str, np.ndarray]) -> dict[tuple[str, str], tuple[float, bool]]:
    """Print and return the largest difference, as a share of the largest score, and sameness."""
    from distributed import Client

    figures: dict[tuple[str, str], list[np.ndarray]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, X in sets.items():
            np.save(f"{folder}/{name}.npy", prepared(X))
        for n_workers in (1, 2):
            with local_cluster(n_workers, 1, 3 * 2**29) as cluster, Client(cluster):
                for name in sets:
                    blocks = RowBlocks.from_any(f"{folder}/{name}.npy", rows=BLOCK)
                    for label, selector, _ in cases():
                        figures.setdefault((name, label), []).append(_scores(selector, blocks))
    print(f"{'set':<10}{'method':<18}{'largest difference':>20}   same on 1 and 2 workers")
    result = {}
    for name, X in sets.items():
        data = prepared(X)
        for label, _, dense in cases():
            single, two = figures[name, label]
            expected = dense(data)
            gap = float(np.abs(single - expected).max() / np.abs(expected).max())
            result[name, label] = (gap, bool(np.array_equal(single, two)))
            print(
                f"{name:<10}{label:<18}{gap:>20.1e}   {'yes' if result[name, label][1] else 'NO'}"
            )
    return result


def q_alpha_forms(sets: dict[str, tuple[np.ndarray, np.ndarray]]) -> dict[Any, Any]:
    """Print NMI and 1-NN error of 50 features by Q-alpha, by what is done to the features first."""
    figures = {}
    print(f"{'set':<8}{'features':<24}{'NMI':>6}{'1-NN error':>12}")
    for name, (X, y) in sets.items():
        X = np.asarray(X, dtype=np.float64)
        centered = X - X.mean(axis=0)
        forms = {"centered, of norm one": centered / np.linalg.norm(centered, axis=0)}
        forms["as they are"] = X
        if X.min() == 0 and X.max() == 1:
            forms["from -1 to 1"] = 2 * X - 1
        for form, M in forms.items():
            weights = solve_q_alpha(M.T @ M, int(y.max()) + 1).alpha
            kept = np.argsort(-weights, kind="stable")[:50]
            nmi, _, error = figures[name, form] = measure(X[:, kept], y, 1)
            print(f"{name:<8}{form:<24}{nmi:>6.1f}{error:>12.1f}")
    return figures


def spec_rankings(sets: dict[str, tuple[np.ndarray, np.ndarray]]) -> dict[Any, Any]:
    """Print the NMI of the features of each ranking function, on at most 2,000 rows of each set."""
    figures = {}
    print(f"{'set':<16}{'preprocess':<12}{'m':>4}{'phi1':>8}{'phi2':>8}{'phi3':>8}")
    for name, (X, y) in sets.items():
        if len(X) > 2000:
            kept = np.sort(rng(0, "rows").choice(len(X), 2000, replace=False))
            X, y = X[kept], np.unique(y[kept], return_inverse=True)[1]
        m = 50 if X.shape[1] >= 200 else max(2, X.shape[1] // 4)
        for preprocess in ("none", "minmax"):
            row = []
            for ranking in ("phi1", "phi2", "phi3"):
                selector = SPEC(m, ranking=ranking, preprocess=preprocess).fit(X)
                columns = _minmax(X) if preprocess == "minmax" else X
                row.append(measure(columns[:, selector.get_support()], y, 1)[0])
            figures[name, preprocess] = row
            cells = "".join(f"{value:>8.1f}" for value in row)
            print(f"{name:<16}{preprocess:<12}{m:>4}{cells}")
    return figures


def _minmax(X: np.ndarray) -> np.ndarray:
    X = np.asarray(X, dtype=np.float64)
    spread = X.max(axis=0) - X.min(axis=0)
    return (X - X.min(axis=0)) / np.where(spread > 0, spread, 1)


def costs(X: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Print the cost of the comparators and of scikit-learn's selectors."""
    return bench_compare.methods(X, y, 50, [*COMPARATORS, *bench_compare.PEERS])


def main(arguments: list[str] | None = None) -> Any:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("part", choices=["references", "costs", "q_alpha", "spec"])
    options = parser.parse_args(arguments)
    if options.part == "references":
        return references({name: _read(options.folder, name)[0] for name in SETS})
    if options.part == "q_alpha":
        return q_alpha_forms({name: _read(options.folder, name) for name in MCFS_SETS})
    if options.part == "spec":
        return spec_rankings({name: _read(options.folder, name) for name in SPEC_SETS})
    return costs(*_read(options.folder, "USPS"))


def _read(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    with np.load(folder / f"{name}.npz") as stored:
        return stored["X"], stored["y"]


if __name__ == "__main__":
    main()
