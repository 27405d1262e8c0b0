"""An AnnData whose X, layers and raw all differ, and the forms it is kept in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

ad = pytest.importorskip("anndata", reason="anndata is not installed")
h5py = pytest.importorskip("h5py", reason="the extra bigfs[anndata] is not installed")

N, D = 60, 8
COUNTS = np.random.default_rng(0).poisson(0.4, (N, D)).astype(np.float32)
GENES = [f"gene {j}" for j in range(D)]


def annotated(X: Any = None) -> Any:
    """Return an AnnData whose X, layers and raw all differ."""
    X = sp.csr_matrix(COUNTS) if X is None else X
    adata = ad.AnnData(X, var=pd.DataFrame(index=GENES))
    adata.raw = ad.AnnData(sp.csr_matrix(np.c_[COUNTS, COUNTS] * 5), var=frame_of_genes(2 * D))
    adata.layers["dense"] = COUNTS * 2
    adata.layers["columns"] = sp.csc_matrix(COUNTS * 3)
    return adata


def frame_of_genes(d: int) -> Any:
    return pd.DataFrame(index=[f"raw {j}" for j in range(d)])


def rows_of(source: Any) -> np.ndarray:
    return np.concatenate(list(source.iter_blocks(25)))


def kept_as(kind: str, folder: Path, adata: Any) -> Any:
    if kind == "zarr":
        adata.write_zarr(folder / "X.zarr")
        return folder / "X.zarr"
    if kind == "memory":
        return adata
    adata.write_h5ad(folder / "X.h5ad")
    return folder / "X.h5ad" if kind == "h5ad" else ad.read_h5ad(folder / "X.h5ad", backed="r")
