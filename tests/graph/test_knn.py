"""The neighbor graph end to end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bigfs.blocks import RowBlocks
from bigfs.core.errors import InputError, MemoryLimitError
from bigfs.graph import KNNGraph, knn_graph
from bigfs.store.scratch import Scratch
from tests.graph._brute import brute_neighbors, check_graph, manifold


@pytest.mark.parametrize("rows", [None, 64])
def test_small_data_are_exact(rows: int | None, scheduler: str) -> None:
    X = manifold(500, 8)
    graph = knn_graph(RowBlocks.from_any(X, rows=rows), 7)
    expected, true = brute_neighbors(X, 7)
    np.testing.assert_array_equal(graph.indices[...], expected)
    np.testing.assert_array_equal(graph.distances[...], true)
    assert graph.recall_.exact and graph.recall_.value == 1.0
    assert graph.details["passes"] == 1


def test_scratch_holds_the_graph_only(tmp_path: Path) -> None:
    graph = knn_graph(manifold(300, 8), 4, scratch=Scratch(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "distances",
        "indices",
        "partitions",
    ]
    again = KNNGraph.open(tmp_path, graph.describe())
    np.testing.assert_array_equal(again.indices[...], graph.indices[...])
    assert again.describe() == graph.describe()


def test_as_csr() -> None:
    X = manifold(200, 5)
    graph = knn_graph(X, 3)
    near = graph.to_csr()
    assert near.shape == (200, 200) and near.nnz == 600
    rows = np.repeat(np.arange(200), 3)
    true = np.linalg.norm(X[rows].astype(np.float64) - X[near.indices], axis=1)
    np.testing.assert_allclose(near.data, true, rtol=1e-6)
    assert graph.to_csr("connectivity").sum() == 600
    with pytest.raises(InputError, match="'distance' or 'connectivity'"):
        graph.to_csr("both")


@pytest.mark.full
def test_pynndescent_with_its_recall(tmp_path: Path) -> None:
    X = manifold(3000, 12)
    path = tmp_path / "x.npy"
    np.save(path, X)
    graph = knn_graph(str(path), 5, algorithm="pynndescent", random_state=3)
    check_graph(graph.indices[...], graph.distances[...], X)
    _, true = brute_neighbors(X, 5)
    recall = float((graph.distances[...] <= true[:, -1:] * (1 + 1e-6)).mean())
    assert recall >= 0.98, f"recall {recall:.4f}, required 0.98"
    assert graph.recall_.n_rows == 1000
    assert graph.recall_.low - 0.002 <= recall <= graph.recall_.high + 0.002
    assert graph.details["passes"] == 3


def test_what_does_not_fit_is_refused() -> None:
    X = np.random.default_rng(0).normal(size=(100, 600_000)).astype(np.float32)
    with pytest.raises(MemoryLimitError, match="Nothing has run. Set memory_limit to"):
        knn_graph(X, 5, memory_limit="800 MiB")
    with pytest.raises(MemoryLimitError, match="at least 768 MiB"):
        knn_graph(X[:10], 5, memory_limit="500 MiB")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_neighbors": 40}, r"\[1, 39\], since X has 40 rows"),
        ({"metric": "hamming"}, "euclidean, cosine, correlation"),
        ({"algorithm": "annoy"}, "auto, exact, pynndescent"),
    ],
)
def test_refusals(options: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        knn_graph(manifold(40, 3), **{"n_neighbors": 3, **options})


def test_a_zero_row_under_cosine_is_named() -> None:
    X = manifold(400, 6)
    X[333] = 0
    with pytest.raises(InputError, match="Row 333 is zero"):
        knn_graph(RowBlocks.from_any(X, rows=50), 3, metric="cosine")


def test_most_edges_stay_within_a_partition() -> None:
    rng = np.random.default_rng(0)
    X = np.repeat(20 * rng.normal(size=(8, 5)), 500, axis=0) + rng.normal(size=(4000, 5))
    X = X[rng.permutation(4000)]
    graph = knn_graph(RowBlocks.from_any(X, rows=300), 5, n_partitions=8)
    homes = graph.partitions_ref.load()
    assert np.unique(homes).tolist() == list(range(graph.n_partitions))
    assert (homes[graph.indices[...]] == homes[:, None]).mean() > 0.9
