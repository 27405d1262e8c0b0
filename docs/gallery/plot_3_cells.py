"""
Selecting genes of single cells
===============================

The data are counts of 500 cells of three types. ``highly_variable`` is the method to start with for
raw counts. `bigfs.select` writes the result into ``adata.var``, as scanpy's functions do.
"""

import anndata
import numpy as np
import pandas as pd
import scipy.sparse as sp

import bigfs

rng = np.random.default_rng(0)
types = np.arange(500) % 3
rates = np.tile(rng.gamma(2, 0.5, 300), (3, 1))
rates[:, :30] *= 0.3
for kind in range(3):
    rates[kind, 10 * kind : 10 * kind + 10] *= 8  # markers
counts = sp.csr_matrix(rng.poisson(rates[types] * rng.gamma(4, 0.25, (500, 1))).astype(np.float32))
adata = anndata.AnnData(
    counts,
    obs=pd.DataFrame({"type": types.astype(str)}, index=[f"cell {i}" for i in range(500)]),
    var=pd.DataFrame(index=[f"gene {j}" for j in range(300)]),
)

bigfs.select(adata, 30, method="highly_variable")
print(adata.var.sort_values("bigfs_rank").head())
print("markers among the 30:", int(adata.var["bigfs_selected"].iloc[:30].sum()))

# %%
# The genes with the highest scores.
selector = bigfs.HighlyVariable(30).fit(adata)
ax = bigfs.plot(selector).scores()
