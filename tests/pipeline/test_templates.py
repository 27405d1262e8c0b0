"""The pipelines that come with bigfs hold the defaults and run as they stand."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import bigfs
from bigfs.selectors.registry import METHODS as REGISTERED
from bigfs.selectors.registry import load_config

PIPELINES = Path(__file__).parents[2] / "pipelines"
BASELINES = PIPELINES / "baselines.yaml"
METHODS = (
    *("laplacian_score", "max_variance", "spec", "udfs", "q_alpha", "fsgmm", "gfs_kmeans"),
    "maximum_margin_clustering",
    *("column_subset", "pivoted_qr", "random_selection"),
)


def test_every_method_has_a_template() -> None:
    own = {path.stem for path in PIPELINES.glob("*.yaml")}
    assert own | set(METHODS) >= set(REGISTERED)


def test_the_template_of_the_baselines_names_their_settings_and_holds_the_defaults() -> None:
    actual = re.findall(r"^#(\w+):.*\n((?:#  \w+: .*\n)+)", BASELINES.read_text(), re.MULTILINE)
    sections = {name for name in METHODS if REGISTERED[name].parameters.model_fields}
    assert {name for name, _ in actual} == sections
    for name, lines in actual:
        written = yaml.safe_load(lines.replace("#  ", ""))
        assert written == REGISTERED[name].parameters().model_dump(), name


@pytest.mark.full
@pytest.mark.parametrize("method", METHODS)
def test_the_template_of_the_baselines_runs_with_each(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    changes = [f"method={method}", f"run=runs/{method}", "evaluate.n_repetitions=2"]
    result = bigfs.run(load_config(BASELINES, changes))
    assert result.method == method
    assert len(result.selected) == 5
    assert result.evaluation["selected"]["nmi_mean"] > 0.2
    assert (tmp_path / "runs" / method / "features.csv").exists()


def test_an_installed_bigfs_has_all_templates_but_those_of_papers() -> None:
    settings = tomllib.loads((PIPELINES.parent / "pyproject.toml").read_text())
    shipped = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    present = {path.name for path in PIPELINES.iterdir() if path.suffix == ".yaml"}
    assert set(shipped) == {f"pipelines/{name}" for name in present | {"compare"}}
    assert all(path == f"bigfs/{source}" for source, path in shipped.items())
