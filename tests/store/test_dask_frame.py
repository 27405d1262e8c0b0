"""Dask DataFrames: a partition at a time, whose size the plan knows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import bigfs
from bigfs.core.errors import MemoryLimitError
from bigfs.core.units import MIB
from bigfs.store.ingest import ingest
from bigfs.store.records import MANIFEST
from bigfs.store.source import open_matrix

dd = pytest.importorskip("dask.dataframe", reason="dask.dataframe is not installed")


def part(size: int) -> pd.DataFrame:
    """Return rows that take little more memory to make than they have."""
    X = np.ones((size, 100), dtype=np.float32)
    X[:, 0] = np.arange(size)
    return pd.DataFrame(X, columns=[f"g{j}" for j in range(100)])


def frame_of(*sizes: int) -> Any:
    return dd.from_map(part, list(sizes), meta=part(2))


def test_rows_and_the_largest_partition_are_measured_one_partition_at_a_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    computed: list[int] = []

    def counted(size: int) -> pd.DataFrame:
        computed.append(size)
        return part(size)

    source = open_matrix(dd.from_map(counted, [20, 3000, 0, 5], meta=part(2)))
    assert not computed and source.n_samples is None
    with caplog.at_level("INFO", "bigfs"):
        assert source.estimated_samples == 3025
        assert source.held_bytes == 2 * part(3000).memory_usage(deep=True).sum()
    assert computed == [20, 3000, 0, 5] and source.n_samples == 3025
    assert "3,025 rows in 4 partitions, the largest of 1.14 MiB" in caplog.text
    assert sum(len(block) for block in source.iter_blocks(7)) == 3025


def test_a_partition_that_does_not_fit_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    settings = {"method": "max_variance", "n_features_to_select": 2, "memory_limit": "1 GiB"}
    settings |= {"run": str(tmp_path / "run")}
    # Pages of zeros take no memory before they are written to.
    large = dd.from_map(lambda _: pd.DataFrame(np.zeros((10**6, 100))), [0])
    with pytest.raises(MemoryLimitError, match="memory_limit"):
        bigfs.run(settings, data=large)
    with pytest.raises(MemoryLimitError, match="reading the input"):
        ingest(large, tmp_path / "X.zarr", memory_limit="1 GiB")
    assert not (tmp_path / "run" / MANIFEST).exists() and not (tmp_path / "X.zarr").exists()
    assert bigfs.run(settings, data=frame_of(200, 300)).n_samples == 500


_INGEST = """
import sys
import numpy, pandas, zarr, zarr.codecs
from bigfs.core.memory import peak_bytes, reset_peak
from bigfs.store.scratch import chunk_rows
from bigfs.store.ingest import ingest, ingest_bytes
from bigfs.store.source import open_matrix
from tests.store.test_dask_frame import frame_of
ingest(frame_of(2000), sys.argv[1] + "/small.zarr")
reset_peak()
before = peak_bytes()
source = open_matrix(frame_of(*[150_000] * 4))
report = ingest(source, sys.argv[1] + "/large.zarr")
chunk = chunk_rows(100, 4) * 400
print(report.n_samples, peak_bytes() - before, ingest_bytes(chunk, source.held_bytes))
"""


@pytest.mark.full
@pytest.mark.memory
def test_a_frame_takes_what_is_planned(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _INGEST, str(tmp_path)],
        capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2], timeout=200,
    )  # fmt: skip
    rows, grown, predicted = (int(word) for word in done.stdout.split())
    message = f"grew by {grown / MIB:.0f} MiB, {predicted / MIB:.0f} predicted"
    assert rows == 600_000 and grown <= predicted, message
    assert predicted <= max(100 * MIB, 2 * grown), message
