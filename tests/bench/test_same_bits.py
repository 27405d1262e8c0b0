"""Checksums of results: written, compared, and a difference is found."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.bench import same_bits


def test_equal_results_agree_and_others_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(same_bits, "FITS", {"MaxVariance": {}})
    monkeypatch.setattr(same_bits, "RUNS", {"max_variance": {}})
    file = tmp_path / "before.json"
    options = [str(file), "--toy", "--schedulers", "threads"]
    monkeypatch.setattr(sys, "argv", ["same_bits", "write", *options])
    assert same_bits.main() == 0
    monkeypatch.setattr(sys, "argv", ["same_bits", "compare", *options])
    assert same_bits.main() == 0
    assert "4 of 4 checksums agree" in capsys.readouterr().out
    stored = json.loads(file.read_text())
    stored["threads fit MaxVariance wine"] = "other"
    file.write_text(json.dumps(stored))
    assert same_bits.main() == 1
    assert "threads fit MaxVariance wine: other before" in capsys.readouterr().out
