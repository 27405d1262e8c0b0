"""Eigenvectors of long thin graphs: how near the true ones, and seconds beside scikit-learn's.

    python -m tests.bench.bench_thin [--rows 1000 10000 100000] [--components 5] [--limit 400]

The true vectors are those of scipy's shift-invert. ``correlation`` is the least of all vectors that
are not said to be mixed with others; those that are, are counted. Seconds are of the processor.
With ``--limit`` scikit-learn is given up after so many seconds by the clock: "inf".
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.sparse import block_diag, csr_array, csr_matrix, diags_array, eye_array, kron

from bigfs import spectral_embedding


def graphs(n: int) -> Iterator[tuple[str, csr_array]]:
    """Yield the name and W of each kind of graph, of about n nodes."""
    rng = np.random.default_rng(0)
    path = _path(n)
    yield "path", path
    yield "ring", path + _edges([0], [n - 1], n)
    yield "star", _edges(np.zeros(n - 1, int), np.arange(1, n), n)
    side = int(n**0.5)
    yield "grid", _grid(side, side)
    yield "grid of 5 rows", _grid(5, n // 5)
    parents = (rng.random(n - 1) * np.arange(1, n)).astype(int)
    yield "tree", _edges(np.arange(1, n), parents, n)
    weights = np.exp(rng.normal(size=n - 1))
    yield "weighted path", csr_array(diags_array([weights] * 2, offsets=[-1, 1]))
    legs = np.arange(n // 2)
    spine = block_diag([_path(n // 2), csr_array((n // 2, n // 2))])
    yield "caterpillar", csr_array(spine + _edges(legs, legs + n // 2, 2 * (n // 2)))
    chords = _edges(*rng.choice(n, size=(2, 20)), n)
    yield "ring with chords", path + _edges([0], [n - 1], n) + chords
    yield "three paths", csr_array(block_diag([_path(n // part) for part in (2, 3, 6)]))
    bell = csr_array(np.ones((100, 100)) - np.eye(100))
    bells = csr_array(block_diag([bell, _path(n - 200), bell]))
    yield "barbell", bells + _edges([99, n - 101], [100, n - 100], n)
    halves = csr_array(block_diag([_nearest(rng.normal(size=(n // 2, 4))) for _ in range(2)]))
    yield "two clusters", halves + _edges([0], [n // 2], halves.shape[0])
    along = np.sort(rng.random(n)) * n / 20
    yield "trajectory", _nearest(np.column_stack([along, rng.normal(size=(n, 2))]))


def _path(n: int) -> csr_array:
    return csr_array(diags_array([np.ones(n - 1)] * 2, offsets=[-1, 1], shape=(n, n)))


def _grid(height: int, width: int) -> csr_array:
    return csr_array(kron(_path(height), eye_array(width)) + kron(eye_array(height), _path(width)))


def _edges(heads: Any, tails: Any, n: int) -> csr_array:
    half = csr_array((np.ones(len(heads)), (heads, tails)), shape=(n, n))
    return csr_array(half + half.T)


def _nearest(X: np.ndarray, k: int = 5) -> csr_array:
    from scipy.spatial import cKDTree

    _, indices = cKDTree(X).query(X, k + 1)
    heads, shape = np.repeat(np.arange(len(X)), k), (len(X), len(X))
    W = csr_array((np.ones(len(heads)), (heads, indices[:, 1:].ravel())), shape=shape)
    return csr_array(W.maximum(W.T))


def true_vectors(W: csr_array, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest eigenvalues of ``I - S`` and their vectors, the trivial one included."""
    from scipy.sparse.linalg import LinearOperator, eigsh, splu

    root, shift = np.sqrt(W.sum(axis=1)), -1e-9
    scaled = diags_array(1 / root) @ W @ diags_array(1 / root)
    laplacian = csr_matrix(eye_array(len(root)) - scaled).tocsc()
    # In the order that splu takes by itself two clusters of 50,000 points take hours.
    factor = splu(
        (laplacian - shift * eye_array(len(root))).tocsc(),
        permc_spec="MMD_AT_PLUS_A",
        diag_pivot_thresh=0.0,
        options={"SymmetricMode": True},
    )
    inverse = LinearOperator(laplacian.shape, factor.solve, dtype=np.float64)
    values, vectors = eigsh(laplacian, count, sigma=shift, which="LM", OPinv=inverse)
    order = np.argsort(values)
    return values[order], vectors[:, order]


def measure(W: csr_array, n_components: int, limit: float | None = None) -> dict[str, float]:
    """Return what is printed of a graph."""
    W.setdiag(0)
    W.eliminate_zeros()
    began = time.process_time()
    embedding = spectral_embedding(W, n_components)
    ours = time.process_time() - began
    values, vectors = true_vectors(W, n_components + 4)
    scaled = embedding.embedding[:] * np.sqrt(W.sum(axis=1))[:, None]
    # Of components there is a null space, of which any basis is as good.
    told = ~embedding.mixed & (embedding.eigenvalues > 1e-14)
    correlations = []
    for value, u in zip(embedding.eigenvalues[told], scaled.T[told], strict=True):
        near = vectors[:, np.abs(values - value).argmin()]
        correlations.append(abs(near @ u))
    return {
        "seconds": ours,
        "sklearn": _sklearn_seconds(W, n_components, limit),
        "correlation": min(correlations, default=1.0),
        "mixed": int(embedding.mixed.sum()),
        "smallest": float(embedding.eigenvalues[told].min(initial=np.inf)),
    }


def _sklearn_seconds(W: csr_array, n_components: int, limit: float | None) -> float:
    """Return the seconds of scikit-learn, infinite beyond the limit: a process is ended there."""
    if limit is None:
        return _time_sklearn(W, n_components)
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_time, args=(sender, W, n_components))
    process.start()
    seconds = float(receiver.recv()) if receiver.poll(limit) else np.inf
    process.kill()
    process.join()
    return seconds


def _send_time(sender: Any, W: csr_array, n_components: int) -> None:
    sender.send(_time_sklearn(W, n_components))


def _time_sklearn(W: csr_array, n_components: int) -> float:
    from sklearn.manifold import spectral_embedding as of_sklearn

    W = csr_matrix(W)
    W.indices, W.indptr = W.indices.astype(np.int32), W.indptr.astype(np.int32)
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        of_sklearn(W, n_components=n_components, random_state=0)
    return time.process_time() - began


def main(arguments: list[str] | None = None) -> dict[tuple[str, int], dict[str, float]]:
    """Print one line per graph and size."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--components", type=int, default=5)
    parser.add_argument("--limit", type=float, help="seconds for scikit-learn")
    options = parser.parse_args(arguments)
    results = {}
    print("graph                 rows   CPU s  sklearn s  correlation  mixed  smallest eigenvalue")
    for rows in options.rows:
        for name, W in graphs(rows):
            W = csr_array(W, dtype=np.float64)
            row = results[name, rows] = measure(W, options.components, options.limit)
            print(
                f"{name:<18}{rows:>8,}{row['seconds']:>8.2f}{row['sklearn']:>11.2f}"
                f"{row['correlation']:>13.6f}{row['mixed']:>7}{row['smallest']:>21.1e}",
                flush=True,
            )
    return results


if __name__ == "__main__":
    main()
