"""The least that a batch job can take on a machine: its disk, its BLAS and pynndescent.

    python -m tests.bench._floors STORE RUN

Prints, as JSON, what one process measures: bytes of the store that the disk gives in a second
(pages that the system keeps are dropped first), rows that BLAS multiplies to ``X'X`` in float64 in
a second, and seconds in which pynndescent finds the neighbors of as many rows as the run's
partitions had in the mean (an exact search, if the run made that).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bigfs.core.threads import single_thread
from bigfs.core.units import GIB
from bigfs.graph.local import search_exact
from bigfs.store.source import open_matrix

_READ_BYTES = 2 * GIB
_GRAM_ROWS = 8192
_REPETITIONS = 3


def measure_floors(store: Path, run: Path, n_workers: int) -> dict[str, float]:
    """Return the seconds of each part on as many cores as there are workers.

    Parameters
    ----------
    store : Path
        The data.
    run : Path
        A finished run of them; it says how many partitions were searched.
    n_workers : int

    Returns
    -------
    floors : dict
        ``disk_rate`` in bytes a second; ``gram`` and ``search``, the seconds of all rows.
    """
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.bench._floors", str(store), str(run)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    one = json.loads(done.stdout.splitlines()[-1])
    matrix = open_matrix(store)
    return {
        "disk_rate": one["disk_rate"],
        "gram": (matrix.n_samples or 0) / one["gram_rate"] / n_workers,
        "search": one["search_seconds"] * graph_details(run)["n_partitions"] / n_workers,
    }


def graph_details(run: Path) -> dict[str, Any]:
    """Return what the graph of a finished run says of itself."""
    attributes = json.loads((run / "graph.zarr" / "zarr.json").read_text())["attributes"]
    return dict(attributes["graph"])


def _disk_rate(store: Path) -> float:
    """Return bytes a second of a first read."""
    read, seconds = 0, 0.0
    for path in sorted(file for file in store.rglob("*") if file.is_file()):
        with path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            began = time.perf_counter()
            while part := file.read(2**22):
                read += len(part)
            seconds += time.perf_counter() - began
        if read >= _READ_BYTES:
            break
    return read / seconds


def _gram_rate(X: np.ndarray) -> float:
    """Return rows a second; the best of a few."""
    wide = X[:_GRAM_ROWS].astype(np.float64)
    return len(wide) / min(_seconds(lambda: wide.T @ wide) for _ in range(_REPETITIONS))


def _search_seconds(X: np.ndarray, n_neighbors: int, algorithm: str) -> float:
    """Return the seconds of one partition, in a process that has compiled."""
    if algorithm == "exact":
        return _seconds(lambda: search_exact(X, n_neighbors, X, np.arange(len(X))))
    from pynndescent import NNDescent

    def search(rows: np.ndarray) -> Any:
        return NNDescent(rows, n_neighbors=n_neighbors + 1, n_jobs=1, random_state=0).neighbor_graph

    search(X[:5000])
    return _seconds(lambda: search(X))


def _seconds(work: Callable[[], Any]) -> float:
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main(store: Path, run: Path) -> dict[str, float]:
    """Measure in this process."""
    details, matrix = graph_details(run), open_matrix(store)
    rows = min(matrix.n_samples or 0, round(details["rows_searched"] / details["n_partitions"]))
    rate = _disk_rate(store)
    X = np.asarray(next(matrix.iter_blocks(rows)))
    with single_thread():
        return {
            "disk_rate": rate,
            "gram_rate": _gram_rate(X),
            "search_seconds": _search_seconds(X, details["n_neighbors"], details["algorithm"]),
        }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]))))
