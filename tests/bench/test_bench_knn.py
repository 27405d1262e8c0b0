"""The benchmarks of the neighbor graph run once at toy size."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import bench_knn, bench_knn_cluster


@pytest.mark.slow
def test_against_one_index(tmp_path: Path) -> None:
    options = ["--manifold", "12000", "--partitions", "4", "--repetitions", "1"]
    found = bench_knn.main([str(tmp_path), *options])
    assert found["bigfs"]["recall"] >= 0.97 and found["memory"]["recall"] >= 0.97
    assert found["bigfs"]["partitions"] >= 3


@pytest.mark.slow
@pytest.mark.cluster
def test_the_same_bits_on_workers_and_threads(tmp_path: Path) -> None:
    options = ["--rows", "25000", "--workers", "1", "2", "--threads", "--partitions", "3"]
    found = bench_knn_cluster.main([str(tmp_path), *options])
    assert len({one["digest"] for one in found}) == 1
    assert not any(one.get("spilled", 0) or one.get("restarts", 0) for one in found)
    assert all(one["peak_mib"] <= one["predicted_mib"] for one in found[:2])
