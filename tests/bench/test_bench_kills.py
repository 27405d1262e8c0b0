"""The series of kills run at toy size."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.mark.cluster
def test_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.bench.bench_kills import main

    toy = ["--methods", "ndfs", "--rows", "1200", "--workers", "0", "--job-kills", "2"]
    main([str(tmp_path), *toy])
    assert "ndfs, job: 2 kills" in capsys.readouterr().out
