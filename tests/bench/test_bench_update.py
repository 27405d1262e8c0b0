"""The benchmark of updates runs once at toy size."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.bench_update import main


@pytest.mark.full
def test_nights_of_a_series(tmp_path: Path) -> None:
    sizes = ["--rows", "3000", "--new", "60", "--features", "48", "--full", "2", "--drift", "2"]
    nights = [night for n in ("1", "2") for night in main([str(tmp_path), *sizes, "--nights", n])]
    assert [night.night for night in nights] == [1, 2]
    assert all(night.was_updated for night in nights)
    assert nights[1].recall >= min(nights[1].full_recall) - 0.01
    assert min(nights[1].shared) >= 15
