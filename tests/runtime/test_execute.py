from __future__ import annotations

import gc
import os
import threading
import time
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest

from bigfs.core.errors import ClusterError, InputError
from bigfs.runtime import execute, progress
from bigfs.runtime.execute import TREE_ARITY, at_most_at_once, map_reduce, run_tasks
from bigfs.runtime.scope import active_client, crosses_processes, inline


def _square(item: int, offset: int) -> int:
    return item * item + offset


def _leaf(item: int) -> str:
    return str(item)


def _pair(left: str, right: str) -> str:
    return f"({left}{right})"


def _small(item: float) -> float:
    return item


def _add(left: float, right: float) -> float:
    return left + right


def _fail_at_three(item: int) -> int:
    if item == 3:
        raise InputError("row 3 is bad")
    return item


def _blas_threads(item: int) -> int:
    import numpy as np
    from threadpoolctl import threadpool_info

    np.ones((2, 2)) @ np.ones((2, 2))
    return max(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")


def _die(item: int) -> None:
    import os

    os._exit(1)


def test_results_come_in_the_order_of_the_items(scheduler):
    assert run_tasks(_square, list(range(40)), 1, label="squares") == [i * i + 1 for i in range(40)]
    assert run_tasks(_square, [], 1, label="squares") == []


@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 64, 65, 100])
def test_the_tree_depends_on_the_number_of_items_only(scheduler, n):
    expected = _reference_tree([str(i) for i in range(n)])
    assert map_reduce(_leaf, list(range(n)), _pair, label="tree") == expected


def _reference_tree(nodes: list[str]) -> str:
    """Fold full groups level by level, and what is left over from the lowest level up."""
    levels: list[list[str]] = []
    while nodes:
        full = len(nodes) // TREE_ARITY * TREE_ARITY
        levels.append(nodes[full:])
        nodes = [_fold(nodes[i : i + TREE_ARITY]) for i in range(0, full, TREE_ARITY)]
    carry: list[str] = []
    for left_over in levels:
        carry = [_fold(left_over + carry)] if left_over + carry else []
    return carry[0]


def _fold(nodes: list[str]) -> str:
    total = nodes[0]
    for node in nodes[1:]:
        total = _pair(total, node)
    return total


def test_sums_are_the_same_bits_under_every_scheduler(scheduler):
    values = [0.1 * (-3.7) ** (i % 11) for i in range(300)]
    total = map_reduce(_small, values, _add, label="sum")
    with dask.config.set(scheduler="synchronous"):
        assert total == map_reduce(_small, values, _add, label="sum")


def test_an_error_of_a_task_comes_back_as_it_is(scheduler):
    with pytest.raises(InputError, match="^row 3 is bad$"):
        run_tasks(_fail_at_three, list(range(20)), label="checks")
    with pytest.raises(InputError, match="^row 3 is bad$"):
        map_reduce(_fail_at_three, list(range(20)), _add, label="checks")


def test_tasks_run_with_one_blas_thread(scheduler):
    assert set(run_tasks(_blas_threads, [0, 1, 2], label="threads")) == {1}


def test_progress_counts_every_task(scheduler):
    class Counter(progress.SilentReporter):
        def start(self, work):
            self.work = work

        def finish(self, work, failed):
            self.failed = failed

    counter = Counter()
    with progress.reported_by(counter):
        map_reduce(_small, [1.0] * 20, _add, label="moments")
        assert (counter.work.label, counter.work.total, counter.work.unit) == (
            "moments", 20, "blocks",
        )  # fmt: skip
        assert (counter.work.done, counter.failed) == (20, False)
        run_tasks(_small, [1.0] * 20, label="paths")
        assert (counter.work.label, counter.work.unit) == ("paths", "tasks")
        assert (counter.work.done, counter.failed) == (20, False)
        with pytest.raises(InputError):
            run_tasks(_fail_at_three, list(range(20)), label="checks")
        assert counter.failed


def _say_where(item):
    progress.say_where(f"round {item}")


def test_a_task_says_where_it_stands_wherever_it_runs(scheduler):
    notes, heard = [], threading.Event()

    class Listener(progress.SilentReporter):
        def change(self, work):
            notes.append(work.note)
            if work.note:
                heard.set()

    with progress.reported_by(Listener()):
        run_tasks(_say_where, [7], label="rounds", unit="", notes=True)
        # From a worker the note takes a way of its own; it may come after the result.
        assert heard.wait(0 if scheduler != "processes" else 10)
    assert "round 7" in notes


def test_a_graph_has_a_bound(monkeypatch):
    monkeypatch.setattr(execute, "MAX_TASKS", 10)
    with pytest.raises(InputError, match="11 tasks exceed the limit of 10 .* blocks.rows"):
        run_tasks(_small, [1.0] * 11, label="paths")


def test_the_scheduler_in_scope_is_found(scheduler):
    assert crosses_processes() == (scheduler == "processes")
    assert (active_client() is not None) == (scheduler == "processes")


