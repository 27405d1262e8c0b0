"""Predicted against measured memory of every strategy of NDFS, UDFS and Q-alpha.

The bar is that of test_predicted.py. What the client does itself is measured on a worker, too:
there it runs as a client without a cluster does, tasks and all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bigfs.blocks import RowBlocks
from bigfs.core.cost import StageCost
from bigfs.core.units import GIB, MIB
from bigfs.graph import affinity
from bigfs.stages.measure import Footprint
from bigfs.plan.plan import Place as RunPlace
from bigfs.plan.plan import make_plan
from bigfs.runtime import local_cluster
from bigfs.runtime.execute import active_client, inline
from bigfs.selectors.configs import selection_model
from bigfs.selectors.ndfs import solve
from bigfs.selectors.ndfs.strategies import (
    Cholesky,
    ConjugateGradients,
    NDFSStrategy,
    Woodbury,
    choose,
)
from bigfs.selectors.registry import METHODS
from bigfs.stages.stage import Inputs
from bigfs.store.scratch import ArrayRef, Scratch
from tests.memory.test_predicted import Place
from tests.selectors._ndfs import Given, ndfs_scores, selection

pytestmark = [pytest.mark.memory, pytest.mark.cluster]
LIMIT = 4 * GIB


@dataclass
class Neighbors:
    """A graph of which only the neighbors are asked for."""

    indices_ref: ArrayRef


@dataclass
class Near(Inputs):
    """Inputs with neighbors that no stage has stored."""

    neighbor_ids: ArrayRef | None = None

    @property
    def graph(self) -> Any:
        assert self.neighbor_ids is not None
        return Neighbors(self.neighbor_ids)


def _measured(cost: StageCost, work: Callable[[], Any]) -> None:
    """Run the work on the worker in scope and hold its peak against the cost."""
    place = RunPlace(LIMIT, limits={"this process": LIMIT})
    [planned] = make_plan([("stage", lambda: cost)], None, place).stages
    assert not planned.refusal
    footprint = Footprint(planned, LIMIT)
    work()
    record = footprint.record()
    predicted, measured = (
        record[f"{name}_peak_bytes"] - record["baseline_bytes"]
        for name in ("predicted", "measured")
    )
    message = f"predicted {predicted / MIB:.0f} MiB, measured {measured / MIB:.0f} MiB"
    print(message)
    assert max(cost.task_bytes + cost.keeps_bytes, cost.client_bytes) >= 100 * MIB
    assert measured <= predicted <= 2 * measured, message


def _alone(method: str, path: Path, neighbors: ArrayRef | None, parameters: dict[str, Any]) -> None:
    """Run a method in this process as a client without a cluster does."""
    with inline():
        blocks = RowBlocks.from_any(path)
        settings = selection_model()(method=method, n_features_to_select=1, **{method: parameters})
        strategy = METHODS[method].choose(blocks.layout, settings)
        strategy.run(Near(blocks, neighbor_ids=neighbors), Scratch())


@pytest.mark.parametrize(
    "strategy, n, d",
    [
        (Woodbury, 3_000, 8_000),
        pytest.param(Cholesky, 40_000, 500, marks=pytest.mark.slow),
        pytest.param(Cholesky, 12_000, 2_000, marks=pytest.mark.slow),
        pytest.param(ConjugateGradients, 3_000, 30_000, marks=pytest.mark.slow),
    ],
)
def test_ndfs_by_blocks(
    strategy: type[NDFSStrategy], n: int, d: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distributed import Client

    # Conjugate gradients need not be exact for their memory.
    monkeypatch.setattr(solve, "CG_TOL", 0.5)
    with local_cluster(1, 1, LIMIT) as cluster, Client(cluster):
        place, c = Place(tmp_path), 10
        blocks = place.blocks(n, d)
        W = affinity(place.graph(n, 5), weight="heat", scratch=place.scratch().child("W"))
        settings = {"n_clusters": c, "init": np.arange(n) % c, "max_iter": 2}
        cost = strategy(blocks.layout, selection(LIMIT, **settings)).cost()
        start = settings.pop("init")
        _measured(
            cost,
            lambda: ndfs_scores(
                blocks, W, start, strategy=strategy, memory_limit=LIMIT, **settings
            ),
        )


def _resident(path: Path, W: Any, c: int) -> str:
    """Run what is chosen in this process; return how it solved."""
    with inline():
        blocks = RowBlocks.from_any(path)
        settings = selection(LIMIT, n_clusters=c, init=np.arange(blocks.n_samples) % c, max_iter=2)
        strategy = choose(blocks.layout, settings)
        assert strategy.resident  # type: ignore[attr-defined]
        return str(strategy.run(Given(blocks, W=W), Scratch()).details["solver"])


@pytest.mark.parametrize("n, d, solver", [(4_000, 2_000, "cholesky"), (1_500, 5_000, "woodbury")])
def test_ndfs_in_one_process(n: int, d: int, solver: str, tmp_path: Path) -> None:
    from distributed import Client

    with local_cluster(1, 1, LIMIT) as cluster, Client(cluster):
        place = Place(tmp_path)
        blocks = place.blocks(n, d)
        W = affinity(place.graph(n, 5), weight="heat", scratch=place.scratch().child("W"))
        W = W.__class__(**{**vars(W), "scratch": None})
        cost = choose(blocks.layout, selection(LIMIT, n_clusters=10, init=np.arange(n) % 10)).cost()
        client = active_client()

        def work() -> None:
            assert client.submit(_resident, tmp_path / "X.npy", W, 10).result() == solver

        _measured(cost, work)


@pytest.mark.parametrize(
    "method, n, d",
    [
        ("q_alpha", 4_000, 2_000),
        ("udfs", 300, 2_000),
        pytest.param("q_alpha", 500, 2_500, marks=pytest.mark.slow),
        pytest.param("udfs", 8_000, 1_000, marks=pytest.mark.slow),
    ],
)
def test_matrices_of_features(method: str, n: int, d: int, tmp_path: Path) -> None:
    from distributed import Client

    with local_cluster(1, 1, LIMIT) as cluster, Client(cluster):
        place = Place(tmp_path)
        blocks = place.blocks(n, d)
        neighbors = place.graph(n, 5).indices_ref if method == "udfs" else None
        parameters = {"n_clusters": 5, "max_iter": 2}
        settings = selection_model()(method=method, n_features_to_select=1, **{method: parameters})
        cost = METHODS[method].choose(blocks.layout, settings).cost()
        client = active_client()
        path = tmp_path / "X.npy"
        _measured(cost, lambda: client.submit(_alone, method, path, neighbors, parameters).result())
