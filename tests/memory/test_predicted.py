"""Predicted against measured memory, one kind of task in one new worker process.

Both are counted from the worker with all imports done. Measured is the largest resident size
(VmHWM) since it was reset through /proc/self/clear_refs, while the library's own calls run on
the worker as in a run. The bar: measured <= predicted <= 2 x measured, on tasks of 100 MiB or
more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bigfs.blocks import RowBlocks
from bigfs.core.cost import StageCost, Step
from bigfs.core.units import GIB, MIB
from bigfs.plan.plan import Place as RunPlace
from bigfs.plan.plan import make_plan
from bigfs.runtime import local_cluster
from bigfs.runtime.execute import run_tasks
from bigfs.stages.measure import Footprint
from bigfs.stages.stage import Stage
from bigfs.store.scratch import Scratch

pytestmark = [pytest.mark.memory, pytest.mark.cluster]
LIMIT = 4 * GIB
KERNELS = ("bigfs.spectral.kernels",)


@dataclass
class Place:
    """A folder that the worker shares, and data in it."""

    path: Path

    def scratch(self) -> Scratch:
        """Return a folder for what tasks share."""
        return Scratch(self.path / "scratch")

    def blocks(self, n: int, d: int, rows: int | None = None) -> RowBlocks:
        """Return random float32 rows around a few centers, as an npy file read by ranges."""
        rng = np.random.default_rng(0)
        X = rng.standard_normal((n, d), dtype=np.float32)
        X += 4 * rng.standard_normal((5, d), dtype=np.float32)[rng.integers(5, size=n)]
        np.save(self.path / "X.npy", X)
        del X
        return RowBlocks.from_any(self.path / "X.npy", scratch=self.scratch(), rows=rows)

    def graph(self, n: int, k: int) -> Any:
        """Return a graph as a search would: neighbors within one of 20 groups, a few beyond."""
        from bigfs.graph.cost import graph_block_rows
        from bigfs.graph.knn import KNNGraph
        from bigfs.graph.recall import RecallEstimate

        rng, scratch, rows = np.random.default_rng(0), self.scratch(), graph_block_rows(k)
        size = n // 20
        home = np.minimum(np.arange(n) // size, 19)[:, None] * size
        steps = 1 + np.arange(k) * (size // k) + rng.integers(size // k - 1, size=(n, k))
        indices = home + (np.arange(n)[:, None] - home + steps) % size
        beyond = rng.random(n) < 0.02
        indices[beyond, 0] = rng.integers(n, size=beyond.sum())
        indices[indices[:, 0] == np.arange(n), 0] = 0
        indices = indices.astype(np.int32)
        distances = np.sort(rng.random((n, k), dtype=np.float32), axis=1)
        stored = {}
        for name, values in (("indices", indices), ("distances", distances),
                             ("partitions", np.arange(n, dtype=np.int32) * 20 // n)):  # fmt: skip
            stored[name] = scratch.create(name, values.shape, values.dtype, rows)
            stored[name].write(0, values)
        return KNNGraph(
            stored["indices"], stored["distances"], stored["partitions"], "euclidean", "exact", 1,
            RecallEstimate(1.0, 1.0, 1.0, n, exact=True), scratch,
        )  # fmt: skip


@dataclass(frozen=True)
class Priced:
    """A strategy of which only the cost matters."""

    priced: StageCost

    def cost(self) -> StageCost:
        """Return what it takes."""
        return self.priced


Case = Callable[[Place], tuple[StageCost, Callable[[], Any]]]


def _one(needed: int, **cost: Any) -> StageCost:
    """Return the cost of a stage of one kind of task."""
    return StageCost((Step("a task", needed),), **cost)


def gram_of_wide_data(place: Place) -> tuple[StageCost, Callable[[], Any]]:
    """A fold of Gram matrices beside two blocks."""
    from bigfs.selectors.costs import gram_step

    blocks = place.blocks(4000, 2000, rows=500)
    return StageCost((gram_step(blocks.layout, 0),)), blocks.gram


def path_on_a_gram_matrix(place: Place) -> tuple[StageCost, Callable[[], Any]]:
    """A path of MCFS on the Gram matrix of all features."""
    from bigfs.selectors.costs import path_bytes
    from bigfs.selectors.mcfs.tasks import lars_task

    d, scratch = 3000, place.scratch()
    rng = np.random.default_rng(0)
    A = rng.standard_normal((400, d))
    gram = scratch.put("gram", A.T @ A + np.eye(d))
    xty = scratch.put("xty", rng.standard_normal((d, 2)))
    return _one(path_bytes(d)), lambda: run_tasks(lars_task, [0], gram, xty, 20, label="paths")


def exact_partition(place: Place) -> tuple[StageCost, Callable[[], Any]]:
    """All pairs of a partition."""
    from bigfs.graph import knn_graph
    from bigfs.graph.partition import exact_bytes

    n, d, k = 2000, 10_000, 5
    blocks = place.blocks(n, d)
    return _one(exact_bytes(n, d, 4, k)), lambda: knn_graph(
        blocks, k, algorithm="exact", scratch=place.scratch()
    )


def pynndescent_partition(place: Place) -> tuple[StageCost, Callable[[], Any]]:
    """An index of a partition, in a process that has compiled."""
    from bigfs.graph import knn_graph
    from bigfs.graph.cost import graph_cost

    search = {"algorithm": "pynndescent", "memory_limit": LIMIT}
    knn_graph(place.blocks(2000, 128), 10, **search, scratch=place.scratch().child("first"))
    blocks = place.blocks(100_000, 128)
    cost = graph_cost(blocks.layout, 10, LIMIT, algorithm="pynndescent")
    return cost, lambda: knn_graph(blocks, 10, **search, scratch=place.scratch().child("g"))


def union_of_edges(place: Place) -> tuple[StageCost, Callable[[], Any]]:
    """Edges and their reverses, sorted."""
    from bigfs.graph import affinity
    from bigfs.graph.cost import affinity_steps

    n, k = 220_000, 5
    graph = place.graph(n, k)
    needed = max(step.task_bytes for step in affinity_steps(n, k))
    return _one(needed), lambda: affinity(graph, weight="heat", scratch=place.scratch().child("W"))


def eigsh_in_one_task(place: Place) -> tuple[StageCost, Callable[[], Any]]:
    """W, its scaled copy and a Lanczos basis."""
    from bigfs.graph import affinity
    from bigfs.spectral.choice import solver_bytes
    from bigfs.spectral.embedding import spectral_embedding

    n, k, wanted = 60_000, 5, 40
    W = affinity(place.graph(n, k), scratch=place.scratch().child("W"))
    needed = solver_bytes("eigsh", n, W.nnz, wanted, 1e-3)
    return _one(needed), lambda: spectral_embedding(
        W, wanted, solver="eigsh", tol=1e-3, scratch=place.scratch().child("e")
    )


def chebyshev_in_one_task(place: Place) -> tuple[StageCost, Callable[[], Any]]:
    """W, its reordered copy and a block of vectors in float64."""
    from bigfs.graph import affinity
    from bigfs.spectral.choice import solver_bytes
    from bigfs.spectral.embedding import spectral_embedding

    n, k, wanted = 200_000, 5, 19
    W = affinity(place.graph(n, k), weight="heat", scratch=place.scratch().child("W"))
    needed = solver_bytes("chebyshev", n, W.nnz, wanted, 1e-6)
    return _one(needed, loads=KERNELS), lambda: spectral_embedding(
        W, wanted, solver="chebyshev", distributed=False, scratch=place.scratch().child("e")
    )


def strip_of_all_rows(place: Place) -> tuple[StageCost, Callable[[], Any]]:
    """W in order and two buffers of a few columns of all rows."""
    from bigfs.graph import affinity
    from bigfs.spectral.rowblocks import Iterate, start_task
    from bigfs.spectral.rowgraph import build_row_graph
    from bigfs.spectral.strips import Strips, strip_bytes, strip_task

    n, k, scratch = 500_000, 5, place.scratch()
    W = affinity(place.graph(n, k), scratch=scratch.child("W"))
    graph = build_row_graph(W, 1e-6, 100_000, scratch.child("rows"))
    folder = str(scratch.child("iterates").path)
    target = Iterate(folder, 1, "float32", (16,), (0,))
    attempts = run_tasks(start_task, range(graph.n_blocks), graph, target, 0, "x", label="start")
    source = Iterate(folder, 1, "float32", (16,), (0,), tuple(attempts))
    strips = Strips(folder, 2, "float32", ((0, 0, 16),), 2)
    shared = (graph, source, None, strips, [(1.0, 0.0, 0.0)] * 2, False)
    return _one(strip_bytes(n, W.nnz, 4), loads=KERNELS), lambda: run_tasks(
        strip_task, [0], *shared, label="strip"
    )


def recall_of_a_block(place: Place) -> tuple[StageCost, Callable[[], Any]]:
    """A block searched for the neighbors of sampled rows."""
    from bigfs.graph.cost import recall_bytes
    from bigfs.graph.recall import true_neighbors
    from bigfs.graph.search import gather_rows

    blocks = place.blocks(30_000, 784)
    ids = np.arange(0, 30_000, 30)
    samples = gather_rows(blocks, [ids], "euclidean", place.scratch().child("s"))
    needed = recall_bytes(blocks.layout)
    return _one(needed), lambda: true_neighbors(blocks, samples, 5, "euclidean")


def _m3fs(place: Place, n: int, d: int, **settings: Any) -> tuple[StageCost, Callable[[], Any]]:
    """M3FS from given labels, on a graph that is there."""
    from bigfs import M3FS
    from bigfs.graph import affinity
    from bigfs.selectors.registry import METHODS
    from bigfs.stages.stage import Inputs

    blocks, graph, scratch = place.blocks(n, d), place.graph(n, 5), place.scratch()
    W = affinity(graph, weight="heat", scratch=scratch.child("affinity"))
    scratch.describe(graph=graph.describe(), affinity=W.describe())
    estimator = M3FS(20, criterion="objective", max_iter=3, memory_limit=LIMIT, **settings)
    selection = estimator._selection().model_copy(update={"n_features_to_select": 20})
    strategy = METHODS["m3fs"].choose(blocks.layout, selection)
    inputs = Inputs(blocks, {"graph": scratch.path})
    return strategy.cost(), lambda: strategy.run(inputs, scratch.child("result"))


def pass_of_m3fs(place: Place) -> tuple[StageCost, Callable[[], Any]]:
    """Blocks with their planes, and what is kept of them."""
    return _m3fs(place, 40_000, 500, init=np.arange(40_000) % 2)


def start_of_m3fs_on_resident_rows(place: Place) -> tuple[StageCost, Callable[[], Any]]:
    """All rows in float64, with planes and smoothness."""
    return _m3fs(place, 4000, 2000, init=np.arange(4000) % 2)


def centers_of_m3fs(place: Place) -> tuple[StageCost, Callable[[], Any]]:
    """k-means++ on a sample of the rows."""
    return _m3fs(place, 10_000, 3000, init="kmeans", n_init=1, smoothness=0.0)


def expectations_of_fsgmm(place: Place) -> tuple[StageCost, Callable[[], Any]]:
    """A block with the relevances of a tile."""
    from bigfs.selectors.fsgmm import FSGMMParameters
    from bigfs.selectors.fsgmm.strategies import MixtureFit
    from bigfs.stages.stage import Inputs

    blocks = place.blocks(500, 20_000)
    strategy = MixtureFit(blocks.layout, FSGMMParameters(n_clusters=8, max_iter=1), 0)
    inputs, out = Inputs(blocks), place.scratch().child("result")
    return strategy.cost(), lambda: strategy.run(inputs, out)


def shuffle_of_wide_blocks(place: Place) -> tuple[StageCost, Callable[[], Any]]:
    """Blocks sorted by partition."""
    from bigfs.graph import knn_graph
    from bigfs.graph.cost import graph_cost

    blocks = place.blocks(4_000, 10_000)
    cost = graph_cost(blocks.layout, 5, GIB, algorithm="exact")
    return cost, lambda: knn_graph(
        blocks, 5, algorithm="exact", memory_limit=GIB, scratch=place.scratch()
    )


CASES = (
    gram_of_wide_data,
    path_on_a_gram_matrix,
    exact_partition,
    union_of_edges,
    pass_of_m3fs,
)
LONG = (
    start_of_m3fs_on_resident_rows,
    centers_of_m3fs,
    expectations_of_fsgmm,
    shuffle_of_wide_blocks,
    recall_of_a_block,
    pynndescent_partition,
    eigsh_in_one_task,
    chebyshev_in_one_task,
    strip_of_all_rows,
)


@pytest.mark.parametrize(
    "case",
    [*CASES, *(pytest.param(case, marks=pytest.mark.slow) for case in LONG)],
    ids=lambda case: case.__name__,
)
def test_measured_is_within_predicted(case: Case, tmp_path: Path) -> None:
    from distributed import Client

    with local_cluster(1, 1, LIMIT) as cluster, Client(cluster):
        place = Place(tmp_path)
        cost, work = case(place)
        stage = Stage("stage", 1, {}, lambda shape: Priced(cost))  # type: ignore[arg-type]
        [planned] = make_plan([stage], None, RunPlace(LIMIT)).stages
        footprint = Footprint(planned, LIMIT)
        work()
        record = footprint.record()
    predicted, measured = (
        record[f"{name}_peak_bytes"] - record["baseline_bytes"]
        for name in ("predicted", "measured")
    )
    told = (
        f"predicted {predicted / MIB:.0f} MiB, measured {measured / MIB:.0f} MiB above a worker of "
        f"{record['baseline_bytes'] / MIB:.0f} MiB, {record['seconds']} s"
    )
    print(told)
    assert cost.task_bytes + cost.keeps_bytes >= 100 * MIB
    assert measured <= predicted <= 2 * measured, told
