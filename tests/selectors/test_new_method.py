"""A method is one new file and a line in the registry: plan, run, compare and schema know it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.exceptions import SkipTestWarning
from sklearn.utils.estimator_checks import check_estimator

import bigfs
from bigfs.core.errors import InputError
from bigfs.plan.planning import plan_pipeline
from bigfs.selectors.registry import METHODS, json_schema, make_config, register
from tests.selectors import _feature_range


@pytest.fixture
def method() -> Iterator[str]:
    register(_feature_range.METHOD)
    yield _feature_range.METHOD.name
    del METHODS[_feature_range.METHOD.name]
    vars(bigfs).pop("FeatureRange", None)


def _config(folder: Path, method: str, power: float = 2.0):
    return make_config(
        run=str(folder / "run"),
        input={"uri": "sklearn:iris"},
        method=method,
        n_features_to_select=2,
        **{method: {"power": power}},
    )


def test_it_is_planned_and_run_by_the_same_strategy(method: str, tmp_path: Path) -> None:
    config = _config(tmp_path, method)
    planned = plan_pipeline(config).by_stage["result"]
    assert type(planned.strategy.strategy) is _feature_range.Ranges
    assert planned.strategy.strategy.parameters.power == 2.0
    result = bigfs.run(config)
    X = load_iris().data
    np.testing.assert_allclose(result.scores, np.ptp(X, axis=0) ** 2)
    assert result.stages["result"]["passes"] == planned.cost.passes == 1
    assert bigfs.run(config).stages["result"]["attempt"] == result.stages["result"]["attempt"]


def test_it_is_compared(method: str, tmp_path: Path) -> None:
    table = bigfs.compare(
        {
            "run": str(tmp_path / "run"),
            "input": {"uri": "sklearn:iris"},
            "methods": ["max_variance", {"method": method, "grid": {f"{method}.power": [1.0]}}],
            "n_features_to_select": [1, 2],
            "evaluate": {"labels": "sklearn:iris", "n_repetitions": 1},
            "compare": {"chance": False},
        }
    )
    assert [row.name for row in table.rows] == [
        "all features",
        *["max_variance"] * 2,
        *[f"{method} (power 1)"] * 2,
    ]


def test_it_is_an_estimator(method: str) -> None:
    X = load_iris().data
    selector = bigfs.FeatureRange(2).fit(X)
    np.testing.assert_array_equal(selector.scores_, np.ptp(X, axis=0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkipTestWarning)
        check_estimator(_feature_range.FeatureRange(1))


def test_its_parameters_are_checked_in_python_and_yaml_with_the_same_words(method: str) -> None:
    with pytest.raises(InputError) as python:
        bigfs.FeatureRange(2, power=-1.0).fit(load_iris().data)
    assert str(python.value) == "FeatureRange: power must be a number above 0. Got -1.0."
    with pytest.raises(InputError) as yaml:
        _config(Path("x"), method, power=-1.0)
    assert str(yaml.value).endswith("feature_range.power must be a number above 0. Got -1.0.")


def test_the_schema_has_its_section(method: str) -> None:
    properties = json_schema()["properties"]
    assert method in properties and method in properties["method"]["enum"]
    assert method not in make_config(
        run="r", input={"uri": "x.npy"}, n_features_to_select=1
    ).model_dump(exclude_none=True)


def test_without_its_line_nothing_knows_it() -> None:
    assert "feature_range" not in json_schema()["properties"]
    with pytest.raises(AttributeError):
        bigfs.FeatureRange  # noqa: B018
