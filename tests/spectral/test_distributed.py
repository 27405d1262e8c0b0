"""The Chebyshev iteration on row blocks: the one-process solution, whoever computes it."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import block_diag, csr_array

from bigfs import knn_graph, run, spectral_embedding
from bigfs.blocks import RowBlocks
from bigfs.core.errors import ConvergenceError, InputError, MemoryLimitError
from bigfs.core.units import GIB, MIB
from bigfs.graph import affinity, affinity_from_csr
from bigfs.runtime import local_cluster
from bigfs.spectral import choice, iteration, storedblock
from bigfs.spectral.choice import choose_solver
from bigfs.spectral.rowgraph import block_starts, build_row_graph
from bigfs.spectral.strips import ROW_BYTES, widest_strip
from bigfs.store.scratch import Scratch, read_attributes
from tests.cluster._jobs import meanwhile
from tests.spectral.test_chebyshev import neighbor_graph


def both(W: Any, n_components: int, tol: float) -> tuple[Any, Any]:
    options = {"solver": "chebyshev", "tol": tol, "chunk_rows": 700}
    spread = spectral_embedding(W, n_components, distributed=True, **options)
    assert "on row blocks" in spread.reason and spread.details["n_blocks"] > 1
    return spread, spectral_embedding(W, n_components, distributed=False, **options)


def digest(W: Any, distributed: bool | None = True, **options: Any) -> bytes:
    options = {"solver": "chebyshev", "tol": 1e-4, "distributed": distributed, **options}
    embedding = spectral_embedding(W, 6, **options)
    assert ("in strips" in embedding.reason) == (distributed is None)
    return embedding.eigenvalues.tobytes() + embedding.embedding[:].tobytes()


@pytest.mark.parametrize("tol, atol", [(1e-4, 1e-6), (1e-8, 1e-13)])
def test_equals_one_process(tol: float, atol: float) -> None:
    actual, expected = both(neighbor_graph(5000), 20, tol)
    np.testing.assert_allclose(actual.eigenvalues, expected.eigenvalues, atol=atol)
    assert actual.residuals.max() <= tol
    assert actual.n_products > 0 and actual.n_iterations > 0
    if tol == 1e-8:
        np.testing.assert_allclose(actual.embedding[:], expected.embedding[:], atol=1e-7)
        np.testing.assert_allclose(actual.norms, expected.norms, atol=1e-10)
    details = actual.details
    assert details["fetched_bytes"] == details["halo_rows"] * 4 * details["fetched_columns"]


@pytest.fixture
def strips(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``distributed=None`` be strips for small graphs too, of a few products each."""
    monkeypatch.setattr(choice, "_MANY_ROWS", 1000)
    monkeypatch.setattr("bigfs.spectral.strips._MULTIPLICATIONS", 0)


@pytest.mark.parametrize("tol, atol", [(1e-4, 1e-6), (1e-8, 1e-13)])
@pytest.mark.parametrize("weights", ["binary", "heat"])
def test_strips_equal_one_process(tol: float, atol: float, weights: str, strips: None) -> None:
    W = neighbor_graph(5000)
    if weights == "heat":
        W = csr_array(W + W.multiply(W @ W) / 30.0)
    embedding = spectral_embedding(W, 20, tol=tol, chunk_rows=700, solver="chebyshev")
    expected = spectral_embedding(W, 20, tol=tol, solver="chebyshev", distributed=False)
    assert "on row blocks, the filter in strips, since 5,000 rows" in embedding.reason
    assert embedding.details["fetched_bytes"] == 0
    np.testing.assert_allclose(embedding.eigenvalues, expected.eigenvalues, atol=atol)
    assert embedding.residuals.max() <= tol
    if tol == 1e-8:
        np.testing.assert_allclose(embedding.embedding[:], expected.embedding[:], atol=1e-7)


@pytest.mark.parametrize("weights", ["binary", "heat"])
def test_strips_of_any_width_have_the_same_bits(
    weights: str, monkeypatch: pytest.MonkeyPatch, strips: None
) -> None:
    W = neighbor_graph(5000)
    if weights == "heat":
        W = csr_array(W + W.multiply(W @ W) / 30.0)
    W = affinity_from_csr(W)
    results = set()
    for row_bytes in ROW_BYTES:
        width = partial(_always, row_bytes)
        monkeypatch.setattr(choice, "widest_strip", width)
        results.add(digest(W, None))
    assert len(results) == 1


