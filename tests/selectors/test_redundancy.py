"""Features that say the same as better ones are passed over."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_digits

import bigfs
from bigfs.blocks import RowBlocks
from bigfs.core.errors import InputError
from bigfs.pipeline.compare import fits_for
from bigfs.plan.planning import plan_pipeline
from bigfs.selectors.redundancy import Redundancy
from bigfs.selectors.registry import METHODS, load_config
from bigfs.stages.scores import FeatureScores

N, D = 300, 24
SETTINGS: dict[str, dict[str, Any]] = {
    "mcfs": {"n_clusters": 3},
    "ndfs": {"n_clusters": 3, "max_iter": 3},
    "lfs": {"n_clusters": 3},
    "m3fs": {"n_init": 1, "C": 1.0, "n_clusters": 3},
}


@pytest.fixture(scope="module")
def X() -> np.ndarray:
    """Groups, in which every third feature repeats the one before it but for some noise."""
    rng = np.random.default_rng(0)
    X = 3 * rng.standard_normal((3, D))[rng.integers(3, size=N)] + rng.standard_normal((N, D))
    X[:, 2::3] = -2 * X[:, 1::3] + 0.1 * rng.standard_normal((N, D // 3))
    X[:, 9] = 4.0
    return X.astype(np.float32)


def kept_of(X: np.ndarray, order: list[int], limit: float, m: int) -> tuple[list[int], dict]:
    """Return the definition: features of an order, and for which the others are passed over."""
    kept: list[int] = []
    passed_over: dict[int, int] = {}
    for feature in order:
        if len(kept) == m or np.ptp(X[:, feature]) == 0:
            break
        alike = [abs(np.corrcoef(X[:, feature], X[:, other])[0, 1]) for other in kept]
        if alike and max(alike) > limit:
            passed_over[feature] = kept[int(np.argmax(alike))]
        else:
            kept.append(feature)
    return kept, passed_over


@pytest.mark.parametrize("name", ["mcfs", "ndfs", "column_subset", "max_variance", "spec"])
@pytest.mark.parametrize("sparse", [False, True])
def test_it_is_the_definition_for_every_method(name: str, sparse: bool, X: np.ndarray) -> None:
    kind, settings = METHODS[name].estimator_class(), SETTINGS.get(name, {})
    given = sp.csr_array(X) if sparse else X
    order = kind(D, **settings).fit(given).ranking_.tolist()
    fitted = kind(10, redundancy=0.9, **settings).fit(given)
    if name in ("column_subset", "ndfs"):  # whose order may depend on the number
        order = kind(10, **settings).fit(given).ranking_.tolist()
    kept, passed_over = kept_of(X.astype(float), order, 0.9, 10)
    assert fitted.ranking_[:10].tolist() == kept
    assert sorted(fitted.get_support(indices=True)) == sorted(kept)
    assert {j: int(k) for j, k in enumerate(fitted.redundant_with_) if k >= 0} == passed_over
    assert sorted(fitted.ranking_) == list(range(D)) and fitted.ranking_[-1] == 9
    n_over = len(passed_over)
    assert set(fitted.ranking_[-1 - n_over : -1].tolist()) == set(passed_over)


def test_blocks_and_passes_change_nothing(X: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    ranking = np.argsort(-X.var(axis=0), kind="stable")
    result = FeatureScores(np.ones(D), ranking, constant=np.ptp(X, axis=0) == 0)
    expected, _ = kept_of(X.astype(float), ranking.tolist(), 0.9, 12)
    for rows in (50, None):
        for given in (X, sp.csr_array(X)):
            blocks = RowBlocks.from_any(given, rows=rows, sparse=True)
            for at_once in (13, D):
                monkeypatch.setattr(Redundancy, "at_once", at_once)
                before = blocks.passes
                passing = Redundancy(blocks.layout, 0.9, 12, 2**32)
                assert passing.applied(result, blocks).ranking[:12].tolist() == expected
                assert (blocks.passes - before == 1) == (at_once == D)


def test_too_few_are_filled_up_with_the_best_of_the_others(
    X: np.ndarray, caplog: pytest.LogCaptureFixture
) -> None:
    fitted = bigfs.MaxVariance(D - 2, redundancy=0.9).fit(X)
    assert "only 14 features have an absolute correlation of at most 0.9" in caplog.text
    order = bigfs.MaxVariance(D).fit(X).ranking_.tolist()
    kept, passed_over = kept_of(X.astype(float), order, 0.9, D)
    assert fitted.ranking_.tolist() == [*kept, *passed_over, 9]
    assert bigfs.MaxVariance(5, redundancy=1.0).fit(X).ranking_.tolist() == order


def test_paths_of_their_own_for_every_number(X: np.ndarray) -> None:
    plain = bigfs.MCFS(8, regression="lasso", n_clusters=3).fit(X)
    fitted = bigfs.MCFS(8, regression="lasso", n_clusters=3, redundancy=0.9).fit(X)
    chosen = plain.get_support()[plain.ranking_]
    order = [*plain.ranking_[chosen], *plain.ranking_[~chosen]]
    assert fitted.ranking_[:8].tolist() == kept_of(X.astype(float), order, 0.9, 8)[0]
    config = load_config({"run": "r", "input": {"uri": "x"}, "n_features_to_select": 8})
    assert [sizes for _, sizes in fits_for(config, [4, 8])] == [[4, 8]]
    config = config.model_copy(update={"redundancy": 0.9})
    assert [sizes for _, sizes in fits_for(config, [4, 8])] == [[4], [8]]


def test_a_run_says_for_which_feature(X: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", X)
    settings: dict[str, Any] = {"run": str(tmp_path / "run"), "input": {"uri": f"{tmp_path}/X.npy"}}
    settings |= {"method": "max_variance", "n_features_to_select": 12}
    assert "redundant_with" not in bigfs.run(settings).features_csv()
    plain = plan_pipeline(load_config(settings)).by_stage["result"].cost
    result = bigfs.run({**settings, "redundancy": 0.9})
    priced = plan_pipeline(load_config({**settings, "redundancy": 0.9})).by_stage["result"].cost
    assert priced.passes == plain.passes + 1 == result.stages["result"]["passes"]
    rows = list(csv.DictReader((tmp_path / "run" / "features.csv").read_text().splitlines()))
    over = {int(row["index"]): row["redundant_with"] for row in rows if row["redundant_with"]}
    fitted = bigfs.MaxVariance(12, redundancy=0.9).fit(X)
    assert over and over == {
        j: result.name_of(k) for j, k in enumerate(fitted.redundant_with_.tolist()) if k >= 0
    }
    assert all(row["selected"] == "0" for row in rows if row["redundant_with"])
    quick = {"run": str(tmp_path / "quick"), "quick": True, "stability": {"n_pairs": 2}}
    result = bigfs.run({**settings, **quick, "redundancy": 0.9})
    of_kept = np.abs(np.corrcoef(X[:, result.selected].T.astype(float)))
    assert np.fill_diagonal(of_kept, 0) is None and of_kept.max() <= 0.9
    number = bigfs.MaxVariance("auto", redundancy=0.9).fit(X).n_features_to_select_
    assert 1 <= number <= 15


@pytest.mark.full
def test_a_comparison_passes_over_but_not_for_chance(X: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", X)
    settings = {"run": str(tmp_path / "c"), "input": {"uri": f"{tmp_path}/X.npy"}}
    settings |= {"methods": ["max_variance", "column_subset"], "n_features_to_select": [12, 14]}
    rows = {(row.name, row.n_features): row for row in bigfs.compare(settings).rows}
    less = bigfs.compare({**settings, "run": str(tmp_path / "d"), "redundancy": 0.9}).rows
    for row in less:
        if row.name in ("max_variance", "column_subset"):
            alike = np.abs(np.corrcoef(X[:, row.selected].T.astype(float)))
            assert (alike > 0.9).sum() == row.n_features  # each with itself
        else:  # chance and all features
            assert row.scores == rows[row.name, row.n_features].scores


def test_it_is_a_share() -> None:
    for limit in (0, 1.2, "high"):
        with pytest.raises(InputError, match="redundancy"):
            bigfs.MaxVariance(2, redundancy=limit).fit(load_digits().data)


def _spectra(folder: Path) -> dict[str, Any]:
    """Write spectra of 60 bands, 10 apart, as a table; return the settings of a run on it."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 60)) * np.linspace(1, 4, 60)
    frame = pd.DataFrame(X, columns=[f"{400 + 10 * j}" for j in range(60)])
    frame.to_parquet(folder / "X.parquet")
    return {"run": str(folder / "run"), "input": {"uri": str(folder / "X.parquet")},
            "method": "max_variance", "n_features_to_select": 6}  # fmt: skip


