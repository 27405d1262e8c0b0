"""Counts of cells: every method beside scanpy's highly variable genes, and a study of defaults.

    BIGFS_DATA=FOLDER python -m tests.bench.bench_cells methods WORK [--sets worm_neuron clear]
    BIGFS_DATA=FOLDER python -m tests.bench.bench_cells defaults WORK [--sets ...] [--methods ...]

``methods`` runs every method on the counts as `bigfs run` does, and scanpy's
``highly_variable_genes`` where scanpy is installed; ``defaults`` changes one setting of the
preprocessing or of the graph at a time. Each run has a process of its own, with one thread, that is
stopped after ``--limit`` seconds. It prints seconds by the clock and of the processor, the largest
resident size, NMI of k-means and the 1-NN error on the selected genes (normalized to 1e4, log1p),
and of simulated sets the share of the selected genes that are markers. Sets: worm_neuron (500
genes), and 3,000 simulated cells x 3,000 genes in three batches and 12 types of 25 markers each
(300 genes): ``clear`` (markers are 4 times as frequent), ``faint`` (twice) and ``rare`` (4 times;
types from 29 % to 1 % of the cells). Work is in the folder WORK.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from bigfs.blocks import RowBlocks
from bigfs.core.memory import peak_bytes
from bigfs.core.units import MIB
from bigfs.evaluate.protocols import Protocol
from bigfs.evaluate.selection import measure_selection
from bigfs.selectors.registry import METHODS

TYPES, OF_EACH = 12, 25
SIMULATED = {"clear": (4.0, 0.0), "faint": (2.0, 0.0), "rare": (4.0, 0.3)}
# What differs from the method's own name and defaults, by the name in the table.
VARIANTS: dict[str, dict[str, Any]] = {
    "mcfs lasso": {"method": "mcfs", "mcfs": {"regression": "lasso"}},
    "spec phi1": {"method": "spec", "spec": {"ranking": "phi1"}},
    "spec phi3": {"method": "spec", "spec": {"ranking": "phi3"}},
    "highly_variable paper": {
        "method": "highly_variable",
        "highly_variable": {"flavor": "seurat_v3_paper"},
    },
    "highly_variable deviance": {
        "method": "highly_variable",
        "highly_variable": {"flavor": "deviance"},
    },
}
SCANPY = ("seurat_v3", "seurat", "cell_ranger")
STUDIED = ("laplacian_score", "spec phi3", "mcfs", "mcfs lasso")
SETTINGS: dict[str, dict[str, Any]] = {
    "as by default": {},
    "preprocess none": {"preprocess": "none"},
    "preprocess log1p": {"preprocess": "log1p"},
    "preprocess normalize_total": {"preprocess": "normalize_total"},
    "pca:20": {"graph": {"representation": "pca:20"}},
    "pca:100": {"graph": {"representation": "pca:100"}},
    "raw": {"graph": {"representation": "raw"}},
    "15 neighbors": {"graph": {"n_neighbors": 15}},
    "heat": {"graph": {"weight": "heat"}},
    "15 neighbors, heat": {"graph": {"n_neighbors": 15, "weight": "heat"}},
}


def simulated(name: str, n: int = 3000, d: int = 3000, seed: int = 0) -> tuple[Any, np.ndarray]:
    """Return counts in CSR form, the markers first, and the type of each cell."""
    fold, slope = SIMULATED[name]
    rng = np.random.default_rng(seed)
    share = np.exp(-slope * np.arange(TYPES))
    types = rng.choice(TYPES, n, p=share / share.sum())
    depth = np.array([1.0, 1.6, 0.6])[np.arange(n) % 3] * np.exp(rng.normal(0, 0.3, n))
    means = np.exp(rng.normal(-2, 1.3, d))
    own = np.tile(means, (TYPES, 1))
    for cell_type in range(TYPES):
        own[cell_type, cell_type * OF_EACH : (cell_type + 1) * OF_EACH] *= fold
    expected = depth[:, None] * own[types]
    return sp.csr_array(rng.poisson(rng.gamma(2, expected / 2)).astype(np.float32)), types


def read_set(name: str) -> tuple[Any, np.ndarray, int, int]:
    """Return counts, classes, how many genes to select, and how many of the first are markers."""
    if name in SIMULATED:
        return *simulated(name), TYPES * OF_EACH, TYPES * OF_EACH
    with np.load(Path(os.environ["BIGFS_DATA"]) / f"{name}.npz") as stored:
        parts = (stored["data"], stored["indices"], stored["indptr"])
        return sp.csr_array(parts, shape=tuple(stored["shape"])), stored["y"], 500, 0


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Run what is asked for, print and return the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["methods", "defaults"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", nargs="*", default=["worm_neuron", *SIMULATED])
    parser.add_argument("--methods", nargs="*")
    parser.add_argument("--settings", nargs="*", default=list(SETTINGS))
    parser.add_argument("--limit", type=float, default=300)
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in options.sets:
        X, y, m, n_markers = read_set(name)
        rows += figures(name, X, y, m, n_markers, options)
    return rows


def jobs(options: argparse.Namespace) -> list[tuple[str, dict[str, Any]]]:
    """Return the names in the table, and the settings of each run."""
    if options.what == "defaults":
        return [
            (f"{method}: {setting}", {**settings_of(method), **SETTINGS[setting]})
            for method in options.methods or STUDIED
            for setting in options.settings
        ]
    names = options.methods or [*METHODS, *VARIANTS, *(f"scanpy {name}" for name in SCANPY)]
    return [(name, settings_of(name)) for name in names]


def settings_of(name: str) -> dict[str, Any]:
    """Return the settings of a method or a variant; of scanpy its flavor."""
    if name.startswith("scanpy "):
        return {"flavor": name.removeprefix("scanpy ")}
    return {"method": name, **VARIANTS.get(name, {})}


def figures(
    name: str, X: Any, y: np.ndarray, m: int, n_markers: int, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Return the figures of one set."""
    file = options.folder / f"{name}.npz"
    sp.save_npz(file, X)
    judged = RowBlocks.from_any(X, transform="normalize_log1p", sparse=True)
    protocol = Protocol(int(y.max()) + 1, options.repetitions, 10)
    rows = []
    for title, settings in jobs(options):
        if "flavor" not in settings:
            own = METHODS[settings["method"]].parameters.model_fields
            if "n_clusters" in own:
                section = settings.get(settings["method"], {})
                settings[settings["method"]] = {"n_clusters": protocol.n_clusters, **section}
        row = {"set": name, "what": title, **in_process(settings, str(file), m, options.limit)}
        rows.append(row)
        selected = row.pop("selected", None)
        if selected is None:
            print(f"{name:12s} {title:38s} {row['failed']}", flush=True)
            continue
        scores = measure_selection(judged, y, selected, protocol, "4 GiB")
        row["nmi"] = 100 * scores["nmi_mean"]
        row["error"] = 100 * scores["nearest_neighbor_error"]
        markers = ""
        if n_markers:
            row["markers"] = 100 * float((selected < n_markers).mean())
            markers = f"  markers {row['markers']:3.0f} %"
        print(
            f"{name:12s} {title:38s} {row['seconds']:6.1f} s {row['cpu_seconds']:6.1f} s CPU "
            f"{row['peak_mib']:5.0f} MiB  NMI {row['nmi']:5.1f}  1-NN error {row['error']:5.1f}"
            f"{markers}",
            flush=True,
        )
    return rows


