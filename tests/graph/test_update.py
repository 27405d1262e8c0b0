"""The graph of data that grew is, but for what its partitions miss, that of a full search."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bigfs import knn_graph
from bigfs.blocks import RowBlocks
from bigfs.graph import update
from bigfs.graph.knn import KNNGraph
from bigfs.graph.update import update_graph
from bigfs.store.scratch import ArrayRef, Scratch

K, LIMIT = 5, 2**31


def _stored(path: Path) -> np.ndarray:
    return ArrayRef.at(path).load()


def _data(n: int = 3000) -> np.ndarray:
    generator = np.random.default_rng(0)
    centers = generator.normal(size=(12, 8)) * 3
    X = centers[generator.integers(12, size=n)] + generator.normal(size=(n, 8))
    return X.astype(np.float32)


def _updated(former: KNNGraph, X: np.ndarray, folder: Path) -> KNNGraph:
    scratch = Scratch(folder)
    blocks = RowBlocks.from_any(X, scratch=scratch.child("shared"), rows=400)
    return update_graph(blocks, former, memory_limit=LIMIT, random_state=0, scratch=scratch)


def _full(X: np.ndarray, folder: Path, n_partitions: int, metric: str = "euclidean") -> KNNGraph:
    scratch = Scratch(folder)
    blocks = RowBlocks.from_any(X, scratch=scratch.child("shared"), rows=400)
    return knn_graph(
        blocks, K, metric=metric, algorithm="exact", memory_limit=LIMIT, eps=0.1,
        n_partitions=n_partitions, scratch=scratch,
    )  # fmt: skip


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_in_one_partition_it_is_the_full_graph(tmp_path: Path, metric: str) -> None:
    X = _data(1000)
    former = _full(X[:930], tmp_path / "former", 1, metric)
    updated = _updated(former, X, tmp_path / "updated")
    full = _full(X, tmp_path / "full", 1, metric)
    np.testing.assert_array_equal(updated.indices[:], full.indices[:])
    np.testing.assert_array_equal(updated.distances[:], full.distances[:])
    assert updated.recall_.exact
    changed = (full.indices[:930] != former.indices[:]).any(axis=1).sum()
    assert updated.details["changed_rows"] == changed > 0


def test_a_chain_of_updates_keeps_the_recall_of_a_full_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update, "CELL_ROWS", 300)
    X = _data()
    graph = _full(X[:2400], tmp_path / "0", 6)
    exact = _full(X, tmp_path / "exact", 1).distances[:]
    for i, (n, n_checked) in enumerate(((2401, 1001), (2600, 1084), (3000, 1251)), 1):
        former, graph = graph, _updated(graph, X[:n], tmp_path / str(i))
        assert graph.recall_.n_rows == n_checked
        indices, distances = graph.indices[:], graph.distances[:]
        assert indices.shape == (n, K) and (np.diff(distances, axis=1) >= 0).all()
        assert (distances[: former.n_samples] <= former.distances[:]).all()
        assert (indices != np.arange(n)[:, None]).all()
        assert all(len(set(row)) == K for row in indices.tolist())
        gaps = np.linalg.norm(X[indices] - X[:n, None], axis=2)
        np.testing.assert_allclose(distances, gaps, rtol=1e-5)
    full = _full(X, tmp_path / "full", 6)
    shares = [(g.distances[:] <= exact[:, -1:] * (1 + 1e-6)).mean() for g in (graph, full)]
    assert shares[0] >= shares[1] - 0.01 > 0.9
    assert graph.recall_.low <= shares[0] <= graph.recall_.high + 0.01
    # What is kept for the recall are the true neighbors among all rows, whenever they came.
    rows = _stored(tmp_path / "3" / "sample_ids")[_stored(tmp_path / "3" / "checked")]
    assert len(set(rows.tolist())) == len(rows) and (rows >= 2401).sum() > 200
    assert set(_stored(tmp_path / "0" / "checked_rows")) < set(rows)
    true = _stored(tmp_path / "3" / "checked_distances")
    np.testing.assert_allclose(true, exact[rows], rtol=1e-6)


def test_equal_rows_are_neighbors_whenever_they_came(tmp_path: Path) -> None:
    X = _data(600)
    X[550:] = X[:50]
    updated = _updated(_full(X[:550], tmp_path / "former", 1), X, tmp_path / "updated")
    assert (updated.indices[:50, 0] == np.arange(550, 600)).all()
    assert (updated.indices[550:, 0] == np.arange(50)).all()
    assert not updated.distances[:50, 0].any()
