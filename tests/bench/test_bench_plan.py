"""The benchmark of the plan's estimates runs once at toy size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from tests.bench import bench_plan


def test_estimates_beside_what_runs_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    X, y = load_digits(return_X_y=True)
    np.savez(tmp_path / "digits.npz", X=X, y=y)
    words = ["--sets", "digits", "--methods", "mcfs", "--least", "0.0"]
    ratios = bench_plan.main([str(tmp_path), *words])
    assert {"graph", "spectral", "mcfs", "curves", "evaluation"} <= set(ratios)
    assert "digits       mcfs" in capsys.readouterr().out
