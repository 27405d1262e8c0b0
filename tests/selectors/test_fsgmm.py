"""FSGMM: equal to the dense form, any blocks and workers; finds features; degenerate; in a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from sklearn.datasets import load_digits, load_iris, load_wine
from sklearn.preprocessing import StandardScaler

from bigfs import FSGMM, run
from bigfs.blocks import RowBlocks
from bigfs.core.cost import Shape
from bigfs.core.errors import InputError
from bigfs.core.memory import task_budget
from bigfs.core.seeds import rng
from bigfs.results.result import open_result
from bigfs.selectors.fsgmm import strategies as _fsgmm
from bigfs.stages.scores import FeatureScores
from bigfs.stages.stage import Inputs
from bigfs.store.scratch import ArrayRef
from tests.reference.fsgmm import fsgmm
from tests.selectors._local import result_of, strategy_of


def _mixture(n: int = 800) -> tuple[np.ndarray, np.ndarray]:
    """Four clusters in two features, and eight that say nothing (the paper's first data set)."""
    generator = np.random.default_rng(0)
    y = generator.integers(0, 4, n)
    X = generator.normal(size=(n, 10))
    X[:, :2] += np.array([[0, 3], [1, 9], [6, 4], [7, 10]])[y]
    return X, y


def _result(blocks: RowBlocks, n_clusters: int, max_iter: int) -> FeatureScores:
    return result_of("fsgmm", blocks, n_clusters=n_clusters, max_iter=max_iter)


@pytest.mark.parametrize("data, least", [("iris", 1e-4), ("wine", 0.3), ("mixture", 1e-4)])
@pytest.mark.parametrize("n_iter", [5, 90])
def test_equals_the_dense_reference(data: str, least: float, n_iter: int) -> None:
    sets = {"iris": load_iris().data, "wine": load_wine().data, "mixture": _mixture(200)[0]}
    X = sets[data]
    options = {"n_clusters": 8, "max_iter": n_iter, "random_state": 3}
    fitted = FSGMM(2, least_variance=least, **options).fit(X)
    start = np.sort(rng(3, "fsgmm").choice(len(X), 8, replace=False))
    expected = fsgmm(X, start, n_iter, least_variance=least)
    np.testing.assert_allclose(fitted.message_lengths_, expected["lengths"], rtol=1e-7)
    np.testing.assert_allclose(fitted.scores_, expected["saliency"], atol=1e-6)
    np.testing.assert_array_equal(fitted.labels_, expected["labels"])
    assert fitted.n_clusters_ == expected["k"]


@pytest.mark.full
def test_finds_the_features_that_tell_clusters_apart() -> None:
    from sklearn.metrics import adjusted_rand_score

    X, y = _mixture()
    fitted = FSGMM(2, n_clusters=20).fit(X)
    assert set(fitted.ranking_[:2]) == {0, 1}
    assert fitted.scores_[:2].min() > 0.9 and fitted.scores_[2:].max() < 0.2
    assert 4 <= fitted.n_clusters_ <= 6
    assert adjusted_rand_score(y, fitted.labels_) > 0.8
    fixed = FSGMM(2, n_clusters=4, min_clusters=4, max_iter=100).fit(X)
    assert fixed.n_clusters_ == 4 and set(fixed.sizes_) == {4}


def test_an_end_before_convergence_is_said(caplog: pytest.LogCaptureFixture) -> None:
    X, _ = _mixture()
    FSGMM(2, n_clusters=20, max_iter=3).fit(X)
    assert "ended before it converged: raise fsgmm.max_iter" in caplog.text
    caplog.clear()
    FSGMM(2, n_clusters=20).fit(X)
    assert "converged" not in caplog.text


def test_the_scale_of_a_feature_makes_no_difference() -> None:
    X = load_iris().data
    moved = FSGMM(2, n_clusters=5, max_iter=40).fit(X * [1, 1e3, 1e-3, 7] + [0, 5, 0, 1e2])
    still = FSGMM(2, n_clusters=5, max_iter=40).fit(X)
    np.testing.assert_allclose(moved.scores_, still.scores_, atol=1e-6)


def test_blocks_do_not_change_the_result() -> None:
    X = load_digits().data[:400]
    complete = _result(RowBlocks.from_any(X), 6, max_iter=20)
    parts = _result(RowBlocks.from_any(X, rows=90), 6, max_iter=20)
    np.testing.assert_allclose(parts.scores, complete.scores, atol=1e-7)


@pytest.mark.cluster
def test_workers_do_not_change_a_bit(tmp_path: Path, client: Any) -> None:
    np.save(tmp_path / "X.npy", load_digits().data[:500])

    def scores() -> np.ndarray:
        blocks = RowBlocks.from_any(tmp_path / "X.npy", rows=120)
        return _result(blocks, 5, max_iter=6).scores

    spread = scores()
    for n_threads in (1, 2, 4):
        with dask.config.set(scheduler="threads", num_workers=n_threads):
            np.testing.assert_array_equal(scores(), spread)


def test_degenerate_data() -> None:
    generator = np.random.default_rng(0)
    wide = np.hstack([generator.normal(size=(12, 40)), np.full((12, 1), 0.1)])
    fitted = FSGMM(41, n_clusters=12).fit(wide)
    assert fitted.get_support().all()
    assert fitted.scores_[40] == 0 and fitted.ranking_[-1] == 40
    assert ((fitted.scores_[:40] >= 0) & (fitted.scores_[:40] <= 1)).all()
    twice = np.repeat(generator.normal(size=(15, 4)), 2, axis=0)
    assert np.isfinite(FSGMM(2, n_clusters=10).fit(twice).scores_).all()
    apart = np.concatenate([generator.normal(50 * part, 1, (20, 3)) for part in range(3)])
    assert FSGMM(2, n_clusters=6).fit(apart).n_clusters_ >= 3
    two = FSGMM(1, n_clusters=1).fit(np.array([[0.0, 1.0], [1.0, 0.0]]))
    assert two.labels_.tolist() == [0, 0]
    X = generator.normal(size=(400, 3))
    assert FSGMM(1, n_clusters=5).fit(X).scores_.max() < 0.1
    assert FSGMM(1, n_clusters=5, least_variance=1e-4).fit(X).n_clusters_ <= 2


def test_features_outlive_too_many_components() -> None:
    """With n / 2 components and more no feature is worth its parameters: components go first."""
    X = StandardScaler().fit_transform(load_wine().data)[::4]  # 45 rows
    model = FSGMM(5).fit(X)
    assert model.converged_ and model.sizes_[-1] == 1 and (np.diff(model.sizes_) >= -1).all()
    assert len(np.unique(model.scores_)) > 2 and model.n_iter_ >= 30


def test_refusals() -> None:
    X = load_iris().data
    for options, message in (
        ({"n_clusters": 0}, "FSGMM: n_clusters must be a number of at least 1. Got 0"),
        ({"n_clusters": 151}, "FSGMM: n_clusters must be at most 150, since X has 150 rows"),
        (
            {"n_clusters": 3, "min_clusters": 4},
            "FSGMM: min_clusters must be at most n_clusters, which is 3. Got 4",
        ),
        ({"min_clusters": 0}, "FSGMM: min_clusters must be a number of at least 1"),
        ({"max_iter": 0}, "FSGMM: max_iter must be a number of at least 1"),
        ({"tol": -1.0}, "FSGMM: tol must be a number of at least 0"),
        ({"tol": 1.0}, "FSGMM: tol must be a number below 1"),
    ):
        with pytest.raises(InputError, match=message):
            FSGMM(2, **options).fit(X)
    with pytest.raises(InputError, match="all 2 features are constant"):
        FSGMM(1, n_clusters=2).fit(np.ones((5, 2)))


def test_the_cost_tells_what_does_not_fit() -> None:
    shape = Shape(5, 200_000, 4, 5, 5)
    cost = strategy_of("fsgmm", shape, n_clusters=4).cost()
    assert cost.largest.what == "a block of 5 rows and 4 components of 200,000 features"
    assert cost.task_bytes > task_budget(768 * 2**20)


@pytest.mark.parametrize("rows", [150, 40])
def test_passes_are_at_most_those_of_the_cost(rows: int) -> None:
    blocks = RowBlocks.from_any(load_iris().data, rows=rows)
    before = blocks.passes
    strategy = strategy_of("fsgmm", blocks.layout, n_clusters=5, max_iter=7)
    result = strategy.run(Inputs(blocks), blocks.scratch.child("result"))
    assert result.details["n_iter"] == 7
    # Data in memory are checked as they are opened: their moments are known by then.
    assert blocks.passes - before == strategy.cost().passes - 1 == 7 + 1


def _config(folder: Path) -> dict[str, Any]:
    return {
        "run": str(folder / "run"),
        "input": {"uri": "sklearn:digits"},
        "method": "fsgmm",
        "fsgmm": {"n_clusters": 6, "max_iter": 12},
        "n_features_to_select": 9,
    }


def test_as_a_run_that_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = FSGMM(9, n_clusters=6, max_iter=12).fit(load_digits().data)
    original, made = _fsgmm.one_pass, []

    def stops(*given: Any) -> Any:
        made.append(1)
        if len(made) == 8:
            raise KeyboardInterrupt
        return original(*given)

    monkeypatch.setattr(_fsgmm, "one_pass", stops)
    with pytest.raises(KeyboardInterrupt):
        run(_config(tmp_path))
    assert len(made) == 8
    result = run(_config(tmp_path))
    assert len(made) == 8 + 12 - 7 + 1, "seven passes were taken over; one writes the labels"
    np.testing.assert_array_equal(result.scores, expected.scores_)
    np.testing.assert_array_equal(result.ranking, expected.ranking_)
    stored = tmp_path / "run" / "result.zarr"
    np.testing.assert_array_equal(ArrayRef.at(stored / "labels").load(), expected.labels_)
    assert open_result(tmp_path / "run").selected.tolist() == result.selected.tolist()
