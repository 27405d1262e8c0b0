"""Counts of cells in a sparse store: methods on workers of 2 GiB.

    python -m tests.bench.bench_counts FOLDER [--rows 100000] [--genes 20000] [--workers 2]

Writes counts of 12 cell types with 100 marker genes each in three batches, block by block, into a
CSR store (about 5 % are stored). Every cell draws its molecules from one of the 20 profiles of its
type, which have gamma noise for each gene, at the depth of its batch. Then it runs the methods on
the store and prints, of each stage and of the run, seconds, predicted and measured peak, bytes read
over stored bytes, and the share of the selected genes that are markers. The method ``scanpy``
is its ``highly_variable_genes`` (seurat_v3) on the same counts in the memory of this process.
Methods are run in the order given, each as often as it is named; ``--workers 0`` is this process.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import bigfs
from bigfs.core.memory import peak_bytes, reset_peak
from bigfs.core.units import MIB
from bigfs.store.csr import as_block
from bigfs.store.source import Source

TYPES, MARKERS, BATCHES, PROFILES = 12, 100, 3, 20
SCANPY = "scanpy"
METHODS: dict[str, dict[str, Any]] = {
    "max_variance": {},
    "deviance": {"method": "highly_variable", "highly_variable": {"flavor": "deviance"}},
    "seurat_v3": {"method": "highly_variable"},
    "seurat_v3, 3 batches": {"method": "highly_variable"},
    "laplacian_score": {},
    "mcfs": {"mcfs": {"n_clusters": TYPES}},
    "mcfs lasso": {"method": "mcfs", "mcfs": {"n_clusters": TYPES, "regression": "lasso"}},
}


class Cells(Source):
    """Counts that are made as they are read; the first genes are the markers."""

    sparse = True

    def __init__(self, rows: int, genes: int, molecules: float) -> None:
        self.uri, self.n_samples, self.n_features = "cells", rows, genes
        self.dtype = np.dtype(np.float32)
        self._molecules = molecules
        rng = np.random.default_rng(0)
        means = np.exp(rng.normal(0, 1.2, genes))
        self._cumulated = []
        for cell_type in range(TYPES):
            own = means.copy()
            own[cell_type * MARKERS : (cell_type + 1) * MARKERS] *= 8
            noisy = own * rng.gamma(2, 0.5, (PROFILES, genes))
            self._cumulated.append(np.cumsum(noisy / noisy.sum(axis=1, keepdims=True), axis=1))

    def batches(self) -> np.ndarray:
        """Return the batch of each row."""
        return np.arange(self.n_samples or 0) % BATCHES

    def iter_rows(self, rows: int) -> Iterator[Any]:
        """Yield blocks of cells."""
        n = self.n_samples or 0
        for start in range(0, n, rows):
            rng = np.random.default_rng([1, start])
            size = min(rows, n - start)
            depth = np.array([1.0, 1.6, 0.6])[self.batches()[start : start + size]]
            counts = rng.poisson(self._molecules * depth * np.exp(rng.normal(0, 0.3, size)))
            parts = []
            for molecules in counts:
                profile = self._cumulated[rng.integers(TYPES)][rng.integers(PROFILES)]
                drawn = np.searchsorted(profile[:-1], np.sort(rng.random(molecules)))
                parts.append(drawn.astype(np.int32))
            columns = np.concatenate(parts)
            content = (np.ones(len(columns), np.float32), columns, np.append(0, np.cumsum(counts)))
            yield as_block(sp.csr_array(content, shape=(size, self.n_features)), self.dtype)


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Write the store, run the methods, print and return the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--genes", type=int, default=20_000)
    parser.add_argument("--molecules", type=float, default=1200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--selected", type=int, default=500)
    parser.add_argument("--memory-limit", default="2 GiB")
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    cells = Cells(options.rows, options.genes, options.molecules)
    store, labels = options.folder / f"cells-{options.rows}.zarr", options.folder / "batches.npy"
    if not store.exists():
        began = time.process_time()
        report = bigfs.ingest(cells, store)
        print(f"{report.nbytes / MIB:,.0f} MiB written in {time.process_time() - began:.0f} s CPU")
    np.save(labels, cells.batches())
    return [
        _by_scanpy(options, store) if name == SCANPY else _figures(name, options, store, labels)
        for name in options.methods
    ]


@cache
def _in_memory(store: Path) -> Any:
    """Return the counts of a store as one CSR matrix."""
    source = bigfs.open_matrix(store)
    assert source.layout is not None
    X = sp.csr_matrix((source.n_samples, source.n_features), dtype=np.float32)
    # Block by block into one array each, so that the data are in memory once; int32 has room.
    X.data, X.indices = (np.empty(source.layout.n_entries, t) for t in (np.float32, np.int32))
    row = 0
    for block in source.iter_rows(2000):
        at, stop = X.indptr[row], X.indptr[row] + block.nnz
        X.data[at:stop], X.indices[at:stop] = block.data, block.indices
        X.indptr[row + 1 : row + block.shape[0] + 1] = at + block.indptr[1:]
        row += block.shape[0]
    return X


def _by_scanpy(options: argparse.Namespace, store: Path) -> dict[str, Any]:
    import anndata
    import scanpy

    adata = anndata.AnnData(_in_memory(store))
    reset_peak()
    began, clock = time.process_time(), time.perf_counter()
    scanpy.pp.highly_variable_genes(adata, n_top_genes=options.selected, flavor="seurat_v3")
    seconds, peak = time.process_time() - began, peak_bytes() / MIB
    clock = time.perf_counter() - clock
    markers = float(adata.var["highly_variable"].to_numpy()[: TYPES * MARKERS].sum())
    markers /= options.selected
    print(
        f"{SCANPY:22s} {options.rows:>9,} rows  {clock:6.2f} s, {seconds:6.2f} s CPU  "
        f"peak {peak:5.0f} MiB  markers {100 * markers:.0f} %"
    )
    return {
        "method": SCANPY, "rows": options.rows, "cpu_seconds": seconds, "measured_mib": peak,
        "markers": markers,
    }  # fmt: skip


def _figures(name: str, options: argparse.Namespace, store: Path, labels: Path) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "run": str(options.folder / f"run-{options.rows}-{name.replace(' ', '')}"),
        "input": {"uri": str(store)},
        "method": name,
        "n_features_to_select": options.selected,
        "memory_limit": options.memory_limit,
        "curves": False,
        **METHODS[name],
    }
    if "batches" in name:
        settings["highly_variable"] = {"batch_key": str(labels)}
    if options.workers:
        settings["cluster"] = {"n_workers": options.workers}
    before, began = os.times(), time.perf_counter()
    result = bigfs.run(settings, fresh=True)
    clock = time.perf_counter() - began
    after, stages = os.times(), result.stages
    source = bigfs.open_matrix(store)
    assert source.layout is not None
    figures = {
        "method": name,
        "rows": options.rows,
        "seconds": clock,
        # With the start of the workers, which are this process's children.
        "cpu_seconds": sum(after[:4]) - sum(before[:4]),
        "predicted_mib": max(s["predicted_peak_bytes"] for s in stages.values()) / MIB,
        "measured_mib": max(s["measured_peak_bytes"] for s in stages.values()) / MIB,
        "reads": sum(s["bytes_read"] for s in stages.values()) / (8 * source.layout.n_entries),
        "markers": float((result.selected < TYPES * MARKERS).mean()),
    }
    for part, stage in stages.items() if len(stages) > 1 else ():
        measured, predicted = (stage[f"{k}_peak_bytes"] / MIB for k in ("measured", "predicted"))
        print(
            f"  {part:12s} {stage['seconds']:6.1f} s  peak {measured:5.0f} of {predicted:5.0f} MiB"
        )
    print(
        f"{name:22s} {options.rows:>9,} rows  {figures['seconds']:6.2f} s, "
        f"{figures['cpu_seconds']:6.2f} s CPU  peak {figures['measured_mib']:5.0f} of "
        f"{figures['predicted_mib']:5.0f} MiB  read {figures['reads']:.2f} x  "
        f"markers {100 * figures['markers']:.0f} %",
        flush=True,
    )
    return figures


if __name__ == "__main__":
    main()
