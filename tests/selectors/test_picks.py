"""ColumnSubset and PivotedQR: on the Gram matrix, on few rows, and on a sketch of many."""

from __future__ import annotations

from typing import Any

import dask
import numpy as np
import pytest
from scipy.linalg import qr
from sklearn.datasets import load_digits

from bigfs import ColumnSubset, PivotedQR
from bigfs.blocks import RowBlocks
from bigfs.core.cost import Shape
from bigfs.core.errors import InputError
from bigfs.core.units import GIB
from bigfs.selectors.picks import strategies as picks
from bigfs.selectors.picks import strategies as sketch
from bigfs.selectors.picks.strategies import MostExplained, RowSketch
from bigfs.stages.stage import Inputs
from bigfs.store.scratch import Scratch
from tests.reference.greedy import forward_selection
from tests.selectors._local import selection_of

BOTH = [ColumnSubset, PivotedQR, lambda m: PivotedQR(m, n_components=3)]


def _data(n: int = 60, d: int = 15, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 5)) @ rng.normal(size=(5, d)) + 0.5 * rng.normal(size=(n, d))
    return X + 100 * rng.normal(size=d)


def _explained(X: np.ndarray, selected: np.ndarray) -> float:
    X = X - X.mean(axis=0)
    Q = np.linalg.svd(X[:, selected], full_matrices=False)[0]
    return float(np.linalg.norm(Q.T @ X) ** 2 / np.linalg.norm(X) ** 2)


@pytest.mark.parametrize("n", [60, 9], ids=["on the Gram matrix", "on few rows"])
def test_column_subset_equals_the_dense_reference(n: int) -> None:
    X = _data(n)
    fitted = ColumnSubset(8).fit(X)
    centered = X - X.mean(axis=0)
    order, gains = forward_selection(centered, centered, 8)
    assert fitted.ranking_[:8].tolist() == order
    ratio = gains / np.linalg.norm(centered) ** 2
    np.testing.assert_allclose(fitted.explained_variance_ratio_, ratio, rtol=1e-8)
    assert fitted.n_sketch_rows_ == 0
    for m in (1, 4, 8):
        total = fitted.explained_variance_ratio_[:m].sum()
        assert np.isclose(total, _explained(X, fitted.support(m)))


@pytest.mark.parametrize("n_components", [None, 4])
@pytest.mark.parametrize("n", [60, 9])
def test_pivoted_qr_is_lapacks(n: int, n_components: int | None) -> None:
    X = _data(n)
    fitted = PivotedQR(4, n_components=n_components).fit(X)
    matrix = X - X.mean(axis=0)
    if n_components is not None:
        matrix = np.linalg.svd(matrix, full_matrices=False)[2][:n_components]
    R, order = qr(matrix, mode="r", pivoting=True)
    assert fitted.ranking_[:4].tolist() == order[:4].tolist()
    np.testing.assert_allclose(fitted.pivots_, np.abs(np.diag(R))[:4], rtol=1e-8)


def test_types_and_units_of_standardized_data_change_no_pick() -> None:
    """All columns have variance 1 then: rounding to float32 must not choose the first one."""
    X = load_digits().data
    kinds = [X, X.astype(np.uint8), X.astype(np.float32), 3 * X.astype(np.float32)]
    fits = [PivotedQR(20, preprocess="standardize").fit(data) for data in kinds]
    for fitted in fits[1:]:
        np.testing.assert_array_equal(fitted.ranking_[:20], fits[0].ranking_[:20])


@pytest.mark.parametrize("make", BOTH)
def test_scores_decrease_along_the_ranking_and_the_path_is_nested(make: Any) -> None:
    X = _data()
    full_fit = make(9).fit(X)
    assert (np.diff(full_fit.scores_[full_fit.ranking_]) <= 0).all()
    assert sorted(full_fit.ranking_) == list(range(15))
    for m in (1, 2, 3):
        np.testing.assert_array_equal(full_fit.support(m), make(m).fit(X).get_support(indices=True))


def test_gains_that_rise_give_scores_that_do_not() -> None:
    X = np.random.default_rng(111).integers(-2, 3, size=(12, 8)).astype(float)
    fitted = ColumnSubset(6).fit(X)
    gains = fitted.explained_variance_ratio_
    assert gains[1] > gains[0]
    np.testing.assert_array_equal(fitted.scores_[fitted.ranking_[:6]], np.minimum.accumulate(gains))


@pytest.mark.parametrize("make", BOTH)
@pytest.mark.parametrize("n", [40, 12])
def test_degenerate_data(make: Any, n: int) -> None:
    rng = np.random.default_rng(0)
    A = rng.normal(size=(n, 4))
    X = np.column_stack([np.full(n, 7.0), A, A, A[:, 0] - A[:, 1], np.full(n, 0.1)])
    fitted = make(11).fit(np.repeat(X, 2, axis=0))
    assert fitted.ranking_[-2:].tolist() == [0, 10]
    assert np.isfinite(fitted.scores_).all()
    picked = fitted.ranking_[:3]
    assert np.linalg.matrix_rank(X[:, picked] - X[:, picked].mean(axis=0)) == 3
    single_fit = make(1).fit(X[:, 1:4])
    assert len(single_fit.get_support(indices=True)) == 1
    nothing = make(2).fit(np.ones((6, 3)))
    assert nothing.ranking_.tolist() == [0, 1, 2] and not nothing.scores_.any()


