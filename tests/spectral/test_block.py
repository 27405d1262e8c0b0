"""The block of the Chebyshev iteration: the same bits whoever computes it, and nothing twice."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial, reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from bigfs import run, spectral_embedding
from bigfs.core.errors import InputError, MemoryLimitError
from bigfs.core.units import GIB
from bigfs.graph import affinity_from_csr
from bigfs.runtime.connection import local_cluster
from bigfs.spectral import block, chebyshev, choice
from bigfs.spectral.choice import ROW_BYTES, choose_solver
from bigfs.spectral.embedding import Resume
from bigfs.spectral.operator import Storage
from bigfs.spectral.tasks import Pivot
from bigfs.store.scratch import Scratch, read_attributes
from tests.cluster._jobs import meanwhile
from tests.spectral.test_chebyshev import neighbor_graph


def digest(W: Any, **options: Any) -> bytes:
    options = {"solver": "chebyshev", "tol": 1e-3, **options}
    embedding = spectral_embedding(W, 6, **options)
    return embedding.eigenvalues.tobytes() + embedding.embedding[:].tobytes()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small graphs have several blocks of rows, and tasks a few products each."""
    monkeypatch.setattr(block, "BLOCK_VALUES", 2**13)
    monkeypatch.setattr(block, "MULTIPLICATIONS", 0)


def _hold(monkeypatch: pytest.MonkeyPatch, storage: Storage) -> None:
    monkeypatch.setattr(choice, "_storage", lambda *size: storage)


@pytest.mark.parametrize("weights", ["binary", "heat"])
@pytest.mark.parametrize("tol", [1e-3, 1e-8])
def test_panels_of_any_width_have_the_same_bits(
    weights: str, tol: float, monkeypatch: pytest.MonkeyPatch, small: None
) -> None:
    W = neighbor_graph(2500)
    if weights == "heat":
        W = csr_array(W + W.multiply(W @ W) / 30.0)
    W = affinity_from_csr(W)
    monkeypatch.setattr("bigfs.spectral.operator.PIECE_ROWS", 700)
    monkeypatch.setattr("bigfs.spectral.operator.SLICE_ENTRIES", 9000)
    # The bound of the spectrum is made of sums over the rows in their order.
    for order, held in (("levels", (True, False)), ("partitions", (False,))):
        results = set()
        for in_memory in held:
            for row_bytes in ROW_BYTES:
                _hold(monkeypatch, Storage(in_memory, order, row_bytes, GIB))
                results.add(digest(W, tol=tol))
        assert len(results) == 1


def test_w_that_is_read_for_each_product(monkeypatch: pytest.MonkeyPatch, small: None) -> None:
    monkeypatch.setattr("bigfs.spectral.operator.PIECE_ROWS", 700)
    W = affinity_from_csr(neighbor_graph(5000))
    expected = spectral_embedding(W, 6, solver="chebyshev", tol=1e-8)
    _hold(monkeypatch, Storage(False, "none", 16, GIB))
    embedding = spectral_embedding(W, 6, solver="chebyshev", tol=1e-8)
    assert embedding.reason == "requested; W is read for each product"
    np.testing.assert_allclose(embedding.eigenvalues, expected.eigenvalues, atol=1e-13)
    np.testing.assert_allclose(embedding.embedding[:], expected.embedding[:], atol=1e-7)


def test_what_a_task_holds_follows_from_its_memory() -> None:
    def storage(n: int, nnz: int, memory_limit: float, binary: bool = True) -> Storage:
        return choose_solver("auto", n, nnz, 20, int(memory_limit * GIB), binary).storage

    n, nnz = 4_000_000, 58_000_000
    assert storage(n, nnz, 4).row_bytes == 64
    # W is read for each product, so that rows of vectors stay as long as a cache line.
    streamed = storage(n, nnz, 1.5)
    assert (streamed.in_memory, streamed.order, streamed.row_bytes) == (False, "levels", 64)
    weighted = storage(n, nnz, 1.5, binary=False)
    assert (weighted.order, weighted.row_bytes) == ("levels", 64)
    assert storage(n, 2 * nnz, 1.5).order == "partitions"
    # Far more rows than W fits for: a worker of 4 GiB has room for four columns of them.
    large = storage(50_000_000, 750_000_000, 4)
    assert (large.order, large.row_bytes) == ("partitions", 16)
    with pytest.raises(MemoryLimitError, match="with solver 'chebyshev'"):
        storage(10**8, 10**9, 1)


def test_the_same_bits_under_every_scheduler(scheduler: str, small: None) -> None:
    import dask

    W = neighbor_graph(5000)
    actual = digest(W)
    with dask.config.set(scheduler="synchronous"):
        assert digest(W) == actual


def test_nothing_is_left(tmp_path: Path) -> None:
    W = neighbor_graph(6000)
    spectral_embedding(W, 3, solver="chebyshev", scratch=Scratch(tmp_path))
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["affinity", "embedding", "guards"]


def test_bad_weights_are_refused() -> None:
    W = neighbor_graph(1500).tolil()
    column = int(W.rows[700][-1])
    W[700, column] = W[column, 700] = -0.5
    with pytest.raises(
        InputError, match=f"row {min(700, column)} of the graph has a weight of -0.5"
    ):
        spectral_embedding(csr_array(W), 3, solver="chebyshev")


