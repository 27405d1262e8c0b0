"""The series of kills run at toy size."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.mark.cluster
def test_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.bench.bench_kills import main

    toy = ["--methods", "mcfs", "--rows", "1200", "--worker-kills", "1", "--job-kills", "1"]
    main([str(tmp_path), *toy])
    said = capsys.readouterr().out
    assert "mcfs, workers: 1 kills" in said and "mcfs, job: 1 kills" in said
