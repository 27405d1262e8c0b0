"""Predicted against measured memory of passes of LFS and GFS-k-means: a fold, and held rows.

What a client without workers does itself is measured on a worker.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bigfs.blocks import RowBlocks
from bigfs.core.cost import StageCost, StagePlan
from bigfs.core.units import MIB
from bigfs.runtime import local_cluster
from bigfs.runtime.execute import inline
from bigfs.runtime.progress import SilentReporter, Work
from bigfs.selectors.gfs_kmeans import GFSKMeansParameters
from bigfs.selectors.gfs_kmeans.search import SearchedRows, search
from bigfs.selectors.lfs import LFSParameters
from bigfs.selectors.lfs.held import HeldRows
from bigfs.selectors.lfs.kernels import Clusterings, Rules
from bigfs.selectors.lfs.passes import BlockTasks, sweep_size
from bigfs.selectors.lfs.search import begin, step
from bigfs.stages.measure import Footprint
from tests.memory._measure import LIMIT, Place
from tests.selectors._local import strategy_of

pytestmark = [pytest.mark.memory, pytest.mark.cluster]


def _measured(cost: StageCost, needed: int, work: Callable[[], Any]) -> None:
    """Run the work on the worker in scope and hold its peak against what it needs."""
    footprint = Footprint(StagePlan("stage", None, cost, used_bytes=needed), LIMIT)
    work()
    measured = footprint.record()["measured_peak_bytes"] - footprint.baseline_bytes
    message = f"predicted {needed / MIB:.0f} MiB, measured {measured / MIB:.0f} MiB"
    print(message)
    assert needed >= 100 * MIB
    assert measured <= needed <= 2 * measured, message


class _Enough(Exception):
    """Ends a search after its first step."""


class _OneStep(Work):
    def advance(self, count: int = 0, note: str | None = None) -> None:
        raise _Enough


def _lfs_alone(path: Path, settings: dict[str, Any]) -> None:
    """Take the first step in this process as a client without a cluster does."""
    with inline():
        blocks, parameters = RowBlocks.from_any(path), LFSParameters(**settings)
        moments = blocks.moments()
        passes = HeldRows(blocks, moments.mean)
        state = begin(passes, parameters.init - moments.mean, ~moments.constant, parameters)
        step(passes, state, 0, parameters)


def _gfs_alone(path: Path, settings: dict[str, Any]) -> None:
    """Take the first step in this process as a client without a cluster does."""
    with inline(), suppress(_Enough):
        blocks = RowBlocks.from_any(path)
        parameters, moments = GFSKMeansParameters(**settings), blocks.moments()
        gram = None if parameters.drops_many(blocks.n_features) else blocks.gram()
        rows = SearchedRows.of(HeldRows(blocks, moments.mean), gram)
        progress = _OneStep("gfs", None, "", SilentReporter())
        search(rows, parameters.init - moments.mean, ~moments.constant, parameters, progress)


def test_a_fold_of_the_sums_of_all_candidates(tmp_path: Path) -> None:
    from distributed import Client

    k, d = 20, 300
    with local_cluster(1, 1, LIMIT) as cluster, Client(cluster):
        blocks = Place(tmp_path).blocks(2_000, d, rows=250)
        passes = BlockTasks(blocks, np.zeros(d))
        centers = np.random.default_rng(0).normal(size=(d, k, d))
        candidates = Clusterings(centers, ~np.eye(d, dtype=bool))
        rules = Rules(candidates.take(np.zeros(k, dtype=np.int64)), np.arange(k))
        step = BlockTasks.step(blocks.layout, "sums", sweep_size(BlockTasks, k, d, d), 1)
        _measured(
            StageCost((step,)), step.task_bytes, lambda: passes.sweep(candidates, rules).counts
        )


@pytest.mark.parametrize(
    "method, n, d, settings, alone",
    [
        ("lfs", 776, 322, {"n_clusters": 2, "drop": "one", "max_iter": 2}, _lfs_alone),
        ("gfs_kmeans", 2_000, 500, {"n_clusters": 20, "max_iter": 2, "drop": "one"}, _gfs_alone),
        ("gfs_kmeans", 800, 600, {"n_clusters": 12, "max_iter": 9, "drop": "one"}, _gfs_alone),
        ("gfs_kmeans", 2_600, 2_000, {"n_clusters": 5, "max_iter": 2}, _gfs_alone),
    ],
)
def test_rows_that_the_client_holds(
    method: str, n: int, d: int, settings: dict[str, Any], alone: Any, tmp_path: Path
) -> None:
    from distributed import Client

    with local_cluster(1, 1, LIMIT) as cluster, Client(cluster) as client:
        path = tmp_path / "X.npy"
        # No clusters at all: members change with every feature that goes.
        X = np.random.default_rng(0).standard_normal((n, d), dtype=np.float32)
        np.save(path, X)
        settings = {**settings, "init": X[: settings["n_clusters"]].astype(np.float64)}
        strategy = strategy_of(method, RowBlocks.from_any(path).layout, **settings)
        assert strategy.passes is HeldRows
        cost = strategy.cost()
        _measured(cost, cost.client_bytes, lambda: client.submit(alone, path, settings).result())
