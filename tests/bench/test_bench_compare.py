"""The benchmark of the comparisons runs once at toy size, and its promises hold there too."""

from __future__ import annotations

import pytest
from sklearn.datasets import load_digits, load_iris

from tests.bench import bench_compare


def test_cost_of_methods(capsys: pytest.CaptureFixture[str]) -> None:
    X, y = load_iris(return_X_y=True)
    figures = bench_compare.methods(X, y, 2, ["MaxVariance", "SequentialFeatureSelector"])
    assert all(seconds > 0 for seconds, _, _ in figures.values())
    assert "MaxVariance" in capsys.readouterr().out


@pytest.mark.parametrize("name", [*bench_compare.ESTIMATORS, *bench_compare.PEERS])
def test_every_registered_method_is_measured(name: str) -> None:
    assert hasattr(bench_compare.build(name, 2, 3), "fit")


def test_sharing_is_timed() -> None:
    # Which is less is for a quiet machine; what is shared is counted in tests/test_compare.py.
    X, y = load_digits(return_X_y=True)
    together, apart = bench_compare.sharing(X[:300], y[:300], (5, 10))
    assert min(together, apart) > 0
