"""NDFS: the strategy that is chosen fits, says what it costs, and reads no more than that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from bigfs import NDFS, knn_graph
from bigfs.blocks import RowBlocks
from bigfs.core.cost import Shape
from bigfs.core.memory import task_budget
from bigfs.core.units import GIB, MIB
from bigfs.graph import affinity
from bigfs.selectors.ndfs import solve
from bigfs.selectors.ndfs.strategies import (
    Cholesky,
    ConjugateGradients,
    NDFSStrategy,
    Woodbury,
    choose,
)
from bigfs.solvers.l21 import KernelSolver
from bigfs.store.scratch import block_rows, chunk_rows
from tests.selectors._ndfs import ndfs_scores, selection


def _shape(n: int, d: int, itemsize: int = 4) -> Shape:
    chunk = chunk_rows(d, itemsize)
    return Shape(n, d, itemsize, block_rows(d, itemsize, chunk), chunk)


def _fits(strategy: NDFSStrategy, limit: int) -> bool:
    cost = strategy.cost()
    return max(cost.task_bytes, cost.client_bytes) <= task_budget(limit)


def test_many_rows_of_wide_data_are_solved_by_passes_and_the_cost_says_how_many() -> None:
    strategy = choose(_shape(1_000_000, 20_000), selection(4 * GIB))
    assert type(strategy) is ConjugateGradients
    cost = strategy.cost()
    # Two solves in each of 30 iterations and one before; the iterations; moments and X'F.
    assert cost.passes == 61 * solve.CG_PASSES + 30 + 2
    assert cost.at_most
    assert cost.task_bytes <= task_budget(4 * GIB)


def test_few_rows_of_wide_data_are_solved_on_all_rows_and_the_cost_says_how_much_that_is() -> None:
    n, d = 8_000, 50_000
    strategy = choose(_shape(n, d), selection(8 * GIB))
    assert type(strategy) is Woodbury
    cost = strategy.cost()
    [held] = [step.what for step in cost.steps if step.by_client]
    assert held == "all of X with 8,000 x 8,000 products of its rows"
    [block] = [step.task_bytes for step in cost.steps if step.what.startswith("a block of")]
    formula = n * d * 4 + 3 * 8 * n**2
    assert formula // MIB == 2990
    # Beyond the formula: two tiles in float64, F and B; and a block where tasks run here.
    assert formula < cost.client_bytes - block < formula + 128 * MIB <= task_budget(8 * GIB)
    assert cost.passes == 2 + 1 + 30, "the client reads all of X once, an iteration on workers"


@pytest.mark.parametrize(
    "n, d, limit, kind",
    [
        (5_000, 64, 4 * GIB, Cholesky),
        (200, 3_000, 4 * GIB, Woodbury),
        (1_000_000, 64, 4 * GIB, Cholesky),
        (2_000_000, 4_000, 4 * GIB, Cholesky),
        (2_000_000, 6_000, 4 * GIB, ConjugateGradients),
        (2_000_000, 6_000, 8 * GIB, Cholesky),
        (8_000, 50_000, 4 * GIB, ConjugateGradients),
        (20_000, 20_001, 8 * GIB, ConjugateGradients),
    ],
)
def test_the_choice_by_shape_and_limit(
    n: int, d: int, limit: int, kind: type[NDFSStrategy]
) -> None:
    assert type(choose(_shape(n, d), selection(limit))) is kind


@pytest.mark.parametrize("limit", [768 * MIB, GIB, 4 * GIB, 16 * GIB])
@pytest.mark.parametrize("n_clusters", [2, "auto"])
def test_what_is_chosen_fits_and_conjugate_gradients_are_the_last_resort(
    limit: int, n_clusters: Any
) -> None:
    settings = selection(limit, n_clusters=n_clusters)
    for n in (500, 5_000, 40_000, 3_000_000):
        for d in (10, 400, 1_800, 2_600, 5_000, 9_000, 60_000):
            shape = _shape(n, d)
            strategy = choose(shape, settings)
            if type(strategy) is not ConjugateGradients:
                assert _fits(strategy, limit), (n, d)
            else:
                assert not _fits(Cholesky(shape, settings), limit), (n, d)
                assert n >= d or not _fits(Woodbury(shape, settings), limit), (n, d)
            assert strategy.cost().task_bytes > 0


@pytest.mark.parametrize("unit", ["rms", "none"])
def test_data_that_are_mostly_zeros_have_the_same_solution(
    unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(0)
    X = generator.poisson(3, (80, 600)) * (generator.random((80, 600)) < 0.03) + 0.0
    X[:, 3] = generator.normal(size=80) + 9
    X[:, 4] = 2.0
    assert solve.mostly_zeros(X, centered=True) is not None
    options = {"n_clusters": 3, "unit": unit, "max_iter": 6, "tol": 0.0}
    sparse = NDFS(5, **options).fit(X)
    monkeypatch.setattr(solve, "mostly_zeros", lambda X, centered: None)
    dense = NDFS(5, **options).fit(X)
    assert sparse.solver_ == "woodbury" and (sparse.scores_ != dense.scores_).any()
    np.testing.assert_allclose(sparse.scores_, dense.scores_, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(sparse.objective_, dense.objective_, rtol=1e-10)
    assert sparse.beta_ == pytest.approx(dense.beta_, rel=1e-12)
    np.testing.assert_array_equal(sparse.labels_, dense.labels_)


@pytest.mark.parametrize("init", ["spectral", "labels"])
@pytest.mark.parametrize("rows", [None, 60])
@pytest.mark.parametrize("strategy", [Cholesky, Woodbury, ConjugateGradients])
def test_passes_are_at_most_those_of_the_cost(
    strategy: type[NDFSStrategy], rows: int | None, init: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bigfs.spectral import spectral_embedding

    kernel, kernels = KernelSolver._kernel, []

    def counted(self: KernelSolver, delta: np.ndarray) -> np.ndarray:
        kernels.append(delta)
        return kernel(self, delta)

    monkeypatch.setattr(KernelSolver, "_kernel", counted)
    X = load_digits().data[:150, 20:32] / 16
    blocks = RowBlocks.from_any(X, rows=rows)
    W = affinity(knn_graph(blocks, 5), weight="heat", blocks=blocks)
    start: Any = np.arange(150) % 3
    if init == "spectral":
        start = spectral_embedding(W, 3, chunk_rows=blocks.rows)
    options = {"beta": 30.0, "max_iter": 4, "tol": 0.0}
    before = blocks.passes
    result = ndfs_scores(blocks, W, start, 3, strategy=strategy, **options)
    settings = selection(n_clusters=3, init=init, **options)
    cost = strategy(blocks.layout, settings).cost()
    assert blocks.passes - before == result.details["n_passes"] <= cost.passes
    if strategy is Cholesky:
        assert result.details["n_passes"] == cost.passes == 5
    if strategy is Woodbury:
        # The moments are known: data in memory are checked by a pass when they are opened.
        assert result.details["n_passes"] == cost.passes - 1 == 6
        assert len(kernels) == 5, "one for the start, one for each iteration"
