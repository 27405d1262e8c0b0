"""LFS equals the paper's dense algorithm, finds the planted subsets, and says why features go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_iris, load_wine

from bigfs import LFS, GFSKMeans, ingest
from bigfs.blocks import RowBlocks
from bigfs.core.errors import InputError, MemoryLimitError
from bigfs.selectors import sampled
from bigfs.selectors.clusters import N_GROUPS, groups_of
from bigfs.selectors.kept import load_state
from bigfs.selectors.lfs.strategies import LocalClusters, LocalSearch
from bigfs.solvers.separability import (
    feature_separability,
    is_singular,
    variance,
    without_each,
)
from bigfs.stages.stage import Inputs
from bigfs.store.scratch import Scratch
from tests.bench._lfs_data import four_clusters, planted
from tests.reference.lfs import reference_lfs, reference_lfs_many
from tests.selectors._local import selection_of

PLANTED = [[0, 1], [0, 1], [1, 2], [1, 2]]


def _means(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.stack([X[y == j].mean(axis=0) for j in range(y.max() + 1)])


def _subsets(actual: LFS) -> list[list[int]]:
    return [subset.tolist() for subset in actual.feature_subsets_]


def _most_dropped(fitted: LFS) -> int:
    """Return how many features a cluster lost at a time at most, by its own trial."""
    own = [step for step in fitted.trace_ if step["tried_cluster"] == step["cluster"]]
    return max(len(step["dropped"]) for step in own)


def _data(name: str) -> tuple[np.ndarray, np.ndarray]:
    if name == "planted":
        return four_clusters(3)
    loads = {"iris": load_iris, "wine": load_wine, "breast_cancer": load_breast_cancer}
    X, y = loads[name](return_X_y=True)
    return (X - X.mean(axis=0)) / X.std(axis=0), y


@pytest.mark.parametrize("tie_width", [0.0, 2.0])
@pytest.mark.parametrize("name", ["planted", "iris", "wine"])
def test_equals_the_dense_reference(name: str, tie_width: float) -> None:
    X, y = _data(name)
    C = _means(X, y)
    fitted = LFS(n_clusters=len(C), tie_width=tie_width, init=C, tol=0.0).fit(X)
    groups = groups_of(len(X), N_GROUPS)
    subsets, members = reference_lfs(X, C, 4.0, 4.0, tie_width, groups)
    assert _subsets(fitted) == subsets
    np.testing.assert_array_equal(fitted.membership_, members)
    means = np.stack([X[inside].mean(axis=0) for inside in members.T])
    np.testing.assert_allclose(fitted.cluster_centers_, means, atol=1e-10)


@pytest.mark.parametrize("name", ["planted", "iris", "wine", "breast_cancer"])
def test_several_features_at_a_time_go_as_in_the_dense_reference(name: str) -> None:
    X, y = _data(name)
    C = _means(X, y)
    fitted = LFS(n_clusters=len(C), drop="many", tie_width=0, init=C, tol=0.0).fit(X)
    subsets, members = reference_lfs_many(X, C, 4.0, 4.0)
    assert _subsets(fitted) == subsets
    np.testing.assert_array_equal(fitted.membership_, members)


def test_features_that_tell_nothing_go_many_at_a_time() -> None:
    X, y, subsets = planted(3_000, 41, 4, seed=0)
    X = np.hstack([X, np.ones((3_000, 1), np.float32)])  # and one that never varies
    fits = [LFS(n_clusters=4, init=_means(X, y), tie_width=width).fit(X) for width in (0, 2)]
    kept = [fitted.feature_masks_.sum() for fitted in fits]
    assert kept[1] <= 14 < 100 < kept[0], "the paper's rule keeps noise"
    for mask, subset in zip(fits[1].feature_masks_, subsets, strict=True):
        assert mask[subset].all()
    one = LFS(n_clusters=4, init=_means(X[:, :40], y)).fit(X[:, :40])
    assert _most_dropped(one) == 1 < _most_dropped(fits[1]), "up to 40 features go one by one"


def test_finds_the_planted_subsets_where_the_literal_rule_does_not() -> None:
    exact = {0.0: 0, 2.0: 0}
    for draw in range(8, 14):
        X, y = four_clusters(draw)
        for width in exact:
            fitted = LFS(n_clusters=4, tie_width=width, init=y).fit(X)
            exact[width] += _subsets(fitted) == PLANTED
    assert exact[2.0] == 6 > exact[0.0]


def test_needs_no_labels() -> None:
    X, y = four_clusters(2)
    fitted = LFS(n_clusters=4, n_init=10).fit(X)
    assert sorted(_subsets(fitted)) == PLANTED
    assert np.mean(fitted.labels_[y == 0] == np.bincount(fitted.labels_[y == 0]).argmax()) > 0.95


def test_the_paper_s_subsets_of_iris() -> None:
    X, y = load_iris(return_X_y=True)
    fitted = LFS(n_clusters=3, alpha=1, beta=6, tie_width=1, init=y).fit(X)
    assert _subsets(fitted) == [[3], [2, 3], [2, 3]]


def test_what_the_trace_says_is_what_the_result_is() -> None:
    X, y = four_clusters(1)
    fitted = LFS(n_clusters=4, init=y).fit(X)
    kept = [set(range(4)) for _ in range(4)]
    for entry in fitted.trace_:
        assert entry["log_ratio"] >= -2 * (entry["standard_error"] or 0)
        assert len(entry["dropped"]) > len(entry["added"])
        kept[entry["cluster"]] -= set(entry["dropped"])
        kept[entry["cluster"]] |= set(entry["added"])
        assert len(kept[entry["cluster"]]) == entry["n_features"]
    assert [sorted(subset) for subset in kept] == _subsets(fitted)
    gaps = float((~fitted.membership_.any(axis=1)).mean())
    assert 0 <= gaps < 0.2


def test_labels_scores_and_ranking_follow_from_the_subsets() -> None:
    X, y = four_clusters(0)
    fitted = LFS(n_clusters=4, init=y).fit(X)
    masks = np.stack([np.isin(np.arange(4), subset) for subset in fitted.feature_subsets_])
    np.testing.assert_allclose(fitted.scores_, masks[fitted.labels_].mean(axis=0))
    assert fitted.ranking_[0] == 1  # every cluster keeps it
    assert fitted.n_features_to_select_ == 3
    assert fitted.transform(X).shape == (400, 3)
    single = fitted.membership_.sum(axis=1) == 1
    np.testing.assert_array_equal(fitted.labels_[single], fitted.membership_[single].argmax(axis=1))


def test_rows_of_no_cluster_take_the_nearest_by_eq_20_or_none() -> None:
    X, y = _data("wine")
    settings: dict[str, Any] = {"n_clusters": 3, "tie_width": 0, "init": y}
    fitted = LFS(**settings).fit(X)
    distance = np.stack(
        [
            np.linalg.norm(X[:, s] - fitted.cluster_centers_[j, s], axis=1)
            / X[fitted.membership_[:, j]][:, s].var(axis=0).mean()
            for j, s in enumerate(fitted.feature_subsets_)
        ],
        axis=1,
    )
    none = ~fitted.membership_.any(axis=1)
    assert none.any()
    np.testing.assert_array_equal(fitted.labels_[none], distance[none].argmin(axis=1))
    left = LFS(**settings, unassigned="leave").fit(X)
    np.testing.assert_array_equal(left.labels_ == -1, none)
    np.testing.assert_array_equal(left.labels_[~none], fitted.labels_[~none])
    np.testing.assert_array_equal(left.predict(X), left.labels_)


@pytest.mark.parametrize("preprocess", ["none", "standardize"])
def test_predict_labels_rows_as_fit_does(preprocess: str, tmp_path: Path) -> None:
    X, y = four_clusters(5)
    fitted = LFS(n_clusters=4, init=y, preprocess=preprocess).fit(X)
    np.testing.assert_array_equal(fitted.predict(X[::-1]), fitted.labels_[::-1])
    ingest(X, tmp_path / "X.zarr")
    np.testing.assert_array_equal(fitted.predict(tmp_path / "X.zarr")[:], fitted.labels_)
    with pytest.raises(ValueError, match="features"):
        fitted.predict(X[:, :3])
    X[3, 1] = np.nan
    with pytest.raises(InputError, match="row 3, column 1 is NaN"):
        fitted.predict(X)
    filled = LFS(n_clusters=4, init=y, preprocess=preprocess, missing="zero").fit(X)
    np.testing.assert_array_equal(filled.predict(X), filled.labels_)


def _same(a: LFS, b: LFS) -> None:
    assert _subsets(a) == _subsets(b)
    np.testing.assert_array_equal(a.labels_[:], b.labels_[:])
    np.testing.assert_array_equal(a.membership_[:], b.membership_[:])
    np.testing.assert_array_equal(a.cluster_centers_, b.cluster_centers_)
    assert a.trace_ == b.trace_


@pytest.mark.parametrize("drop", ["one", "many"])
def test_row_blocks_and_candidates_may_be_anywhere(drop: str, tmp_path: Path) -> None:
    X, y, subsets = planted(3_000, 12, 4, seed=0)
    ingest(X, tmp_path / "X.zarr", rows=500)
    settings: dict[str, Any] = {"n_clusters": 4, "init": _means(X, y), "drop": drop}
    full_fit = LFS(**settings).fit(X)
    assert (_subsets(full_fit) == subsets) == (drop == "one")
    with dask.config.set(scheduler="synchronous"):
        alone = LFS(**settings).fit(tmp_path / "X.zarr")
    _same(alone, LFS(**settings).fit(tmp_path / "X.zarr"))
    assert _subsets(alone) == _subsets(full_fit)
    np.testing.assert_array_equal(alone.labels_[:], full_fit.labels_)


@pytest.mark.slow
@pytest.mark.cluster
def test_the_same_bits_on_one_two_and_four_workers(
    tmp_path: Path, cluster: str, client: Any
) -> None:
    from distributed import Client

    from bigfs.runtime.connection import local_cluster

    X, y, _ = planted(3_000, 12, 4, seed=1)
    ingest(X, tmp_path / "X.zarr", rows=500)
    both: list[dict[str, Any]] = [{"init": _means(X, y)}, {"n_init": 2, "sample_size": 2_000}]
    on_two = [_fit(tmp_path, fitted) for fitted in both]
    with dask.config.set(scheduler="synchronous"):
        alone = [_fit(tmp_path, fitted) for fitted in both]
    with local_cluster(4, 1, 2**30) as four, Client(four):
        on_four = [_fit(tmp_path, fitted) for fitted in both]
    for two, fitted, several in zip(on_two, alone, on_four, strict=True):
        _same(two, fitted)
        _same(two, several)


def _fit(folder: Path, settings: dict[str, Any]) -> LFS:
    return LFS(n_clusters=4, drop="many", **settings).fit(folder / "X.zarr")


def test_a_sample_finds_the_subsets_and_labels_all_rows() -> None:
    X, y, subsets = planted(6_000, 10, 4, seed=2)
    fitted = LFS(n_clusters=4, init=_means(X, y), sample_size=1_000).fit(X)
    assert _subsets(fitted) == subsets
    assert len(fitted.labels_) == 6_000
    assert np.mean(fitted.labels_ == y) > 0.95


def test_labels_of_all_rows_start_a_search_on_a_sample() -> None:
    X, y, subsets = planted(6_000, 10, 4, seed=2)
    fitted = LFS(n_clusters=4, init=y, sample_size=1_000).fit(X)
    assert _subsets(fitted) == subsets
    assert fitted.n_rows_ == 1_000 and fitted.n_passes_ == 2
    rare = np.where(np.arange(6_000) == 17, 4, y)
    with pytest.raises(
        InputError,
        match="label does not occur among the 20 rows that are searched. Increase sample_size",
    ):
        LFS(n_clusters=5, init=rare, sample_size=20).fit(X)


def test_what_a_result_measures_is_measured_on_all_rows() -> None:
    X, y, _ = planted(6_000, 10, 4, seed=2)
    fitted = LFS(n_clusters=4, init=_means(X, y), sample_size=1_000).fit(X)
    share = np.bincount(fitted.labels_) / 6_000
    np.testing.assert_allclose(fitted.scores_, share @ fitted.feature_masks_)
    value = 0.0
    for label, mask in enumerate(fitted.feature_masks_):
        rows = X[fitted.labels_ == label][:, mask].astype(float)
        gain = np.log(X[:, mask].astype(float).var(axis=0) / rows.var(axis=0)).sum() / 2
        value += len(rows) * (gain + np.log(share[label])) - mask.sum() * np.log(6_000)
    assert fitted.evidence_ == pytest.approx(value, rel=1e-5)


def test_an_interrupted_search_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = four_clusters(4)
    monkeypatch.setattr(sampled, "CHECKPOINT_SECONDS", 0.0)
    data = RowBlocks.from_any(X)
    strategy = LocalSearch(data.layout, selection_of("lfs", n_clusters=4, init=y))
    outs = [Scratch(tmp_path / f"out-{i}") for i in range(4)]
    plain = strategy.run(Inputs(data), outs[0])
    steps, step = [], LocalClusters.step

    def stop(*args: Any) -> None:
        steps.append(1)
        if len(steps) == 4:
            raise KeyboardInterrupt
        step(*args)

    checkpoint = tmp_path / "checkpoint"
    monkeypatch.setattr(LocalClusters, "step", stop)
    with pytest.raises(KeyboardInterrupt):
        strategy.run(Inputs(data, checkpoint=checkpoint), outs[1])
    assert load_state(checkpoint / "search.npz") is not None
    resumed = strategy.run(Inputs(data, checkpoint=checkpoint), outs[2])
    n_resumed = len(steps) - 4
    assert resumed.details["trace"] == plain.details["trace"]
    np.testing.assert_array_equal(resumed.details["labels"].load(), plain.details["labels"].load())
    (checkpoint / "search.npz").write_bytes(b"damaged")
    afresh = strategy.run(Inputs(data, checkpoint=checkpoint), outs[3])
    np.testing.assert_array_equal(afresh.scores, plain.scores)
    assert len(steps) - 4 - n_resumed == n_resumed + 3


@pytest.mark.parametrize("tie_width", [0.0, 2.0])
def test_degenerate_data_give_numbers(tie_width: float) -> None:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(40, 4))
    X[:20, 0] += 9
    cases = {
        "constant": np.column_stack([X, np.ones(40)]),
        "equal features": np.column_stack([X, X[:, 0]]),
        "few rows": X[16:24],
        "duplicates": np.repeat(X[::8], 8, axis=0),
        "whole numbers": np.round(X).astype(np.int32),
        "far from zero": X + 1e6,
        "one feature": X[:, :1],
    }
    for name, rows in cases.items():
        fitted = LFS(n_clusters=2, n_init=2, tie_width=tie_width).fit(rows)
        assert np.isfinite(fitted.scores_).all(), name
        assert np.isfinite(fitted.cluster_centers_).all(), name
        assert all(len(subset) for subset in fitted.feature_subsets_), name
        assert set(fitted.labels_) <= {0, 1}, name
    fitted = LFS(n_clusters=2, n_init=2).fit(cases["constant"])
    assert fitted.scores_[4] == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_clusters": 0}, r"LFS: n_clusters must be a whole number in \[1, 60\], or auto. Got 0"),
        ({"n_clusters": 61}, "n_clusters"),
        ({"alpha": -1}, "LFS: alpha must be a number of at least 0. Got -1"),
        ({"tie_width": np.nan}, "tie_width must be a finite number"),
        ({"drop": "all"}, "drop must be one of auto, one, many"),
        ({"unassigned": "drop"}, "unassigned must be one of"),
        ({"n_init": 0}, "n_init must be"),
        ({"sample_size": 3}, "sample_size must be a number of at least 4"),
        ({"sample_size": 5}, "sample_size must be at least 6, twice the number of clusters. Got 5"),
        ({"init": "random"}, "file of labels. Got .random"),
        ({"init": np.zeros((3, 3))}, r"centroids of shape \(3, 4\)"),
        ({"init": np.zeros(150, dtype=int)}, "each of 0 to 2 occurs"),
    ],
)
def test_what_cannot_be_used_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        LFS(**{"n_clusters": 3, **settings}).fit(load_iris().data)


def test_nothing_to_tell_apart_is_refused() -> None:
    with pytest.raises(InputError, match="every feature is constant"):
        LFS(n_clusters=2).fit(np.ones((30, 3)))


@pytest.mark.full
@pytest.mark.parametrize("method", [LFS, GFSKMeans])
@pytest.mark.parametrize("kind", ["flags", "counts"])
def test_rounding_decides_nothing_where_rows_are_near_several_clusters(
    kind: str, method: Any
) -> None:
    rng = np.random.default_rng(0)
    X = rng.random((100, 8)) < 0.3 if kind == "flags" else rng.poisson(0.5, (100, 8))
    expected = method(4).fit(X.astype(float)).ranking_
    for factor, shift in ((255.0, 0.0), (1e-6, 0.0), (1e6, 0.0), (1.0, 100.0)):
        np.testing.assert_array_equal(method(4).fit(X * factor + shift).ranking_, expected)


@pytest.mark.parametrize("unit", [1.0, 3.0, 1e-6, 1e6])
def test_what_varies_in_one_group_alone_does_not_vary_without_it(unit: float) -> None:
    # A cluster of 100 rows, and a feature that one row of 3,000 has: its mean is small beside it.
    rows = unit * (np.where(np.arange(100) == 17, 0.4, 0.0) - 0.4 / 3000)
    groups = groups_of(100, N_GROUPS)
    counts, sums, squares = (np.bincount(groups, rows**power) for power in range(3))
    without = variance(
        without_each(counts), *(without_each(part)[:, None] for part in (sums, squares))
    )
    np.testing.assert_array_equal(without[:, 0] > 0, np.arange(N_GROUPS) != groups[17])
    np.testing.assert_allclose(without_each(sums), sums.sum() - sums, atol=1e-12 * unit)


def test_means_that_differ_by_rounding_separate_nothing() -> None:
    means = np.array([[0.1, 1.0], [0.1 * (1 + 1e-15), 2.0]])
    alone = feature_separability(np.ones(2), means, np.zeros(2))
    assert alone[0] == 0 and alone[1] > 0


def test_the_order_of_features_does_not_decide_what_is_singular() -> None:
    # The second is the first and a hundredth of the third, but for 3e-7: in the first order the
    # last pivot is 9e-10, in the second one 9e-14.
    z = np.random.default_rng(0).standard_normal((200, 3))
    rows = np.column_stack([z[:, 0], z[:, 0] + 0.01 * z[:, 1], z[:, 1] + 3e-5 * z[:, 2]])
    for order in ([0, 1, 2], [0, 2, 1]):
        assert is_singular(np.cov(rows[:, order].T), 200, np.arange(3))
        assert not is_singular(np.cov(rows[:, order].T), 200, np.arange(2))


@pytest.mark.full
def test_float32_pixels_in_another_unit(data_dir: Path) -> None:
    # Some of these pixels are zero but for a row or two.
    X = np.load(data_dir / "USPS.npz")["X"][:300, :10].astype(np.float32)
    expected = LFS(5).fit(X).ranking_
    for factor, shift in ((1e-6, 0.0), (1e6, 0.0), (1.0, 3.0)):
        moved = X * np.float32(factor) + np.float32(shift)
        np.testing.assert_array_equal(LFS(5).fit(moved).ranking_, expected)


def test_fewer_rows_that_differ_than_clusters(caplog: pytest.LogCaptureFixture) -> None:
    fitted = LFS(n_clusters=3).fit(np.repeat([[0.0], [1.0]], 10, axis=0))
    assert "n_clusters is 2, not 3: X has only 2 distinct rows" in caplog.text
    assert len(np.unique(fitted.labels_)) == 2 and fitted.membership_.shape == (20, 2)


def test_a_search_that_does_not_fit_is_refused_before_any_pass() -> None:
    X = np.random.default_rng(0).normal(size=(2_000, 1_500))
    with pytest.raises(MemoryLimitError, match="3 clusters on 2,000 rows in 1,500 features"):
        LFS(n_clusters=3, drop="one", sample_size=2_000, memory_limit="1 GiB").fit(X)
