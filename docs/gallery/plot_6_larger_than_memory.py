"""
Larger than memory
==================

Data in a store are read in blocks, and ``bigfs plan`` estimates what a run needs before it starts.
This example has 20,000 rows; the same commands work for ten million rows, with a peak memory that
is about 100 MiB higher.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import zarr

import bigfs

folder = tempfile.mkdtemp()
rng = np.random.default_rng(0)
store = zarr.create_array(f"{folder}/X.zarr", shape=(20_000, 40), chunks=(5_000, 40), dtype="f4")
centers = 3 * rng.normal(size=(6, 10))
for start in range(0, 20_000, 5_000):
    rows = rng.normal(size=(5_000, 40))
    rows[:, :10] += centers[rng.integers(6, size=5_000)]  # ten features separate six groups
    store[start : start + 5_000] = rows

settings = {
    "run": f"{folder}/run", "input": {"uri": f"{folder}/X.zarr"}, "method": "column_subset",
    "n_features_to_select": 10, "memory_limit": "1 GiB", "report": None,
}  # fmt: skip
pipeline = Path(folder, "pipeline.yaml")
pipeline.write_text(json.dumps(settings))  # JSON is YAML
plan = [sys.executable, "-m", "bigfs", "plan", str(pipeline)]
print(subprocess.run(plan, capture_output=True, text=True, check=True).stdout)

# %%
result = bigfs.run(settings)
print(sorted(result.selected.tolist()))

# %%
# The effect of selecting more or fewer features.
ax = result.plot.curves()
