"""The bench of data that others try first runs at toy size."""

from __future__ import annotations

import pytest

from tests.bench.bench_outside import main


@pytest.mark.full
def test_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--sets", "blobs", "diabetes", "--methods", "max_variance", "udfs"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["diabetes", "max_variance"], ["diabetes", "udfs"],
        ["blobs", "chance"], ["blobs", "max_variance"], ["blobs", "udfs"],
    ]  # fmt: skip
    assert lines[3].endswith("5 of 5") and not any("Error" in line for line in lines)
