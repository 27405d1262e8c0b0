"""The benchmark of representations runs once at toy size."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.bench import bench_representation


def test_components_select_as_all_features_do(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(3), 60)
    hidden = rng.normal(size=(180, 40)) + 4 * np.eye(40)[y]
    X = hidden @ rng.normal(size=(40, 120)) + 0.01 * rng.normal(size=(180, 120))
    np.savez(tmp_path / "ORL.npz", X=X.astype(np.float32), y=y)
    figures = bench_representation.main([str(tmp_path), "--repetitions", "1", "--rows", "500"])
    taken, recall, (raw, components) = figures["ORL"]
    assert taken == "pca:50" and recall >= 0.95
    assert abs(raw[0] - components[0]) < 10
    assert figures["manifold, 300"][2][1][2] == 100
