"""Partitions: their arithmetic, their balance, and the graphs that come out of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import dask
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bigfs.blocks import RowBlocks
from bigfs.core.cost import Shape
from bigfs.core.errors import ConvergenceError, InputError, MemoryLimitError
from bigfs.core.units import GIB, MIB
from bigfs.graph import build, knn_graph
from bigfs.graph.partition import (
    MAX_COPIES,
    Cells,
    GraphRequest,
    assign_cells,
    exact_rows,
    find_cells,
    group_tiny,
    plan_partitions,
)
from bigfs.graph.recall import estimate_of
from bigfs.graph.search import gather_rows
from bigfs.store.scratch import Scratch
from tests.graph._brute import brute_neighbors, check_graph, manifold


def _plan(n: int, d: int, limit: int, **options: object) -> object:
    shape = Shape(n, d, 4, 60_000, 60_000)
    return plan_partitions(shape, 15, limit, **{"algorithm": "auto", **options})


def test_the_plan_follows_from_shape_and_limit() -> None:
    assert _plan(5000, 100, GIB).exact
    assert _plan(70_000, 784, 4 * GIB).n_partitions == 1
    eight = _plan(8_000_000, 128, 3 * GIB // 2)
    assert 20 <= eight.n_partitions <= 60 and not eight.exact
    assert eight.search_bytes(eight.capacity_rows, 128, 4, 15) <= 0.65 * 1536 * MIB - 370 * MIB
    assert _plan(8_000_000, 128, 8 * GIB).n_partitions < eight.n_partitions
    wide = _plan(200_000, 40_000, 2 * GIB)
    assert wide.n_partitions > 20 and wide.sampled_rows * 40_000 * 4 <= GIB
    assert _plan(10**9, 128, 4 * GIB).run_blocks > 1


def test_rows_that_one_task_cannot_hold_are_divided_for_many_workers() -> None:
    """A partition that holds all rows stays whole; one of several takes a minute or two."""
    n, limit = 10**8, 64 * GIB
    plan = _plan(n, 50, limit)
    assert plan.capacity_rows == 2**21
    assert plan.n_partitions >= n / 2**21
    assert _plan(n, 50, limit, n_partitions=20).capacity_rows > 2**21
    assert _plan(2**22, 50, limit).n_partitions == 1


def test_what_cannot_be_planned() -> None:
    with pytest.raises(MemoryLimitError, match="Nothing has run. Set memory_limit to"):
        _plan(10_000, 10_000_000, GIB)
    with pytest.raises(MemoryLimitError, match="n_partitions must be at least"):
        _plan(8_000_000, 128, 3 * GIB // 2, n_partitions=3)
    with pytest.raises(InputError, match=r"n_partitions must be an int in \[1, 39\]"):
        _plan(5000, 10, GIB, n_partitions=1000)


def _cells(X: np.ndarray, n_partitions: int, capacity: int, eps: float) -> Cells:
    scratch = Scratch()
    blocks = RowBlocks.from_any(X, scratch=scratch)
    plan = _plan(len(X), X.shape[1], GIB, n_partitions=n_partitions)
    plan = replace(plan, capacity_rows=capacity)
    samples = gather_rows(blocks, [np.arange(3), np.arange(len(X))], "euclidean", scratch)
    request = GraphRequest(15, "euclidean", "auto", eps, None, "error", 0, n_partitions, GIB)
    cells = find_cells(eps, request, plan, len(X), samples, str(scratch.path))
    cells.assign(X[:1], np.arange(1))
    targets, source = cells.assign(X, np.arange(len(X)))
    assert set(source[: len(X)]) == set(range(len(X)))
    assert np.bincount(targets).max() <= capacity
    assert len(cells.partners()) == cells.n_partitions
    return cells


def test_large_cells_are_divided_and_tiny_ones_dropped() -> None:
    X = manifold(6000, 8)
    X[:4000] = X[0] + 1e-3 * X[:4000]  # one dense heap
    X[-3:] += 1000  # three rows far away
    cells = _cells(X, 6, 1500, 0.1)
    assert 5 <= cells.n_partitions <= 40


def test_rows_that_cannot_be_told_apart_are_divided_by_number() -> None:
    X = manifold(4000, 5)
    X[:3000] = X[0]
    cells = _cells(X, 4, 1000, 0.1)
    assert max(cells.parts) >= 3
    assert _cells(np.ones((4000, 5), np.float32), 4, 1000, 0.1).parts == (5,)


def test_copies_are_those_within_reach() -> None:
    rng = np.random.default_rng(0)
    X, offsets = rng.normal(size=(400, 3)), rng.normal(size=(7, 3))
    origin = rng.normal(size=3)
    cells, source = assign_cells(X, np.concatenate([[origin], offsets]), 0.3)
    gaps = np.linalg.norm(X[:, None] - origin - offsets, axis=2)
    np.testing.assert_array_equal(cells[:400], gaps.argmin(axis=1))
    for row in range(400):
        order = np.argsort(gaps[row])[: 1 + MAX_COPIES]
        expected = order[gaps[row, order] <= 1.3 * gaps[row].min() * (1 + 1e-12)]
        assert set(cells[source == row]) == set(expected)
    assert len(set(zip(cells.tolist(), source.tolist(), strict=True))) == len(cells)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=12), st.integers(1, 20), st.data())
def test_no_group_has_too_few_rows(counts: list[int], smallest: int, data: st.DataObject) -> None:
    n = len(counts)
    partners = np.array([data.draw(st.integers(0, n - 1)) for _ in counts])
    groups = group_tiny(np.array(counts), partners, smallest)
    assert sorted(p for group in groups for p in group) == list(range(n))
    sizes = [sum(counts[p] for p in group) for group in groups]
    assert len(groups) == 1 or min(sizes) >= smallest


@st.composite
def _problems(draw: st.DrawFn) -> tuple[np.ndarray, int, int, int]:
    n = draw(st.integers(40, 400))
    k = draw(st.integers(1, 6))
    partitions = draw(st.integers(1, max(1, n // (8 * (k + 1)))))
    X = manifold(n, draw(st.integers(1, 6)), seed=draw(st.integers(0, 99)))
    kind = draw(st.sampled_from(["plain", "integers", "half alike", "constant"]))
    if kind == "integers":
        X = np.round(X)
    elif kind == "half alike":
        X[: n // 2] = X[0]
    elif kind == "constant":
        X[:] = 3.0
    return X, k, partitions, draw(st.integers(7, 150))


@given(_problems(), st.sampled_from([0.0, 0.1, 1.0]))
@settings(max_examples=40)
def test_every_graph_keeps_its_promises(
    problem: tuple[np.ndarray, int, int, int], eps: float
) -> None:
    X, k, partitions, rows = problem
    with dask.config.set(scheduler="synchronous"):
        graph = knn_graph(RowBlocks.from_any(X, rows=rows), k, n_partitions=partitions, eps=eps)
    check_graph(graph.indices[...], graph.distances[...], X)


def test_recall_through_partitions_and_its_estimate(scheduler: str) -> None:
    X = manifold(4000, 12)
    graph = knn_graph(RowBlocks.from_any(X, rows=500), 8, n_partitions=8, eps=0.2)
    check_graph(graph.indices[...], graph.distances[...], X)
    _, true = brute_neighbors(X, 8)
    recall = float((graph.distances[...] <= true[:, -1:] * (1 + 1e-6)).mean())
    assert recall >= 0.99, f"recall {recall:.4f}, required 0.99"
    assert graph.recall_.low <= recall <= graph.recall_.high
    assert graph.n_partitions >= 6 and not graph.recall_.exact
    assert graph.details["passes"] == 3
    digest = (int(graph.indices[...].sum()), graph.distances[...].tobytes())
    assert digest == _first.setdefault("digest", digest), f"{scheduler} gives another graph"


_first: dict[str, object] = {}


def test_only_the_graph_and_its_check_are_left_in_scratch(tmp_path: Path) -> None:
    knn_graph(manifold(1000, 6), 5, n_partitions=4, scratch=Scratch(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checked_distances",
        "checked_indices",
        "checked_rows",
        "distances",
        "indices",
        "partitions",
    ]


def test_scratch_is_removed_after_a_failure(tmp_path: Path) -> None:
    X = manifold(500, 6)
    X[44] = 0
    with pytest.raises(InputError, match="Row 44 is zero"):
        knn_graph(X, 5, metric="cosine", n_partitions=4, scratch=Scratch(tmp_path))
    assert not list(tmp_path.glob("search*"))


@pytest.mark.parametrize("metric", ["cosine", "correlation"])
def test_directions_through_partitions(metric: str) -> None:
    X = manifold(2000, 10)
    graph = knn_graph(RowBlocks.from_any(X, rows=300), 5, metric=metric, n_partitions=5, eps=0.3)
    _, true = brute_neighbors(X, 5, metric)
    recall = float((graph.distances[...] <= true[:, -1:] * (1 + 1e-5)).mean())
    assert recall >= 0.98, f"recall {recall:.4f}, required 0.98"


def test_a_target_raises_eps_until_it_is_met() -> None:
    blocks = RowBlocks.from_any(manifold(4000, 12), rows=600)
    low = knn_graph(blocks, 8, n_partitions=10, eps=0.0)
    assert low.recall_.value < 0.96
    high = knn_graph(blocks, 8, n_partitions=10, recall_target=0.98)
    assert high.recall_.low >= 0.98
    assert high.details["eps"] > 0 and high.details["passes"] <= 6


def test_a_target_that_cannot_be_met(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "ATTEMPTS", 1)
    X = np.random.default_rng(0).normal(size=(3000, 30)).astype(np.float32)
    with pytest.raises(ConvergenceError, match="recall_target 0.995 is not met after 1 attempts"):
        knn_graph(X, 5, n_partitions=30, recall_target=0.995)
    with pytest.warns(UserWarning, match="is not met"):
        graph = knn_graph(X, 5, n_partitions=30, recall_target=0.9999, if_missed="warn")
    assert graph.recall_.high < 1
    with pytest.raises(InputError, match=r"0.9999 is more than 1,000 checked rows can show"):
        knn_graph(X, 5, n_partitions=30, recall_target=0.9999)


def test_fewer_misses_never_lower_the_bound() -> None:
    lows = []
    for n_missed in range(6):
        per_row = np.ones(1000)
        per_row[:n_missed] -= 1 / 5
        lows.append(estimate_of(per_row, 5).low)
    assert lows == sorted(lows, reverse=True)


def test_a_partition_larger_than_the_sample_said(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_partitions

    def small(*args: object, **options: object) -> object:
        return replace(plan(*args, **options), capacity_rows=100)

    monkeypatch.setattr("bigfs.graph.build.plan_partitions", small)
    with pytest.raises(MemoryLimitError, match="one task can hold 100"):
        knn_graph(manifold(1000, 4), 5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"eps": -1}, r"eps must be a number in \[0, 10\]"),
        ({"recall_target": 1.0}, r"recall_target must be a number in \(0, 1\)"),
        ({"if_missed": "ignore"}, "'error' or 'warn'"),
    ],
)
def test_refusals(options: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        knn_graph(manifold(60, 3), 3, **options)


def test_when_partitions_are_searched_exactly() -> None:
    plan = _plan(200_000, 50, GIB)
    few, many = np.full(4, 5000), np.full(400, 8000)
    assert exact_rows("auto", plan, few, 50) >= 5000
    assert exact_rows("auto", plan, many, 50) < 5000
    assert exact_rows("auto", plan, np.array([20_000]), 50) >= 20_000
    assert exact_rows("auto", plan, np.array([40_000]), 50) < 5000
    assert exact_rows("pynndescent", plan, few, 50) == 0


def test_scratch_is_released_shelf_by_shelf() -> None:
    X = manifold(4000, 200)
    graph = knn_graph(RowBlocks.from_any(X, rows=700), 8, n_partitions=16, eps=0.1)
    rows = graph.details["rows_searched"]
    everything = rows * (4 + 200 * 4) + rows * (4 + 8 * 8)
    assert graph.details["scratch_bytes"] < everything - 0.5 * rows * 8 * 8
