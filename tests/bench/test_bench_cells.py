"""The bench of counts of cells runs at toy size."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from tests.bench import bench_cells


@pytest.mark.full
def test_methods_and_settings_are_run_and_judged(tmp_path: Path) -> None:
    X, types = bench_cells.simulated("clear", 240, 400)
    options = argparse.Namespace(
        what="methods", folder=tmp_path, repetitions=1, limit=100,
        methods=["max_variance", "scanpy nothing"], settings=["pca:20"],
    )  # fmt: skip
    variance, wrong = bench_cells.figures("clear", X, types, 20, 300, options)
    assert variance["peak_mib"] > 50 and 0 < variance["nmi"] < 100 and variance["markers"] > 0
    assert "failed" in wrong
    options.what, options.methods = "defaults", ["laplacian_score"]
    [row] = bench_cells.figures("clear", X, types, 20, 300, options)
    assert row["what"] == "laplacian_score: pca:20" and 0 <= row["error"] <= 100


def test_a_run_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    row = bench_cells.in_process({"method": "mcfs"}, str(tmp_path / "none.npz"), 5, 0.01)
    assert "selected" not in row and row["failed"] == "more than 0 s"


def test_simulated_types_are_unequal_where_they_should_be() -> None:
    X, types = bench_cells.simulated("rare", 2000, 400)
    assert X.shape == (2000, 400) and 10 <= (types == 11).sum() < (types == 0).sum() / 10
