"""The benchmarks of NDFS run once at toy size, and their promises hold there too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import bench_ndfs


def test_a_pass_in_one_block_costs_nothing_but_arithmetic() -> None:
    alone, under_dask = bench_ndfs.overhead(n=800, d=16)
    assert alone < 0.05, "seconds a pass, beyond the arithmetic"
    assert under_dask < 2.0


def test_cost_against_the_dense_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    [(dense, ours)] = bench_ndfs.dense(sizes=(3000,), d=32)
    assert dense / ours > 5
    assert "3,000" in capsys.readouterr().out


@pytest.mark.cluster
def test_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench_ndfs.rows(tmp_path, sizes=(3000,), d=8)
    assert "3,000" in capsys.readouterr().out
