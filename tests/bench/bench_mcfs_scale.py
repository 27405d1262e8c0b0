"""Effect of the scale of MCFS's coefficients, beside that of an arbitrary basis.

    BIGFS_DATA=FOLDER python -m tests.bench.bench_mcfs_scale [--rotations 8] [--repetitions 20]

FOLDER holds ORL.npz, COIL20.npz and USPS.npz with ``X`` and ``y``; raw values, exact graph, 5
neighbors, binary weights, as many eigenvectors as classes, 50 features. One row for each norm
that the coefficients are divided by, with and without an intercept, for y of Euclidean norm one
(``unit``) or unit D-norm (``degree``). The score is the largest over the eigenvectors, or over
groups of equal eigenvalues within which squares are added (``group``: closer to a score that no
rotation changes). The last columns are the range of the 1-NN error over random rotations of the
null space of L, all of them as good as the basis that bigfs takes.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import ortho_group
from sklearn.neighbors import kneighbors_graph

from bigfs.core.seeds import derive_seed
from bigfs.core.threads import single_thread
from bigfs.evaluate.protocols import kmeans_scores
from bigfs.metrics import nearest_neighbor_error
from bigfs.solvers.lars import lars_path_gram
from bigfs.spectral.eigsh import solve_eigsh

SETS = ("ORL", "COIL20", "USPS")
SCALES = ("none", "l1", "l2", "max")


def embed(X: np.ndarray, n_clusters: int) -> tuple[np.ndarray, int]:
    """Return the eigenvectors, unit D-norm, and how many of them belong to eigenvalue zero."""
    W = kneighbors_graph(X, 5)
    solution = solve_eigsh(W.maximum(W.T).tocsr(), n_clusters, tol=1e-8, random_state=0)
    return solution.vectors, min(solution.n_connected_components - 1, n_clusters)


def coefficients(X: np.ndarray, Y: np.ndarray, m: int, intercept: bool) -> np.ndarray:
    """Return a_k of eq. (3) for each column of Y, shape (n_columns, n_features)."""
    if intercept:
        X, Y = X - X.mean(axis=0), Y - Y.mean(axis=0)
    gram, xty = X.T @ X, X.T @ Y
    return np.array([lars_path_gram(gram, b, m).coef for b in xty.T])


def select(coef: np.ndarray, scale: str, m: int, n_null: int = 0) -> np.ndarray:
    """Return the m best features; the first n_null rows count as one if n_null is given."""
    order = {"none": None, "l1": 1, "l2": 2, "max": np.inf}[scale]
    size = np.abs(coef)
    if order is not None:
        size /= np.maximum(np.linalg.norm(coef, ord=order, axis=1, keepdims=True), 1e-300)
    if n_null:
        group = np.linalg.norm(size[:n_null], axis=0, keepdims=True) / np.sqrt(n_null)
        size = np.vstack([group, size[n_null:]])
    return np.argsort(-size.max(axis=0), kind="stable")[:m]


def rotated(Y: np.ndarray, n_null: int, seed: int) -> np.ndarray:
    """Turn the null space; columns of unit D-norm stay so."""
    turn = np.eye(Y.shape[1])
    if n_null > 1:
        turn[:n_null, :n_null] = ortho_group.rvs(n_null, random_state=seed)
    return Y @ turn


def report(name: str, X: np.ndarray, y: np.ndarray, m: int, rotations: int, reps: int) -> None:
    """Print the rows of one data set."""
    n_clusters = int(y.max()) + 1
    Y, n_null = embed(X, n_clusters)
    for intercept in (True, False):
        unit = coefficients(X, Y / np.linalg.norm(Y, axis=0), m, intercept)
        reordered = []
        for seed in range(rotations if n_null > 1 else 0):
            Z = rotated(Y, n_null, seed)
            reordered.append(coefficients(X, Z / np.linalg.norm(Z, axis=0), m, intercept))
        rows = [("unit", scale, unit, 0) for scale in SCALES]
        if n_null > 1:
            rows += [("group", scale, unit, n_null) for scale in SCALES]
        rows.append(("degree", "none", coefficients(X, Y, m, intercept), 0))
        for kind, scale, coef, group in rows:
            kept = select(coef, scale, m, group)
            error = nearest_neighbor_error(X[:, kept], y)
            nmi = [
                kmeans_scores(X[:, kept], y, n_clusters=n_clusters, n_init=10,
                              seed=derive_seed(0, "evaluation", i))["nmi"]
                for i in range(reps)
            ]  # fmt: skip
            others = [
                nearest_neighbor_error(X[:, select(a, scale, m, group)], y)
                for a in (reordered if kind != "degree" else [])
            ]
            span = f"{100 * min(others):.2f}..{100 * max(others):.2f}" if others else ""
            print(
                f"{name:<8}{kind:<8}{scale:<6}{'yes' if intercept else 'no':<11}"
                f"{100 * np.mean(nmi):>6.1f} ±{100 * np.std(nmi):>4.1f}{100 * error:>12.2f}"
                f"  {span}".rstrip(),
                flush=True,
            )


def main(arguments: list[str] | None = None, sets: dict[str, Any] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rotations", type=int, default=8)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    options = parser.parse_args(arguments)
    if sets is None:
        folder = Path(os.environ["BIGFS_DATA"])
        sets = {name: np.load(folder / f"{name}.npz") for name in options.sets}
    print("data    y       scale intercept          NMI  1-NN error  with the null space turned")
    with single_thread():
        for name, stored in sets.items():
            X, y = np.asarray(stored["X"], dtype=np.float64), stored["y"]
            m = min(50, X.shape[1] // 2)
            report(name, X, y, m, options.rotations, options.repetitions)


if __name__ == "__main__":
    main()