def test_dask_processes_do_not_share_memory():
    with dask.config.set(scheduler="processes"):
        assert active_client() is None
        assert crosses_processes()


@pytest.mark.cluster
def test_tasks_on_a_cluster_are_submitted_in_a_window(client):
    window = execute._window(client)
    assert window == 2 * 2
    submitted, finished = [], []

    class Watcher(progress.SilentReporter):
        def change(self, work):
            finished.append(1)

    def items():
        for i in range(50):
            submitted.append(i)
            assert len(submitted) <= sum(finished) + window + 1
            yield float(i)

    class Lazy(list):
        def __iter__(self):
            return items()

    with progress.reported_by(Watcher()):
        assert run_tasks(_small, Lazy([0.0] * 50), label="w") == [float(i) for i in range(50)]
    assert len(submitted) == 50


@pytest.mark.cluster
def test_nothing_stays_on_the_cluster(client):
    run_tasks(_small, [1.0] * 20, label="paths")
    map_reduce(_small, [1.0] * 20, _add, label="sum")

    def held(dask_scheduler) -> int:
        return len(dask_scheduler.tasks)

    gc.collect()  # what earlier tests left in cycles may hold futures
    deadline = time.monotonic() + 30  # tasks are released when the scheduler gets to it
    while client.run_on_scheduler(held) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert client.run_on_scheduler(held) == 0


@pytest.mark.cluster
@pytest.mark.slow
def test_a_task_that_kills_its_workers_is_a_cluster_error(tmp_path):
    from distributed import Client, LocalCluster

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            local_directory=str(tmp_path),
        ) as running,
        Client(running),
        pytest.raises(ClusterError, match="2 workers in a row died"),
    ):
        run_tasks(_die, [0], label="deadly")


def _assert_that_threads_work() -> None:
    import dask.array as da
    import numpy as np

    from bigfs import MaxVariance

    assert active_client() is None and not crosses_processes()
    assert run_tasks(_square, [1, 2, 3], 1, label="squares") == [2, 5, 10]
    X = da.from_array(np.diag([1.0, 3.0, 2.0]), chunks=2)
    assert MaxVariance(n_features_to_select=1).fit(X).ranking_.tolist() == [1, 2, 0]


def test_a_scheduler_that_a_client_left_in_the_configuration_counts_as_none():
    with dask.config.set(scheduler="dask.distributed"):
        _assert_that_threads_work()


def test_a_default_client_that_never_connected_counts_as_none():
    from distributed import Client

    with pytest.raises(TypeError, match="ssl_context") as caught:  # its traceback holds the client
        Client("tls://127.0.0.1:1")
    try:
        assert Client.current().status == "connecting"
        _assert_that_threads_work()
    finally:
        Client.current().close()
        del caught


def _total_inside(start: int) -> tuple[bool, int, int]:
    items = range(start, start + 9)
    with inline():
        parts = run_tasks(_square, items, 0, label="inner")
        total = map_reduce(_square, items, _add, 0, label="inner")
        return active_client() is None and not crosses_processes(), sum(parts), total


def test_a_task_may_run_tasks_of_its_own_in_its_thread(scheduler: str) -> None:
    sums = [sum(i * i for i in range(start, start + 9)) for start in (0, 10)]
    actual = run_tasks(_total_inside, [0, 10], label="outer")
    assert actual == [(True, total, total) for total in sums]


def test_what_runs_inside_a_task_reports_no_progress() -> None:
    advanced = []

    class Counting(progress.SilentReporter):
        def change(self, work: progress.Work) -> None:
            advanced.append(work.label)

    with progress.reported_by(Counting()):
        run_tasks(_total_inside, [0, 10, 20], label="outer")
    assert advanced == ["outer"] * 3


def _overlap(item: int, folder: str) -> int:
    """Return how many tasks of this process run at the same time as this one."""
    mine = Path(folder) / f"{os.getpid()}-{item}"
    mine.touch()
    time.sleep(0.15)
    running = len(list(Path(folder).glob(f"{os.getpid()}-*")))
    mine.unlink()
    return running


@pytest.mark.parametrize("count", [1, 2])
def test_no_more_tasks_at_once_than_are_allowed(count, tmp_path):
    with dask.config.set(scheduler="threads", num_workers=4), at_most_at_once(count):
        actual = run_tasks(_overlap, range(6), str(tmp_path), label="overlap")
    assert max(actual) == count


@pytest.mark.cluster
def test_results_leave_the_workers_before_a_garbage_collection(client: Any) -> None:
    gc.collect()  # what other tests left
    gc.disable()
    try:
        for _ in range(3):
            assert map_reduce(_ones, range(9), np.add, label="ones").sum() == 900
        deadline = time.monotonic() + 10
        while any(client.run(_n_results).values()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(client.run(_n_results).values())
    finally:
        gc.enable()


def _ones(item: int) -> np.ndarray:
    return np.ones(100)


def _n_results(dask_worker: Any) -> int:
    return len(dask_worker.data)
