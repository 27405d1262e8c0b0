"""Differences between two runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bigfs import __version__
from bigfs.core.errors import InputError
from bigfs.pipeline.diff import Moved, diff_runs
from bigfs.pipeline.run import run
from bigfs.results.result import open_result
from tests.test_cli import bigfs_command  # noqa: F401

SPREADS = {"a": 6, "b": 5, "c": 4, "d": 3, "e": 2, "f": 1}


def _run(folder: Path, name: str, frame: pd.DataFrame, **changes: Any) -> Path:
    frame.to_csv(folder / f"{name}.csv", index=False)
    return run(
        {
            "run": str(folder / name),
            "input": {"uri": str(folder / f"{name}.csv")},
            "method": "max_variance",
            "n_features_to_select": 3,
            **changes,
        }
    ).path


def _night(**spreads: float) -> pd.DataFrame:
    """Return columns of these standard deviations."""
    draw = np.random.default_rng(0).normal(size=(200, 6))
    draw /= draw.std(axis=0)
    chosen = {**SPREADS, **spreads}
    return pd.DataFrame({name: chosen[name] * draw[:, i] for i, name in enumerate(SPREADS)})


def test_drift_that_was_planted_is_what_is_said(tmp_path: Path) -> None:
    first = _run(tmp_path, "first", _night())
    second = _run(tmp_path, "second", _night(c=0.1, f=7))
    difference = diff_runs(first, second)
    assert difference.came == [Moved("f", 6, 1)]
    assert difference.went == [Moved("c", 3, 6)]
    assert difference.moved == [Moved("a", 1, 2), Moved("b", 2, 3)]
    assert (difference.overlap.count, difference.overlap.share, difference.overlap.chance) == (
        2,
        2 / 3,
        0.5,
    )
    assert difference.rank_correlation == pytest.approx(1 - 6 * (25 + 1 + 1 + 9) / (6 * 35))
    assert {"input.uri", "content"} <= set(difference.inputs)
    assert not difference.settings and not difference.versions
    text = difference.text()
    assert (
        "2 features are in both selections (of 3 and 3): 66.7 % of the larger; 50.0 % by chance"
        in text
    )
    assert "f  rank 6 -> 1" in text and "settings: the same" in text
    assert json.loads(difference.json())["went"] == [
        {"name": "c", "first_rank": 3, "second_rank": 6}
    ]


def test_features_that_both_include_are_no_chance(tmp_path: Path) -> None:
    first = _run(tmp_path, "first", _night(), include=["f"])
    second = _run(tmp_path, "second", _night(b=0.1), include=["f"])
    difference = diff_runs(first, second)
    assert difference.n_included == 1 and difference.overlap.count == 2  # f and a
    assert difference.overlap.chance == pytest.approx((1 + 2 * 2 / 5) / 3)
    assert difference.agreement == pytest.approx((1 - 2 * 2 / 5) / (2 - 2 * 2 / 5))
    assert "66.7 % of the larger; 60.0 % by chance" in difference.text()
    every = [_run(tmp_path, name, _night(), include=["*"], n_features_to_select=6) for name in "xy"]
    assert diff_runs(*every).agreement == diff_runs(*every).overlap.chance == 1


def test_settings_that_differ_are_named_and_those_of_the_place_are_not(tmp_path: Path) -> None:
    frame = _night()
    first = _run(tmp_path, "first", frame)
    second = _run(tmp_path, "second", frame, n_features_to_select=2, preprocess="standardize")
    settings = diff_runs(first, second).settings
    assert settings == {"n_features_to_select": (3, 2), "preprocess": ("none", "standardize")}


def test_versions_are_those_that_computed_the_result(tmp_path: Path) -> None:
    """A later command that finds all stages finished has computed nothing."""
    first = _run(tmp_path, "first", _night())
    manifest = json.loads((first / "manifest.json").read_text())
    manifest["stages"]["result"]["versions"]["bigfs"] = "0.1.0"
    (first / "manifest.json").write_text(json.dumps(manifest))
    run(first / "config.yaml")
    assert open_result(first).versions["bigfs"] == "0.1.0"
    second = _run(tmp_path, "second", _night())
    assert diff_runs(first, second).versions == {"bigfs": ("0.1.0", __version__)}


def test_features_are_matched_by_name_and_else_by_column(tmp_path: Path) -> None:
    first = _run(tmp_path, "first", _night())
    reordered = _run(tmp_path, "turned", _night()[list("fedcba")])
    assert diff_runs(first, reordered).overlap.share == 1.0
    fewer = _run(tmp_path, "fewer", _night().drop(columns=["a"]))
    difference = diff_runs(first, fewer)
    assert difference.went == [Moved("a", 1, None)] and difference.came == [Moved("d", 4, 3)]
    np.save(tmp_path / "plain.npy", _night().to_numpy())
    plain = _run(tmp_path, "plain", _night(), input={"uri": str(tmp_path / "plain.npy")})
    assert diff_runs(first, plain).overlap.share == 1.0
    with pytest.raises(InputError, match="6 features and .* has 5; without feature names"):
        diff_runs(plain, fewer)


def test_the_command_exits_with_6_below_its_limit(bigfs_command, tmp_path: Path) -> None:  # noqa: F811
    first = _run(tmp_path, "first", _night())
    second = _run(tmp_path, "second", _night(c=0.1, f=7))
    places = str(first), str(second)
    assert bigfs_command("diff", *places).code == 0
    assert bigfs_command("diff", *places, "--fail-below", "0.66").code == 0
    shown = bigfs_command("diff", *places, "--fail-below", "0.7", "--format", "json")
    assert shown.code == 6 and json.loads(shown.out)["overlap"]["count"] == 2
    assert bigfs_command("diff", str(first), str(tmp_path)).code == 2
    fewer = _run(tmp_path, "fewer", _night(), n_features_to_select=2)
    assert bigfs_command("diff", str(first), str(fewer), "--fail-below", "0.9").code == 6
    assert bigfs_command("diff", str(first), str(first), "--fail-below", "nan").code == 6
