"""Predicted against measured memory of a search of LFS and of GFS-k-means, by its first step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bigfs.blocks import RowBlocks
from bigfs.core.cost import StageCost, StagePlan
from bigfs.core.units import MIB
from bigfs.runtime.connection import local_cluster
from bigfs.runtime.execute import run_tasks
from bigfs.selectors.clusters import SearchedRows
from bigfs.selectors.sampled import LOADS
from bigfs.stages.rundir import Footprint
from bigfs.store.scratch import ArrayRef
from tests.memory._measure import LIMIT, Place
from tests.selectors._local import strategy_of

pytestmark = [pytest.mark.memory, pytest.mark.cluster]


def _first_step(start: ArrayRef, sample: ArrayRef, kind: Any, parameters: Any) -> None:
    rows = SearchedRows.of(sample.load())
    kind.begin(rows, start.load() - rows.origin, parameters).step(rows, parameters)


@pytest.mark.parametrize(
    "method, n, d, settings",
    [
        ("lfs", 12_000, 320, {"n_clusters": 2, "max_iter": 2}),
        ("lfs", 15_000, 400, {"n_clusters": 8, "max_iter": 2}),
        ("gfs_kmeans", 5_000, 1_500, {"n_clusters": 5, "max_iter": 2}),
    ],
)
def test_the_first_step_of_a_search(
    method: str, n: int, d: int, settings: dict[str, Any], tmp_path: Path
) -> None:
    from distributed import Client

    with local_cluster(1, 1, LIMIT) as cluster, Client(cluster):
        scratch = Place(tmp_path).scratch()
        # No clusters at all: members change with every feature that goes.
        X = np.random.default_rng(0).standard_normal((n, d), dtype=np.float32)
        sample = scratch.put("sample", X)
        start = scratch.put("start", X[: settings["n_clusters"]].astype(np.float64))
        settings = {**settings, "init": np.zeros((settings["n_clusters"], d)), "sample_size": n}
        strategy = strategy_of(method, RowBlocks.from_any(X).layout, **settings)
        [search] = [step for step in strategy.cost().steps if "search" in step.what]
        plan = StagePlan(
            "stage", None, StageCost((search,), loads=LOADS), used_bytes=search.task_bytes
        )
        footprint = Footprint(plan, LIMIT)
        parameters = strategy.parameters
        run_tasks(_first_step, [start], sample, strategy.kind, parameters, label="a step")
        measured = footprint.record()["measured_peak_bytes"] - footprint.baseline_bytes
        needed = search.task_bytes
        message = f"predicted {needed / MIB:.0f} MiB, measured {measured / MIB:.0f} MiB"
        print(message)
        assert needed >= 100 * MIB
        assert measured <= needed <= 2 * measured, message
