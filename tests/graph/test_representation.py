"""Streaming PCA against the singular value decomposition."""

from __future__ import annotations

import numpy as np
import pytest

from bigfs.blocks import RowBlocks
from bigfs.core.errors import InputError
from bigfs.graph import affinity, knn_graph
from bigfs.graph.representation import principal_rows
from bigfs.store.scratch import Scratch
from tests.graph._brute import brute_neighbors, manifold


@pytest.fixture(scope="module")
def low_rank() -> np.ndarray:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(700, 6)) * [9, 7, 5, 4, 3, 2] @ rng.normal(size=(6, 60))
    return 50 + X + 0.01 * rng.normal(size=X.shape)


def test_distances_of_the_components(low_rank: np.ndarray, scheduler: str) -> None:
    blocks = RowBlocks.from_any(low_rank, rows=90)
    before = blocks.passes
    projected, explained = principal_rows(blocks, 5, 0, Scratch(blocks.scratch.path / "pca"))
    assert blocks.passes - before <= 4
    centered = low_rank - low_rank.mean(axis=0)
    u, s, _ = np.linalg.svd(centered, full_matrices=False)
    true = u[:, :5] * s[:5]
    rows = projected.source.read(0, 700).astype(np.float64)
    np.testing.assert_allclose(rows @ rows.T, true @ true.T, atol=1e-3 * s[0] ** 2 / 700)
    assert explained == pytest.approx(float((s[:5] ** 2).sum() / (s**2).sum()), rel=1e-6)


def test_graph_of_the_components(low_rank: np.ndarray) -> None:
    graph = knn_graph(low_rank, 5, representation="pca:6")
    _, true = brute_neighbors(low_rank, 5)
    np.testing.assert_allclose(graph.distances[...], true, rtol=2e-2)
    assert graph.details["explained_variance"] > 0.999
    assert graph.details["passes"] == 3 and graph.details["passes_over_components"] == 1
    assert not list(graph.scratch.path.glob("representation*/*"))
    with pytest.raises(InputError, match="Set representation to 'raw'"):
        affinity(graph, "dot", blocks=RowBlocks.from_any(low_rank))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"representation": "pca"}, "'raw' or 'pca:p'"),
        ({"representation": "pca:0"}, "'raw' or 'pca:p'"),
        ({"representation": "pca:5", "metric": "cosine"}, "needs metric 'euclidean'"),
        ({"representation": "pca:9"}, "at most 8 components"),
    ],
)
def test_refusals(options: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        knn_graph(manifold(100, 8), 3, **options)