def test_one_feature() -> None:
    for make in (ColumnSubset, PivotedQR):
        assert make(1).fit(_data(d=1)).ranking_.tolist() == [0]


def test_a_permutation_of_the_features_permutes_the_picks() -> None:
    X, order = _data(), np.random.default_rng(1).permutation(15)
    for make in (ColumnSubset, PivotedQR):
        fitted, two = make(8).fit(X), make(8).fit(X[:, order])
        np.testing.assert_array_equal(order[two.ranking_[:8]], fitted.ranking_[:8])


def test_components_beyond_the_features_are_refused() -> None:
    with pytest.raises(InputError, match="n_components must be at most 15"):
        PivotedQR(3, n_components=16).fit(_data())


def test_order_is_certain_as_far_as_the_rank_goes() -> None:
    rng = np.random.default_rng(0)
    low = rng.normal(size=(50, 3)) @ rng.normal(size=(3, 10))
    assert PivotedQR(8).fit(low).n_certain_ == 3
    assert PivotedQR(8, n_components=2).fit(_data()).n_certain_ == 2
    assert len(ColumnSubset(8).fit(low).explained_variance_ratio_) == 3


@pytest.fixture
def small_sketch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows in a sketch, and no Gram matrix."""
    monkeypatch.setattr(sketch, "_LEAST_ROWS", 80)
    monkeypatch.setattr(picks, "gram_bytes", lambda *sizes: 2**60)


def test_a_sketch_explains_about_as_much_and_says_how_much(small_sketch: None) -> None:
    X = _data(n=2000, d=30)
    fitted = ColumnSubset(6).fit(X)
    assert fitted.n_sketch_rows_ == 80
    total = fitted.explained_variance_ratio_.sum()
    assert np.isclose(total, _explained(X, fitted.support(6))), "measured on the data"
    centered = X - X.mean(axis=0)
    best = _explained(X, np.array(forward_selection(centered, centered, 6)[0]))
    assert best - 0.05 < total <= best + 1e-9
    assert (np.diff(fitted.scores_[fitted.ranking_]) <= 0).all()
    assert not np.array_equal(ColumnSubset(6, random_state=1).fit(X).scores_, fitted.scores_)
    assert PivotedQR(6).fit(X).n_sketch_rows_ == 80


def test_products_of_a_sketch_are_those_of_the_rows_on_average() -> None:
    X = _data(n=500, d=6)
    shape = RowBlocks.from_any(X).layout
    centered = X - X.mean(axis=0)
    gram = centered.T @ centered
    rows = [
        RowSketch(shape, 60, 6).read(RowBlocks.from_any(X, rows=120), seed) for seed in range(80)
    ]
    mean = np.mean([S.T @ S for S in rows], axis=0)
    assert np.abs(mean - gram).max() < 0.1 * gram.max()


def test_a_sketch_in_groups_of_columns_is_the_same() -> None:
    X = _data(n=300, d=11)
    blocks = RowBlocks.from_any(X, rows=70)
    single, many = (RowSketch(blocks.layout, 50, c).read(blocks, 3) for c in (11, 4))
    np.testing.assert_allclose(many, single, rtol=0, atol=1e-11)
    assert blocks.passes - 1 == 1 + 3  # one checks data that are not ingested
    with dask.config.set(scheduler="synchronous"):
        np.testing.assert_array_equal(RowSketch(blocks.layout, 50, 11).read(blocks, 3), single)


def test_wide_data_take_several_passes_rather_than_more_memory() -> None:
    shape = Shape(100_000, 50_000, 4, 160, 160)
    wide = RowSketch.of(shape, 100, 4 * GIB)
    assert wide.n_rows == 1000 and wide.n_columns < 50_000
    step = wide.step()
    assert step.times == -(-50_000 // wide.n_columns)
    strategy = picks.PicksOnSketch(shape, selection_of("column_subset", 100), MostExplained())
    assert strategy.cost().passes == step.times + 1


@pytest.mark.parametrize("n", [60, 9])
def test_passes_are_those_of_the_plan(n: int) -> None:
    blocks = RowBlocks.from_any(_data(n))
    before = blocks.passes
    strategy = picks.choose_column_subset(blocks.layout, selection_of("column_subset", 5))
    assert type(strategy) is (picks.PicksOnGram if n == 60 else picks.PicksOnRows)
    strategy.run(Inputs(blocks), Scratch())
    assert blocks.passes - before == strategy.cost().passes == 1
