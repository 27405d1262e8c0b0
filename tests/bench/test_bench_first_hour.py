from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.bench_first_hour import screen_text


def test_what_was_drawn_over_on_a_terminal_is_gone() -> None:
    raw = "10:00 begins\r\ngraph 1/2\r\x1b[2Kgraph 2/2\r\x1b[2K\x1b[1A\r\ndone\r\n"
    assert screen_text(raw) == "10:00 begins\ndone\n"


@pytest.mark.full
def test_every_refusal_of_the_first_hour_says_what_cures_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.bench.bench_first_hour import main

    figures = main([str(tmp_path), "--rows", "300", "--features", "80"])
    # Columns that are no numbers, then missing values.
    assert figures["errors"]["cells.csv"] == 2
    assert figures["errors"]["spectra.parquet"] == 1 and figures["errors"]["images.zarr"] == 0
    assert figures["errors"]["notebook"] in (2, None)
    output = capsys.readouterr().out
    assert "4 columns do not hold numbers" in output and "('g007') is NaN" in output
    assert "Traceback" not in output
    assert (tmp_path / "selected.parquet").is_file()
    assert (tmp_path / "runs" / "cells-mcfs" / "report.html").is_file()
