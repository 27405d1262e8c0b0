"""
Updating a nightly run
======================

Rows are appended to a store every night. ``update: auto`` updates the run of the night before and
does only the work that the new rows require. ``bigfs diff`` shows what changed.
"""

import subprocess
import sys
import tempfile

import matplotlib.pyplot as plt
import numpy as np

import bigfs

folder = tempfile.mkdtemp()
rng = np.random.default_rng(0)
centers = 3 * rng.normal(size=(5, 12))


def rows(n):
    return (centers[rng.integers(5, size=n)] + rng.normal(size=(n, 12))).astype(np.float32)


bigfs.ingest(rows(3_000), f"{folder}/X.zarr")
settings = {
    "run": f"{folder}/nightly-{{date}}", "input": {"uri": f"{folder}/X.zarr"}, "method": "mcfs",
    "n_features_to_select": 6, "mcfs": {"n_clusters": 5}, "update": "auto", "report": None,
}  # fmt: skip
results = []
for night in ("2026-01-01", "2026-01-02", "2026-01-03"):
    results.append(bigfs.run({**settings, "date": night}))
    bigfs.ingest(rows(100), f"{folder}/X.zarr", append=True)
diff = [sys.executable, "-m", "bigfs", "diff", str(results[0].path), str(results[-1].path)]
print(subprocess.run(diff, capture_output=True, text=True, check=True).stdout)

# %%
ax = plt.subplots()[1]
ax.plot([result.n_samples for result in results], marker="o")
ax.set(xlabel="night", ylabel="rows", xticks=range(3))
