"""Estimated and measured seconds of every stage, for all methods on some of the shared sets.

    python -m tests.bench.bench_plan FOLDER
    python -m tests.bench.bench_plan FOLDER --sets USPS --methods mcfs ndfs

FOLDER holds the sets as NAME.npz with ``X`` (or the parts of a sparse matrix) and ``y``. Each
method runs with its defaults and ``min(100, d / 4)`` features, in a process of its own, without
workers and on one thread; labels are judged for the first method alone. Ratios are measured /
estimated, of stages that take a second or are estimated at one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.core.errors import EXIT_DOES_NOT_FIT, EXIT_DONE
from bigfs.selectors.registry import METHODS

SETS = ("USPS", "COIL20", "BASEHOCK", "worm_neuron", "MNIST")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")


def command(*words: str) -> str | None:
    """Return what a command of bigfs prints; None if it says that the run does not fit."""
    call = [sys.executable, "-m", "bigfs.cli", *words]
    done = subprocess.run(call, capture_output=True, text=True, env={**os.environ, **ONE_THREAD})
    if done.returncode not in (EXIT_DONE, EXIT_DOES_NOT_FIT):
        raise SystemExit(f"{' '.join(words)}: {done.stderr}")
    return None if done.returncode else done.stdout


def measure(uri: str, n_features: int, method: str, labels: str | None) -> dict[str, Any]:
    """Return the estimated and the measured seconds of each stage of a run, if it fits."""
    with tempfile.TemporaryDirectory() as work:
        settings: dict[str, Any] = {
            "run": f"{work}/run", "input": {"uri": uri}, "method": method,
            "n_features_to_select": max(1, min(100, n_features // 4)),
        }  # fmt: skip
        if labels:
            settings["evaluate"] = {"labels": labels}
        path = Path(work) / "run.yaml"
        path.write_text(json.dumps(settings))
        plan = command("plan", str(path), "--format", "json")
        if plan is None:
            return {}
        planned = json.loads(plan)["stages"]
        command("run", str(path))
        stages = json.loads((Path(work) / "run" / "manifest.json").read_text())["stages"]
        took = {name: stages[name]["seconds"] for name in planned if name in stages}
    return {name: (planned[name]["estimated_seconds"], took[name]) for name in took}


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Print a line for each run, and the spread of the ratios of each stage."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--least", type=float, default=1.0, help="seconds of stages that count")
    chosen = parser.parse_args(arguments)
    ratios: dict[str, list[float]] = {}
    for name in chosen.sets:
        uri = str(chosen.folder / f"{name}.npz")
        with np.load(uri) as stored:
            is_sparse = "X" not in stored
            n_features = int(stored["shape"][1] if is_sparse else stored["X"].shape[1])
        for method in chosen.methods:
            labels = f"{uri}::y" if method == chosen.methods[0] else None
            stages = measure(uri if is_sparse else f"{uri}::X", n_features, method, labels)
            texts = [f"{stage} {guess:.1f}/{took:.1f}" for stage, (guess, took) in stages.items()]
            print(f"{name:12} {method:16} {'  '.join(texts)}", flush=True)
            for stage, (estimated, took) in stages.items():
                if max(estimated, took) >= chosen.least:
                    what = method if stage == "result" else stage
                    ratios.setdefault(what, []).append(took / max(estimated, 1e-3))
    print("measured / estimated: least, median, most")
    for what, values in ratios.items():
        print(f"{what:18}{min(values):8.2f}{np.median(values):8.2f}{max(values):8.2f}")
    return {what: float(np.median(values)) for what, values in ratios.items()}


if __name__ == "__main__":
    main()
