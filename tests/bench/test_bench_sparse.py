"""The bench of sparse sets runs at toy size."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest

from tests._counts import counts
from tests.bench.bench_sparse import figures


@pytest.mark.full
@pytest.mark.parametrize("name", ["worm_neuron", "text"])
def test_both_forms_are_fitted_and_judged(name: str, tmp_path: Path) -> None:
    methods = ["laplacian_score", "mcfs lasso"]
    options = argparse.Namespace(
        folder=tmp_path, repetitions=1, selected=10, methods=methods, set=[], entries=True
    )
    rows = figures(name, counts(120, 60)[0], np.arange(120) % 3, options)
    assert [row["method"] for row in rows] == methods
    assert all(row["difference"] < 1e-6 and row["same"] for row in rows)
