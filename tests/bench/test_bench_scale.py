"""The benchmark of scales at toy size."""

from __future__ import annotations

import pytest

from tests.bench.bench_scale import measure


@pytest.mark.full
def test_every_selection_of_a_set_is_judged() -> None:
    rows = measure("wine", "standardize", n_repetitions=1)
    assert len(rows) == 1 + 4 * 2
    assert all(" / " in figures for *_, figures in rows)
