"""The benchmarks of the neighbor graph run once at toy size."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import bench_knn, bench_knn_cluster


@pytest.mark.slow
def test_against_one_index(tmp_path: Path) -> None:
    options = ["--manifold", "12000", "--partitions", "4", "--repetitions", "1"]
    figures = bench_knn.main([str(tmp_path), *options])
    assert figures["bigfs"]["recall"] >= 0.97 and figures["memory"]["recall"] >= 0.97
    assert figures["bigfs"]["partitions"] >= 3


@pytest.mark.slow
@pytest.mark.cluster
def test_the_same_bits_on_workers_and_threads(tmp_path: Path) -> None:
    options = ["--rows", "25000", "--workers", "1", "2", "--threads", "--partitions", "3"]
    figures = bench_knn_cluster.main([str(tmp_path), *options])
    assert len({item["digest"] for item in figures}) == 1
    assert not any(item.get("spilled", 0) or item.get("restarts", 0) for item in figures)
    assert all(item["peak_mib"] <= item["predicted_mib"] for item in figures[:2])
