"""Eigenvectors that begin near those of the first rows are those of the graph, found sooner."""

from __future__ import annotations

import numpy as np
import pytest

from bigfs import knn_graph, spectral_embedding

N, N_OLD = 6000, 5900


def _graph(n: int) -> object:
    generator = np.random.default_rng(0)
    centers = generator.normal(size=(6, 6)) * 1.5
    X = centers[generator.integers(6, size=N)] + generator.normal(size=(N, 6))
    return knn_graph(X[:n].astype(np.float32), 10, algorithm="exact")


@pytest.mark.full
def test_a_start_gives_the_same_eigenvalues_for_fewer_products() -> None:
    former = spectral_embedding(_graph(N_OLD), 6, solver="chebyshev", random_state=1)
    graph = _graph(N)
    plain = spectral_embedding(graph, 6, solver="chebyshev")
    started = spectral_embedding(graph, 6, solver="chebyshev", start=former)
    np.testing.assert_allclose(started.eigenvalues, plain.eigenvalues, atol=1e-6)
    assert (started.residuals <= 1e-6).all()
    overlap = abs(np.linalg.svd(np.linalg.qr(started.embedding[:])[0].T
                                @ np.linalg.qr(plain.embedding[:])[0])[1])  # fmt: skip
    assert overlap.min() > 1 - 1e-6
    assert started.n_products < plain.n_products
