"""The benchmark of scales at toy size."""

from __future__ import annotations

import numpy as np
import pytest

from tests.bench import bench_scale


@pytest.mark.slow
def test_a_scale_is_chosen_for_the_set_that_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_scale, "REPETITIONS", 1)
    monkeypatch.setattr(bench_scale, "ROWS", 150)
    chosen = bench_scale.main(["--sets", "iris", "wine"])
    assert set(chosen) == {"iris", "wine"}
    assert set(chosen.values()) <= set(bench_scale.SCALES) - {bench_scale.AS_THEY_ARE}


def test_scales_are_free_of_units() -> None:
    X = np.random.default_rng(0).standard_normal((50, 4))
    factors = np.array([1, 1e-3, 1e3, 10])
    for name, scale in bench_scale.SCALES.items():
        same = np.allclose(scale(X), scale(X * factors))
        assert same == (name != bench_scale.AS_THEY_ARE)
    assert bench_scale.units_of(X * factors) > 100 > bench_scale.units_of(X)
