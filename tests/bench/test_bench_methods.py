"""The benchmark of all methods runs once at toy size and continues where it stopped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits, load_wine

from tests.bench import bench_methods


def test_tables_and_what_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    X, y = load_digits(return_X_y=True)
    results = bench_methods.Results(tmp_path / "out.json")
    methods = ["max_variance", "mcfs lasso", "lfs"]
    monkeypatch.setattr(bench_methods, "sizes_of", lambda d: [d // 4])
    for name, (A, labels) in {
        "digits": (X[:300], y[:300]),
        "wine": load_wine(return_X_y=True),
    }.items():
        bench_methods.measure_set(results, name, A, labels, methods[:2], 60, 2, 2)
    assert set(results.data["wine"]) == {"all features", "chance", *methods[:2]}
    again = bench_methods.Results(tmp_path / "out.json")
    capsys.readouterr()
    bench_methods.measure_set(again, "wine", np.empty((0, 13)), np.empty(0), methods[:2], 60)
    assert not capsys.readouterr().out, "nothing finished is done again"
    text = bench_methods.tables(again.data)
    assert "mean ranks over 2 comparisons" in text and "processor seconds" in text
    again.add("wine", "lfs", {"failed": "more than 1 s"})
    assert "lfs" in bench_methods.tables(again.data)
