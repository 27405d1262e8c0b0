"""The benchmark of coefficient scales runs once at toy size."""

from __future__ import annotations

import numpy as np
import pytest

from tests.bench.bench_mcfs_scale import main


def test_scales_and_rotations(capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(4), 30)
    X = rng.normal(size=(120, 8)) + 40 * np.eye(4, 8)[y]
    main(["--repetitions", "1", "--rotations", "2"], {"groups": {"X": X, "y": y}})
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert len(rows) == 18, "4 scales, twice for the groups, and one other y; with and without mean"
    assert all(".." in row[-1] for row in rows if row[1] != "degree")
    np.testing.assert_array_equal([float(row[6]) for row in rows], 0)
