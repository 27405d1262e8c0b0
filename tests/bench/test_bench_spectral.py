"""The benchmarks of the eigensolvers and regressions run once at toy size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


def test_spectral(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.bench.bench_spectral import SOLVERS, main

    figures = main([str(tmp_path), "--rows", "3000", "--components", "6", "--tol", "1e-4"])[3000]
    assert list(figures) == list(SOLVERS)
    assert all(item["residual"] <= 1.1e-4 for item in figures.values())
    assert all(item["difference"] < 1e-5 for item in figures.values())
    assert len(capsys.readouterr().out.splitlines()) == 5


def test_gram_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.bench.bench_gram import main

    options = ["--gigabytes", "0.02", "--features", "128", "512", "--repetitions", "2"]
    shares = main([str(tmp_path), *options])
    assert sorted(shares) == [128, 512]
    assert all(0 < share < 2 for share in shares.values())
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_selection_with_each_solver(capsys: pytest.CaptureFixture[str]) -> None:
    from sklearn.datasets import load_digits

    from tests.bench.bench_spectral_selection import main

    digits = load_digits()
    overlaps = main(["--repetitions", "1"], {"digits": {"X": digits.data, "y": digits.target}})
    assert list(overlaps.values()) == [32, 32, 32, 32]
    assert len(capsys.readouterr().out.splitlines()) == 5


@pytest.mark.cluster
def test_distributed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.bench.bench_spectral_distributed import main

    options = ["--rows", "6000", "--partitions", "6", "--components", "4", "--threads"]
    figures = main([str(tmp_path), *options, "--workers", "4", "--memory", "1 GiB"])
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(figures) == 5
    for item in figures:
        assert item["difference"] < 1e-6
        np.testing.assert_allclose(item["fetched"], item["boundary"], rtol=1e-12)
    for order in ("partition", "given"):
        assert len({item["bits"] for item in figures if item["order"] == order}) == 1
    assert figures[0]["boundary"] < figures[1]["boundary"]
