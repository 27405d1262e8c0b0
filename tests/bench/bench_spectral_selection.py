"""The features that MCFS selects with eigenvectors of each tolerance.

    BIGFS_DATA=FOLDER python -m tests.bench.bench_spectral_selection [--sets A B] [--rows 500000]

The shared sets (NAME.npz in FOLDER), two planted ones and the manifold of so many rows, one graph
for each, with as many eigenvectors as classes. A cell counts the features that a selection of 20
and one of 100 (half of few) have in common with those of tolerance 1e-8; then the largest residual
as a share of its eigenvalue, and seconds of the stage. The last line is the worst over all sets.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

import bigfs
from tests.bench._manifold import PlantedManifold
from tests.bench.bench_defaults import planted

SHARED = ("ORL", "ATT", "COIL20", "USPS", "UMIST", "MNIST", "ionosphere", "letter", "satimage",
          "glass", "sonar", "lung_discrete", "Prostate_GE", "BASEHOCK", "worm_neuron")  # fmt: skip
MADE = ("planted 10", "planted 20", "manifold")
REFERENCE, TOLERANCES = 1e-8, (1e-3, 1e-2, 1e-1, 3e-1)


def data_of(names: list[str], n_rows: int) -> Iterator[tuple[str, Any, int]]:
    """Yield name, X and the number of eigenvectors of each set."""
    for name in names:
        if name == "manifold":
            yield name, PlantedManifold(n_rows, 128).rows(0, n_rows), 20
        elif name.startswith("planted"):
            n_groups = int(name.split()[1])
            yield name, planted(n_rows, seed=n_groups, n_groups=n_groups)[0], n_groups
        else:
            with np.load(Path(os.environ["BIGFS_DATA"]) / f"{name}.npz") as z:
                n_classes = int(z["y"].max()) + 1
                if "indptr" in z:
                    X: Any = csr_array(
                        (z["data"], z["indices"], z["indptr"]), shape=tuple(z["shape"])
                    )
                else:
                    X = z["X"]
            yield name, X, n_classes


def measure(
    X: Any, n_vectors: int, tolerances: list[float]
) -> dict[float, tuple[int, int, int, float, float]]:
    """Return features in common of 20 and of 100, these, residual and seconds of each tolerance."""
    sizes = [min(m, X.shape[1] // 2) for m in (20, 100)]
    figures, expected = {}, []
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/X.zarr"
        bigfs.ingest(X, path)
        for tol in (REFERENCE, *tolerances):
            result = bigfs.run(
                {
                    "run": f"{folder}/run",
                    "input": {"uri": path},
                    "mcfs": {"n_clusters": n_vectors},
                    "n_features_to_select": sizes[1],
                    "spectral": {"tol": tol},
                    "curves": False,
                    "report": None,
                }
            )
            kept = [set(result.ranking[:m].tolist()) for m in sizes]
            expected = expected or kept
            common = [len(a & b) for a, b in zip(kept, expected, strict=True)]
            values, residuals = result.details["eigenvalues"], result.details["residuals"]
            worst = float((residuals / np.maximum(values, 1e-12)).max())
            figures[tol] = (*common, sizes[1], worst, result.stages["spectral"]["seconds"])
    return figures


def main(arguments: list[str] | None = None) -> dict[str, dict[float, tuple[int, ...]]]:
    """Print a line for every set; return the features in common."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--sets", nargs="+", default=[*SHARED, *MADE])
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--tolerances", type=float, nargs="+", default=list(TOLERANCES))
    options = parser.parse_args(arguments)
    tolerances = options.tolerances
    titles = [f"{tol:g}" for tol in tolerances]
    print(f"{'set':<14}{'of':>4}" + "".join(title.rjust(25) for title in titles))
    common = {}
    for name, X, n_vectors in data_of(options.sets, options.rows):
        figures = measure(X, n_vectors, tolerances)
        common[name] = {tol: figures[tol][:3] for tol in tolerances}
        cells = ["{} {:>3} {:>8.0e} {:>6.2f} s".format(*figures[t][:2], *figures[t][3:])
                 for t in tolerances]  # fmt: skip
        print(f"{name:<14}{figures[REFERENCE][2]:>4}" + "".join(c.rjust(25) for c in cells),
              flush=True)  # fmt: skip
    least = [min(of[tol][0] - min(20, of[tol][2]) for of in common.values()) for tol in tolerances]
    print(f"{'others, of 20':<18}" + "".join(f"{-value}".rjust(25) for value in least))
    return common


if __name__ == "__main__":
    main()
