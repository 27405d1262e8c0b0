"""Predicted against measured memory of graphs and eigenvectors, one kind of task at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bigfs.blocks import RowBlocks
from bigfs.core.cost import StageCost, Step
from bigfs.core.units import GIB
from bigfs.runtime.connection import local_cluster
from tests.memory._measure import LIMIT, Place, hold_to_the_bar

pytestmark = [pytest.mark.memory, pytest.mark.cluster]
KERNELS = ("bigfs.spectral.kernels",)

Case = Callable[[Place], tuple[StageCost, Callable[[], Any]]]


def _one(needed: int, **cost: Any) -> StageCost:
    """Return the cost of a stage of one kind of task."""
    return StageCost((Step("a task", needed),), **cost)


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
    from bigfs.config.sections import GraphConfig
    from bigfs.graph import knn_graph
    from bigfs.graph.cost import graph_cost

    search = {"algorithm": "pynndescent", "memory_limit": LIMIT}
    knn_graph(place.blocks(2000, 128), 10, **search, scratch=place.scratch().child("first"))
    blocks = place.blocks(100_000, 128)
    cost = graph_cost(blocks.layout, GraphConfig(n_neighbors=10, algorithm="pynndescent"), LIMIT)
    return cost, lambda: knn_graph(blocks, 10, **search, scratch=place.scratch().child("g"))


def components_of_counts(place: Place) -> tuple[StageCost, Callable[[], Any]]:
    """Principal components from CSR blocks: sums of a fold, and thin rows."""
    from bigfs.stages.graph import components_stage
    from bigfs.stages.stage import Inputs

    blocks = place.sparse_blocks(120_000, 10_000, rows=40_000)
    strategy = components_stage(50, random_state=0, memory_limit=2**31).choose(blocks.layout)
    out = place.scratch().child("components")
    return strategy.cost(), lambda: strategy.run(Inputs(blocks), out)


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
    from bigfs.spectral.choice import eigsh_bytes
    from bigfs.spectral.embedding import spectral_embedding

    n, k, wanted = 60_000, 5, 40
    W = affinity(place.graph(n, k), scratch=place.scratch().child("W"))
    needed = eigsh_bytes(n, W.nnz, wanted)
    return _one(needed), lambda: spectral_embedding(
        W, wanted, solver="eigsh", tol=1e-3, scratch=place.scratch().child("e")
    )


def chebyshev(place: Place) -> tuple[StageCost, Callable[[], Any]]:
    """W with weights and a panel in float64."""
    from bigfs.graph import affinity
    from bigfs.spectral.choice import choose_solver, panel_bytes
    from bigfs.spectral.embedding import spectral_embedding

    n, k, wanted = 500_000, 5, 10
    W = affinity(place.graph(n, k), weight="heat", scratch=place.scratch().child("W"))
    storage = choose_solver("chebyshev", n, W.nnz, wanted, LIMIT).storage
    needed = panel_bytes(n, W.nnz, storage, binary=False)
    return _one(needed, loads=KERNELS), lambda: spectral_embedding(
        W, wanted, solver="chebyshev", tol=1e-4, memory_limit=LIMIT,
        scratch=place.scratch().child("e"),
    )  # fmt: skip


def _binary(place: Place, n: int, limit: int, *way: Any) -> Any:
    """W without weights; a coarse graph comes before the block."""
    from bigfs.graph import affinity
    from bigfs.spectral.choice import choose_solver, panel_bytes
    from bigfs.spectral.embedding import spectral_embedding

    wanted = 10
    W = affinity(place.graph(n, 10), scratch=place.scratch().child("W"))
    storage = choose_solver("chebyshev", n, W.nnz, wanted, limit, True).storage
    assert (storage.in_memory, storage.order, storage.row_bytes) == way
    needed = panel_bytes(n, W.nnz, storage, binary=True)
    return _one(needed, loads=KERNELS), lambda: spectral_embedding(
        W, wanted, solver="chebyshev", tol=0.5, memory_limit=limit,
        scratch=place.scratch().child("e"),
    )  # fmt: skip


def chebyshev_of_binary_weights(place: Place) -> tuple[StageCost, Callable[[], Any]]:
    """W in memory."""
    return _binary(place, 700_000, LIMIT, True, "levels", 64)


def chebyshev_piece_by_piece(place: Place) -> tuple[StageCost, Callable[[], Any]]:
    """W in order, read for each product."""
    return _binary(place, 1_000_000, int(1.12 * GIB), False, "levels", 64)


def chebyshev_in_order_of_partitions(place: Place) -> tuple[StageCost, Callable[[], Any]]:
    """W that is put in order a slice at a time."""
    return _binary(place, 2_400_000, int(1.25 * GIB), False, "partitions", 32)


def coarse_graph(place: Place) -> tuple[StageCost, Callable[[], Any]]:
    """The coarse graph of a W that is read, where it just fits."""
    from dataclasses import replace

    from bigfs.graph import affinity
    from bigfs.runtime.execute import run_tasks
    from bigfs.spectral.choice import choose_solver
    from bigfs.spectral.coarse import _coarse_task
    from bigfs.spectral.operator import store_graph

    n, room, scratch = 1_000_000, 260_000_000, place.scratch()
    W = affinity(place.graph(n, 10), scratch=scratch.child("W"))
    storage = choose_solver("chebyshev", n, W.nnz, 10, LIMIT, True).storage
    graph = store_graph(W, scratch, replace(storage, in_memory=False, order="levels"))
    groups = scratch.create("groups", (n,), np.int32, 2**16)

    def work() -> None:
        folder = str(scratch.child("coarse").path)
        [n_groups] = run_tasks(_coarse_task, [folder], graph, groups, room, label="coarse graph")
        assert n_groups > 0, "it fits"

    return _one(room, loads=KERNELS), work


def graph_of_grown_rows(place: Place) -> tuple[StageCost, Callable[[], Any]]:
    """New rows and a block beside them."""
    from bigfs.graph.update import update_bytes, update_graph

    n, n_new, k = 200_000, 45_000, 5
    blocks, former = place.blocks(n, 128), place.graph(n - n_new, k)
    limits = {"memory_limit": LIMIT, "random_state": 0}
    needed = update_bytes(blocks.layout, n_new, 8192, "euclidean")
    return _one(needed), lambda: update_graph(
        blocks, former, **limits, scratch=place.scratch().child("u")
    )


def recall_of_a_block(
    place: Place, n: int = 30_000, d: int = 784
) -> tuple[StageCost, Callable[[], Any]]:
    """A block searched for the neighbors of sampled rows."""
    from bigfs.graph.cost import recall_bytes
    from bigfs.graph.recall import true_neighbors
    from bigfs.graph.search import gather_rows

    blocks = place.blocks(n, d)
    ids = np.arange(0, n, n // 1000)
    samples = gather_rows(blocks, [ids], "euclidean", place.scratch().child("s"))
    needed = recall_bytes(blocks.layout)
    return _one(needed), lambda: true_neighbors(blocks, samples, 5, "euclidean")


def recall_of_a_wide_block(place: Place) -> tuple[StageCost, Callable[[], Any]]:
    """The sampled rows are more than the block."""
    return recall_of_a_block(place, 4_000, 20_000)


def shuffle_of_wide_blocks(place: Place) -> tuple[StageCost, Callable[[], Any]]:
    """Blocks sorted by partition."""
    from bigfs.config.sections import GraphConfig
    from bigfs.graph import knn_graph
    from bigfs.graph.cost import graph_cost

    blocks = place.blocks(4_000, 10_000)
    cost = graph_cost(blocks.layout, GraphConfig(n_neighbors=5, algorithm="exact"), GIB)
    return cost, lambda: knn_graph(
        blocks, 5, algorithm="exact", memory_limit=GIB, scratch=place.scratch()
    )


def _evaluation(place: Place, blocks: RowBlocks, limit: int, **settings: Any) -> Any:
    """Return the cost of judging 20 columns and all, and the work."""
    from bigfs.evaluate.stage import Evaluation
    from bigfs.selectors.registry import make_config
    from bigfs.stages.stage import Inputs

    np.save(place.path / "y.npy", np.arange(blocks.n_samples) % 3)
    labels = str(place.path / "y.npy")
    config = make_config(
        run="unused",
        input={"uri": "unused"},
        n_features_to_select=20,
        memory_limit=limit,
        evaluate={"labels": labels, "n_repetitions": 1, "n_init": 1, **settings},
    )
    strategy = Evaluation(blocks.layout, config, config.evaluate)
    result = place.scratch().child("result")
    result.put("selected", np.arange(20))
    inputs = Inputs(blocks, {"result": Path(result.path)})
    return strategy.cost(), lambda: strategy.run(inputs, place.scratch().child("evaluation"))


def evaluation_in_memory(place: Place) -> tuple[StageCost, Callable[[], Any]]:
    """k-means and nearest neighbors of rows that fit a task."""
    return _evaluation(place, place.blocks(4000, 5000), LIMIT, n_components=None)


def evaluation_by_blocks(place: Place) -> tuple[StageCost, Callable[[], Any]]:
    """k-means by row blocks, and the Gram matrix of all features."""
    blocks = place.stored_blocks(60_000, 1000)
    return _evaluation(place, blocks, GIB, nearest_neighbor=False, n_components=None)


def evaluation_by_components(place: Place) -> tuple[StageCost, Callable[[], Any]]:
    """Principal components of all features, and correlations of some."""
    return _evaluation(place, place.blocks(20_000, 2000, rows=5000), LIMIT)


CASES = (exact_partition, union_of_edges)
LONG = (
    shuffle_of_wide_blocks,
    recall_of_a_block,
    recall_of_a_wide_block,
    pynndescent_partition,
    eigsh_in_one_task,
    chebyshev,
    chebyshev_in_order_of_partitions,
    evaluation_in_memory,
    evaluation_by_blocks,
    evaluation_by_components,
)


@pytest.mark.parametrize(
    "case",
    [
        *CASES,
        *(
            pytest.param(case, marks=pytest.mark.full)
            for case in (
                components_of_counts,
                graph_of_grown_rows,
                chebyshev_of_binary_weights,
                chebyshev_piece_by_piece,
                coarse_graph,
            )
        ),
        *(pytest.param(case, marks=pytest.mark.slow) for case in LONG),
    ],
    ids=lambda case: case.__name__,
)
def test_measured_is_within_predicted(case: Case, tmp_path: Path) -> None:
    from distributed import Client

    with local_cluster(1, 1, LIMIT) as cluster, Client(cluster):
        hold_to_the_bar(*case(Place(tmp_path)))
