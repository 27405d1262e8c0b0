"""The bench of the defaults runs at toy size."""

from __future__ import annotations

import pytest

from tests.bench.bench_defaults import main


@pytest.mark.full
def test_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    main(["mcfs", "--sets", "digits", "--values", "20000"])
    assert "best of all sets" in capsys.readouterr().out
    main(["clusters", "--sets", "wine"])
    assert "auto takes" in capsys.readouterr().out
    main(["gaps", "--sets", "planted3", "--values", "15000"])
    assert "gap 0.5, 8" in capsys.readouterr().out
    main(["planted", "--rows", "300"])
    assert "explained" in capsys.readouterr().out
    main(["runs", "--rows", "300"])
    assert "auto" in capsys.readouterr().out
