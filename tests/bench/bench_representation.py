"""Is a graph of 50 principal components as good as one of all features, above 1,000 features?

    python -m tests.bench.bench_representation FOLDER

FOLDER holds the npz files below, with X and y. For each: the share of the 5 true neighbors (all
features) that the graph of the components holds, and NMI and 1-NN error of 50 features that MCFS
selects with either graph, by the MCFS paper's protocol.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from bigfs.blocks import RowBlocks
from bigfs.graph import affinity, knn_graph
from bigfs.selectors.mcfs.strategies import FullGram
from bigfs.spectral.embedding import spectral_embedding
from bigfs.store.labels import load_labels
from tests.bench._judge import measure
from tests.selectors._local import selection_of

N_NEIGHBORS = 5
N_SELECTED = 50
FILES = ("ORL", "COIL20", "Prostate_GE", "worm_neuron")


def main(arguments: list[str] | None = None) -> dict[tuple[str, str], tuple[float, float, float]]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args(arguments)
    print(f"{'data':<12} {'representation':<15} {'recall':>7} {'NMI':>6} {'1-NN error':>11}")
    figures = {}
    for path in [options.folder / f"{name}.npz" for name in FILES]:
        if not path.exists():
            print(f"{path.stem:<12} not in {options.folder}")
            continue
        blocks, y = RowBlocks.from_any(path), load_labels(str(path))
        true = knn_graph(blocks, N_NEIGHBORS, algorithm="exact").indices[...]
        for representation in ("raw", "pca:50"):
            row = _compare(blocks, y, representation, true, options.repetitions)
            figures[path.stem, representation] = row
            print(
                f"{path.stem:<12} {representation:<15} {row[0]:7.3f} {row[1]:6.1f} {row[2]:11.2f}"
            )
    return figures


def _compare(
    blocks: RowBlocks, y: np.ndarray, representation: str, true: np.ndarray, repetitions: int
) -> tuple[float, float, float]:
    """Return recall among all features, NMI and 1-NN error in percent."""
    graph = knn_graph(blocks, N_NEIGHBORS, representation=representation, algorithm="exact")
    pairs = zip(graph.indices[...], true, strict=True)
    recall = float(np.mean([np.isin(mine, theirs).mean() for mine, theirs in pairs]))
    embedding = spectral_embedding(affinity(graph), int(y.max()) + 1)
    K = len(embedding.eigenvalues)
    strategy = FullGram(blocks.layout, selection_of("mcfs", N_SELECTED, n_clusters=K))
    kept = strategy.score(blocks, embedding).support(N_SELECTED)
    selected = np.concatenate(
        [blocks.start_pass().read(*bounds)[:, kept] for bounds in blocks.bounds]
    )
    nmi, _, error = measure(selected, y, repetitions)
    return recall, nmi, error


if __name__ == "__main__":
    main()
