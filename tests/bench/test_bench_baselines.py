"""The benchmark of the comparators runs once at toy size, and its promises hold there too."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits, load_iris, load_wine

from tests.bench import bench_baselines


@pytest.mark.cluster
def test_every_comparator_is_its_reference_on_one_and_two_workers() -> None:
    sets = {"digits": load_digits().data[:120], "wine": load_wine().data}
    figures = bench_baselines.references(sets)
    assert len(figures) == 2 * len(bench_baselines.cases())
    assert all(same for _, same in figures.values())
    assert max(gap for gap, _ in figures.values()) < 1e-5


def test_costs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_baselines, "COMPARATORS", ("QAlpha",))
    monkeypatch.setattr(bench_baselines.bench_compare, "PEERS", ("VarianceThreshold",))
    X, y = load_iris(return_X_y=True)
    figures = bench_baselines.costs(np.tile(X, (1, 13)), y)
    assert set(figures) == {"QAlpha", "VarianceThreshold"}
    assert "QAlpha" in capsys.readouterr().out


def test_what_is_done_to_features_first() -> None:
    X, y = load_digits(return_X_y=True)
    X = X[:300, X[:300].std(axis=0) > 0] / 16
    figures = bench_baselines.q_alpha_forms({"digits": (X, y[:300])})
    assert [form for _, form in figures] == ["centered, of norm one", "as they are", "from -1 to 1"]


def test_the_ranking_functions_beside_each_other() -> None:
    figures = bench_baselines.spec_rankings({"wine": load_wine(return_X_y=True)})
    assert set(figures) == {("wine", "none"), ("wine", "minmax")}
    assert all(len(row) == 3 for row in figures.values())
