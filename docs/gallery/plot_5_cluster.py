"""
Running on a Dask cluster
=========================

bigfs uses the Dask client in scope. The same data, settings and seed give bit-identical results on
any number of workers, and on threads.
"""

import tempfile

import numpy as np
from distributed import Client, LocalCluster
from sklearn.datasets import load_digits

import bigfs

if __name__ == "__main__":
    folder = tempfile.mkdtemp()
    bigfs.ingest(load_digits().data, f"{folder}/digits.zarr")
    on_threads = bigfs.MCFS(20, n_clusters=10).fit(f"{folder}/digits.zarr")
    options = {"threads_per_worker": 1, "memory_limit": "2GiB", "dashboard_address": None}
    with LocalCluster(n_workers=2, **options) as cluster, Client(cluster):
        on_workers = bigfs.MCFS(20, n_clusters=10, memory_limit="2 GiB")
        on_workers.fit(f"{folder}/digits.zarr")
    np.testing.assert_array_equal(on_workers.ranking_, on_threads.ranking_)
    ax = bigfs.plot(on_workers).scores(n_features=20)
