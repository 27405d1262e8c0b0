"""The benchmarks of the regressions run at toy size, and their promises hold there too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


@pytest.mark.cluster
def test_large(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.bench.bench_mcfs_large import main

    shape = ["--features", "16", "--clusters", "4", "--selected", "6"]
    figures = main([str(tmp_path), "--rows", "3000", "6000", "--dense", "800", *shape])
    for run in figures["runs"]:
        assert set(run["stages"]) == {"data", "graph", "spectral", "result"}
        assert run["spilled"] == run["restarts"] == 0
        assert max(run["peaks"].values()) < 3 * 2**29
    assert set(figures["slopes"]) == {"seconds", "processor"}
    (pair,) = figures["dense"]
    assert pair["components"] == 1, "the dense algorithm is for connected graphs"
    assert pair["common"] == 6
    again = main([str(tmp_path), "--report"])
    assert again["runs"] == figures["runs"]
    assert len(capsys.readouterr().out.splitlines()) == 4 + 2 + 4


def test_wide(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.bench.bench_wide import main

    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, size=60)
    X = rng.normal(size=(3, 6000))[y] + rng.normal(size=(60, 6000))
    np.savez(tmp_path / "toy.npz", X=X, y=y)
    figures = main([str(tmp_path), "--set", "toy", "--selected", "10", "--memory", "768 MiB"])
    assert figures["passes"] <= 6
    assert figures["violation"] <= 1e-9
    assert len(capsys.readouterr().out.splitlines()) == 6


@pytest.mark.cluster
@pytest.mark.slow
def test_simulate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.bench.bench_simulate import STAGES, main

    options = ["--features", "64", "--rates", "3000", "--check", "6000"]
    figures = main([str(tmp_path), *options, "--rows", "100000000", "--memory", "16 GiB"])
    (checked,) = figures["checked"]
    assert set(checked["said"]) == set(checked["took"]) == {*STAGES, "in all"}
    assert all(seconds > 0 for seconds in checked["said"].values())
    said = figures["simulated"]
    assert set(said["stages"]) == set(STAGES[1:]), "the data are stored already"
    assert said["seconds"] > 100 * checked["said"]["in all"]
    assert "eigenvectors in" in capsys.readouterr().out
