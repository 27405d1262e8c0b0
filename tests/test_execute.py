"""Tasks run in order, sums have one shape, and nothing large is in flight."""

from __future__ import annotations

import os

import numpy as np
import pytest

from bigfs.core.errors import ClusterError, InputError
from bigfs.core.execute import crosses_processes, map_reduce, run_tasks
from bigfs.core.threads import single_thread


def _square(i: int, offset: int = 0) -> int:
    return i * i + offset


def _tenth(i: int) -> float:
    return 0.1 * i + 1e-17 * (i % 7)


def _nested(i: int) -> str:
    return str(i)


def _join(a: str, b: str) -> str:
    return f"({a}{b})"


def _fail(i: int) -> int:
    if i == 3:
        raise InputError("item 3 cannot be used. Got 3.")
    return i


def _die(i: int) -> int:
    os._exit(1)


def _blas_threads(_: int) -> int:
    from threadpoolctl import threadpool_info

    return max((pool["num_threads"] for pool in threadpool_info()), default=1)


def test_results_come_in_the_order_of_the_items(scheduler: str) -> None:
    assert run_tasks(_square, range(30), 5, label="t") == [i * i + 5 for i in range(30)]


def test_no_items_give_no_results(scheduler: str) -> None:
    assert run_tasks(_square, [], label="t") == []


@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 64, 65, 100])
def test_tree_has_one_shape_whatever_the_scheduler(scheduler: str, n: int) -> None:
    found = map_reduce(_nested, range(n), _join, label="t")
    assert found.replace("(", "").replace(")", "") == "".join(str(i) for i in range(n))
    assert found == _expected_tree(n)


def _expected_tree(n: int) -> str:
    """Fold neighbors by eight, level by level; a level's rest waits for the levels above."""
    nodes = [str(i) for i in range(n)]
    rests: list[list[str]] = []
    while len(nodes) >= 8:
        full = len(nodes) // 8 * 8
        rests.append(nodes[full:])
        nodes = [_chain(nodes[i : i + 8]) for i in range(0, full, 8)]
    rests.append(nodes)
    carry: list[str] = []
    for rest in rests:
        group = rest + carry
        carry = [_chain(group)] if group else []
    return carry[0]


def _chain(parts: list[str]) -> str:
    total = parts[0]
    for part in parts[1:]:
        total = _join(total, part)
    return total


def test_sums_are_the_same_bits_on_every_scheduler(scheduler: str) -> None:
    total = map_reduce(_tenth, range(500), float.__add__, label="t")
    nodes = [_tenth(i) for i in range(500)]
    assert total == pytest.approx(sum(nodes), rel=1e-12)
    assert np.float64(total).tobytes().hex() == _reference_bits()


def _reference_bits() -> str:
    import dask

    with dask.config.set(scheduler="synchronous"):
        total = map_reduce(_tenth, range(500), float.__add__, label="t")
    return np.float64(total).tobytes().hex()


def test_an_error_of_a_task_reaches_the_caller_unchanged(scheduler: str) -> None:
    with pytest.raises(InputError, match=r"item 3 cannot be used\. Got 3\."):
        run_tasks(_fail, range(10), label="t")
    with pytest.raises(InputError, match="item 3"):
        map_reduce(_fail, range(10), int.__add__, label="t")


def test_tasks_run_with_one_blas_thread_and_the_limit_is_restored(scheduler: str) -> None:
    before = _blas_threads(0)
    assert set(run_tasks(_blas_threads, range(8), label="t")) == {1}
    assert _blas_threads(0) == before


def test_nested_limits_hold_until_the_last_one_leaves() -> None:
    before = _blas_threads(0)
    first, second = single_thread(), single_thread()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert _blas_threads(0) == 1
    second.__exit__(None, None, None)
    assert _blas_threads(0) == before


def test_crossing_processes_is_known(scheduler: str) -> None:
    assert crosses_processes() == (scheduler == "processes")


@pytest.mark.cluster
def test_lost_workers_are_a_cluster_error() -> None:
    """Kills workers, so it has a cluster of its own."""
    from distributed import Client

    from bigfs.cluster import local_cluster

    with (
        local_cluster(1, 1, 2**30) as cluster,
        Client(cluster),
        pytest.raises(ClusterError, match="run again"),
    ):
        run_tasks(_die, range(1), label="t")
