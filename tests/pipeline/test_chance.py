"""Chance in a comparison: rows of random selections, and what every row says of them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import t

from bigfs import RandomSelection, ingest, run
from bigfs.core.errors import InputError
from bigfs.pipeline import compare
from bigfs.pipeline.table import BETTER, NEITHER, WORSE, ComparisonResult, RankSummary, Row
from bigfs.report.page import comparison_page


def _planted(folder: Path) -> dict[str, Any]:
    """Return a comparison on 80 features of which 10, of the largest variance, tell 3 groups."""
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    X = rng.normal(size=(120, 80))
    X[:, 10:] *= 0.5
    X[:, :10] += 0.8 * np.eye(3)[y] @ rng.normal(size=(3, 10))
    np.savez(folder / "data.npz", X=X, y=y)
    return {
        "run": str(folder / "run"),
        "input": {"uri": str(folder / "data.npz"), "variable": "X"},
        "methods": [
            "max_variance",
            {"method": "random_selection", "name": "further draws"},
        ],
        "n_features_to_select": [8, 80],
        "evaluate": {"labels": f"{folder / 'data.npz'}::y", "n_repetitions": 4, "n_init": 1},
        "compare": {"n_draws": 8},
    }


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> ComparisonResult:
    return compare(_planted(tmp_path_factory.mktemp("chance")))


def _row(comparison: ComparisonResult, name: str, m: int) -> Row:
    [row] = [row for row in comparison.rows if (row.name, row.n_features) == (name, m)]
    return row


def test_every_size_has_a_row_of_chance_and_every_method_a_word(
    comparison: ComparisonResult,
) -> None:
    assert [row.n_features for row in comparison.rows if row.name == "chance"] == [8]
    assert comparison.than_chance(_row(comparison, "max_variance", 8)) == {
        "nmi": BETTER, "acc": BETTER, "nearest_neighbor_error": BETTER
    }  # fmt: skip
    assert set(comparison.than_chance(_row(comparison, "further draws", 8)).values()) == {NEITHER}
    # Of all 80 features there is nothing to draw.
    for name, m in (("chance", 8), ("all features", 80), ("max_variance", 80)):
        assert not comparison.than_chance(_row(comparison, name, m))


def test_the_interval_is_that_of_a_further_draw(comparison: ComparisonResult) -> None:
    row = _row(comparison, "chance", 8)
    mean, std = row.scores["nmi_mean"], row.scores["nmi_std"]
    low, high = t.interval(0.95, 7, mean, std * np.sqrt(9 / 8))
    assert np.allclose([row.scores["nmi_low"], row.scores["nmi_high"]], [low, high])
    assert row.n_draws == 8 and std > 0


def test_below_the_interval_is_worse_and_a_small_error_is_better() -> None:
    scores = {"nmi_low": 0.2, "nmi_high": 0.4, "acc_low": 0.2, "acc_high": 0.4}
    scores |= {"nearest_neighbor_error_low": 0.2, "nearest_neighbor_error_high": 0.4}
    chance = Row("chance", "any", 1, np.arange(1), scores, 0.0, 5)
    measured = {"nmi_mean": 0.1, "acc_mean": 0.4, "nearest_neighbor_error": 0.1}
    assert Row("a", "any", 1, np.arange(1), measured, 0.0).than(chance) == {
        "nmi": WORSE, "acc": NEITHER, "nearest_neighbor_error": BETTER
    }  # fmt: skip


def test_all_forms_of_the_table_say_it(comparison: ComparisonResult) -> None:
    text = comparison.text()
    assert "vs. chance: NMI, ACC, 1-NN error" in text
    assert "chance: 8 random selections; intervals that hold 95 % of such" in text
    rows = list(csv.DictReader(io.StringIO(comparison.csv())))
    words = {(row["name"], row["n_features"]): row["nmi_than_chance"] for row in rows}
    assert words["max_variance", "8"] == "better" and words["all features", "80"] == ""
    assert "explained_than_chance" not in rows[0], "no column without a word"
    stored = json.loads(comparison.json())["rows"]
    assert {row["n_draws"] for row in stored if row["name"] == "chance"} == {8}
    assert not json.loads(comparison.json())["overlaps"], (
        "one selection has nothing to overlap with"
    )


def test_without_chance_nothing_is_drawn(tmp_path: Path) -> None:
    settings = _planted(tmp_path) | {"compare": {"chance": False}, "methods": ["max_variance"]}
    comparison = compare(settings | {"n_features_to_select": 8})
    assert [row.name for row in comparison.rows] == ["all features", "max_variance"]
    assert "than chance" not in comparison.text()


@pytest.mark.full
def test_methods_choose_their_numbers_and_say_how_sure(tmp_path: Path) -> None:
    settings = _planted(tmp_path) | {"methods": ["max_variance"], "stability": {"n_pairs": 3}}
    settings |= {"evaluate": None, "compare": {"n_draws": 3}}
    by_stability = {"auto": "stability"}
    comparison = compare(settings | {"n_features_to_select": [8, "auto", by_stability]})
    single = {k: settings[k] for k in ("input", "stability")} | {"method": "max_variance"}
    for number, name in (
        (8, "max_variance"),
        ("auto", "max_variance (auto explained_variance)"),
        (by_stability, "max_variance (auto stability)"),
    ):
        place = {"run": str(tmp_path / "single"), "n_features_to_select": number}
        alone = run(single | place, fresh=True)
        [row] = [row for row in comparison.rows if row.name == name]
        assert row.selected.tolist() == alone.selected.tolist()
        assert alone.stability is not None and row.stability == alone.stability.stability
        assert comparison.than_chance(row)
    assert abs(row.n_features - 10) <= 2, "ten features differ in their variance"
    chance = [row.n_features for row in comparison.rows if row.name == "chance"]
    assert chance == sorted({row.n_features for row in comparison.rows if row.method} - {80})
    assert "stability (95 %)" in comparison.text() and "(auto stability)" in comparison.text()
    rows = list(csv.DictReader(io.StringIO(comparison.csv())))
    assert float(rows[-1]["stability_low"]) <= float(rows[-1]["stability"])
    table = json.loads(comparison.json())
    assert "stability (95 %)" in comparison_page(table, "<svg/>", "run", settings)
    assert compare(settings | {"n_features_to_select": "auto"}).rows[-1].n_features
    with pytest.raises(InputError, match="MaxVariance uses none"):
        compare(settings | {"n_features_to_select": {"auto": "explained_eigenvectors"}})


def test_draws_are_permutations_that_differ_with_constant_features_last() -> None:
    X = np.random.default_rng(0).normal(size=(20, 12))
    X[:, [0, 5]] = 3.0
    fitted = RandomSelection(4, n_draws=6).fit(X)
    np.testing.assert_array_equal(np.sort(fitted.draws_), np.tile(np.arange(12), (6, 1)))
    np.testing.assert_array_equal(fitted.draws_[:, -2:], np.tile([0, 5], (6, 1)))
    assert len({tuple(draw) for draw in fitted.draws_}) == 6
    np.testing.assert_array_equal(fitted.draws_[0], fitted.ranking_)
    more = RandomSelection(4, n_draws=8).fit(X)
    np.testing.assert_array_equal(more.draws_[:6], fitted.draws_)
    other = RandomSelection(4, random_state=1).fit(X)
    assert not np.array_equal(other.ranking_, fitted.ranking_)


def test_every_feature_is_drawn_as_often() -> None:
    X = np.random.default_rng(0).normal(size=(10, 5))
    draws = RandomSelection(1, n_draws=2000).fit(X).draws_
    counts = np.bincount(draws[:, 0], minlength=5)
    assert np.abs(counts - 400).max() < 4 * np.sqrt(2000 * 0.2 * 0.8)


def test_without_labels_selections_are_judged_by_what_they_explain(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(80, 3)) @ generator.normal(size=(3, 8)) + 5
    X[:, 6:] = generator.normal(size=(80, 2))
    ingest(X, tmp_path / "X.zarr", rows=32)
    comparison = compare(
        {
            "run": str(tmp_path / "run"),
            "input": {"uri": str(tmp_path / "X.zarr")},
            "methods": ["column_subset", "max_variance"],
            "n_features_to_select": [2, 4],
            "compare": {"n_draws": 3},
            "blocks": {"rows": 32},
        }
    )
    assert comparison.n_classes is None and comparison.rows[0].scores == {"explained": 1.0}
    for row in comparison.rows:
        if row.method is None or row.n_draws > 1:
            continue
        S, C = X[:, row.selected] - X[:, row.selected].mean(axis=0), X - X.mean(axis=0)
        left = C - S @ np.linalg.lstsq(S, C, rcond=None)[0]
        expected = 1 - (left**2).sum(axis=0) / (C**2).sum(axis=0)
        assert row.scores["explained"] == pytest.approx(expected.mean(), abs=1e-9)
        correlation = np.abs(np.corrcoef(S.T))
        n = len(row.selected)
        assert row.scores["redundancy"] == pytest.approx((correlation.sum() - n) / (n * n - n))
    text = comparison.text()
    assert "without labels" in text and "variance explained" in text and "classes" not in text


def test_a_score_that_only_few_features_have_leaves_the_others(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", np.random.default_rng(0).normal(size=(60, 60_000)).astype("f4"))
    comparison = compare({
        "run": str(tmp_path / "run"), "input": {"uri": str(tmp_path / "X.npy")},
        "methods": ["max_variance"], "n_features_to_select": [5, 100], "evaluate": None,
        "memory_limit": "768 MiB", "compare": {"n_draws": 3},
    })  # fmt: skip
    few, many = (_row(comparison, "chance", m).scores for m in (5, 100))
    assert "explained_low" in few and "explained_low" not in many
    lines = comparison.text().splitlines()
    assert sum("explained" in line and " to " in line for line in lines) == 1
    assert comparison.to_frame()["explained_than_chance"].notna().sum() == 1


def test_chance_is_ranked_at_numbers_that_all_have(tmp_path: Path) -> None:
    base = {"methods": ["max_variance", "column_subset"], "compare": {"n_draws": 2}}
    base |= {"evaluate": {"n_repetitions": 1, "nearest_neighbor": False}}
    results = []
    for name, d in (("iris", 4), ("wine", 13)):
        settings = {**base, "run": str(tmp_path / name), "input": {"uri": f"sklearn:{name}"}}
        settings["evaluate"] = {**base["evaluate"], "labels": f"sklearn:{name}"}
        results.append(compare({**settings, "n_features_to_select": [2, d]}))
    summary = RankSummary.of(results)
    column = summary.ranks["nmi"].names.index("max_variance")
    for result, values in zip(results, summary.values["nmi"], strict=True):
        assert values[column] == _row(result, "max_variance", 2).value("nmi")
