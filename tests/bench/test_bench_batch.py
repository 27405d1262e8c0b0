"""The batch job runs at toy size, and goes on where a former call stopped."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.mark.cluster
def test_batch(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from tests.bench.bench_batch_20gb import main

    arguments = [str(tmp_path), "--rows", "4000", "--features", "64", "--workers", "1"]
    arguments += ["--clusters", "4", "--selected", "8", "--memory", "1 GiB"]
    figures = main(arguments)
    assert (figures["rows"], figures["features"]) == (4000, 64)
    assert set(figures["stages"]) == {"graph", "spectral", "result", "curves"}
    assert figures["workers_started"] == 1
    # A read or two more than the stages count: compiled files, the manifest, scratch.
    assert 0 < figures["passes_bytes_over_X"] < figures["all_reads_over_X"]
    assert figures["scratch_over_X"] > 0
    assert figures["planted_selected"] == 8
    again = main(arguments)
    assert again["calls"] == 2
    assert again["stages"] == figures["stages"], "finished stages are not run again"
    assert all(value > 0 for value in figures["floors"].values())
    out = capfd.readouterr().out
    assert "8 of 8 selected features" in out and "times their sum" in out
