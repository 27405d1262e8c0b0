"""The benches of stability run at toy size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from tests.bench.bench_stability import main


def test_halves(tmp_path: Path) -> None:
    digits = load_digits()
    np.savez(tmp_path / "digits.npz", X=digits.data, y=digits.target)
    size = ["--rows", "400", "--selected", "10", "--pairs", "5"]
    [figures] = main(["halves", str(tmp_path), "--sets", "digits", *size])
    assert figures["rows"] == 100
    assert 0 < figures["single"] <= 1 and set(figures["consensus"]) == {5}


def test_coverage() -> None:
    figures = main(["coverage", "--sets-of-data", "2", "--truth", "20"])
    assert len(figures) == 13
    assert all(0 <= item["held"] <= 1 for item in figures)


def test_quick(tmp_path: Path) -> None:
    size = ["--rows", "20000", "--features", "20", "--pairs", "2", "--repeats", "1"]
    [figures] = main(["quick", str(tmp_path), *size])
    assert figures["right"] == 4
    assert figures["peak"] <= figures["predicted"]
