"""Fits as users call them: ``python -m tests.cluster._callers CALLER[/CALLER ...] METHOD ...``.

Ends with 0 if each method, called in these ways one after the other, after a fit in this process,
selects what it selects here, and with the stacks of all threads where one has not ended in time.
"""

from __future__ import annotations

import asyncio
import faulthandler
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing.pool import ThreadPool
from typing import Any

import numpy as np

LIMIT_SECONDS = 240
Call = Callable[[str], list[Any]]


def data() -> np.ndarray:
    """Return counts with two groups, of shape (60, 6)."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 6))
    X[:30, :3] += 4
    return np.round(4 * np.abs(X))


def fit(name: str, X: Any = None) -> list[float]:
    """Fit a method, a stability selection, or a graph and its embedding."""
    import bigfs
    from bigfs.selectors.registry import METHODS
    from tests.test_estimators import CHEAP_SETTINGS

    X = data() if X is None else X
    if name == "graph":
        embedding = bigfs.spectral_embedding(bigfs.knn_graph(X, 3), 2).embedding[:]
        found = bigfs.KNeighborsTransformer(3).fit(X).transform(data()[:5])
        return [*embedding.ravel().tolist(), *found.data.tolist()]
    if name == "stability":
        selector = bigfs.StabilitySelection(bigfs.MaxVariance(2), n_pairs=2)
    else:
        settings = CHEAP_SETTINGS.get(name, {})
        selector = METHODS[name].estimator_class()(n_features_to_select=2, **settings)
    selector.fit(X)
    return [*selector.ranking_.tolist(), *selector.scores_.tolist()]


def fit_dask(name: str) -> list[float]:
    """Fit a Dask array: a fit within which Dask computes."""
    import dask.array as da

    return fit(name, da.from_array(data(), chunks=(20, 6)))


async def fit_async(name: str) -> list[float]:
    """Fit in an event loop."""
    return fit(name)


def fit_nested(name: str) -> list[float]:
    """Fit in a task that a task has started, which has given up its thread meanwhile."""
    from distributed import worker_client

    with worker_client() as client:
        here = fit(name)
        return here if here == client.submit(fit, name, pure=False).result() else []


def fit_threads(name: str) -> list[float]:
    """Fit in two threads that a task has started."""
    from distributed import get_client

    get_client()
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(fit, [name, name])
    return first if first == second else []


@contextmanager
def _tasks(function: Any, n_fits: int, **cluster: Any) -> Iterator[Call]:
    from distributed import Client, LocalCluster

    options = {"dashboard_address": None, "memory_limit": 0, "n_workers": 1}
    with LocalCluster(**{**options, **cluster}) as running, Client(running) as client:

        def call(name: str) -> list[Any]:
            futures = client.map(function, [name] * n_fits, pure=False)
            return [future.result(LIMIT_SECONDS) for future in futures]

        yield call


@contextmanager
def _within_client(caller: Callable[[], Any]) -> Iterator[Call]:
    from distributed import Client, LocalCluster

    options: dict[str, Any] = {"dashboard_address": None, "memory_limit": 0}
    with LocalCluster(n_workers=1, threads_per_worker=1, **options) as running, Client(running):
        with caller() as call:
            yield call


@contextmanager
def _processes(method: str) -> Iterator[Call]:
    def call(name: str) -> list[Any]:
        with multiprocessing.get_context(method).Pool(2) as pool:
            return pool.map(fit, [name, name])

    yield call


@contextmanager
def _executor(make: Callable[[], Any]) -> Iterator[Call]:
    def call(name: str) -> list[Any]:
        with make() as pool:
            return list(pool.map(fit, [name, name]))

    yield call


@contextmanager
def _joblib(backend: str) -> Iterator[Call]:
    import joblib

    def call(name: str) -> list[Any]:
        with joblib.parallel_config(backend):
            results: list[Any] = joblib.Parallel(n_jobs=2)(joblib.delayed(fit)(name) for _ in "ab")
        return results

    yield call


@contextmanager
def _dask(how: str, **settings: Any) -> Iterator[Call]:
    import dask
    import dask.array as da
    import dask.dataframe as dd
    import pandas as pd

    with dask.config.set(**settings):

        def tasks(name: str) -> list[Any]:
            return list(dask.compute(*[dask.delayed(fit)(name) for _ in range(3)]))

        def blocks(name: str) -> list[Any]:
            X = da.from_array(data(), chunks=(60, 6))
            fits = X.map_blocks(lambda block: np.array([fit(name, block)]), meta=np.empty((0, 0)))
            return [fits.compute()[0].tolist()]

        def partitions(name: str) -> list[Any]:
            frame = dd.from_pandas(pd.DataFrame(data()), npartitions=1)
            meta = pd.DataFrame({"result": [0.0]})
            fits = frame.map_partitions(
                lambda part: pd.DataFrame({"result": fit(name, part.to_numpy())}), meta=meta
            )
            return [fits.compute()["result"].tolist()]

        yield {"tasks": tasks, "blocks": blocks, "partitions": partitions}[how]


@contextmanager
def _asyncio(how: str) -> Iterator[Call]:
    from distributed import Client

    async def body(name: str) -> Any:
        if how == "alone":
            return fit(name)
        async with Client(
            asynchronous=True, processes=False, dashboard_address=None, threads_per_worker=1
        ) as client:
            if how == "thread":
                return await asyncio.to_thread(fit, name)
            if how == "submit":
                return await client.submit(fit, name, pure=False)
            return fit(name)

    yield lambda name: [asyncio.run(body(name))]


CALLERS: dict[str, Callable[[], Any]] = {
    "task": partial(_tasks, fit, 1, threads_per_worker=1),
    "tasks at once": partial(_tasks, fit, 4, n_workers=2, threads_per_worker=2),
    "nested task": partial(_tasks, fit_nested, 2, threads_per_worker=1),
    "threads of a task": partial(_tasks, fit_threads, 2, threads_per_worker=1),
    "coroutine on a worker": partial(_tasks, fit_async, 2, threads_per_worker=1),
    "task on dask data": partial(_tasks, fit_dask, 2, threads_per_worker=1),
    "task, same process": partial(_tasks, fit, 3, processes=False, threads_per_worker=1),
    "tasks, same process": partial(_tasks, fit, 3, processes=False, threads_per_worker=2),
    "nested task, same process": partial(
        _tasks, fit_nested, 2, processes=False, threads_per_worker=1
    ),
    "coroutine, same process": partial(_tasks, fit_async, 2, processes=False, threads_per_worker=1),
    "dask data, same process": partial(_tasks, fit_dask, 2, processes=False, threads_per_worker=1),
    "fork": partial(_processes, "fork"),
    "spawn": partial(_processes, "spawn"),
    "forkserver": partial(_processes, "forkserver"),
    "executor, fork": partial(
        _executor, partial(ProcessPoolExecutor, 2, multiprocessing.get_context("fork"))
    ),
    "threads": partial(_executor, partial(ThreadPoolExecutor, 2)),
    "joblib loky": partial(_joblib, "loky"),
    "joblib threading": partial(_joblib, "threading"),
    "joblib multiprocessing": partial(_joblib, "multiprocessing"),
    "dask threads": partial(_dask, "tasks", scheduler="threads"),
    "dask processes": partial(_dask, "tasks", scheduler="processes"),
    "dask synchronous": partial(_dask, "tasks", scheduler="synchronous"),
    "dask pool": partial(_dask, "tasks", scheduler="threads", pool=ThreadPoolExecutor(1)),
    "dask pool of multiprocessing": partial(
        _dask, "tasks", scheduler="threads", pool=ThreadPool(1)
    ),
    "dask executor": partial(_dask, "tasks", scheduler=ThreadPoolExecutor(1)),
    "map_blocks": partial(_dask, "blocks"),
    "map_partitions": partial(_dask, "partitions"),
    "asyncio": partial(_asyncio, "alone"),
    "asynchronous client, thread": partial(_asyncio, "thread"),
    "asynchronous client, submit": partial(_asyncio, "submit"),
    "asynchronous client": partial(_asyncio, "direct"),
}
WITHIN_CLIENT = ("fork", "executor, fork", "threads", "map_blocks", "map_partitions", "asyncio")
CALLERS |= {
    f"{caller} within a client": partial(_within_client, CALLERS[caller])
    for caller in WITHIN_CLIENT
}
CALLERS["joblib dask"] = partial(_within_client, partial(_joblib, "dask"))


def main(callers: str, *names: str) -> None:
    """Call each method; see the module."""
    for caller in callers.split("/"):
        with CALLERS[caller]() as call:
            for name in names:
                faulthandler.dump_traceback_later(LIMIT_SECONDS, exit=True)
                expected, results = fit(name), call(name)
                assert results and all(result == expected for result in results), (caller, name)
                print(caller, name, sep=": ", flush=True)
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main(*sys.argv[1:])
