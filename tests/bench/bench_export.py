"""Export of the selected columns beside one read of the data.

    python -m tests.bench.bench_export FOLDER [--rows 4000000] [--features 1280] [--selected 50]

Writes a float32 store of that shape into FOLDER, unless it is there, and runs max_variance on it.
Then it reads the whole store once and exports the selected columns, alternately, and prints the
seconds of both, the ratio of their medians, and the memory of the exporting process.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

import bigfs
from bigfs.core.units import MIB
from bigfs.results.export import SelectedColumns, open_run_data
from bigfs.store.ingest import ingest
from bigfs.store.source import is_store
from tests.bench._manifold import PlantedManifold


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Write the store, read and export, print and return the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--features", type=int, default=1280)
    parser.add_argument("--selected", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--format", default=".zarr", choices=[".zarr", ".npy", ".parquet"])
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    store = options.folder / f"X-{options.rows}x{options.features}.zarr"
    if not is_store(store):
        ingest(PlantedManifold(options.rows, options.features), store)
    result = bigfs.run(
        {
            "run": str(options.folder / f"run-{options.rows}x{options.features}"),
            "input": {"uri": str(store)},
            "method": "max_variance",
            "n_features_to_select": options.selected,
        }
    )
    dest = options.folder / f"selected{options.format}"
    read, exported = [], []
    for _ in range(options.repeats):
        began = time.perf_counter()
        everything = SelectedColumns(open_run_data(result.path), np.arange(options.features), None)
        for _ in everything.iter_blocks(options.rows):
            pass
        read.append(time.perf_counter() - began)
        began = time.perf_counter()
        result.export(dest, overwrite=True)
        exported.append(time.perf_counter() - began)
    ratio = statistics.median(exported) / statistics.median(read)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    shape = f"{options.rows:,} x {options.features:,} float32"
    print(f"{shape}, {options.selected} columns as {dest.suffix}")
    print("one read   " + "  ".join(f"{seconds:8.2f} s" for seconds in read))
    print("export     " + "  ".join(f"{seconds:8.2f} s" for seconds in exported))
    print(f"ratio of medians {ratio:.2f}; the process took at most {peak / MIB:.0f} MiB")
    return {"ratio": ratio, "read": read, "exported": exported, "dest": dest}


if __name__ == "__main__":
    main()