def _always(row_bytes: int, *size: int, binary: bool) -> int:
    return row_bytes


def test_narrow_strips_run_where_wide_ones_do_not_fit() -> None:
    n, nnz = 4_000_000, 58_000_000
    assert widest_strip(n, nnz, 2 * GIB, binary=True) == 64
    assert widest_strip(n, nnz, 575 * MIB, binary=True) == 32
    assert widest_strip(n, nnz, 575 * MIB, binary=False) == 0
    assert widest_strip(n, nnz, 540 * MIB, binary=True) == 16
    chosen = choose_solver("auto", n, nnz, 20, 1e-6, 1536 * MIB, binary=True)
    assert (chosen.distributed, chosen.strip_row_bytes) == (True, 32)


@pytest.mark.parametrize("n_components", [1, 4, 7])
def test_disconnected_graphs(n_components: int, caplog: pytest.LogCaptureFixture) -> None:
    parts = [neighbor_graph(900 + 50 * i, seed=i) for i in range(5)]
    order = np.random.default_rng(0).permutation(5000)
    W = csr_array(csr_array(block_diag(parts))[order][:, order])
    actual, expected = both(W, n_components, 1e-7)
    assert actual.n_connected_components == 5
    np.testing.assert_allclose(actual.eigenvalues, expected.eigenvalues, atol=1e-12)
    np.testing.assert_allclose(actual.embedding[:], expected.embedding[:], atol=1e-6)
    assert ("5 connected components, more than" in caplog.text) == (n_components == 1)


def test_a_group_has_the_basis_of_one_process() -> None:
    part = neighbor_graph(1200)
    actual, expected = both(csr_array(block_diag([part, part, part])), 4, 1e-8)
    np.testing.assert_allclose(actual.eigenvalues[2:], expected.eigenvalues[2], atol=1e-12)
    np.testing.assert_allclose(actual.embedding[:], expected.embedding[:], atol=1e-6)


def test_the_same_bits_under_every_scheduler(scheduler: str) -> None:
    import dask

    W = neighbor_graph(5000)
    actual = digest(W)
    with dask.config.set(scheduler="synchronous"):
        assert digest(W) == actual


def test_strips_are_the_same_bits_under_every_scheduler(scheduler: str, strips: None) -> None:
    import dask

    W = neighbor_graph(5000)
    actual = digest(W, None)
    with dask.config.set(scheduler="synchronous"):
        assert digest(W, None) == actual


def test_partitions_keep_edges_inside_blocks(tmp_path: Path) -> None:
    """The halo in partition order is a fraction of the one in the order the rows came in."""
    generator = np.random.default_rng(0)
    X = np.repeat(3 * generator.normal(size=(24, 5)), 400, axis=0)
    X = (X + generator.normal(size=X.shape))[generator.permutation(9600)]
    graph = knn_graph(RowBlocks.from_any(X, rows=1000), 5, n_partitions=24)
    W = affinity(graph)
    plain = affinity_from_csr(W.load())
    halos = [
        build_row_graph(A, 1e-4, 10**6, Scratch(tmp_path / name)).halo_rows
        for name, A in [("partitions", W), ("plain", plain)]
    ]
    assert 4 * halos[0] < halos[1]


def test_descriptors_are_small_and_nothing_is_left(tmp_path: Path) -> None:
    W = neighbor_graph(6000)
    graph = build_row_graph(affinity_from_csr(W), 1e-4, 10**6, Scratch(tmp_path / "graph"))
    assert len(pickle.dumps(graph)) < 2000
    for block in range(graph.n_blocks):
        edges, (given_rows, taken) = graph.edges(block), graph.links(block)
        np.testing.assert_array_equal(edges.degrees, W[edges.ids].sum(axis=1))
        assert len(given_rows) == graph.extent(block)[1]
        assert edges.indices.max() < len(edges.ids) + taken[:, 2].sum()
    spectral_embedding(W, 3, distributed=True, tol=1e-4, scratch=Scratch(tmp_path / "result"))
    left = sorted(path.name for path in (tmp_path / "result").iterdir())
    assert left == ["affinity", "embedding", "guards"]


