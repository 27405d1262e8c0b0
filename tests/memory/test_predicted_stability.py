"""Predicted against measured memory of fits on samples of the rows; see _measure.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bigfs.blocks import RowBlocks
from bigfs.core.cost import StageCost
from bigfs.runtime.connection import local_cluster
from bigfs.selectors.registry import selection_model
from bigfs.selectors.stability.fits import SampledFits, choose_fits
from bigfs.stages.stage import Inputs
from tests.memory._measure import LIMIT, Place, hold_to_the_bar

pytestmark = [pytest.mark.memory, pytest.mark.cluster]

_SPARSE = {"graph": {"representation": "pca:50"}}


def _strategy(blocks: RowBlocks, settings: dict[str, Any], size: int) -> SampledFits:
    made = {"n_features_to_select": 20, "preprocess": "none", "memory_limit": LIMIT, **settings}
    selection = selection_model()(**made)
    return choose_fits(blocks.layout, selection, 1, size, quick=True)


@pytest.mark.parametrize(
    ("settings", "n", "d"),
    [
        ({"method": "max_variance"}, 600_000, 100),
        ({"method": "mcfs", "mcfs": {"n_clusters": 5}}, 8000, 2500),
        ({"method": "mcfs", "mcfs": {"n_clusters": 5}, **_SPARSE}, 40_000, 10_000),
    ],
    ids=["max_variance", "mcfs", "mcfs-csr"],
)
def test_measured_is_within_predicted(
    settings: dict[str, Any], n: int, d: int, tmp_path: Path
) -> None:
    from distributed import Client

    with local_cluster(1, 1, LIMIT) as cluster, Client(cluster):
        place = Place(tmp_path)
        blocks = (place.sparse_blocks if "graph" in settings else place.stored_blocks)(n, d)
        strategy = _strategy(blocks, settings, n // 2)
        out = blocks.scratch.child("out")
        cost = StageCost(tuple(strategy.cost().by_workers))
        hold_to_the_bar(cost, lambda: strategy.run(Inputs(blocks), out))
