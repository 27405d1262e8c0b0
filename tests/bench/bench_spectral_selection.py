"""The features that MCFS selects with each eigensolver, and how good they are.

    python -m tests.bench.bench_spectral_selection FOLDER [--repetitions 5]

FOLDER holds ORL.npz, COIL20.npz and USPS.npz with ``X`` and ``y``; the protocol is that of
_judge.py. The overlap counts features also selected with eigsh.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.graph import affinity, knn_graph
from bigfs.selectors.mcfs.strategies import FullGram
from bigfs.spectral.embedding import spectral_embedding
from tests.bench._judge import SETS, measure
from tests.selectors._local import selection_of

# The last one is chebyshev on row blocks.
SOLVERS = ("eigsh", "lobpcg", "chebyshev", "distributed")


def main(
    arguments: list[str] | None = None, sets: dict[str, Any] | None = None
) -> dict[tuple[str, str], int]:
    """Print one line per data set and solver; return the overlaps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args(arguments)
    overlaps = {}
    print(f"{'data':<8}{'solver':<11}{'overlap':>9}{'NMI':>8}{'1-NN error':>12}{'residual':>10}")
    for name, stored in (sets or dict.fromkeys(SETS)).items():
        stored = np.load(options.folder / f"{name}.npz") if stored is None else stored
        X, y = np.asarray(stored["X"], dtype=np.float64), stored["y"]
        m = min(50, X.shape[1] // 2)
        blocks = RowBlocks.from_any(X)
        W = affinity(knn_graph(blocks, 5))
        reference: set[int] = set()
        for solver in SOLVERS:
            spread = solver == "distributed"
            embedding = spectral_embedding(
                W,
                int(y.max()) + 1,
                solver="chebyshev" if spread else solver,
                distributed=spread,
                chunk_rows=blocks.rows,
            )
            K = len(embedding.eigenvalues)
            strategy = FullGram(blocks.layout, selection_of("mcfs", m, n_clusters=K))
            kept = strategy.score(blocks, embedding).support(m)
            reference = reference or set(kept.tolist())
            overlaps[name, solver] = len(reference & set(kept.tolist()))
            nmi, _, error = measure(X[:, kept], y, options.repetitions)
            print(
                f"{name:<8}{solver:<11}{overlaps[name, solver]:>5}/{m:<3}{nmi:>8.1f}{error:>12.2f}"
                f"{embedding.residuals.max():>10.1e}",
                flush=True,
            )
    return overlaps


if __name__ == "__main__":
    main()