def test_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    W = neighbor_graph(1500)
    monkeypatch.setattr(iteration, "_MAX_ROUNDS", 2)
    with pytest.raises(ConvergenceError, match=r"at most 1e-17. Got \d"):
        spectral_embedding(W, 3, tol=1e-17, distributed=True)
    with pytest.raises(InputError, match="distributed must be False for solver 'eigsh'"):
        spectral_embedding(W, 3, solver="eigsh", distributed=True)
    W = W.tolil()
    column = int(W.rows[700][-1])
    W[700, column] = W[column, 700] = -0.5
    with pytest.raises(InputError, match=f"row {min(700, column)} of the graph has a negative"):
        spectral_embedding(csr_array(W), 3, distributed=True)


def test_auto_goes_to_row_blocks_where_one_task_is_not_enough() -> None:
    size = (10**7, 14 * 10**7, 20, 1e-6)
    chosen = choose_solver("auto", *size, 4 * GIB)
    assert (chosen.solver, chosen.distributed) == ("chebyshev", True)
    assert not chosen.strip_row_bytes
    assert choose_solver("auto", *size, 8 * GIB).strip_row_bytes
    assert not choose_solver("auto", *size, 8 * GIB, distributed=True).strip_row_bytes
    assert "since one task would need" in chosen.reason
    assert "several workers" in choose_solver("auto", *size, 64 * GIB).reason
    assert not choose_solver("auto", 10**6, 14 * 10**6, 20, 1e-6, 4 * GIB).distributed
    assert not choose_solver("eigsh", 10**6, 14 * 10**6, 20, 1e-6, 4 * GIB).distributed
    with pytest.raises(MemoryLimitError, match="row blocks of W"):
        choose_solver("auto", 10**8, 10**9, 20, 1e-6, 1024 * MIB)
    # A graph this small is not worth row blocks, whatever was asked for.
    assert not spectral_embedding(neighbor_graph(300), 3, distributed=True).details


@given(st.lists(st.integers(0, 90_000), min_size=1, max_size=40), st.integers(600, 10**6))
def test_blocks_cover_all_rows(sizes: list[int], most_rows: int) -> None:
    n = sum(sizes)
    if n < 600:
        return
    starts = block_starts(sizes, most_rows)
    assert starts[0] == 0 and starts[-1] == n
    assert (np.diff(starts) > 0).all()
    assert np.diff(starts).max() <= most_rows


class Counter:
    """Counts how often the scheduler sends a product to a worker."""

    prefix = "product-"

    def __init__(self) -> None:
        self.count = 0

    def transition(self, key: Any, start: str, finish: str, *_: Any, **__: Any) -> None:
        self.count += finish == "processing" and str(key).startswith(self.prefix)


@pytest.mark.cluster
def test_a_killed_worker_costs_at_most_one_product(tmp_path: Path) -> None:
    """Every product is committed: what is done again are tasks of the one that was running."""
    from distributed import Client
    from distributed.diagnostics.plugin import SchedulerPlugin

    W = affinity_from_csr(neighbor_graph(6000))
    expected = digest(W)
    counter = type("Plugin", (Counter, SchedulerPlugin), {})()
    with local_cluster(2, 1, GIB) as cluster, Client(cluster) as client:
        cluster.scheduler.add_plugin(counter, name="counter")
        assert digest(W) == expected
        undisturbed, counter.count = counter.count, 0
        pids = list(client.run(os.getpid).values())
        with meanwhile(partial(_kill_later, tmp_path, pids[0], "z-0000[4-9]?-*")):
            assert digest(W, scratch=Scratch(tmp_path)) == expected
        assert pids[0] not in client.run(os.getpid).values()
        repeated = counter.count - undisturbed
    n_blocks = len(block_starts([6000])) - 1
    assert undisturbed % n_blocks == 0
    assert 0 <= repeated <= n_blocks


def _kill_later(folder: Path, pid: int, pattern: str, over: threading.Event) -> None:
    """Kill a worker once the iteration is under way."""
    while not list(folder.glob(f"spectral-*/iterates/{pattern}")):
        if over.wait(0.002):
            return
    os.kill(pid, signal.SIGKILL)


