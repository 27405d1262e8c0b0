"""A library's warning stays away from every thread that opens a matrix."""

from __future__ import annotations

import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from bigfs.store.ingest import ingest
from bigfs.store.source import open_matrix


def test_threads_that_open_a_store_with_other_files_hear_nothing_of_them(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.arange(12.0).reshape(4, 3))
    ingest(tmp_path / "rows.npy", tmp_path / "rows.zarr")
    (tmp_path / "rows.zarr" / "checksums.json").write_text("{}")

    def read(_: int) -> int:
        return open_matrix(tmp_path / "rows.zarr").n_samples

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # threads take turns within a block, not by chance
    try:
        with warnings.catch_warnings(), ThreadPoolExecutor(4) as pool:
            warnings.simplefilter("error")  # zarr warns of the checksums
            assert list(pool.map(read, range(200))) == [4] * 200
    finally:
        sys.setswitchinterval(interval)
