"""Rows that are copies: the graph is that of the distinct rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bigfs.blocks import RowBlocks
from bigfs.graph import KNNGraph, affinity, connected_components, distinct, knn_graph
from bigfs.graph.distinct import without_copies
from bigfs.store.scratch import Scratch
from tests.graph._brute import manifold


def _graph(X: np.ndarray, folder: Path, n_neighbors: int = 4, **more: Any) -> KNNGraph:
    blocks = RowBlocks.from_any(X, rows=70)
    scratch = Scratch(folder / "graph")
    settings = {"n_neighbors": n_neighbors, **more}
    return without_copies(
        knn_graph(blocks, **settings, scratch=scratch), blocks, scratch, **settings
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_copies_take_the_neighbors_of_their_row(
    dtype: type, tmp_path: Path, caplog: pytest.LogCaptureFixture, scheduler: str
) -> None:
    X = manifold(60, 6).astype(dtype)
    X[3, 0], X[4] = 0.0, X[3]
    X[4, 0] = -0.0
    expected = knn_graph(np.delete(X, 4, axis=0), 4)
    order = np.random.default_rng(0).permutation(np.repeat(np.arange(60), 9))
    graph = _graph(X[order], tmp_path)
    assert "540 of 540 rows have at least 4 duplicates" in caplog.text
    assert "among the 59 distinct rows" in caplog.text
    assert graph.details["n_distinct"] == 59
    values = np.where(order == 4, 3, order)
    place = values - (values > 3)
    np.testing.assert_array_equal(graph.distances[...], expected.distances[...][place])
    np.testing.assert_array_equal(place[graph.indices[...]], expected.indices[...][place])
    first = [int(np.flatnonzero(place == i)[0]) for i in range(59)]
    assert set(np.unique(graph.indices[...])) <= set(first)
    opened = KNNGraph.open(graph.scratch.path, graph.describe())
    np.testing.assert_array_equal(opened.indices[...], graph.indices[...])
    n_parts, _ = connected_components(affinity(graph, "heat"))
    assert n_parts == connected_components(affinity(expected, "heat"))[0]


def test_fewer_distinct_rows_than_neighbors(tmp_path: Path) -> None:
    X = np.repeat(np.eye(3), 40, axis=0)
    graph = _graph(X, tmp_path, 7)
    assert graph.n_neighbors == 2
    assert connected_components(affinity(graph))[0] == 1


def test_a_few_copies_are_told_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    X = manifold(900, 5)
    X[:5] = X[0]
    graph = _graph(X, tmp_path)
    assert "5 of 900 rows have at least 4 duplicates, so all their neighbors" in caplog.text
    assert "n_distinct" not in graph.details


def test_rows_that_are_all_equal_say_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert _graph(np.ones((30, 3)), tmp_path).n_neighbors == 4
    assert "All 30 rows are equal: no feature distinguishes them" in caplog.text


def test_more_rows_than_one_task_can_tell_apart_keep_their_graph(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = np.repeat(manifold(60, 6), 9, axis=0)
    monkeypatch.setattr(distinct, "_TASK_BYTES", 10**6)
    graph = _graph(X, tmp_path, memory_limit="1 GiB")
    assert "A memory_limit of '1.5 GiB' would allow a search among the distinct" in caplog.text
    assert "n_distinct" not in graph.details and len(graph.details["notes"]) == 1


def test_what_one_task_takes_to_tell_rows_apart(tmp_path: Path) -> None:
    import tracemalloc

    n = 100_000
    scratch = Scratch(tmp_path)
    values = np.random.default_rng(0).integers(0, 3 * n // 4, size=(n, 2)).astype(np.uint64)
    hashes = scratch.put("hashes", values)
    place = scratch.create("place", (n,), np.int32, n)
    tracemalloc.start()
    distinct._distinct_task(str(tmp_path / "ids"), hashes, place)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= distinct._TASK_BYTES * n + 2**20 <= 2 * peak