def test_bands_that_are_kept_have_a_least_gap(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = _spectra(tmp_path)
    plain = bigfs.run({**settings, "run": str(tmp_path / "plain")})
    order = [400 + 10 * j for j in plain.ranking.tolist()]
    kept: list[int] = []
    for band in order:
        if len(kept) < 6 and all(abs(band - other) >= 45 for other in kept):
            kept.append(band)
    result = bigfs.run({**settings, "least_gap": 45})
    assert [400 + 10 * j for j in result.ranking[:6].tolist()] == kept
    assert np.diff(sorted(kept)).min() >= 45
    assert len(result.support(6)) == 6 and "may select others" not in caplog.text
    assert len(result.support(9)) == 9 and "least_gap: the ranking is for 6" in caplog.text
    with pytest.raises(InputError, match="no parameter 'least_gap': it is a setting of pipelines"):
        bigfs.MaxVariance(6, least_gap=45)
    over = np.flatnonzero(result.redundant_with >= 0)
    assert (np.abs(10 * (over - result.redundant_with[over])) < 45).all()
    with pytest.raises(InputError, match="least_gap needs features whose names are numbers.*'b'"):
        frame = pd.DataFrame(np.eye(9)[:, :2], columns=["1", "b"])
        bigfs.run({**settings, "n_features_to_select": 1, "least_gap": 2, "input": {}}, data=frame)


@pytest.mark.parametrize("quick", [False, True])
def test_features_that_are_included_are_selected_anyway(tmp_path: Path, quick: bool) -> None:
    settings = {**_spectra(tmp_path), "redundancy": 0.9, "least_gap": 15, "quick": quick,
                "stability": {"n_pairs": 2} if quick else None}  # fmt: skip
    result = bigfs.run({**settings, "include": ["400..410", "700"]})
    assert set(result.ranking[:3].tolist()) == {0, 1, 30}
    others = result.ranking[3:6].tolist()
    assert len(result.selected) == 6 and not {2, 29, 31} & set(others)
    with pytest.raises(InputError, match="include names 60 features, but n_features_to_select is"):
        bigfs.run({**settings, "include": [".."], "run": str(tmp_path / "b")})
    with pytest.raises(InputError, match="include: .* has no column '5'"):
        bigfs.run({**settings, "include": ["5"], "run": str(tmp_path / "c")})


def test_no_feature_is_kept_beside_an_included_one(tmp_path: Path) -> None:
    """Included ones are near each other; the better features near them are passed over."""
    X = np.random.default_rng(0).standard_normal((50, 5)) * [3, 5, 4, 1, 0.5]
    frame = pd.DataFrame(X, columns=["440", "455", "450", "480", "500"])
    settings = {"method": "max_variance", "n_features_to_select": 3, "preprocess": "none",
                "least_gap": 12, "include": ["450", "455"]}  # fmt: skip
    result = bigfs.run({**settings, "run": str(tmp_path / "run")}, data=frame)
    assert result.ranking[:3].tolist() == [1, 2, 3]
    assert result.redundant_with.tolist() == [2, -1, -1, -1, -1]
    sure = {"n_pairs": 4, "sample_size": 24}
    result = bigfs.run({**settings, "run": str(tmp_path / "sure"), "stability": sure}, data=frame)
    assert result.stability.frequencies.tolist() == [0, 1, 1, 1, 0], "fits select as the run does"


@pytest.mark.parametrize("named", [{"least_gap": 40}, {"include": ["400..410", "700"]}], ids=list)
def test_fits_of_a_quick_run_select_as_those_of_a_full_one(
    tmp_path: Path, named: dict[str, Any]
) -> None:
    settings = {**_spectra(tmp_path), "redundancy": None, "stability": {"n_pairs": 4}, **named}
    full = bigfs.run(settings).stability
    result = bigfs.run({**settings, "run": str(tmp_path / "quick"), "quick": True})
    np.testing.assert_array_equal(result.stability.frequencies, full.frequencies)
    assert result.stability.stability == full.stability
    assert result.stability.frequencies[result.selected].min() > 0


@pytest.mark.parametrize("quick", [False, True])
def test_a_number_that_is_chosen_has_room_for_the_included(tmp_path: Path, quick: bool) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 2)) @ rng.standard_normal((2, 20))
    frame = pd.DataFrame(X, columns=[f"f{j}" for j in range(20)])
    settings = {"run": str(tmp_path / "run"), "method": "max_variance", "quick": quick,
                "n_features_to_select": "auto", "include": ["f[1-7]"]}  # fmt: skip
    result = bigfs.run(settings, data=frame)
    assert sorted(result.selected.tolist()) == list(range(1, 8))
    assert "raised to the number of features in include" in result.curves.number["rule"]
    few = {**settings, "n_features_to_select": {"auto": "explained_variance", "at_most": 3}}
    with pytest.raises(InputError, match="include names 7 .*n_features_to_select.at_most is 3"):
        bigfs.run({**few, "run": str(tmp_path / "few")}, data=frame)


