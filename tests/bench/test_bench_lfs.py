"""The benchmarks of LFS run once at toy size, and their promises hold there too."""

from __future__ import annotations

from tests.bench import bench_lfs


def test_ties_find_more_of_the_paper_s_subsets() -> None:
    figures = bench_lfs.synthetic(n_draws=2, settings=((4.0, 0.0), (4.0, 2.0)))
    assert figures[4.0, 2.0][0] == 2 > figures[4.0, 0.0][0]
    assert figures[4.0, 2.0][1] <= 0.02


def test_restarts() -> None:
    exact, error = bench_lfs.restarts(n_draws=1, n_init=2)
    assert exact in (0, 1)
    assert 0 <= error < 0.75


def test_tables() -> None:
    assert bench_lfs.tables(None, names=("iris",), grid=(1.0,))["iris"] < 0.041
    assert bench_lfs.tables(None, names=("wine",), grid=(4.0,))["wine"] <= 0.023


def test_wdbc() -> None:
    assert bench_lfs.wdbc(sizes=(2,), n_init=1)[2] < 0.37


def test_scale() -> None:
    assert bench_lfs.scale(n=4_000, d=8, c=4)[0] == 4
    assert bench_lfs.scale(n=8_000, d=8, c=4, sample_size=2_000)[0] == 4
    one, many = (bench_lfs.scale(n=32_000, d=8, c=4, drop=drop) for drop in ("one", "many"))
    assert one[0] == 4 and one[2] == many[2] == 2, "the search has its own rows in memory"


def test_one_or_many_at_a_time() -> None:
    evidence = bench_lfs.drops(None, names=("breast_cancer",))["breast_cancer"]
    assert evidence[1] > evidence[0]
