"""The benchmarks of the eigensolvers and regressions run once at toy size."""

from __future__ import annotations

from pathlib import Path

import pytest


def test_spectral(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.bench.bench_spectral import SOLVERS, main

    figures = main([str(tmp_path), "--rows", "3000", "--components", "6", "--tol", "1e-4"])[3000]
    assert list(figures) == list(SOLVERS)
    assert all(item["residual"] <= 1.1e-4 for item in figures.values())
    assert all(item["difference"] < 1e-5 for item in figures.values())
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_gram_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.bench.bench_gram import main

    options = ["--gigabytes", "0.02", "--features", "128", "512", "--repetitions", "2"]
    shares = main([str(tmp_path), *options])
    assert sorted(shares) == [128, 512]
    assert all(0 < share < 2 for share in shares.values())
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_selection_with_each_tolerance(capsys: pytest.CaptureFixture[str]) -> None:
    from tests.bench.bench_spectral_selection import TOLERANCES, main

    common = main(["--sets", "planted 10", "--rows", "3000"])
    assert list(common["planted 10"]) == list(TOLERANCES)
    assert common["planted 10"][1e-2][::2] == (20, 50)
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_thin(capsys: pytest.CaptureFixture[str]) -> None:
    from tests.bench.bench_thin import main

    figures = main(["--rows", "1000", "3000"])
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(figures) == 27
    for graph, row in figures.items():
        assert row["correlation"] >= 0.999, graph
    assert figures["path", 3000]["mixed"] == 0