@pytest.mark.parametrize("selector", [bigfs.LFS, bigfs.GFSKMeans])
def test_a_number_that_a_search_finds_is_not_passed_over_for(selector: Any, X: np.ndarray) -> None:
    """Features were passed over until half were kept, and others filled up to what it found."""
    with pytest.raises(InputError, match="redundancy needs n_features_to_select"):
        selector(n_clusters=3, redundancy=0.9).fit(X)
    assert len(selector(4, n_clusters=3, redundancy=0.9).fit(X).selected) == 4
    with pytest.raises(InputError, match="different numbers of features"):
        bigfs.StabilitySelection(selector(n_clusters=3), n_pairs=2).fit(X)


def test_fits_on_samples_say_what_they_passed_over(X: np.ndarray) -> None:
    selector = bigfs.MaxVariance(16, redundancy=0.9)
    sure = bigfs.StabilitySelection(selector, n_pairs=3).fit(X)
    assert (sure.redundant_with_ >= 0).any()
    assert "redundant_with" in sure.to_frame()
    plain = bigfs.StabilitySelection(bigfs.MaxVariance(16), n_pairs=3).fit(X)
    assert not hasattr(plain, "redundant_with_")


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"highly_variable"}))
def test_constant_features_come_after_those_that_are_passed_over(
    name: str, X: np.ndarray, tmp_path: Path
) -> None:
    section = {name: SETTINGS[name]} if name in SETTINGS else {}
    config = {"method": name, "run": str(tmp_path / "run"), "n_features_to_select": 8}
    result = bigfs.run(config | section | {"redundancy": 0.9}, data=X)
    frame = result.to_frame()
    if name != "random_selection":
        assert frame["redundant_with"].notna().any()
    assert result.ranking[-1] == 9
