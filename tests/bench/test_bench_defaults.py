"""The bench of the defaults runs at toy size."""

from __future__ import annotations

import pytest

from tests.bench.bench_defaults import main


@pytest.mark.full
def test_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    main(["mcfs", "--sets", "digits", "--values", "9600"])
    assert "best of all sets" in capsys.readouterr().out
    main(["planted", "--rows", "100"])
    assert "explained" in capsys.readouterr().out
