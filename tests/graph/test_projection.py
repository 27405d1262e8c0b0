"""Candidates from a few components: taken only where they hold the true neighbors."""

from __future__ import annotations

import numpy as np
import pytest

from bigfs.graph.descent import projected_rows
from tests.graph._brute import manifold
from tests.graph._local import knn_exact, knn_local


def test_wide_rows_of_low_rank_are_projected() -> None:
    X = manifold(6500, 300)
    projected = projected_rows(X, 10, 22, seed=0)
    assert projected is not None and projected.dtype == np.float32
    assert projected.shape[0] == 6500 and 50 <= projected.shape[1] <= 100
    again = projected_rows(X, 10, 22, seed=0)
    np.testing.assert_array_equal(projected, again)


def test_rows_whose_neighbors_a_projection_would_lose_are_not() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(6500, 300)).astype(np.float32)
    assert projected_rows(noise, 10, 22, seed=0) is None
    far_apart = 1000 * rng.normal(size=(10, 300))[rng.integers(10, size=6500)]
    assert projected_rows((far_apart + noise).astype(np.float32), 10, 22, seed=0) is None


@pytest.mark.parametrize("shape", [(6500, 100), (3000, 300)])
def test_narrow_or_few_rows_are_not(shape: tuple[int, int]) -> None:
    assert projected_rows(manifold(*shape), 10, 22, seed=0) is None


@pytest.mark.full
def test_distances_are_those_of_all_features() -> None:
    X = manifold(6500, 220).astype(np.float64) + 1e4
    indices, distances = knn_local(X, 10, algorithm="pynndescent")
    rows = np.arange(0, 6500, 13)
    gaps = np.linalg.norm(X[rows, None] - X[indices[rows]], axis=2)
    np.testing.assert_allclose(distances[rows], gaps, rtol=3e-7)
    _, true = knn_exact(X, 11, query=X[rows])
    recall = float((distances[rows] <= true[:, -1:] * (1 + 1e-6)).mean())
    assert recall >= 0.985, f"recall {recall:.4f}, required 0.985"
