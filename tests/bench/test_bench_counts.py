"""The bench of counts runs at toy size."""

from __future__ import annotations

from pathlib import Path

from tests.bench.bench_counts import main


def test_markers_are_found_in_a_small_store(tmp_path: Path) -> None:
    sizes = ["--rows", "600", "--genes", "2400", "--molecules", "600", "--selected", "100"]
    methods = ["--workers", "0", "--methods", "max_variance", "deviance"]
    figures = main([str(tmp_path), *sizes, *methods])
    assert [figure["method"] for figure in figures] == ["max_variance", "deviance"]
    assert all(1 <= figure["reads"] < 1.1 for figure in figures)
    assert figures[1]["markers"] > 0.5  # half of the genes are markers
