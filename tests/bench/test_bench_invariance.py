"""The bench of invariances runs at toy size."""

from __future__ import annotations

import numpy as np

from tests.bench.bench_invariance import CHANGES, compare


def test_a_cell_for_each_change() -> None:
    X = np.random.default_rng(0).standard_normal((40, 6))
    assert compare("max_variance", X, CHANGES) == ["="] * len(CHANGES)
    cells = compare("max_variance", X, {"reversed": lambda X: X[:, ::-1]})
    assert cells[0].endswith("/3")
