"""Which genes to keep: forward regression beside highly variable genes, after the usual steps.

    BIGFS_DATA=FOLDER python -m tests.bench.bench_genes [--sets worm_neuron rare] [--sizes 500 1000]

Sets: worm_neuron (4,186 cells x 13,488 genes, ten clusters), and ``rare``, 4,000 simulated cells x
8,000 genes with six types of 15 to 17 % and four of 1 %, 20 markers each (4 times as frequent).
Every selection is judged on normalized counts: 50 principal components of the selected genes, then
k-means from 20 starts against the types (NMI); and, where they are known, by the share of the
markers of the rare types, and of all types, that are selected. ``chance`` is the mean of three
random selections. It prints processor seconds of the fit of the largest size; all rankings are
nested.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

import bigfs
from bigfs.blocks import RowBlocks
from bigfs.evaluate.protocols import Protocol
from bigfs.evaluate.selection import measure_selection
from tests.bench.bench_cells import read_set

OF_EACH, ABUNDANT, RARE = 20, 6, 4
METHODS: dict[str, Callable[[int, int], Any]] = {
    "mcfs (omp)": lambda m, c: bigfs.MCFS(m, n_clusters=c, verbose=0),
    "ndfs": lambda m, c: bigfs.NDFS(m, n_clusters=c, verbose=0),
    "highly_variable (seurat_v3)": lambda m, c: bigfs.HighlyVariable(m, verbose=0),
    "highly_variable (deviance)": lambda m, c: bigfs.HighlyVariable(
        m, flavor="deviance", verbose=0
    ),
    "chance": lambda m, c: bigfs.RandomSelection(m, n_draws=3, verbose=0),
}


def rare_types(n: int = 4000, d: int = 8000, seed: int = 0) -> tuple[Any, np.ndarray]:
    """Return counts in CSR form, the markers first, those of rare types last, and the types."""
    rng = np.random.default_rng(seed)
    share = np.array([(1 - 0.01 * RARE) / ABUNDANT] * ABUNDANT + [0.01] * RARE)
    types = rng.choice(len(share), n, p=share)
    own = np.tile(np.exp(rng.normal(-2, 1.3, d)), (len(share), 1))
    for cell_type, row in enumerate(own):
        row[cell_type * OF_EACH : (cell_type + 1) * OF_EACH] *= 4
    expected = np.exp(rng.normal(0, 0.3, n))[:, None] * own[types]
    return sp.csr_array(rng.poisson(rng.gamma(2, expected / 2)).astype(np.float32)), types


def figures(
    X: Any, y: np.ndarray, sizes: list[int], methods: list[str], *, planted: bool
) -> list[dict[str, Any]]:
    """Return a row for each method and number of genes."""
    blocks = RowBlocks.from_any(X, transform="normalize_log1p", sparse=True)
    n_types = int(y.max()) + 1
    protocol = Protocol(n_types, n_components=50, nearest_neighbor=False)
    rows = []
    for name in methods:
        begun = time.process_time()
        fitted = METHODS[name](max(sizes), n_types).fit(X)
        seconds = time.process_time() - begun
        for m in sizes:
            rankings = fitted.draws_ if name == "chance" else [fitted.ranking_]
            judged = [_judged(blocks, y, r[:m], protocol, planted) for r in rankings]
            means = {key: float(np.mean([scores[key] for scores in judged])) for key in judged[0]}
            rows.append({"what": name, "m": m, "seconds": seconds, **means})
            shown = "  ".join(f"{key} {100 * value:5.1f}" for key, value in means.items())
            print(f"{name:<28} {m:>6,}  {shown}  {seconds:6.1f} s", flush=True)
    return rows


def _judged(
    blocks: RowBlocks, y: np.ndarray, selected: np.ndarray, protocol: Protocol, planted: bool
) -> dict[str, float]:
    scores = {"nmi": measure_selection(blocks, y, np.sort(selected), protocol, "4 GiB")["nmi_mean"]}
    if planted:
        kept = np.isin(np.arange((ABUNDANT + RARE) * OF_EACH), selected)
        scores |= {"rare markers": kept[ABUNDANT * OF_EACH :].mean(), "markers": kept.mean()}
    return scores


def main(arguments: list[str] | None = None) -> None:
    """Print the table of every set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="*", default=["worm_neuron", "rare"])
    parser.add_argument("--sizes", nargs="*", type=int, default=[500, 1000, 2000])
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    options = parser.parse_args(arguments)
    for name in options.sets:
        X, y = rare_types() if name == "rare" else read_set(name)[:2]
        print(f"{name}: {X.shape[0]:,} cells x {X.shape[1]:,} genes, {X.nnz:,} entries")
        figures(X, y, options.sizes, options.methods, planted=name == "rare")


if __name__ == "__main__":
    main()
