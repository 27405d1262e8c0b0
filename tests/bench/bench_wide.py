"""Exact lasso paths on wide data whose Gram matrix does not fit a worker: passes and certificate.

    python -m tests.bench.bench_wide FOLDER_OF_DATA_SETS [--set worm_neuron] [--selected 100]

Runs MCFS (`bigfs.run`, K = the number of classes) on a set of BIGFS_DATA made dense and prints the
passes over X that the paths took, how many features were screened in each round, the certificate
(by how much any feature's correlation exceeds lambda at any knot, as a share of the largest at the
start), seconds and peak memory. The bar is six passes.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

import bigfs
from bigfs.core.units import format_bytes


def load_dense(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return X, dense float32, and y of a stored set."""
    with np.load(path) as stored:
        if "X" in stored:
            return stored["X"].astype(np.float32), stored["y"]
        parts = (stored["data"], stored["indices"], stored["indptr"])
        return csr_matrix(parts, shape=tuple(stored["shape"])).toarray(), stored["y"]


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Print the figures and return them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--set", default="worm_neuron")
    parser.add_argument("--selected", type=int, default=100)
    parser.add_argument("--memory", default="4 GiB")
    options = parser.parse_args(arguments)
    X, y = load_dense(options.folder / f"{options.set}.npz")
    with tempfile.TemporaryDirectory(prefix="bigfs-bench-") as folder:
        np.save(Path(folder) / "X.npy", X)
        result = bigfs.run(
            {
                "run": str(Path(folder) / "run"),
                "input": {"uri": str(Path(folder) / "X.npy")},
                "n_features_to_select": options.selected,
                "mcfs": {"n_clusters": len(np.unique(y)), "regression": "lasso"},
                "memory_limit": options.memory,
            }
        )
        record = result.stages["result"]
        if result.certificate is None:
            raise SystemExit("The Gram matrix of these data fits: they are not wide enough.")
        violation, screened = result.certificate
    print(f"{options.set}: {X.shape[0]:,} x {X.shape[1]:,}, m = {options.selected}")
    print(f"passes over X for the paths  {record['passes']}")
    print(f"features screened per round  {', '.join(str(n) for n in screened)}")
    print(f"certificate                  {violation.max():.1e}")
    print(f"seconds                      {record['seconds']:.1f}")
    print(f"peak memory                  {format_bytes(record['measured_peak_bytes'])}")
    return {"passes": record["passes"], "violation": float(violation.max())}


if __name__ == "__main__":
    main()
