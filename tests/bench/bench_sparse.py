"""Sparse data sets: methods on counts of cells and on text, and the dense form of the same rows.

    python -m tests.bench.bench_sparse FOLDER [--sets worm_neuron BASEHOCK] [--entries]

worm_neuron is taken as counts (`preprocess: auto`), BASEHOCK as tf-idf with rows of norm one. For
each method it prints seconds of all stages (and of the dense form), the largest process, NMI of
k-means and the 1-NN error on the selected columns (of the normalized values), and how the scores
differ from those of the dense form with the same settings. With ``--entries`` small sets take the
form for entries, too, where the dense one is the rule. ``$BIGFS_DATA`` is the folder of the sets.
"""

from __future__ import annotations

import argparse
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import scipy.sparse as sp

import bigfs
from bigfs.blocks import RowBlocks
from bigfs.core.units import MIB
from bigfs.evaluate.protocols import Protocol
from bigfs.evaluate.selection import measure_selection

METHODS: dict[str, dict[str, Any]] = {
    "max_variance": {},
    "deviance": {"method": "highly_variable", "highly_variable": {"flavor": "deviance"}},
    "laplacian_score": {},
    "spec phi3": {"method": "spec", "spec": {"ranking": "phi3"}},
    "mcfs": {"mcfs": {}},
    "mcfs lasso": {"method": "mcfs", "mcfs": {"regression": "lasso"}},
}
# By name only: an iteration on entries is hundreds of passes.
MORE: dict[str, dict[str, Any]] = {"ndfs": {"ndfs": {"max_iter": 3}}}


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Run the methods on the sets, print and return the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", nargs="*", default=["worm_neuron", "BASEHOCK"])
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--selected", type=int, default=500)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--entries", action="store_true")
    parser.add_argument("--set", nargs="*", default=[], help="settings, as of `bigfs run`")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    measured = []
    for name in options.sets:
        with np.load(Path(os.environ["BIGFS_DATA"]) / f"{name}.npz") as stored:
            parts = (stored["data"], stored["indices"], stored["indptr"])
            X, y = sp.csr_array(parts, shape=tuple(stored["shape"])), stored["y"]
        measured += figures(name, X, y, options)
    return measured


def figures(name: str, X: Any, y: np.ndarray, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the figures of one set, whose counts are text unless it has cells."""
    text = name != "worm_neuron"
    if text:
        X = X.multiply(np.log(X.shape[0] / (X > 0).sum(axis=0))[None, :]).tocsr()
        X = sp.csr_array(X, dtype=np.float32)
    sp.save_npz(options.folder / f"{name}.npz", X)
    np.save(options.folder / f"{name}.npy", X.toarray())
    kind = "unit_norm" if text else "normalize_log1p"
    judged = RowBlocks.from_any(X, transform=kind)
    protocol = Protocol(int(y.max()) + 1, options.repetitions, 10)
    rows = []
    for method in options.methods:
        settings = {
            "method": method,
            "n_features_to_select": options.selected,
            "curves": False,
            **{**METHODS, **MORE}[method],
        }
        if text:
            settings["preprocess"] = kind
        for section in ("mcfs", "ndfs"):
            if section in settings:
                settings[section] = {"n_clusters": protocol.n_clusters, **settings[section]}
        entries = patch("bigfs.stages.stage.is_large", lambda shape: True)
        with entries if options.entries else nullcontext():
            sparse = _run(options, name, f"{name}.npz", settings)
        used = sparse.settings
        dense = _run(options, name, f"{name}.npy", {**settings, **_resolved(used)})
        scores = measure_selection(judged, y, sparse.selected, protocol, "4 GiB")
        row = {
            "set": name,
            "method": method,
            "seconds": sum(stage["seconds"] for stage in sparse.stages.values()),
            "dense_seconds": sum(stage["seconds"] for stage in dense.stages.values()),
            "peak_mib": max(s["measured_peak_bytes"] for s in sparse.stages.values()) / MIB,
            "nmi": 100 * scores["nmi_mean"],
            "error": 100 * scores["nearest_neighbor_error"],
            "difference": float(
                np.abs(sparse.scores - dense.scores).max() / np.abs(dense.scores).max()
            ),
            "same": bool(np.array_equal(np.sort(sparse.selected), np.sort(dense.selected))),
        }
        rows.append(row)
        print(
            f"{name:12s} {method:16s} {row['seconds']:6.1f} s (dense {row['dense_seconds']:.1f})  "
            f"{row['peak_mib']:5.0f} MiB  NMI "
            f"{row['nmi']:5.1f}  1-NN error {row['error']:5.1f}  scores differ by "
            f"{row['difference']:.1e}, {'the same' if row['same'] else 'other'} features",
            flush=True,
        )
    return rows


def _resolved(used: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that a run resolved from its sparse input."""
    measured = {"preprocess": used["preprocess"]}
    if used.get("graph") is not None:
        measured["graph"] = {"representation": used["graph"]["representation"]}
    return measured


def _run(options: argparse.Namespace, name: str, file: str, settings: dict[str, Any]) -> Any:
    run = options.folder / f"run-{file}-{settings['method']}"
    given = {"run": str(run), "input": {"uri": str(options.folder / file)}, **settings}
    return bigfs.run(given, overrides=list(options.set), fresh=True)


if __name__ == "__main__":
    main()
