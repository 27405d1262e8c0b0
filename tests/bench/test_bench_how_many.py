"""The benchmark of the number of features runs once at toy size."""

from __future__ import annotations

import pytest
from sklearn.datasets import load_iris

from tests.bench import bench_how_many


@pytest.mark.slow
def test_planted_numbers_are_found() -> None:
    figures = bench_how_many.on_planted((3,), 1, 120, 12, n_pairs=2)
    assert figures["mixtures", "column_subset", "explained_variance", 3][0] in (3, 4)


@pytest.mark.full
def test_sets_and_cost() -> None:
    X = load_iris().data
    figures = bench_how_many.on_sets({"iris": X}, methods=("column_subset", "mcfs"))
    assert all(1 <= number <= 4 for chosen in figures.values() for number in chosen.values())
    assert len(bench_how_many.cost({"iris": X}, 1)) == 4
