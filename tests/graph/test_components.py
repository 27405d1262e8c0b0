"""Connected components, against scipy in memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.sparse import csgraph

from bigfs.graph import affinity, affinity_from_csr, connected_components, knn_graph
from bigfs.graph import symmetrize as module
from tests.graph._brute import manifold


@pytest.mark.full
@given(st.integers(2, 60), st.integers(0, 80), st.integers(0, 999), st.integers(1, 50))
@settings(max_examples=60)
def test_components_of_any_graph(n: int, n_edges: int, seed: int, at_a_time: int) -> None:
    rng = np.random.default_rng(seed)
    A = sparse.lil_array((n, n))
    A.setdiag(1, k=1)  # no row is isolated: pairs (0, 1), (2, 3)...
    for row in range(1, n - 1, 2):
        A[row, row + 1] = 0
    if n % 2:
        A[n - 2, n - 1] = 1
    for a, b in rng.integers(n, size=(min(n_edges, n // 4), 2)):
        if a != b:
            A[a, b] = 1
    A = sparse.csr_array(A)
    W = affinity_from_csr(A.maximum(A.T))
    expected, labels = csgraph.connected_components(W.load(), directed=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_EDGES", at_a_time)
        count, actual = connected_components(W)
    assert count == expected
    np.testing.assert_array_equal(actual.load(), labels)


def test_components_of_clusters_far_apart() -> None:
    X = np.concatenate([manifold(150, 4) + 1000 * i for i in range(4)])
    W = affinity(knn_graph(X[np.random.default_rng(0).permutation(600)], 5))
    count, labels = connected_components(W)
    expected, true = csgraph.connected_components(W.load(), directed=False)
    assert count == expected >= 4
    np.testing.assert_array_equal(labels.load(), true)
