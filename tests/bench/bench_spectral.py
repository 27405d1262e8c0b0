"""The eigensolvers side by side: processor time, memory beyond W, and the same eigenvalues.

    python -m tests.bench.bench_spectral FOLDER [--rows 200000 1000000] [--components 20]

Writes the synthetic manifold of the neighbor-graph figures and its graph (k = 10, binary weights)
into FOLDER, kept for the next call, and runs each solver in a process of its own that has solved
a small problem first, with BLAS at one thread. ``arpack`` is scipy's eigsh with the tolerance as
its own criterion; ``eigsh`` is what bigfs runs, which is stricter so that no copy is missed. A
solver that takes longer than ``--seconds`` is stopped and said so.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.core.memory import peak_bytes, reset_peak
from bigfs.core.threads import single_thread
from bigfs.core.units import MIB

SOLVERS = ("arpack", "eigsh", "chebyshev")


def load_graph(folder: Path, rows: int) -> Any:
    """Return W of the manifold as scipy CSR; computed at the first call."""
    from scipy.sparse import load_npz, save_npz

    path = folder / f"graph-{rows}.npz"
    if not path.exists():
        from bigfs import knn_graph
        from bigfs.graph import affinity
        from tests.bench._manifold import write_manifold

        write_manifold(folder / f"manifold-{rows}.zarr", rows)
        graph = knn_graph(folder / f"manifold-{rows}.zarr", 10)
        save_npz(path, affinity(graph).load(), compressed=False)
    return load_npz(path)


def solve(solver: str, W: Any, n_components: int, tol: float) -> tuple[np.ndarray, float, int]:
    """Return eigenvalues, the largest residual and the products with one vector."""
    if solver == "arpack":
        return _arpack(W, n_components, tol)
    from bigfs import spectral_embedding

    result = spectral_embedding(W, n_components, solver=solver, tol=tol, memory_limit="16 GiB")
    return result.eigenvalues, float(result.residuals.max()), result.n_products


def _arpack(W: Any, n_components: int, tol: float) -> tuple[np.ndarray, float, int]:
    """Run scipy's eigsh on S as its manual says, the trivial pair included."""
    from scipy.sparse import csr_array
    from scipy.sparse.linalg import LinearOperator, eigsh

    root = np.sqrt(W.sum(axis=1))
    scaled = csr_array(W, copy=True)
    scaled.data /= np.repeat(root, np.diff(scaled.indptr)) * root[scaled.indices]
    products = 0

    def apply(x: np.ndarray) -> np.ndarray:
        nonlocal products
        products += 1
        return scaled @ x.ravel()

    operator = LinearOperator(W.shape, matvec=apply, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(len(root))
    values, vectors = eigsh(operator, k=n_components + 1, which="LA", v0=start, tol=tol)
    residuals = [
        np.linalg.norm(scaled @ u - mu * u) for mu, u in zip(values, vectors.T, strict=True)
    ]
    return np.sort(1.0 - values)[1:], max(residuals), products


def measure(solver: str, folder: Path, rows: int, n_components: int, tol: float) -> dict[str, Any]:
    """Run one solver in this process."""
    from scipy.sparse import csr_array, diags_array

    W = load_graph(folder, rows)
    sides = [np.ones(3000 - abs(offset)) for offset in (-50, -1, 1, 50)]
    grid = csr_array(diags_array(sides, offsets=[-50, -1, 1, 50]))
    grid.indices, grid.indptr = grid.indices.astype("i4"), grid.indptr.astype(W.indptr.dtype)
    with single_thread():
        solve(solver, grid, 2, 1e-4)
        reset_peak()
        before, began = peak_bytes(), time.process_time()
        values, residual, products = solve(solver, W, n_components, tol)
        seconds = time.process_time() - began
        return {
            "seconds": seconds,
            "mib": (peak_bytes() - before) / MIB,
            "residual": residual,
            "products": products,
            "values": values,
        }


def main(arguments: list[str] | None = None) -> dict[int, dict[str, dict[str, Any]]]:
    """Print one line per solver and size."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, nargs="+", default=[200_000, 1_000_000])
    parser.add_argument("--components", type=int, default=20)
    parser.add_argument("--tol", type=float, default=1e-4)
    parser.add_argument("--solvers", nargs="+", choices=SOLVERS, default=list(SOLVERS))
    parser.add_argument("--seconds", type=float, default=3600, help="stop a solver after these")
    options = parser.parse_args(arguments)
    spawn = multiprocessing.get_context("spawn")
    results: dict[int, dict[str, dict[str, Any]]] = {}
    print("     rows  solver      CPU s  MiB beyond W   products  residual  eigenvalues differ by")
    for rows in options.rows:
        load_graph(options.folder, rows)
        results[rows] = {}
        for solver in options.solvers:
            job = (solver, options.folder, rows, options.components, options.tol)
            with spawn.Pool(1) as pool:
                try:
                    row = pool.apply_async(measure, job).get(options.seconds)
                except multiprocessing.TimeoutError:
                    print(f"{rows:>9,}  {solver:<9} stopped after {options.seconds:g} s")
                    continue
            results[rows][solver] = row
            reference = next(iter(results[rows].values()))["values"]
            row["difference"] = float(np.abs(row["values"] - reference).max())
            print(
                f"{rows:>9,}  {solver:<9} {row['seconds']:>7.1f} {row['mib']:>13.0f} "
                f"{row['products']:>10,}  {row['residual']:>8.1e}  {row['difference']:.1e}",
                flush=True,
            )
    return results


if __name__ == "__main__":
    main()
