"""The export bench runs at toy size."""

from __future__ import annotations

from pathlib import Path

from bigfs.store.source import open_matrix
from tests.bench.bench_export import main


def test_export(tmp_path: Path) -> None:
    size = ["--rows", "3000", "--features", "64", "--selected", "8", "--repeats", "1"]
    figures = main([str(tmp_path), *size])
    assert figures["ratio"] > 0
    written = open_matrix(figures["dest"])
    assert (written.n_samples, written.n_features) == (3000, 8)
