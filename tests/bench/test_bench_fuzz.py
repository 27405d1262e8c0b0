"""The fuzz runs at toy size: every kind of file twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.bench_fuzz import KINDS, main


def test_fuzz(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(tmp_path), "--cases", str(2 * len(KINDS))])
    said = capsys.readouterr().out
    assert all(kind in said for kind in KINDS) and "bigfs" not in said
