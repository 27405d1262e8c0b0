"""The benchmark of redundancy at toy size."""

from __future__ import annotations

from tests.bench import bench_redundancy


def test_less_is_said_twice() -> None:
    figures = bench_redundancy.main(["--sets", "spectra", "--methods", "max_variance"], 1)
    assert set(figures) == {("spectra", "max_variance", m) for m in (20, 50)}
    assert all(less[0] < plain[0] for plain, less in figures.values())
