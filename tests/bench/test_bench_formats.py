"""Every format of the bench, at toy size: both readers see the same rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.bench.bench_formats import FILES, FORMATS, main


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FORMATS)
def test_both_readers_see_the_same_rows(name: str, tmp_path: Path) -> None:
    chosen = FORMATS[name]
    if not chosen.is_installed:
        pytest.skip(f"needs {', '.join(chosen.needs)}")
    path = chosen.write(tmp_path, 100 * FILES)
    rows, expected = (np.concatenate(list(chosen.blocks(who, path))) for who in ("bigfs", "own"))
    np.testing.assert_array_equal(rows.astype(np.float32), expected.astype(np.float32))


@pytest.mark.full
def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(tmp_path / "out"), "--mb", "1", "--only", ".npy"])
    assert capsys.readouterr().out.splitlines()[-1].startswith("| .npy | 1,250 | ")
