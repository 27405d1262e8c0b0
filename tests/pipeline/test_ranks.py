"""`bigfs compare` of several files: tables, mean ranks and their picture.

Friedman's test and Nemenyi's critical difference agree with SciPy and published figures.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy.stats import friedmanchisquare

from bigfs import RankSummary, cli
from bigfs.core.errors import InputError
from bigfs.pipeline.table import Ranks

NAMES = ["a", "b", "c", "d"]
# Demsar 2006, table 6: AUC of C4.5, with m, with cf and with both on 14 data sets.
DEMSAR = np.array(
    [
        [0.763, 0.768, 0.771, 0.798],
        [0.599, 0.591, 0.590, 0.569],
        [0.954, 0.971, 0.968, 0.967],
        [0.628, 0.661, 0.654, 0.657],
        [0.882, 0.888, 0.886, 0.898],
        [0.936, 0.931, 0.916, 0.931],
        [0.661, 0.668, 0.609, 0.685],
        [0.583, 0.583, 0.563, 0.625],
        [0.775, 0.838, 0.866, 0.875],
        [1.000, 1.000, 1.000, 1.000],
        [0.940, 0.962, 0.965, 0.962],
        [0.619, 0.666, 0.614, 0.669],
        [0.972, 0.981, 0.9751, 0.975],
        [0.957, 0.978, 0.946, 0.970],
    ]
)


def _files(folder: Path) -> list[str]:
    paths = []
    for name, methods in (
        ("iris", ["max_variance", "column_subset", "pivoted_qr"]),
        ("wine", ["max_variance", "column_subset"]),
    ):
        settings: dict[str, Any] = {
            "run": str(folder / name),
            "input": {"uri": f"sklearn:{name}"},
            "methods": methods,
            "n_features_to_select": [1, 2],
            "evaluate": {"labels": f"sklearn:{name}", "n_repetitions": 1, "n_init": 1},
            "compare": {"n_draws": 2},
        }
        paths.append(folder / f"{name}.yaml")
        paths[-1].write_text(yaml.safe_dump(settings))
    return [str(path) for path in paths]


def _call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(["compare", *arguments, "--quiet"])
    return int(ended.value.code or 0)


@pytest.mark.full
def test_the_command_with_several_files(tmp_path: Path, capsys: Any) -> None:
    files, folder = _files(tmp_path), tmp_path / "ranks"
    assert _call(*files, "--ranks", str(folder)) == 0
    output = capsys.readouterr().out
    assert "150 samples x 4 features" in output and "178 samples x 13 features" in output
    assert "mean ranks over 2 comparisons" in output
    assert "Not ranked, since not in every comparison: pivoted_qr" in output
    assert (folder / "ranks.txt").read_text() in output + "\n"
    record = json.loads((folder / "ranks.json").read_text())
    assert record["nmi"]["names"] == ["chance", "max_variance", "column_subset"]
    assert sum(record["acc"]["mean_ranks"]) == 6
    assert len(record["nearest_neighbor_error"]["values"]) == 2
    assert (folder / "ranks.png").read_bytes().startswith(b"\x89PNG")
    assert "critical difference" in (folder / "ranks.svg").read_text()
    assert (folder / "ranks.csv").read_text().startswith("method,nmi_mean_rank,")
    before = sorted(path.name for path in folder.iterdir())
    assert _call(*files, "--ranks", str(folder), "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["sets"] == record["sets"]
    assert sorted(path.name for path in folder.iterdir()) == before


def test_files_that_cannot_be_ranked_are_refused(tmp_path: Path, capsys: Any) -> None:
    single = _files(tmp_path)[0]
    assert _call(single, single) == 2
    assert "is given twice" in capsys.readouterr().err
    again = tmp_path / "again.yaml"
    again.write_text(Path(single).read_text().replace(f"{tmp_path}/", f"{tmp_path}/./"))
    assert _call(single, str(again)) == 2
    assert "is given twice" in capsys.readouterr().err
    assert not (tmp_path / "iris").exists()


def test_methods_in_common_are_needed() -> None:
    values = {"nmi": {"a": {"x": 1.0, "y": 0.5}, "b": {"x": 0.0}}}
    with pytest.raises(InputError, match="two methods in common. Got 2 comparisons with 1"):
        RankSummary.of_values(values)


def test_the_example_of_the_paper() -> None:
    ranks = Ranks.of(NAMES, DEMSAR, larger_is_better=True)
    np.testing.assert_allclose(ranks.mean_ranks, [3.143, 2.000, 2.893, 1.964], atol=5e-4)
    without_ties = 12 * 14 / 20 * ((ranks.mean_ranks**2).sum() - 4 * 25 / 4)
    assert np.isclose(without_ties, 9.28, atol=5e-3) and ranks.statistic > without_ties
    assert ranks.p_value < 0.05
    assert np.isclose(ranks.critical_difference, 2.569 * np.sqrt(4 * 5 / (6 * 14)), atol=1e-3)
    assert ranks.groups() == [["d", "b", "c", "a"]]


def test_the_statistic_is_scipys_also_with_ties() -> None:
    values = np.random.default_rng(0).integers(0, 4, (12, 5)).astype(float)
    ranks = Ranks.of(list("abcde"), values, larger_is_better=False)
    assert np.isclose(ranks.statistic, friedmanchisquare(*values.T).statistic)


def test_small_is_good_for_errors() -> None:
    single = Ranks.of(NAMES, DEMSAR, larger_is_better=True)
    other = Ranks.of(NAMES, 1 - DEMSAR, larger_is_better=False)
    np.testing.assert_allclose(single.mean_ranks, other.mean_ranks)


def test_methods_that_differ_on_all_sets_are_told_apart() -> None:
    values = np.arange(5.0) + np.zeros((30, 1))
    ranks = Ranks.of(list("abcde"), values, larger_is_better=True)
    assert ranks.mean_ranks.tolist() == [5, 4, 3, 2, 1]
    assert ranks.p_value == pytest.approx(120.0**-29)
    two = Ranks.of(list("abc"), np.array([[1.0, 2.0, 2.0]] * 2), larger_is_better=True)
    assert two.p_value == pytest.approx(1 / 3)  # one of three places for the method that is last
    assert ranks.groups() == [["e", "d"], ["d", "c"], ["c", "b"], ["b", "a"]]
    equal = Ranks.of(NAMES, np.zeros((3, 4)), larger_is_better=True)
    assert equal.statistic == 0 and equal.p_value == 1 and len(equal.groups()) == 1


@pytest.mark.parametrize("seed", range(3))
def test_level_of_the_test(seed: int) -> None:
    """Without a difference, about one in twenty is below 5 %."""
    rng = np.random.default_rng(seed)
    actual = [
        Ranks.of(NAMES, rng.normal(size=(10, 4)), larger_is_better=True).p_value for _ in range(60)
    ]
    assert np.mean(np.array(actual) < 0.05) < 0.2
