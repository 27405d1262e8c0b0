"""Predicted against measured memory of the pass for the curves; see _measure.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bigfs.blocks import RowBlocks
from bigfs.core.cost import StageCost
from bigfs.runtime.connection import local_cluster
from bigfs.runtime.scope import inline
from bigfs.selectors.curves import OnePass
from bigfs.selectors.registry import selection_model
from bigfs.stages.scores import FeatureScores
from bigfs.stages.stage import Inputs
from tests.memory._measure import LIMIT, Place, hold_to_the_bar

pytestmark = [pytest.mark.memory, pytest.mark.cluster]


def _measured(path: Path, m: int, rows: int) -> None:
    """Measure the curves of the data in a folder, in this process and on the workers in scope."""
    strategy, inputs = _strategy(path, m, rows)
    d = inputs.blocks.n_features
    strategy.measure(inputs, FeatureScores(np.zeros(d), np.arange(d)), None)


def _strategy(path: Path, m: int, rows: int) -> tuple[OnePass, Inputs]:
    blocks = RowBlocks.from_any(path / "X.npy", rows=rows)
    selection = selection_model()(method="max_variance", n_features_to_select=m, memory_limit=LIMIT)
    return OnePass.of(blocks.layout, selection), Inputs(blocks)


def _alone(path: Path, m: int, rows: int) -> None:
    with inline():
        _measured(path, m, rows)


@pytest.mark.parametrize(
    ("n", "d", "m", "rows", "alone"),
    [(4800, 8000, 60, 400, False), (800, 12_000, 400, 800, True), (300, 200_000, 4, 40, False)],
)
def test_measured_is_within_predicted(
    n: int, d: int, m: int, rows: int, alone: bool, tmp_path: Path
) -> None:
    from distributed import Client

    with local_cluster(1, 1, LIMIT) as cluster, Client(cluster) as client:
        Place(tmp_path).blocks(n, d, rows=rows)
        cost = _strategy(tmp_path, m, rows)[0].cost()
        if alone:
            hold_to_the_bar(
                cost, lambda: client.submit(_alone, tmp_path, m, rows).result(), alone=True
            )
        else:
            cost = StageCost(tuple(cost.by_workers))
            hold_to_the_bar(cost, lambda: _measured(tmp_path, m, rows))
