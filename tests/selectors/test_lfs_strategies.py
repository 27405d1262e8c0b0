"""LFS and GFS-k-means: which way a shape goes, what it costs, and that the blocks do not matter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bigfs.blocks import RowBlocks
from bigfs.core.cost import Shape
from bigfs.core.memory import task_budget
from bigfs.core.units import GIB, MIB
from bigfs.selectors.lfs.held import HeldRows
from bigfs.selectors.lfs.passes import BlockTasks, CandidateTasks
from bigfs.selectors.lfs.strategies import SearchOfAll, SearchOfSample
from tests.bench._lfs_data import planted
from tests.selectors._local import result_of, strategy_of

METHODS = ("lfs", "gfs_kmeans")


def _shape(n: int, d: int, rows: int | None = None) -> Shape:
    return Shape(n, d, 4, rows or n, rows or n)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "shape, passes",
    [
        (_shape(25_000, 10), HeldRows),
        (_shape(25_001, 10), CandidateTasks),
        (_shape(25_000, 10, 24_999), BlockTasks),
        (_shape(100, 10, 50), BlockTasks),
    ],
    ids=["few values", "one block", "two blocks", "two small blocks"],
)
def test_the_way_of_the_passes_follows_from_the_shape(
    method: str, shape: Shape, passes: type
) -> None:
    strategy = strategy_of(method, shape, n_clusters=2)
    assert strategy.passes is passes
    cost = strategy_of(method, shape, n_clusters=2, init=np.zeros((2, 10))).cost()
    if passes is HeldRows:
        # Moments, the rows, and the covariances of GFS-k-means.
        assert cost.passes == (3 if method == "gfs_kmeans" else 2)
    else:
        assert cost.passes > 10 and cost.at_most


def test_a_sample_is_searched_where_it_is_smaller_than_the_data() -> None:
    shape = _shape(1_000_000, 100, 50_000)
    on_all = strategy_of("lfs", shape, n_clusters=3, sample_size=1_000_000)
    assert type(on_all) is SearchOfAll and on_all.passes is BlockTasks
    large = strategy_of("lfs", shape, n_clusters=3, sample_size=999_999)
    assert type(large) is SearchOfSample and large.passes is CandidateTasks
    small = strategy_of("lfs", shape, n_clusters=3, sample_size=2_500)
    assert type(small) is SearchOfSample and small.passes is HeldRows
    # Moments, the draw, the labels: the search itself reads the sample only.
    assert large.cost().passes == small.cost().passes == 3 < on_all.cost().passes
    assert large.cost().task_bytes >= 3 * large.searched.nbytes


def test_restarts_that_see_all_rows_end_the_search() -> None:
    few, more = (strategy_of("lfs", _shape(n, 100), n_clusters=3) for n in (5_000, 5_001))
    assert few.passes is more.passes is CandidateTasks
    assert few.cost().passes == 3 < more.cost().passes


DATA = planted(900, 6, 3, seed=0)
WAYS: dict[str, dict[str, Any]] = {
    "draws": {"n_init": 2},
    "labels": {"init": DATA[1]},
    "centroids": {"init": np.stack([DATA[0][DATA[1] == j].mean(axis=0) for j in range(3)])},
    "many": {"init": DATA[1], "drop": "many"},
    "sample": {"n_init": 2, "sample_size": 700},
}


@pytest.mark.parametrize("rows", [900, 200], ids=["one block", "blocks"])
@pytest.mark.parametrize(
    "method, way",
    [
        *(("lfs", way) for way in WAYS),
        *(("gfs_kmeans", way) for way in ("draws", "labels", "centroids", "many")),
    ],
)
def test_passes_are_at_most_those_of_the_cost(
    method: str, way: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = {}
    for values in (250_000, 0):
        monkeypatch.setattr("bigfs.selectors.lfs.held._HELD_VALUES", values)
        blocks = RowBlocks.from_any(DATA[0], rows=rows)
        settings = {"n_clusters": 3, "max_iter": 5, **WAYS[way]}
        strategy = strategy_of(method, blocks.layout, **settings)
        result = result_of(method, blocks, **settings)
        assert 0 < result.details["n_passes"] <= blocks.passes <= strategy.cost().passes
        if strategy.passes is HeldRows and way != "sample":
            assert blocks.passes == strategy.cost().passes
        results[strategy.passes] = result.ranking, result.details["labels"].load()
    (ranking, labels), *others = results.values()
    for other in others:
        np.testing.assert_array_equal(other[0], ranking)
        np.testing.assert_array_equal(other[1], labels)


@pytest.mark.full
@pytest.mark.parametrize("method", METHODS)
def test_blocks_do_not_change_the_result(method: str) -> None:
    results = []
    for rows in (900, 450, 100):
        blocks = RowBlocks.from_any(DATA[0], rows=rows)
        result = result_of(method, blocks, n_clusters=3, init=DATA[1])
        results.append((result.ranking, result.details["labels"].load()))
    for ranking, labels in results[1:]:
        np.testing.assert_array_equal(ranking, results[0][0])
        np.testing.assert_array_equal(labels, results[0][1])


@pytest.mark.parametrize("rows", [60_000, 5_000], ids=["one block", "blocks"])
def test_products_take_what_the_limit_leaves(rows: int) -> None:
    roomy, tight = (
        strategy_of("lfs", _shape(60_000, 150, rows), memory_limit=limit, n_clusters=3)
        for limit in (8 * GIB, GIB)
    )
    assert roomy.product_bytes == 256 * MIB > tight.product_bytes > 0
    assert roomy.cost().task_bytes > tight.cost().task_bytes
    cost = tight.cost()
    assert max(cost.task_bytes, cost.client_bytes) <= task_budget(GIB)
    # Smaller batches of products are more passes.
    assert cost.passes > roomy.cost().passes


def test_covariances_that_do_not_fit_are_in_the_cost() -> None:
    for method, what in (("lfs", "covariances of 3 clusters"), ("gfs_kmeans", "3,000 features")):
        rows = 3_000 if method == "lfs" else 60  # with fewer rows LFS needs none so large
        cost = strategy_of(method, _shape(rows, 3_000), n_clusters=3, drop="one").cost()
        assert cost.task_bytes > task_budget(GIB)
        assert what in cost.largest.what
