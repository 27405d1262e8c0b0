"""LFS and GFS-k-means: which rows are searched, what that costs; blocks do not matter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bigfs import LFS, GFSKMeans
from bigfs.blocks import RowBlocks
from bigfs.core.cost import Shape
from bigfs.core.memory import task_budget
from bigfs.core.units import GIB
from bigfs.selectors import sampled
from bigfs.selectors.clusters import SearchedRows
from bigfs.selectors.gfs_kmeans.strategies import GlobalClusters
from bigfs.selectors.lfs.strategies import LocalClusters
from tests.bench._lfs_data import planted
from tests.selectors._local import result_of, strategy_of

METHODS = ("lfs", "gfs_kmeans")


def _shape(n: int, d: int, rows: int | None = None) -> Shape:
    return Shape(n, d, 4, rows or min(n, 5_000), rows or min(n, 5_000))


@pytest.mark.parametrize("method", METHODS)
def test_all_rows_are_searched_or_a_sample_that_fits(method: str) -> None:
    def searched(n: int, d: int, limit: int = 4 * GIB, **settings: Any) -> int:
        settings = {"n_clusters": 3, "memory_limit": limit, **settings}
        return strategy_of(method, _shape(n, d), **settings).n_rows

    assert searched(19_999, 20) == 19_999
    assert searched(10**7, 20) == 20_000
    assert searched(10**7, 20, sample_size=30_000) == 30_000
    assert searched(100, 20, sample_size=30_000) == 100
    few = searched(10**6, 3_000, GIB)
    assert 1_250 <= few < 20_000
    strategy = strategy_of(method, _shape(10**6, 3_000), memory_limit=GIB, n_clusters=3)
    assert strategy.cost().task_bytes <= task_budget(GIB)
    # What is asked for is not made smaller, and what is scarce has an end.
    assert searched(10**6, 3_000, GIB, sample_size=20_000) == 20_000
    assert searched(10**6, 10**6, GIB) == 1_250


def test_the_cost_says_which_searches_there_are() -> None:
    def searches(n: int, **settings: Any) -> list[tuple[str, int]]:
        steps = strategy_of("lfs", _shape(n, 100), n_clusters=3, **settings).cost().steps
        return [(step.what.split()[6], step.tasks) for step in steps if "search" in step.what]

    assert searches(5_000) == [("5,000", 10)], "restarts that see all rows end the search"
    assert searches(5_001) == [("5,000", 10), ("5,001", 1)]
    assert searches(5_001, init=np.zeros((3, 100))) == [("5,001", 1)]


DATA = planted(900, 6, 3, seed=0)
WAYS: dict[str, dict[str, Any]] = {
    "draws": {"n_init": 2},
    "labels": {"init": DATA[1]},
    "centroids": {"init": np.stack([DATA[0][DATA[1] == j].mean(axis=0) for j in range(3)])},
    "many": {"init": DATA[1], "drop": "many"},
    "sample": {"n_init": 2, "sample_size": 700},
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("way", WAYS)
def test_passes_are_those_of_the_cost_and_blocks_do_not_matter(method: str, way: str) -> None:
    results = []
    for rows in (900, 200, 100):
        blocks = RowBlocks.from_any(DATA[0], rows=rows)
        settings = {"n_clusters": 3, "max_iter": 5, **WAYS[way]}
        cost = strategy_of(method, blocks.layout, **settings).cost()
        result = result_of(method, blocks, **settings)
        assert 0 < result.details["n_passes"] <= blocks.passes == cost.passes == 3
        results.append((result.ranking, result.details["labels"].load()))
    for ranking, labels in results[1:]:
        np.testing.assert_array_equal(ranking, results[0][0])
        np.testing.assert_array_equal(labels, results[0][1])


@pytest.mark.parametrize("method", [LFS, GFSKMeans])
def test_the_best_restart_goes_on_with_all_rows(
    method: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = planted(1_500, 8, 4, seed=2)[0]
    starts: list[tuple[int, np.ndarray]] = []
    kind = LocalClusters if method is LFS else GlobalClusters
    begin = kind.begin

    def noted(rows: SearchedRows, centers: np.ndarray, parameters: Any) -> Any:
        starts.append((len(rows.X), centers + rows.origin))
        return begin(rows, centers, parameters)

    monkeypatch.setattr(kind, "begin", noted)
    monkeypatch.setattr(sampled, "START_ROWS", 400)
    fitted = method(n_clusters=4, n_init=3).fit(X)
    assert sorted(n for n, _ in starts) == [400, 400, 400, 1_500]
    # A search from the centers with which the last one began ends alike.
    again = method(n_clusters=4, init=starts[-1][1]).fit(X)
    np.testing.assert_array_equal(again.labels_, fitted.labels_)
    assert fitted.evidence_ == pytest.approx(again.evidence_)
