"""Predicted against measured memory of copying AnnData into a store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from bigfs.core.units import MIB

pytestmark = [pytest.mark.memory, pytest.mark.full]
N, ENTRIES = 50_000, 250

_COPY = """
import sys
import numpy, scipy.sparse, zarr, zarr.codecs
from bigfs.config.sections import InputConfig
from bigfs.core.memory import peak_bytes, reset_peak
from bigfs.core.units import GIB
from bigfs.plan.planning import header_of
from bigfs.plan.plan import Place, make_plan
from bigfs.stages.data import data_stage
from bigfs.store.ingest import ingest
from bigfs.store.source import open_matrix
small, large = sys.argv[1:]
ingest(open_matrix(small), small + ".copy", memory_limit=4 * GIB)
source = open_matrix(large)
header = header_of(source, large)
held = {"held_bytes": header.held_bytes, "temporary_bytes": header.temporary_bytes}
stage = data_stage(InputConfig(uri=large), "none", False, **held)
[planned] = make_plan([stage], header.shape(None, sparse=True), Place(4 * GIB)).stages
reset_peak()
before = peak_bytes()
report = ingest(source, large + ".copy", memory_limit=4 * GIB)
print(report.n_samples, peak_bytes() - before, planned.cost.task_bytes)
"""


def written(form: str, folder: Path, name: str, n: int) -> Path:
    """Keep counts as an AnnData with X dense, CSR or CSC."""
    ad = pytest.importorskip("anndata", reason="anndata is not installed")
    kind, _, layout = form.partition("-")
    rng = np.random.default_rng(0)
    if layout == "dense":
        X = rng.poisson(1, (n, 1000)).astype(np.float32)
    else:
        columns = np.sort(rng.integers(5000, size=(n, ENTRIES)), axis=1).astype(np.int32)
        values = (1 + rng.poisson(1, size=columns.size)).astype(np.float32)
        pointers = np.arange(0, columns.size + 1, ENTRIES)
        X = sp.csr_matrix((values, columns.ravel(), pointers), shape=(n, 5000))
        X = X.tocsc() if layout == "csc" else X
    path = folder / f"{name}.{kind}"
    adata = ad.AnnData(X)
    adata.write_h5ad(path) if kind == "h5ad" else adata.write_zarr(path)
    return path


@pytest.mark.parametrize(
    ("form", "n"),
    [
        ("h5ad-csr", N), ("h5ad-csc", N), ("h5ad-dense", N), ("zarr-csr", N), ("zarr-dense", N),
        ("h5ad-csc", 16_000),  # the most entries that are sorted in memory
    ],
)  # fmt: skip
def test_a_copy_takes_what_is_planned(form: str, n: int, tmp_path: Path) -> None:
    pytest.importorskip("h5py", reason="the extra bigfs[anndata] is not installed")
    small, large = (
        str(written(form, tmp_path, name, rows)) for name, rows in (("small", 2000), ("large", n))
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _COPY, small, large], capture_output=True,
        text=True, check=True, cwd=Path(__file__).parents[2], timeout=200,
    )  # fmt: skip
    rows, grown, predicted = (int(word) for word in done.stdout.split())
    message = f"grew by {grown / MIB:.0f} MiB, {predicted / MIB:.0f} predicted"
    print(form, message)
    assert rows == n and grown <= predicted <= max(100 * MIB, 2 * grown), message