def in_process(settings: dict[str, Any], file: str, m: int, limit: float) -> dict[str, Any]:
    """Return what `select` does in a process of its own, or why there is nothing."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(there, settings, file, m))
    process.start()
    there.close()
    try:
        if not here.poll(limit):
            return {"failed": f"more than {limit:.0f} s"}
        result: dict[str, Any] = here.recv()
        return result
    except EOFError:
        return {"failed": "the process ended"}
    finally:
        process.kill()
        process.join()


def _child(pipe: Any, settings: dict[str, Any], file: str, m: int) -> None:
    warnings.simplefilter("ignore")
    try:
        pipe.send(select(settings, file, m))
    except Exception as error:
        pipe.send({"failed": f"{type(error).__name__}: {error}"[:160]})


def select(settings: dict[str, Any], file: str, m: int) -> dict[str, Any]:
    """Return the genes that a run, or scanpy, selects, with its seconds and largest size."""
    began, cpu = time.perf_counter(), time.process_time()
    if "flavor" in settings:
        selected = by_scanpy(settings["flavor"], file, m)
    else:
        import bigfs

        run = Path(file).with_suffix("") / "run"
        given = {"run": str(run), "input": {"uri": file}, "n_features_to_select": m}
        result = bigfs.run(
            {**given, "curves": False, "memory_limit": "8 GiB", **settings}, fresh=True
        )
        selected = result.selected
    return {
        "selected": np.sort(selected),
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu,
        "peak_mib": peak_bytes() / MIB,
    }


def by_scanpy(flavor: str, file: str, m: int) -> np.ndarray:
    """Return scanpy's highly variable genes among those that three cells have."""
    import anndata
    import scanpy

    adata = anndata.AnnData(sp.csr_matrix(sp.load_npz(file)))
    scanpy.pp.filter_genes(adata, min_cells=3)
    if flavor != "seurat_v3":
        scanpy.pp.normalize_total(adata, target_sum=1e4)
        scanpy.pp.log1p(adata)
    scanpy.pp.highly_variable_genes(adata, n_top_genes=m, flavor=flavor)
    return adata.var_names[adata.var["highly_variable"]].astype(int).to_numpy()


if __name__ == "__main__":
    main()