class Counter:
    """Counts how often the scheduler sends a task of the filter to a worker."""

    count = 0

    def transition(self, key: Any, start: str, finish: str, *_: Any, **__: Any) -> None:
        self.count += finish == "processing" and str(key).startswith("filter-")


def _kill_later(folder: Path, pid: int, over: threading.Event) -> None:
    """Kill a worker once the iteration is under way."""
    while not list(folder.glob("spectral-*/iterates/panel-00000[2-9]-*")):
        if over.wait(0.002):
            return
    os.kill(pid, signal.SIGKILL)


@pytest.mark.cluster
def test_a_killed_worker_costs_one_task(tmp_path: Path, small: None) -> None:
    """What is done again are tasks of the step that was running."""
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
        with meanwhile(partial(_kill_later, tmp_path, pids[0])):
            assert digest(W, scratch=Scratch(tmp_path)) == expected
        assert pids[0] not in client.run(os.getpid).values()
        repeated = counter.count - undisturbed
    assert undisturbed > 0 and 0 <= repeated <= 2


def test_an_interrupted_client_goes_on_from_the_last_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: None
) -> None:
    """Every step of the filter is computed once, however often the run is interrupted."""
    W = affinity_from_csr(neighbor_graph(5000))
    run_tasks, calls = block.run_tasks, {"filter": 0, "now": 0}

    def interrupted(fn: Any, *arguments: Any, label: str, **options: Any) -> Any:
        if label == "filter":
            if calls["now"] == 5:
                raise KeyboardInterrupt
            calls["filter"] += 1
            calls["now"] += 1
        return run_tasks(fn, *arguments, label=label, **options)

    monkeypatch.setattr(block, "run_tasks", interrupted)
    calls["now"] = -1000
    expected = digest(W)
    undisturbed, calls["filter"], runs, actual = calls["filter"], 0, 0, b""
    while not actual:
        calls["now"], runs = 0, runs + 1
        try:
            actual = digest(W, resume=Resume(tmp_path / "checkpoint"))
        except KeyboardInterrupt:
            assert runs < 40
            assert (tmp_path / "checkpoint" / "spectral.json").exists()
    assert runs > 2 and actual == expected
    # The last part of a filter is not committed before the small problem is solved.
    assert undisturbed <= calls["filter"] <= undisturbed + runs
    assert not (tmp_path / "checkpoint").exists()


def test_a_pipeline_whose_eigenvectors_are_many_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    monkeypatch.setattr(choice, "_LARGE_ROWS", 1000)
    spread = run({**settings, "run": str(tmp_path / "spread")})
    np.testing.assert_allclose(spread.scores, single.scores, rtol=1e-5)
    stored = read_attributes(tmp_path / "spread" / "spectral.zarr")
    assert stored["reason"] == "faster than eigsh for 5,000 rows and 6 vectors"
    assert not (tmp_path / "spread" / "checkpoints").exists()


def test_a_run_that_is_interrupted_at_its_end_iterates_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: None
) -> None:
    """The vectors that have converged are committed, and those of the rounds before are gone."""
    W, resume = affinity_from_csr(neighbor_graph(5000)), Resume(tmp_path / "checkpoint")
    expected = digest(W)
    run_tasks = chebyshev.run_tasks

    def interrupted(fn: Any, *arguments: Any, label: str, **options: Any) -> Any:
        if label == "embedding":
            raise KeyboardInterrupt
        return run_tasks(fn, *arguments, label=label, **options)

    def refused(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("the iteration goes on")

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(chebyshev, "run_tasks", interrupted)
        digest(W, resume=resume)
    left = [path.name.split("-")[1] for path in tmp_path.rglob("iterates/*")]
    assert len(set(left)) == 2  # of the last round, filtered and turned
    monkeypatch.setattr(block, "run_tasks", refused)
    assert digest(W, resume=resume) == expected


@pytest.mark.parametrize("parts", [0, 1e12])
def test_scratch_is_at_most_the_planned(
    parts: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: None
) -> None:
    """In rounds of several tasks or of one, with the record of an interrupted run."""
    for module in (block, choice):
        monkeypatch.setattr(module, "MULTIPLICATIONS", parts)
    W, sizes, run_tasks = affinity_from_csr(neighbor_graph(20_000)), [], block.run_tasks

    def measured(*arguments: Any, **options: Any) -> Any:
        results = run_tasks(*arguments, **options)
        sizes.append(sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()))
        return results

    monkeypatch.setattr(block, "run_tasks", measured)
    spectral_embedding(W, 6, solver="chebyshev", tol=1e-8, resume=Resume(tmp_path / "checkpoint"))
    planned = choose_solver("chebyshev", W.n_samples, W.nnz, 6, 4 * GIB, binary=True).cost()
    assert max(sizes) <= planned.scratch_bytes - planned.stored_bytes <= 2 * max(sizes)


def test_the_pivot_of_blocks_is_the_first_row_within_the_tie_in_any_order_of_joining() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        size = 1.0 + rng.choice([1e-4, 5e-3]) * rng.integers(0, 40, 30)
        blocks = [
            Pivot(1e-3, [(i, float(size[i]), np.full(1, i)) for i in range(first, first + 5)])
            for first in range(0, 30, 5)
        ]
        joined = reduce(Pivot.join, [blocks[i] for i in rng.permutation(6)])
        assert joined.rows[0][0] == (size >= (1 - 1e-3) * size.max()).argmax()
