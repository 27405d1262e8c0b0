"""The benchmarks of NDFS run once at toy size, and their promises hold there too."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bench import bench_ndfs


def _paper_script() -> Any:
    path = Path(__file__).parents[2] / "pipelines" / "paper_ndfs.py"
    spec = importlib.util.spec_from_file_location("paper_ndfs", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Tasks are found by name, and dataclasses look their module up.
    import sys

    sys.modules["paper_ndfs"] = module
    spec.loader.exec_module(module)
    return module


def test_paper_table(capsys: pytest.CaptureFixture[str]) -> None:
    from sklearn.datasets import load_iris

    iris = load_iris()
    sets = [("iris", iris.data / 8, iris.target)] * 2
    options = ["--repetitions", "5", "--grid", "0.1", "1", "--sizes", "1", "2"]
    [parts] = _paper_script().main(options, sets).values()
    assert parts[0]["grid"].shape == (2, 2, 2, 4)
    assert parts[0]["n_selections"] <= 1 + 4 + 6, "each different selection is clustered once"
    np.testing.assert_array_equal(parts[0]["grid"], parts[1]["grid"])
    said = capsys.readouterr().out
    assert "one setting for 2 draws" in said
    assert "iris, 150 x 4: ACC" in said


def test_a_pass_in_one_block_costs_nothing_but_arithmetic() -> None:
    alone, under_dask = bench_ndfs.overhead(n=800, d=16)
    assert alone < 0.05, "seconds a pass, beyond the arithmetic"
    assert under_dask < 2.0


def test_cost_against_the_dense_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    [(dense, ours)] = bench_ndfs.dense(sizes=(1500,), d=32)
    assert dense / ours > 5
    assert "1,500" in capsys.readouterr().out


@pytest.mark.cluster
def test_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench_ndfs.rows(tmp_path, sizes=(3000,), d=8)
    assert "3,000" in capsys.readouterr().out
