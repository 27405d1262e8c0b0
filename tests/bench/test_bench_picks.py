"""The benchmark of ColumnSubset and PivotedQR runs once at toy size."""

from __future__ import annotations

from pathlib import Path

import pytest
from sklearn.datasets import load_digits

from tests.bench import bench_picks


@pytest.mark.cluster
def test_one_pass_on_workers(tmp_path: Path) -> None:
    figures = bench_picks.large(tmp_path, 20_000, 16, turns=1)
    assert all(passes == 1 for turns in figures.values() for _, _, passes in turns)


def test_a_sketch_explains_about_as_much() -> None:
    X = load_digits().data
    [(exact, sketched, shared)] = bench_picks.sketch({"digits": X}, 10).values()
    assert exact - 3 < sketched <= exact + 3 and 0 <= shared <= 100


def test_our_side_of_the_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    fits, ours = bench_picks.peer_fits, ("ColumnSubset", "PivotedQR", "PivotedQR(n_components)")
    monkeypatch.setattr(
        bench_picks, "peer_fits", lambda X, m: {name: fits(X, m)[name] for name in ours}
    )
    figures = bench_picks.peers({"digits": load_digits().data[:200]}, 10, 1)
    assert len(figures) == 3
    assert figures["digits", "PivotedQR(n_components)"][2] == 10
