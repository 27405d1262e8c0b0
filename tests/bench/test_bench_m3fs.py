"""The benchmark of M3FS runs once at toy size, and its promises hold there too."""

from __future__ import annotations

from tests.bench import bench_m3fs


def test_planes_do_not_grow() -> None:
    few, many = bench_m3fs.planes(sizes=(500, 5000))
    assert many <= 1.5 * few


def test_one_draw_of_the_noise_around_iris() -> None:
    assert bench_m3fs.iris(draws=1) == 1
