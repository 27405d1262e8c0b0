"""The benchmark of representations runs once at toy size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.bench import bench_representation


def test_components_hold_most_neighbors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(3), 60)
    hidden = rng.normal(size=(180, 40)) + 4 * np.eye(40)[y]
    X = hidden @ rng.normal(size=(40, 90)) + 0.01 * rng.normal(size=(180, 90))
    np.savez(tmp_path / "ORL.npz", X=X.astype(np.float32), y=y)
    figures = bench_representation.main([str(tmp_path), "--repetitions", "1"])
    assert figures["ORL", "raw"][0] == 1 and figures["ORL", "pca:50"][0] >= 0.95
    assert "COIL20" in capsys.readouterr().out
