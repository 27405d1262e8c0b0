"""Every benchmark runs once at toy size, and its promises hold there too."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

BENCHES = sorted(path.stem for path in Path(__file__).parent.glob("bench_*.py"))


@pytest.mark.filterwarnings("ignore:'tests.bench:RuntimeWarning")  # imported by another test
@pytest.mark.parametrize("name", BENCHES)
def test_it_is_run_as_a_module_and_says_how(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(f"tests.bench.{name}", run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage:")


@pytest.mark.cluster
def test_out_of_core(tmp_path: Path) -> None:
    from tests.bench.bench_out_of_core import main

    figures = main([str(tmp_path), "--rows", "300000", "--features", "64", "--targets", "3"])
    # The kernel's read-ahead and small files come on top of one read of X.
    assert 1.0 <= figures["MaxVariance"] < 1.2
    assert figures["spilled"] == 0
    assert figures["restarts"] == 0
    assert figures["peak"] < 1536
    assert figures["client growth"] < 100
    assert figures["graph"] < 10


def test_picture_of_the_quickstart(tmp_path: Path) -> None:
    import bigfs
    from tests.bench.figure_quickstart import draw

    bigfs.run(
        {
            "run": str(tmp_path / "run"),
            "input": {"uri": "sklearn:digits"},
            "method": "max_variance",
            "n_features_to_select": 20,
        }
    )
    draw(tmp_path / "run", tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