def test_an_interrupted_client_goes_on_from_the_last_product(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted again and again, every product is still computed once, with the same bits."""
    W = affinity_from_csr(neighbor_graph(5000))
    expected = digest(W)
    product, counts = storedblock.StoredBlock._product, {"all": 0, "now": 0}

    def interrupted(*arguments: Any) -> Any:
        if counts["now"] == 25:
            raise KeyboardInterrupt
        counts["now"] += 1
        counts["all"] += 1
        return product(*arguments)

    monkeypatch.setattr(storedblock.StoredBlock, "_product", interrupted)
    checkpoint, runs = tmp_path / "checkpoint", 0
    while True:
        counts["now"] = 0
        runs += 1
        try:
            actual = digest(W, checkpoint=checkpoint)
            break
        except KeyboardInterrupt:
            assert (checkpoint / "spectral.json").exists()
    assert runs > 2
    assert counts["all"] <= 25 * (runs - 1) + 25
    assert actual == expected
    assert not checkpoint.exists()


def test_interrupted_strips_go_on_from_the_last_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strips: None
) -> None:
    """Every strip of every step is computed once, however often the run is interrupted."""
    W = affinity_from_csr(neighbor_graph(5000))
    run_tasks, calls = storedblock.run_tasks, {"filter": 0, "now": 0}

    def interrupted(fn: Any, *arguments: Any, label: str, **options: Any) -> Any:
        if label == "filter":
            if calls["now"] == 5:
                raise KeyboardInterrupt
            calls["filter"] += 1
            calls["now"] += 1
        return run_tasks(fn, *arguments, label=label, **options)

    monkeypatch.setattr(storedblock, "run_tasks", interrupted)
    calls["now"] = -1000
    expected = digest(W, None)
    undisturbed, calls["filter"], runs, actual = calls["filter"], 0, 0, b""
    while not actual:
        calls["now"], runs = 0, runs + 1
        try:
            actual = digest(W, None, checkpoint=tmp_path / "checkpoint")
        except KeyboardInterrupt:
            assert runs < 20
    assert runs > 2 and actual == expected
    assert calls["filter"] == undisturbed
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.cluster
def test_a_worker_killed_in_a_strip_costs_that_step(tmp_path: Path, strips: None) -> None:
    from distributed import Client
    from distributed.diagnostics.plugin import SchedulerPlugin

    W = affinity_from_csr(neighbor_graph(6000))
    expected = digest(W, None)
    counter = type("Plugin", (Counter, SchedulerPlugin), {"prefix": "filter-"})()
    with local_cluster(2, 1, GIB) as cluster, Client(cluster) as client:
        cluster.scheduler.add_plugin(counter, name="counter")
        assert digest(W, None) == expected
        undisturbed, counter.count = counter.count, 0
        pids = list(client.run(os.getpid).values())
        with meanwhile(partial(_kill_later, tmp_path, pids[0], "s-*")):
            assert digest(W, None, scratch=Scratch(tmp_path)) == expected
        assert pids[0] not in client.run(os.getpid).values()
        repeated = counter.count - undisturbed
    assert undisturbed > 0 and 0 <= repeated <= 2


def test_a_pipeline_on_row_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.datasets import make_blobs

    X, _ = make_blobs(5000, 8, centers=4, random_state=1)
    np.save(tmp_path / "X.npy", X)
    settings = {
        "input": {"uri": str(tmp_path / "X.npy")},
        "n_features_to_select": 3,
        "graph": {"n_neighbors": 10},
        "mcfs": {"n_clusters": 6},
        "spectral": {"tol": 1e-8},
    }
    single = run({**settings, "run": str(tmp_path / "one")})
    monkeypatch.setattr(choice, "_MANY_ROWS", 1000)
    spread = run({**settings, "run": str(tmp_path / "spread")})
    np.testing.assert_allclose(spread.scores, single.scores, rtol=1e-5)
    stored = read_attributes(tmp_path / "spread" / "spectral.zarr")
    assert "on row blocks, the filter in strips, since 5,000 rows" in stored["reason"]
    assert stored["details"]["n_blocks"] > 1
    assert not (tmp_path / "spread" / "checkpoints").exists()
