"""Neighbors in the order (distance, index), where distances that rounding could swap are equal."""

from __future__ import annotations

import numpy as np
import pytest

from bigfs.graph.local import nearest
from tests.graph._local import knn_exact


def _in_order(ids: list[int], distances: list[float], k: int) -> list[int]:
    """Return the first of one row: sorted by distance, then each group of equal ones by id."""
    groups: list[list[tuple[float, int]]] = []
    for pair in sorted(zip(distances, ids, strict=True)):
        if groups and not pair[0] > groups[-1][-1][0] * (1 + 2.0**-23):
            groups[-1].append(pair)
        else:
            groups.append([pair])
    return [i for group in groups for i in sorted(i for _, i in group)][:k]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_it_is_that_of_a_sort_by_hand(dtype: type) -> None:
    rng = np.random.default_rng(0)
    ids = np.stack([rng.permutation(12) for _ in range(200)])
    distances = rng.choice([0.0, 1.0, 2.0, 3.0], size=(200, 12))
    distances *= 1 + rng.choice([0.0, 2.0**-25, 2.0**-24, 1e-6], size=distances.shape)
    distances[rng.random(distances.shape) < 0.2] = np.inf
    distances = distances.astype(dtype)
    indices, far = nearest(ids, distances, 5)
    for row in range(200):
        assert indices[row].tolist() == _in_order(ids[row].tolist(), distances[row].tolist(), 5)
    np.testing.assert_array_equal(far, np.sort(distances, axis=1)[:, :5])
    np.testing.assert_array_equal(nearest(ids, distances.astype(np.float64) ** 2, 5, 2)[0], indices)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(4))
def test_a_far_row_has_the_same_neighbors_in_any_unit(dtype: type, seed: int) -> None:
    # Its distances differ in their last bits of float32 only.
    X = np.random.default_rng(seed).standard_normal((60, 10)).astype(dtype)
    X[7] *= dtype(1e6)
    expected, _ = knn_exact(X, 5)
    for factor in (255.0, 1e-6, 1e6):
        np.testing.assert_array_equal(knn_exact(X * dtype(factor), 5)[0], expected)
