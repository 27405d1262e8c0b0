"""`bigfs compare` of several files: tables, mean ranks and their picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from bigfs import RankSummary, cli
from bigfs.core.errors import InputError


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
    assert "Not in every comparison, so not ranked: pivoted_qr" in output
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
    assert not (tmp_path / "iris").exists()


def test_methods_in_common_are_needed() -> None:
    values = {"nmi": {"a": {"x": 1.0, "y": 0.5}, "b": {"x": 0.0}}}
    with pytest.raises(InputError, match="two methods in common. Got 2 comparisons with 1"):
        RankSummary.of_values(values)
